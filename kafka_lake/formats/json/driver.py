"""JSON values: what a topic's settings and table ask for, and what the records show; tasks decode."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import reduce
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import types as T

from kafka_lake.formats.columns import Target, columns_of, spark_type
from kafka_lake.formats.decoder import Learned, Nothing, decoded_in_tasks, observed_in_tasks
from kafka_lake.formats.json.task.types import settled
from kafka_lake.formats.json_schema import ANY, Record, either_of, json_schema_content, table_type
from kafka_lake.formats.task.batches import OBSERVED
from kafka_lake.formats.task.columns import Rules
from kafka_lake.formats.task.decoded import Observed
from kafka_lake.kafka.registry import WriterSchema

_BESIDE = "feeds no declared column, and had a value {} times"


def decode_json(
    records: DataFrame,
    columns: T.StructType | Target,
    *,
    max_record_bytes: int | None = None,
    rules: Rules | None = None,
    plain: bool = True,
) -> DataFrame:
    """Add ``decoded``, ``error_class`` and ``error_message`` to records whose value is JSON."""
    target = columns if isinstance(columns, Target) else Target(columns)
    work = work_of(target, rules or Rules(), max_record_bytes, plain)
    return decoded_in_tasks(records, target.columns, work).drop(OBSERVED)


def said_of(seen: Observed) -> dict[str, str]:
    """Return what is said of values and fields that are in no column: path → the sentence."""
    said = {path: f"{count} times had digits beyond microseconds, which were cut" for path, count in seen.cut.items()}
    said |= {
        path: f"{count} numbers have more digits than the column's type holds; they were rounded to the nearest one"
        for path, count in seen.rounded.items()
    }
    said |= dict.fromkeys(seen.empty, "has no column yet: it was empty, [] or {}, wherever it was")
    if seen.more:
        said["…"] = f"{seen.more} more fields without a column, counted once in each batch of records"
    return said


def work_of(target: Target, rules: Rules, max_record_bytes: int | None, plain: bool = True) -> dict[str, Any]:
    """Return what `record_decoder` makes a decoder of: plain data, which travels."""
    return {
        "decoder": "json",
        "columns": columns_of(target.columns, target),
        "rules": asdict(rules),
        "max_bytes": max_record_bytes,
        "plain": plain,
    }


@dataclass(frozen=True)
class Json(Nothing):
    """Decodes JSON objects, by declared columns or by those of the table and what the records show.

    Args:
        declared: Columns as the settings declare them; None to infer.
        infer_timestamps: Whether text that is a date or time in all records of a batch becomes a column of that type
            when it is first seen.
        rules: How values are read; fields without a column are wanted where nothing is declared.
        watches: Whether to see what is in no column; nobody looks for that in keys, whose columns are declared.
        shown: What the records look like, as far as the table doesn't know it, in one or more schemas.
        misfits: What those look like that fitted no row, by each pass.
        kept_out: What was in the records of the last pass and is in no column: path → what is said of it.
    """

    declared: Target | None = None
    infer_timestamps: bool = False
    rules: Rules = field(default_factory=Rules)
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

    def work(self, target: Target, max_record_bytes: int | None) -> Mapping[str, Any]:
        """Return what tasks are told, see `work_of`."""
        any_case = target.any_case or self.declared is not None
        rules = replace(self.rules, infer=self.declared is None, any_case=any_case)
        return work_of(target, rules, max_record_bytes)

    def learn(self, seen: Observed, records: DataFrame, target: Target) -> Learned | None:
        """Return a decoder that knows what a pass has shown."""
        if not (self.watches and seen):
            return None if not self.kept_out else Learned(replace(self, kept_out=()), again=False)
        return Learned(self._knowing(seen, target), again=False)

    def _knowing(self, seen: Observed, target: Target) -> "Json":
        said = said_of(seen)
        known = replace(self, kept_out=tuple(sorted(said.items())))
        if self.declared is not None:
            said |= {path: _BESIDE.format(count) for path, count in seen.aside.items()}
            return replace(known, kept_out=tuple(sorted(said.items())))
        shown, misfits = self.shown, self.misfits
        if seen.news:
            first, others = grown(target.columns, seen.news, target, prefix="", times=self.infer_timestamps)
            shown = tuple(dict.fromkeys((*shown, first, *(with_required(each, target) for each in others))))
        if (found := settled(seen.misfits, False)) is not None:
            kind = spark_type(found)
            assert isinstance(kind, T.StructType)
            misfits = tuple(dict.fromkeys((*misfits, with_required(kind, target))))
        return replace(known, shown=shown, misfits=misfits)

    def unkept(self) -> Mapping[str, str]:
        """Return what was in the records and is in no column: path → what is said of it."""
        return dict(self.kept_out)

    def look(self, records: DataFrame) -> "Json":
        """Return a decoder that knows what records look like, in a pass of its own unless that is declared."""
        if self.declared is not None:
            return self
        nothing = Target(T.StructType([]))
        seen = observed_in_tasks(records, self.work(nothing, None), self.rules.max_columns)
        return replace(self._knowing(seen, nothing), kept_out=())


def grown(
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
        kind, aside = _grown_type(column.dataType, inner or {}, target, path=path, times=times)
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
        first, others = grown(kind, news, target, prefix=f"{path}.", times=times)
        return first, list(others)
    inner = news.get("in", {})
    if isinstance(kind, T.ArrayType):
        element, aside = _grown_type(
            kind.elementType, inner.get("element", {}), target, path=f"{path}.element", times=times
        )
        return T.ArrayType(element, kind.containsNull or bool(inner)), [T.ArrayType(each) for each in aside]
    if isinstance(kind, T.MapType):
        value, aside = _grown_type(kind.valueType, inner.get("value", {}), target, path=f"{path}.value", times=times)
        held = T.MapType(kind.keyType, value, kind.valueContainsNull or bool(inner))
        return held, [T.MapType(kind.keyType, each) for each in aside]
    return kind, []


def with_required(fields: T.StructType, target: Target) -> T.StructType:
    """Return the fields and those of the columns that must not be null: records that lack them are no rows anyway."""
    names = set(fields.fieldNames())
    return T.StructType([*fields, *_required(target, names)])


def _required(target: Target, but: set[str]) -> Iterator[T.StructField]:
    for column in target.columns:
        source = target.feeds(column.name, column.name)[0]
        if not column.nullable and source not in but:
            kind, _ = _grown_type(column.dataType, {}, target, path=column.name, times=False)
            yield T.StructField(source, kind, nullable=False)


_OPEN = Record((), ANY)


@dataclass(frozen=True)
class OpenContent:
    """What records have shown beside the fields of their schemas.

    Args:
        shown: Fields that a schema allows, as structs.
        kept_out: What was in the records of the last pass and is in no column: path → what is said of it.
    """

    shown: tuple[T.StructType, ...] = ()
    kept_out: tuple[tuple[str, str], ...] = ()

    def forgetting(self) -> "OpenContent":
        """Return it before a pass that shows nothing."""
        return OpenContent(self.shown)

    def knowing(self, seen: Observed, schemas: Sequence[WriterSchema], target: Target) -> "OpenContent":
        """Return it with what a pass has shown."""
        kind = reduce(either_of, map(json_schema_content, schemas))
        refused: list[str] = []
        found = _beside(seen.news, target.columns, kind, target, path="", refused=refused)
        said = said_of(seen)
        for path in refused:
            said[path] = f"isn't in the schema, which allows no other fields, and had a value {seen.aside[path]} times"
        new = (found,) if isinstance(found, T.StructType) else ()
        return OpenContent(tuple(dict.fromkeys((*self.shown, *new))), tuple(sorted(said.items())))


def _beside(
    news: Mapping[str, Any], columns: T.DataType, kind: T.DataType, target: Target, path: str, refused: list[str]
) -> T.DataType | None:
    """Return what records have beside a schema's fields, as that allows it; None if there is nothing."""
    if isinstance(columns, T.ArrayType):
        part = kind.elementType if isinstance(kind, T.ArrayType) else _OPEN
        element = _inner(news, "element", columns.elementType, part, target=target, path=path, refused=refused)
        return None if element is None else T.ArrayType(element)
    if isinstance(columns, T.MapType):
        part = kind.valueType if isinstance(kind, T.MapType) else _OPEN
        value = _inner(news, "value", columns.valueType, part, target=target, path=path, refused=refused)
        return None if value is None else T.MapType(columns.keyType, value)
    assert isinstance(columns, T.StructType), "only structs have fields"
    record = kind if isinstance(kind, Record) else _OPEN
    fields: list[T.StructField] = []
    for column in columns:
        source = target.feeds(f"{path}{column.name}", column.name)[0]
        part = record[source].dataType if source in record.names else _OPEN
        inner = _inner(news, column.name, column.dataType, part, target=target, path=path, refused=refused)
        if inner is not None:
            fields.append(T.StructField(source, inner))
    for name, shown in news.get("new", {}).items():
        if record.rest is None:
            refused.append(f"{path}{name}")
        elif record.rest != ANY:
            fields.append(T.StructField(name, table_type(record.rest)))
        elif (known := settled(shown, False)) is not None:
            fields.append(T.StructField(name, spark_type(known)))
    return T.StructType(fields) if fields else None


def _inner(
    news: Mapping[str, Any],
    step: str,
    columns: T.DataType,
    kind: T.DataType,
    target: Target,
    path: str,
    refused: list[str],
) -> T.DataType | None:
    below = news.get("in", {}).get(step)
    return _beside(below, columns, kind, target, path=f"{path}{step}.", refused=refused) if below else None
