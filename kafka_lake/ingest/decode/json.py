"""JSON values: what a topic's settings and table ask for, and what the records show; the decoding is the executors'."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from kafka_lake.executors import json_task
from kafka_lake.executors.json_decode import Seen
from kafka_lake.executors.json_task import DECODED, ERROR_CLASS, ERROR_MESSAGE, OBSERVED, loaded
from kafka_lake.executors.json_types import Kind, settled
from kafka_lake.executors.json_values import Rules
from kafka_lake.ingest.decode.decoder import Learned, Nothing
from kafka_lake.ingest.decode.fit_columns import short
from kafka_lake.ingest.decode.target import Target
from kafka_lake.ingest.tasks import told

_WHOLE = {T.ByteType: "byte", T.ShortType: "short", T.IntegerType: "int", T.LongType: "long"}
_SCALARS = {
    **_WHOLE,
    T.BooleanType: "boolean",
    T.FloatType: "float",
    T.DoubleType: "double",
    T.StringType: "string",
    T.CharType: "string",
    T.VarcharType: "string",
    T.BinaryType: "binary",
    T.DateType: "date",
    T.TimestampType: "timestamp",
    T.TimestampNTZType: "timestamp_ntz",
    T.VariantType: "variant",
}
_INFERRED: Mapping[str, T.DataType] = {
    "boolean": T.BooleanType(),
    "int53": T.LongType(),
    "long": T.LongType(),
    "whole": T.DecimalType(38, 0),
    "double": T.DoubleType(),
    "date": T.DateType(),
    "timestamp": T.TimestampType(),
    "timestamp_ntz": T.TimestampNTZType(),
    "text": T.StringType(),
}
_HEADERS = "headers"


def decode_json(
    records: DataFrame,
    columns: T.StructType | Target,
    *,
    max_record_bytes: int | None = None,
    rules: Rules | None = None,
    plain: bool = True,
) -> DataFrame:
    """Add ``decoded``, ``error_class`` and ``error_message`` to records whose value is JSON.

    Args:
        records: What `read` gave; null values (tombstones) get all three as null.
        columns: Columns to look for. Fields that feed none are left aside; not-null columns must be there.
        max_record_bytes: Longer values are not parsed, they are ``too_large``; None for no limit.
        rules: The topic's.
        plain: Whether Arrow's parser takes what it can.

    Returns:
        The records with three more columns, one row for each, none lost.
    """
    target = columns if isinstance(columns, Target) else Target(columns)
    work = work_of(target, rules or Rules(), max_record_bytes, plain)
    return _decoded(records, target, work).drop(OBSERVED)


def work_of(target: Target, rules: Rules, max_record_bytes: int | None, plain: bool = True) -> dict[str, Any]:
    """Return what `json_task.decoder_of` makes a decoder of: plain data, which travels."""
    return {
        "columns": columns_of(target.columns, target),
        "rules": asdict(rules),
        "max_bytes": max_record_bytes,
        "plain": plain,
    }


def columns_of(columns: T.StructType, target: Target, prefix: str = "") -> tuple[Any, ...]:
    """Return columns as the executors know them, see `kafka_lake.executors.json_values`.

    Args:
        columns: The columns.
        target: Which fields feed them.
        prefix: The path that they are below, with a dot behind it.
    """
    return tuple(
        (
            f.name,
            _kind(f.dataType, target, f"{prefix}{f.name}"),
            tuple(target.feeds(f"{prefix}{f.name}", f.name)),
            not f.nullable and not prefix,
            short(f.dataType),
        )
        for f in columns
    )


def _kind(kind: T.DataType, target: Target, path: str) -> tuple[Any, ...]:
    if isinstance(kind, T.StructType):
        return ("struct", columns_of(kind, target, f"{path}."))
    if isinstance(kind, T.ArrayType):
        return ("list", _kind(kind.elementType, target, f"{path}.element"))
    if isinstance(kind, T.MapType):
        return ("map", _kind(kind.valueType, target, f"{path}.value"))
    if isinstance(kind, T.DecimalType):
        return ("decimal", kind.precision, kind.scale)
    return (_SCALARS[type(kind)],)


def _decoded(records: DataFrame, target: Target, work: Mapping[str, Any]) -> DataFrame:
    """Return the records with ``decoded``, ``error_class``, ``error_message`` and ``observed``."""
    text = T.StringType()
    fields = [
        *records.schema.fields,
        T.StructField(DECODED, _travelling(nullable_all(target.columns))),
        *(T.StructField(name, text) for name in (ERROR_CLASS, ERROR_MESSAGE, OBSERVED)),
    ]
    given = records
    if _HEADERS in records.columns:
        # Null lists one after the other cost Spark's Arrow writer the square of their number.
        given = records.withColumn(_HEADERS, F.coalesce(_HEADERS, F.array().cast(records.schema[_HEADERS].dataType)))
    made = given.mapInArrow(told(json_task.decode, work), T.StructType(fields))
    if _HEADERS in records.columns:
        made = made.withColumn(_HEADERS, F.when(F.size(_HEADERS) > 0, F.col(_HEADERS)))
    row = _with_variants(F.col(DECODED), target.columns)
    return made if row is None else made.withColumn(DECODED, F.when(F.col(DECODED).isNotNull(), row))


def _travelling(kind: T.DataType) -> T.DataType:
    """Return the type as workers give it: a variant as its JSON text."""
    return _replaced(kind, lambda each: T.StringType() if isinstance(each, T.VariantType | T.CharType) else each)


def nullable_all(kind: T.DataType) -> T.DataType:
    """Return the type with every nested field, element and value nullable: JSON promises nothing."""
    return _replaced(kind, lambda each: each)


def _replaced(kind: T.DataType, scalar: Callable[[T.DataType], T.DataType]) -> T.DataType:
    if isinstance(kind, T.StructType):
        return T.StructType([T.StructField(f.name, _replaced(f.dataType, scalar)) for f in kind])
    if isinstance(kind, T.ArrayType):
        return T.ArrayType(_replaced(kind.elementType, scalar))
    if isinstance(kind, T.MapType):
        return T.MapType(_replaced(kind.keyType, scalar), _replaced(kind.valueType, scalar))
    return scalar(kind)


def _with_variants(value: Column, kind: T.DataType) -> Column | None:
    """Return a value with the JSON text of variants as variants; None if it has none."""
    if isinstance(kind, T.VariantType):
        return F.parse_json(value)
    if isinstance(kind, T.StructType):
        parts = {f.name: _with_variants(value.getField(f.name), f.dataType) for f in kind}
        if not any(part is not None for part in parts.values()):
            return None
        fields = [(value.getField(name) if part is None else part).alias(name) for name, part in parts.items()]
        return F.when(value.isNotNull(), F.struct(*fields))
    if isinstance(kind, T.ArrayType) and _with_variants(F.lit(None), kind.elementType) is not None:
        return F.transform(value, lambda each: _with_variants(each, kind.elementType))
    if isinstance(kind, T.MapType) and _with_variants(F.lit(None), kind.valueType) is not None:
        return F.transform_values(value, lambda _, each: _with_variants(each, kind.valueType))
    return None


def spark_type(kind: Kind) -> T.DataType:
    """Return the type of the column for a type that was inferred and settled.

    >>> spark_type(["struct", {"id": "int53", "tags": ["list", "text"]}]).simpleString()
    'struct<id:bigint,tags:array<string>>'
    """
    if isinstance(kind, list) and kind[0] == "struct":
        return T.StructType([T.StructField(name, spark_type(each)) for name, each in kind[1].items()])
    if isinstance(kind, list):
        return T.ArrayType(spark_type(kind[1]))
    return _INFERRED[kind]


@dataclass(frozen=True)
class Json(Nothing):
    """Decodes JSON objects, by declared columns or by those of the table and what the records show.

    Args:
        declared: Columns as the settings declare them; None to infer.
        infer_timestamps: Whether text that is a date or time in all records of a batch becomes a column of that type
            when it is first seen.
        rules: How values are read; fields without a column are wanted where nothing is declared.
        plain: Whether Arrow's parser takes what it can.
        watches: Whether to see what is in no column; nobody looks for that in keys, whose columns are declared.
        shown: What the records look like, as far as the table doesn't know it, in one or more schemas.
        misfits: What those look like that fitted no row, by each pass.
        kept_out: What was in the records of the last pass and is in no column: path → what is said of it.
    """

    declared: Target | None = None
    infer_timestamps: bool = False
    rules: Rules = field(default_factory=Rules)
    plain: bool = True
    watches: bool = True
    shown: tuple[T.StructType, ...] = ()
    misfits: tuple[T.StructType, ...] = ()
    kept_out: tuple[tuple[str, str], ...] = ()

    @property
    def fixed(self) -> Target | None:
        """The declared columns."""
        return self.declared

    def incoming(self) -> Sequence[tuple[str, T.StructType]]:
        """Return what the records have shown."""
        shown = [("the records", fields) for fields in self.shown]
        return [*shown, *(("the records that don't fit", fields) for fields in self.misfits)]

    def decode(
        self, records: DataFrame, target: Target, *, max_record_bytes: int | None = None, messages: bool = True
    ) -> DataFrame:
        """Add the three columns of every decoder's result to records, and ``observed``."""
        return _decoded(records, target, self.work(target, max_record_bytes))

    def work(self, target: Target, max_record_bytes: int | None) -> dict[str, Any]:
        """Return what tasks are told, see `work_of`."""
        rules = replace(self.rules, infer=self.declared is None)
        return work_of(target, rules, max_record_bytes, self.plain)

    def metrics(self, max_record_bytes: int | None = None) -> Sequence[Column]:
        """Return how many batches had something that is in no column."""
        return [F.count(OBSERVED).alias(OBSERVED)] if self.watches else []

    def learn(self, counts: Mapping[str, Any], records: DataFrame, target: Target) -> Learned | None:
        """Return a decoder that knows what a pass has shown.

        Args:
            counts: ``observed``: the texts that tell it, or their number; then the records are looked at again.
            records: The records of the pass.
            target: What they were decoded into.
        """
        observed = (counts.get(OBSERVED) if self.watches else None) or ()
        if isinstance(observed, int):
            observed = _observed(records, self.work(target, None))
        if not observed:
            return None if not self.kept_out else Learned(replace(self, kept_out=()), again=False)
        return Learned(self._knowing(loaded(observed, self.rules), target), again=False)

    def _knowing(self, seen: Seen, target: Target) -> "Json":
        said = {
            path: f"{count} times had digits beyond microseconds, which were cut" for path, count in seen.cut.items()
        }
        said |= dict.fromkeys(seen.empty, "has no column yet: it was empty, [] or {}, wherever it was")
        if seen.more:
            said["…"] = f"{seen.more} more fields without a column, counted once in each batch of records"
        known = replace(self, kept_out=tuple(sorted(said.items())))
        if self.declared is not None:
            return known
        shown, misfits = self.shown, self.misfits
        if seen.news:
            first, others = _grown(target.columns, seen.news, target, "", self.infer_timestamps)
            shown = tuple(dict.fromkeys((*shown, first, *(_with_required(each, target) for each in others))))
        if (found := settled(seen.misfits, False)) is not None:
            kind = spark_type(found)
            assert isinstance(kind, T.StructType)
            misfits = tuple(dict.fromkeys((*misfits, _with_required(kind, target))))
        return replace(known, shown=shown, misfits=misfits)

    def unkept(self) -> Mapping[str, str]:
        """Return what was in the records and is in no column: path → what is said of it."""
        return dict(self.kept_out)

    def look(self, records: DataFrame) -> "Json":
        """Return a decoder that knows what records look like, in a pass of its own unless that is declared."""
        if self.declared is not None:
            return self
        nothing = Target(T.StructType([]))
        seen = loaded(_observed(records, self.work(nothing, None)), self.rules)
        return replace(self._knowing(seen, nothing), kept_out=())


def _observed(records: DataFrame, work: Mapping[str, Any]) -> list[str]:
    """Return what batches of records have that no column takes, as `json_task.observe` says it."""
    asked = records.select("value", "partition", "offset")
    frame = asked.mapInArrow(told(json_task.observe, work), T.StructType([T.StructField(OBSERVED, T.StringType())]))
    return [row[OBSERVED] for row in frame.collect()]


def _grown(
    columns: T.StructType, news: Mapping[str, Any], target: Target, prefix: str, times: bool
) -> tuple[T.StructType, list[T.StructType]]:
    """Return what records with new fields look like: the fields that feed columns, by those columns' types, and more.

    All of it by the fields' names, at every depth, which the columns' own may differ from.

    Where a field feeds several columns, its values within the first are in the first schema that is returned, those
    within another one in a schema of its own.
    """
    fields: dict[str, T.StructField] = {}
    others: list[T.StructType] = []
    for column in columns:
        path = f"{prefix}{column.name}"
        source = target.feeds(path, column.name)[0]
        inner = news.get("in", {}).get(column.name)
        kind, aside = _grown_type(column.dataType, inner or {}, target, path, times)
        others += [T.StructType([T.StructField(source, each)]) for each in aside]
        if source not in fields:
            fields[source] = T.StructField(source, kind, column.nullable)
        elif inner is not None:
            others.append(T.StructType([T.StructField(source, kind)]))
    for name, found in news.get("new", {}).items():
        if (known := settled(found, times)) is not None:
            fields[name] = T.StructField(name, spark_type(known))
    return T.StructType(list(fields.values())), others


def _grown_type(
    kind: T.DataType, news: Mapping[str, Any], target: Target, path: str, times: bool
) -> tuple[T.DataType, list[T.DataType]]:
    if isinstance(kind, T.StructType):
        first, others = _grown(kind, news, target, f"{path}.", times)
        return first, list(others)
    inner = news.get("in", {})
    if isinstance(kind, T.ArrayType):
        element, aside = _grown_type(kind.elementType, inner.get("element", {}), target, f"{path}.element", times)
        return T.ArrayType(element, kind.containsNull or bool(inner)), [T.ArrayType(each) for each in aside]
    if isinstance(kind, T.MapType):
        value, aside = _grown_type(kind.valueType, inner.get("value", {}), target, f"{path}.value", times)
        held = T.MapType(kind.keyType, value, kind.valueContainsNull or bool(inner))
        return held, [T.MapType(kind.keyType, each) for each in aside]
    return kind, []


def _with_required(fields: T.StructType, target: Target) -> T.StructType:
    """Return the fields and those of the columns that must not be null: records that lack them are no rows anyway."""
    names = set(fields.fieldNames())
    return T.StructType([*fields, *_required(target, names)])


def _required(target: Target, but: set[str]) -> Iterator[T.StructField]:
    for column in target.columns:
        source = target.feeds(column.name, column.name)[0]
        if not column.nullable and source not in but:
            kind, _ = _grown_type(column.dataType, {}, target, column.name, False)
            yield T.StructField(source, kind, nullable=False)
