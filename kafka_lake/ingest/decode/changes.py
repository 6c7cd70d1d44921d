"""Records as changes of keyed rows: what tasks are told to decode them, and what they have shown."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from kafka_lake.errors import TableError
from kafka_lake.executors.changes.debezium import key_row
from kafka_lake.executors.changes.decoder import ChangesDecoder
from kafka_lake.executors.changes.told import ROWS_TOLD, rows_told
from kafka_lake.executors.changes.unavailable import DEFAULT_PLACEHOLDER
from kafka_lake.executors.decoded import Observed
from kafka_lake.ingest.decode.by_schema.envelopes import Envelopes
from kafka_lake.ingest.decode.columns import Target, nullable_all
from kafka_lake.ingest.decode.decoder import Decoder, Learned
from kafka_lake.ingest.decode.json_values import Json
from kafka_lake.ingest.decode.unavailable import may_be_unavailable
from kafka_lake.ingest.tasks import packed, told

_LOOKED_AT = 100
_KEYS_IN = {
    "maxwell": "Let Maxwell write keys of columns (a table with a primary key), or output_primary_key_columns",
    "canal": "Let Canal write pkNames, of a table with a primary key",
}
_TEXT = T.StringType()
_CHANGE = T.StructType(
    [
        T.StructField("does", _TEXT),
        T.StructField("order", T.ArrayType(T.LongType())),
        T.StructField("at", T.LongType()),
        T.StructField("snapshot", _TEXT),
        T.StructField("source", _TEXT),
    ]
)


@dataclass(frozen=True)
class Changes:
    """Decodes records that are changes, see `kafka_lake.executors.changes.decoder`.

    Args:
        envelope: What they are wrapped in.
        key: Columns of the row's key; empty if it is the record's bytes, or not known before records are looked at.
        order_by: Columns that tell the order of changes.
        of_record: Whether the columns are those of the record's key.
        looks: Whether each record must be looked at to tell its row: for an envelope, and for records without a value
            whose key tells columns.
        comparable: Whether a change of an old key and one of a new key can be compared with others, from whatever
            partition.
        placeholder: What Debezium writes for values that aren't sent.
        left_out: Fields that get no column; None if no field without a column gets one.
    """

    rows: Decoder
    envelope: str
    key: tuple[str, ...]
    order_by: tuple[str, ...]
    of_record: bool
    looks: bool
    comparable: bool = True
    placeholder: str = DEFAULT_PLACEHOLDER
    left_out: tuple[str, ...] | None = ()

    @property
    def fixed(self) -> Target | None:
        """The columns, if they are settled."""
        return self.rows.fixed

    def incoming(self) -> Sequence[tuple[str, T.StructType]]:
        """Return what rows look like."""
        return self.rows.incoming()

    def work(self, target: Target, max_record_bytes: int | None) -> Mapping[str, Any]:
        """Return what tasks are told. Deletes tell the key alone: what a row must have is asked of rows."""
        of_key = self.key_in(target)
        old, in_key = self._old_keys(target), self._keys_beside(target)
        is_avro = isinstance(self.rows, Envelopes)
        may_lack = self._may_lack(target)
        told = {
            "told": self._teller(target) if self.looks else None,
            "key": of_key,
            "columns": target.columns.fieldNames(),
            "required": [f.name for f in target.columns if not f.nullable and f.name not in of_key],
            "order_by": self.order_by,
            "comparable": self.comparable,
            "feeds": may_lack,
            "fed": [name for f in target.columns for name in target.feeds(f.name, f.name)],
            "left_out": None if self.left_out is None or self.rows.fixed is not None else self.left_out,
            "counts_ids": is_avro,
        }
        return {
            "decoder": "changes",
            "packed": packed(ChangesDecoder),
            "rows": self.rows.work(_relaxed(target), max_record_bytes),
            "old": None if old is None else self._of_keys().work(old, None),
            "in_key": None if in_key is None else self._of_keys().work(in_key, None),
            "told": told,
        }

    def change(self, target: Target) -> T.StructType:
        """Return the type of what records do to rows: with the key before an update, and columns that stay."""
        fields = list(_CHANGE)
        if (old := self._old_keys(target)) is not None:
            fields.append(T.StructField("old", old.columns))
        if self._may_lack(target) is not None:
            fields.append(T.StructField("kept", T.ArrayType(_TEXT)))
        return T.StructType(fields)

    def _may_lack(self, target: Target) -> dict[str, list[str]] | None:
        """Return the columns whose values may not be sent, and which fields feed them; None if all are sent."""
        if self.envelope != "debezium":
            return None
        lacking = (f.name for f in target.columns if may_be_unavailable(f.dataType))
        return {name: list(target.feeds(name, name)) for name in lacking}

    def _of_keys(self) -> Decoder:
        """Return what decodes keys: what a row has beside them is of no interest."""
        if isinstance(self.rows, Json):
            return replace(self.rows, declared=Target(T.StructType([])), watches=False)
        return self.rows

    def _old_keys(self, target: Target) -> Target | None:
        """Return the key's columns, to decode rows before updates into; None if no record may tell another key."""
        may_change = self.envelope in ROWS_TOLD or (self.envelope != "none" and not self.of_record)
        keys = self._keys(target)
        return keys if may_change and keys.columns.fields else None

    def _keys_beside(self, target: Target) -> Target | None:
        """Return the key's columns, to decode records' keys into; None if rows have them all."""
        keys = self._keys(target)
        lacks = isinstance(self.rows, Envelopes) and self.rows.lacks(self.key)
        return keys if lacks and keys.columns.fields else None

    def _keys(self, target: Target) -> Target:
        """Return the key's columns, none of them required."""
        columns = T.StructType([field for field in target.columns if field.name in self.key_in(target)])
        return _relaxed(replace(target, columns=columns))

    def key_in(self, target: Target) -> tuple[str, ...]:
        """Return the key's columns of a table, by the names that the table has today."""
        if not self.of_record:
            return self.key
        return tuple(_column_of(name, target) for name in self.key)

    def of_partitions(self, count: int) -> "Changes":
        """Return a decoder for a topic of so many partitions, whose offsets alone may tell the order of changes."""
        has_order = bool(self.order_by) or self.envelope not in ROWS_TOLD
        return replace(self, comparable=has_order or count == 1)

    def learn(self, seen: Observed, records: DataFrame, target: Target) -> Learned | None:
        """Return what a pass taught about rows."""
        learned = self.rows.learn(seen, records, _relaxed(target))
        return learned and Learned(replace(self, rows=learned.decoder), learned.again)

    def look(self, records: DataFrame) -> "Changes":
        """Return a decoder that has looked at rows, and at the columns of the first record's key if that is needed.

        Raises:
            TableError: If it is, and no record has any.
        """
        known = replace(self, rows=self.rows.look(records)) if isinstance(self.rows, Envelopes) else self
        if known.of_record and not known.key:
            known = replace(known, key=known._key_shown(records))
        if isinstance(known.rows, Envelopes):
            return known
        return replace(known, rows=known.rows.look(known._rows_of(records)))

    def marks(self) -> Mapping[str, str]:
        """Return the marks of what decodes rows."""
        return self.rows.marks()

    def seen(self, seen: Observed) -> Mapping[str, int]:
        """Return the schemas of rows."""
        return self.rows.seen(seen)

    def unkept(self) -> Mapping[str, str]:
        """Return what is said of rows."""
        return self.rows.unkept()

    def _key_shown(self, records: DataFrame) -> tuple[str, ...]:
        """Return the columns of the key that records tell."""
        if (module := ROWS_TOLD.get(self.envelope)) is not None:
            first = records.filter(F.col("value").isNotNull()).select("key", "value").head(_LOOKED_AT)
            shown = (module.key_columns(row["key"] and bytes(row["key"]), bytes(row["value"])) for row in first)
            what, writes = f"None of the first {len(first)} records tells the key of its row", _KEYS_IN[self.envelope]
        else:
            first = records.filter(F.col("key").isNotNull()).select("key").head(1)
            is_avro = isinstance(self.rows, Envelopes)
            shown = (self._columns_of(bytes(row["key"])) for row in first)
            what = "The first record with a key tells no columns by it"
            writes = f"Let the connector write keys as {'Avro records' if is_avro else 'JSON objects'}"
        found: tuple[str, ...] = next(filter(None, shown), ())
        if not found:
            raise TableError(f"{what}: rows can't be told apart.", f"{writes}, or name the columns with key:.")
        return found

    def _columns_of(self, key: bytes) -> tuple[str, ...]:
        if isinstance(self.rows, Envelopes):
            return self.rows.key_columns(key)
        return tuple(key_row(key) or ())

    def _rows_of(self, records: DataFrame) -> DataFrame:
        """Return records whose values are the rows that they tell."""
        if not self.looks:
            return records
        # No lists among them: those that are null cost Spark's Arrow writer the square of their number.
        looked_at = records.select("key", "value", "partition", "offset")
        return looked_at.mapInArrow(told(rows_told, self._teller(None)), looked_at.schema)

    def _teller(self, target: Target | None) -> dict[str, Any]:
        """Return what `change_teller` takes."""
        fields = [target.feeds(name, name)[0] for name in self.key] if target and not self.of_record else self.key
        work = {"envelope": self.envelope, "columns": list(fields), "of_record": self.of_record}
        work["placeholder"] = self.placeholder
        if isinstance(self.rows, Envelopes):
            work |= {"envelope": f"{self.envelope}_avro", "schemas": dict(self.rows.schemas)}
        return work


def _column_of(field: str, target: Target) -> str:
    """Return the column that a field of a record's key feeds, by the rule for fields of values; else its own name."""
    feeds = {name: target.feeds(name, name) for name in target.columns.fieldNames()}
    exact = [name for name, sources in feeds.items() if field in sources]
    alike = [name for name, sources in feeds.items() if field.lower() in map(str.lower, sources)]
    return exact[0] if exact else alike[0] if target.any_case and len(alike) == 1 else field


def _relaxed(target: Target) -> Target:
    columns = nullable_all(target.columns)
    assert isinstance(columns, T.StructType)
    return replace(target, columns=columns)
