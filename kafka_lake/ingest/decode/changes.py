"""Records as changes of keyed rows: any format's decoder, told the row apart from what is said about it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from kafka_lake.common.errors import TableError
from kafka_lake.executors.changes import task
from kafka_lake.executors.changes.change import DELETE, KEY_CHANGED, NO_KEY, NO_OLD_KEY, NO_ORDER, READ, UPSERT
from kafka_lake.executors.changes.debezium import key_row
from kafka_lake.executors.changes.task import CHANGE, ORIGINAL
from kafka_lake.executors.changes.unavailable import DEFAULT_PLACEHOLDER
from kafka_lake.ingest.decode import NULL_IN_REQUIRED_COLUMN
from kafka_lake.ingest.decode.by_schema.envelopes import Envelopes
from kafka_lake.ingest.decode.decoder import Decoder, Learned
from kafka_lake.ingest.decode.json.columns import nullable_all
from kafka_lake.ingest.decode.json.decoder import Json
from kafka_lake.ingest.decode.target import Target
from kafka_lake.ingest.decode.unavailable import Unavailable
from kafka_lake.ingest.tasks import told

_LOOKED_AT = 100
_KEYS_IN = {
    "maxwell": "Let Maxwell write keys of columns (a table with a primary key), or output_primary_key_columns",
    "canal": "Let Canal write pkNames, of a table with a primary key",
}
_TEXT = T.StringType()
_ROW, _OLD, _KEPT, _IN_KEY = (f"__kafka_lake_{name}" for name in ("row", "old", "kept", "in_key"))
_CHANGE = T.StructType(
    [
        T.StructField("does", _TEXT),
        T.StructField("order", T.ArrayType(T.LongType())),
        T.StructField("error_class", _TEXT),
        T.StructField("error_message", _TEXT),
        T.StructField("at", T.LongType()),
        T.StructField("snapshot", _TEXT),
        T.StructField("source", _TEXT),
        T.StructField("old", T.BinaryType()),
        T.StructField("unavailable", T.ArrayType(_TEXT)),
        T.StructField("key", T.BinaryType()),
    ]
)


@dataclass(frozen=True)
class Changes:
    """Decodes records that are changes; what it adds beside a decoder's columns is ``change``: what is done to the row.

    A delete is decoded as far as it tells the row's key.

    Args:
        rows: Decodes rows.
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

    def decode(
        self, records: DataFrame, target: Target, *, max_record_bytes: int | None = None, messages: bool = True
    ) -> DataFrame:
        """Add the columns of every decoder's result to records, and ``change``."""
        given = self._told(records, target)
        old_keys = self._old_keys(target)
        if old_keys is not None:
            given = self._with_part(given, "old", _OLD, old_keys, messages=messages)
        keys = self._keys(target)
        if isinstance(self.rows, Envelopes) and self.rows.lacks(self.key) and keys.columns.fields:
            given = self._with_part(given, "key", _IN_KEY, keys, messages=messages)
        # Deletes tell the key alone: what a row must have is asked of rows.
        made = self.rows.decode(given, _relaxed(target), max_record_bytes=max_record_bytes, messages=messages)
        made = self._with_lacking_keys(made, target)
        unavailable = self._unavailable(target)
        if unavailable is not None:
            made = made.withColumn(_KEPT, unavailable.kept)
            made = made.withColumn("decoded", unavailable.without(F.col("decoded"), F.col(_KEPT)))
        change = F.col(CHANGE)
        error_class, message = F.coalesce(change["error_class"], "error_class"), change["error_message"]
        untaken = [] if unavailable is None else unavailable.verdicts
        for when, name, said in [*self._verdicts(made, target), *untaken]:
            error_class = F.coalesce(error_class, F.when(when, F.lit(name)))
            message = F.coalesce(message, F.when(F.col("error_class").isNull() & when, said))
        told_of_change = [change[name].alias(name) for name in ("does", "order", "at", "snapshot", "source")]
        if old_keys is not None:
            told_of_change.append(F.col(_OLD)["decoded"].alias("old"))
        if unavailable is not None:
            told_of_change.append(F.col(_KEPT).alias("kept"))
        replaced = {
            "value": F.col(ORIGINAL),
            CHANGE: F.struct(*told_of_change),
            "error_class": error_class,
            "error_message": F.coalesce("error_message", message if messages else F.lit(None).cast(_TEXT)),
        }
        names = [name for name in made.columns if name not in (ORIGINAL, _OLD, _KEPT, _IN_KEY)]
        return made.select(*[replaced.get(name, F.col(name)).alias(name) for name in names])

    def _old_keys(self, target: Target) -> Target | None:
        """Return the key's columns, to decode rows before updates into; None if no record may tell another key."""
        may_change = self.envelope in task.ROWS_TOLD or (self.envelope != "none" and not self.of_record)
        keys = self._keys(target)
        return keys if may_change and keys.columns.fields else None

    def _keys(self, target: Target) -> Target:
        """Return the key's columns, none of them required."""
        columns = T.StructType([field for field in target.columns if field.name in self.key_in(target)])
        return _relaxed(replace(target, columns=columns))

    def _with_part(self, given: DataFrame, part: str, name: str, keys: Target, *, messages: bool) -> DataFrame:
        """Return records with the key that a part of the change tells, decoded as rows are.

        Args:
            given: The records.
            part: Of the change: the row before, or the record's key.
            name: Of the new column.
            keys: The key's columns.
            messages: Whether errors shall say anything.
        """
        # What a row has beside its key is of no interest here.
        decoder = replace(self.rows, declared=keys, watches=False) if isinstance(self.rows, Json) else self.rows
        swapped = given.withColumns({_ROW: F.col("value"), "value": F.col(CHANGE)[part]})
        found = decoder.decode(swapped, keys, messages=messages)
        others = [F.col(_ROW if each == "value" else each).alias(each) for each in given.columns]
        return found.select(*others, F.struct("decoded", "error_class", "error_message").alias(name))

    def _with_lacking_keys(self, made: DataFrame, target: Target) -> DataFrame:
        """Return rows whose key columns, where they lack them, are those of the record's key."""
        if _IN_KEY not in made.columns:
            return made
        row, in_key, names = F.col("decoded"), F.col(_IN_KEY)["decoded"], self.key_in(target)
        values = [
            (F.coalesce(row[f.name], in_key[f.name]) if f.name in names else row[f.name]).alias(f.name)
            for f in target.columns
        ]
        return made.withColumn("decoded", F.when(row.isNotNull(), F.struct(*values)))

    def key_in(self, target: Target) -> tuple[str, ...]:
        """Return the key's columns of a table: what a record's key calls them may be no column's name, or an old one.

        Args:
            target: The table's columns.
        """
        if not self.of_record:
            return self.key
        return tuple(_column_of(name, target) for name in self.key)

    def of_partitions(self, count: int) -> "Changes":
        """Return a decoder for a topic of so many partitions, whose offsets alone may tell the order of changes."""
        has_order = bool(self.order_by) or self.envelope not in task.ROWS_TOLD
        return replace(self, comparable=has_order or count == 1)

    def _unavailable(self, target: Target) -> Unavailable | None:
        """Return what becomes of values that aren't sent; None if every value is."""
        if self.envelope != "debezium":
            return None
        fixed = self.left_out is None or self.rows.fixed is not None
        return Unavailable(F.col(CHANGE)["unavailable"], target, left_out=None if fixed else self.left_out)

    def work(self, target: Target, max_record_bytes: int | None) -> Mapping[str, Any] | None:
        """Return None: Spark's expressions decode."""
        return None

    def metrics(self, max_record_bytes: int | None = None) -> Sequence[Column]:
        """Return what rows tell."""
        return self.rows.metrics(max_record_bytes)

    def learn(self, counts: Mapping[str, Any], records: DataFrame, target: Target) -> Learned | None:
        """Return what a pass taught about rows."""
        learned = self.rows.learn(counts, self._shown(records), _relaxed(target))
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
        return replace(known, rows=known.rows.look(known._told(records)))

    def marks(self) -> Mapping[str, str]:
        """Return the marks of what decodes rows."""
        return self.rows.marks()

    def seen(self, counts: Mapping[str, Any]) -> Mapping[str, int]:
        """Return the schemas of rows."""
        return self.rows.seen(counts)

    def unkept(self) -> Mapping[str, str]:
        """Return what is said of rows."""
        return self.rows.unkept()

    def _key_shown(self, records: DataFrame) -> tuple[str, ...]:
        """Return the columns of the key that records tell.

        Raises:
            TableError: If they don't.
        """
        if (module := task.ROWS_TOLD.get(self.envelope)) is not None:
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

    def _shown(self, records: DataFrame) -> DataFrame:
        """Return what shows a decoder of rows what rows look like: the ids of schemas are those of the records."""
        return records if isinstance(self.rows, Envelopes) else self._told(records)

    def _told(self, records: DataFrame, target: Target | None = None) -> DataFrame:
        """Return records whose value is the row, with ``change`` and their own value beside it.

        Args:
            records: The records.
            target: Knows which fields feed the key's columns; None if there is no table yet.
        """
        if not self.looks:
            none = F.lit(None)
            does = F.when(F.col("value").isNull(), F.lit(DELETE)).otherwise(F.lit(UPSERT))
            parts = [does, *(none.cast(field.dataType) for field in _CHANGE.fields[1:])]
            change = F.struct(*[part.alias(name) for part, name in zip(parts, _CHANGE.names, strict=True)])
            return records.withColumn(CHANGE, change).withColumn(ORIGINAL, F.col("value"))
        made = [*records.schema.fields, T.StructField(CHANGE, _CHANGE), T.StructField(ORIGINAL, T.BinaryType())]
        fields = [target.feeds(name, name)[0] for name in self.key] if target and not self.of_record else self.key
        work = {"envelope": self.envelope, "columns": list(fields), "of_record": self.of_record}
        work["placeholder"] = self.placeholder
        if isinstance(self.rows, Envelopes):
            work |= {"envelope": f"{self.envelope}_avro", "schemas": dict(self.rows.schemas)}
        return records.mapInArrow(told(task.changes, work), T.StructType(made))

    def _verdicts(self, made: DataFrame, target: Target) -> list[tuple[Column, str, Column]]:
        """Return why a change is none, in the order of importance: condition, error class, message."""
        row, does = F.col("decoded"), F.col(CHANGE)["does"]
        is_row = does.isin(UPSERT, READ)
        names, of_key = target.columns.fieldNames(), self.key_in(target)

        def missing(columns: Sequence[str]) -> Column:
            nulls = [F.lit(name) if name not in names else F.when(row[name].isNull(), F.lit(name)) for name in columns]
            return F.concat_ws(", ", *nulls)

        def missing_unless_kept(columns: Sequence[str]) -> Column:
            if _KEPT not in made.columns:
                return missing(columns)
            told = [F.when(row[name].isNull() & ~F.array_contains(_KEPT, name), F.lit(name)) for name in columns]
            return F.concat_ws(", ", *told)

        key = missing(of_key) if self.key else F.when(F.col("key").isNull(), F.lit("the record's key")).otherwise("")
        required = missing_unless_kept([f.name for f in target.columns if not f.nullable and f.name not in of_key])
        order = missing(self.order_by)
        return [
            *self._verdicts_of_old(made),
            ((is_row | (does == DELETE)) & (key != ""), NO_KEY, F.concat(F.lit("Null or missing in the key: "), key)),
            (is_row & (required != ""), NULL_IN_REQUIRED_COLUMN, _said("Required, but null or missing: ", required)),
            (is_row & (order != ""), NO_ORDER, _said("Null or missing, and changes are ordered by it: ", order)),
        ]

    def _verdicts_of_old(self, made: DataFrame) -> list[tuple[Column, str, Column]]:
        """Return why the row before an update doesn't tell its key, or can't go."""
        if _OLD not in made.columns:
            return []
        old, is_told = F.col(_OLD), F.col(CHANGE)["old"].isNotNull()
        reason = F.coalesce(old["error_message"], old["error_class"])
        names = made.select(f"{_OLD}.decoded.*").columns
        nulls = F.concat_ws(", ", *[F.when(old["decoded"][name].isNull(), F.lit(name)) for name in names])
        differing = [
            F.when(~old["decoded"][name].eqNullSafe(F.col("decoded")[name]), F.lit(name))
            for name in names
            if not self.comparable
        ]
        moved = F.concat_ws(", ", *differing)
        from_where = ", and the row of the old key may be from another partition. Name a column with order_by:."
        return [
            (is_told & old["error_class"].isNotNull(), NO_OLD_KEY, F.concat(F.lit("The row before: "), reason)),
            (is_told & (nulls != ""), NO_OLD_KEY, _said("Null or missing in the key before the update: ", nulls)),
            (is_told & (moved != ""), KEY_CHANGED, F.concat(F.lit("The update changes "), moved, F.lit(from_where))),
        ]


def _column_of(field: str, target: Target) -> str:
    """Return the column that a field of a record's key feeds, by the rule for fields of values; else its own name."""
    feeds = {name: target.feeds(name, name) for name in target.columns.fieldNames()}
    exact = [name for name, sources in feeds.items() if field in sources]
    alike = [name for name, sources in feeds.items() if field.lower() in map(str.lower, sources)]
    return exact[0] if exact else alike[0] if target.any_case and len(alike) == 1 else field


def _said(before: str, names: Column) -> Column:
    return F.concat(F.lit(before), names, F.lit("."))


def _relaxed(target: Target) -> Target:
    columns = nullable_all(target.columns)
    assert isinstance(columns, T.StructType)
    return replace(target, columns=columns)
