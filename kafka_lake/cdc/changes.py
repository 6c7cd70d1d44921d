"""The decoder of change events on the driver: what tasks need, and what the records have shown."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from kafka_lake.cdc.task.debezium import SOURCE, key_fields
from kafka_lake.cdc.task.decoder import ChangesDecoder
from kafka_lake.cdc.task.mysql import key_names
from kafka_lake.cdc.task.unavailable import may_be_unavailable
from kafka_lake.engine.interop import packed, to_arrow_schema
from kafka_lake.errors import TableError
from kafka_lake.formats.columns import Target, columns_of, nullable_all
from kafka_lake.formats.decoder import Decoder, Learned, observed_in_tasks
from kafka_lake.formats.registered import Registered
from kafka_lake.formats.task.decoded import NOTHING, Observed

_INSPECTED = 100
_OF_MYSQL = ("maxwell", "canal")
_KEYS_IN = {
    "maxwell": "Let Maxwell write keys of columns (a table with a primary key), or output_primary_key_columns",
    "canal": "Let Canal write pkNames, of a table with a primary key",
}
_TEXT = T.StringType()
_CHANGE = T.StructType(
    [
        T.StructField("operation", _TEXT),
        T.StructField("order", T.ArrayType(T.LongType())),
        T.StructField("at", T.LongType()),
        T.StructField("snapshot", _TEXT),
        T.StructField("source", _TEXT),
    ]
)
_NOTHING = Target(T.StructType([]))


@dataclass(frozen=True)
class Changes(Decoder):
    """Decodes change events, see `kafka_lake.cdc.task.decoder`.

    Args:
        rows: Decodes rows; with Debezium in Avro, whole envelopes.
        envelope: Name of the envelope, or ``none``.
        key: Columns of the row's key; empty if the record's bytes are the key, or until `inspect` finds them.
        looks: Whether there is an envelope, or the key of a record without a value has the columns of the row's key.
        keys: Decodes keys in Avro, with an envelope.
        comparable: Whether a change of the old key and one of the new key are ordered, even in two partitions.
        left_out: Fields that get no column; None if no new field gets one.
        max_columns: Limit of new fields that are reported.
    """

    rows: Decoder
    envelope: str
    key: tuple[str, ...]
    order_by: tuple[str, ...]
    of_record: bool
    looks: bool
    keys: Registered | None = None
    comparable: bool = True
    left_out: tuple[str, ...] | None = ()
    max_columns: int = 1000

    @property
    def of_rows(self) -> Decoder:
        """The decoder of rows."""
        return self.rows

    @property
    def row_key(self) -> tuple[str, ...]:
        """The columns of the row's key."""
        return self.key

    def unreadable_schemas(self) -> Sequence[str]:
        """Return why schemas of rows can't be read."""
        return self.rows.unreadable_schemas()

    @property
    def fixed(self) -> Target | None:
        """The columns if they are declared."""
        return self.rows.fixed

    def incoming(self) -> Sequence[tuple[str, T.StructType]]:
        """Return the schemas of rows, and of keys, which may have columns that rows lack."""
        if self.keys is None:
            return self.rows.incoming()
        rows = ((label, fields["after"].dataType) for label, fields in self.rows.incoming())
        return [*((label, row) for label, row in rows if isinstance(row, T.StructType)), *self.keys.incoming()]

    def for_tasks(self, target: Target, max_record_bytes: int | None) -> Mapping[str, Any]:
        """Return the data of the tasks' decoder. Columns are nullable for rows, since deletes have the key only."""
        of_key, columns = self.key_in(target), columns_of(target.columns, target)
        ignores = self.left_out is None or self.rows.fixed is not None
        return {
            "decoder": packed(ChangesDecoder),
            "rows": self.rows.for_tasks(self._rows_target(target), max_record_bytes),
            "keys": self._keys_work(target),
            "envelope": self._envelope(target),
            "columns": columns,
            "key": of_key,
            "order_by": self.order_by,
            "comparable": self.comparable,
            "ignored": None if ignores else self.left_out,
        }

    def change_type(self, target: Target) -> T.StructType:
        """Return the type of change events, with the key before an update and the unavailable columns."""
        fields = list(_CHANGE)
        keys = self._keys_target(target).columns
        if (self.envelope in _OF_MYSQL or (self.envelope != "none" and not self.of_record)) and keys.fields:
            fields.append(T.StructField("old_key", keys))
        if self.envelope == "debezium" and any(map(may_lack_values, target.columns)):
            fields.append(T.StructField("unavailable", T.ArrayType(_TEXT)))
        return T.StructType(fields)

    def key_in(self, target: Target) -> tuple[str, ...]:
        """Return the key's columns by their names in the table."""
        if not self.of_record:
            return self.key
        return tuple(_column_of(name, target) for name in self.key)

    def of_partitions(self, count: int) -> "Changes":
        """Return a decoder for a number of partitions: in one, offsets order all changes."""
        has_order = bool(self.order_by) or self.envelope not in _OF_MYSQL
        return replace(self, comparable=has_order or count == 1)

    def learn(self, seen: Observed, records: DataFrame | None, target: Target) -> Learned | None:
        """Return what a pass taught about rows, and about keys in Avro."""
        rows = self.rows.learn(seen, records, _relaxed(target))
        keys = self.keys.learn(seen.key or NOTHING, records, target) if self.keys is not None else None
        if rows is None and keys is None:
            return None
        learned = replace(self, rows=rows.decoder if rows else self.rows)
        if keys is not None:
            assert isinstance(keys.decoder, Registered)
            learned = replace(learned, keys=keys.decoder)
        return Learned(learned, bool((rows and rows.again) or (keys and keys.again)))

    def inspect(self, records: DataFrame) -> "Changes":
        """Return a decoder that knows the columns of rows, and of the record's key if needed."""
        if self.keys is not None:
            looked = replace(self, rows=self.rows.inspect(records), keys=self.keys.inspect(records))
            return looked._with_key(records)
        known = self._with_key(records)
        if not known.looks or known.envelope == "none" or known.rows.fixed is not None:
            return replace(known, rows=known.rows.inspect(records))
        seen = observed_in_tasks(records, known.for_tasks(_NOTHING, None), known.max_columns)
        learned = known.rows.learn(seen, records, _NOTHING)
        return known if learned is None else replace(known, rows=learned.decoder)

    def snapshot_properties(self) -> Mapping[str, str]:
        """Return the snapshot properties of the decoders of rows, and of keys in Avro."""
        return {**self.rows.snapshot_properties(), **(self.keys.snapshot_properties() if self.keys is not None else {})}

    def schema_counts(self, seen: Observed) -> Mapping[str, int]:
        """Return the schemas of rows."""
        return self.rows.schema_counts(seen)

    def not_stored(self) -> Mapping[str, str]:
        """Return what the rows of the last pass had that no column has."""
        return self.rows.not_stored()

    def _envelope(self, target: Target) -> dict[str, Any]:
        """Return the settings of the envelope, see `kafka_lake.cdc.task.decoder`."""
        fields = self.key if self.of_record else tuple(target.feeds(name, name)[0] for name in self.key)
        if self.envelope == "none":
            return {"name": "none", "fields": fields}
        settings: dict[str, Any] = {"name": self.envelope, "fields": fields, "of_record": self.of_record}
        if self.envelope != "debezium":
            return settings
        if self.keys is None:
            return {**settings, "learns_keys": self._learns_keys(target)}
        return {**settings, "name": "debezium_avro", "key_fields": self.keys.fields_of_schema()}

    def _rows_target(self, target: Target) -> Target:
        """Return the columns of rows; with Debezium in Avro, those of whole envelopes."""
        if self.keys is None:
            return _relaxed(target)
        parts = {"after": _relaxed(target), "before": self._keys_target(target)}
        kinds = {"string": T.StringType(), "long": T.LongType()}
        source = T.StructType([T.StructField(name, kinds[kind]) for name, kind in SOURCE.items()])
        members = {**{name: part.columns for name, part in parts.items()}, "op": T.StringType(), "source": source}
        return Target(
            T.StructType([T.StructField(name, kind) for name, kind in members.items()]),
            {f"{name}.{path}": source for name, part in parts.items() for path, source in part.sources.items()},
            {f"{name}.{path}": names for name, part in parts.items() for path, names in part.also.items()},
            any_case=target.any_case,
        )

    def _keys_work(self, target: Target) -> Mapping[str, Any] | None:
        """Return the decoder of key columns, in records' keys and in rows before a change; None if there is none."""
        if self.keys is not None:
            return self.keys.for_tasks(self._keys_target(target), None)
        return self.rows.key_task(self._keys_target(target), self._learns_keys(target)) if self.looks else None

    def _keys_target(self, target: Target) -> Target:
        """Return the key's columns, all nullable."""
        columns = T.StructType([field for field in target.columns if field.name in self.key_in(target)])
        return _relaxed(replace(target, columns=columns))

    def _learns_keys(self, target: Target) -> bool:
        """Return whether the table lacks columns of the key, so that records' keys are inspected."""
        names = target.columns.fieldNames()
        return self.of_record and self.rows.fixed is None and any(name not in names for name in self.key_in(target))

    def _with_key(self, records: DataFrame) -> "Changes":
        """Return a decoder that knows the key's columns, by the first records."""
        if not self.of_record or self.key:
            return self
        if self.envelope in _OF_MYSQL:
            first = records.filter(F.col("value").isNotNull()).select("key", "value").head(_INSPECTED)
            keys = (key_names(self.envelope, row["key"] and bytes(row["key"]), bytes(row["value"])) for row in first)
            problem, remedy = (
                f"None of the first {len(first)} records names the key of its row",
                _KEYS_IN[self.envelope],
            )
        else:
            first = records.filter(F.col("key").isNotNull()).select("key", "headers").head(1)
            keys = (self._fields_of(bytes(row["key"]), row["headers"]) for row in first)
            problem = "The key of the first record that has one names no columns"
            remedy = f"Let the connector write keys as {'JSON objects' if self.keys is None else 'Avro records'}"
        key: tuple[str, ...] = next(filter(None, keys), ())
        if not key:
            raise TableError(f"{problem}: rows can't be identified.", f"{remedy}, or name the columns with key:.")
        return replace(self, key=key)

    def _fields_of(self, key: bytes, headers: Any) -> tuple[str, ...]:
        return key_fields(key) if self.keys is None else self.keys.fields_of(key, headers)


def _column_of(field: str, target: Target) -> str:
    """Return the column that a field of a record's key feeds, by the rules for values; by default its own name."""
    feeds = {name: target.feeds(name, name) for name in target.columns.fieldNames()}
    exact = [name for name, sources in feeds.items() if field in sources]
    alike = [name for name, sources in feeds.items() if field.lower() in map(str.lower, sources)]
    return exact[0] if exact else alike[0] if target.any_case and len(alike) == 1 else field


def _relaxed(target: Target) -> Target:
    columns = nullable_all(target.columns)
    assert isinstance(columns, T.StructType)
    return replace(target, columns=columns)


def may_lack_values(field: T.StructField) -> bool:
    """Return whether PostgreSQL may store a column's values outside of their rows, so that some are not sent."""
    return may_be_unavailable(to_arrow_schema(T.StructType([field])).field(0).type)


def source_table(event: Column, envelope: str) -> Column:
    """Return the source table of a change event, with its schema or database; null if the event has none."""
    if envelope == "debezium":
        # A converter with schemas.enable wraps the event.
        event = F.coalesce(F.get_json_object(event, "$.source"), F.get_json_object(event, "$.payload.source"))
    names = ("schema", "db") if envelope == "debezium" else ("database",)
    schema = F.coalesce(*(F.get_json_object(event, f"$.{name}") for name in names))
    return F.concat(schema, F.lit("."), F.get_json_object(event, "$.table"))
