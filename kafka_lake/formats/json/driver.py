"""JSON on the driver: declared columns, or columns inferred from records."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import types as T

from kafka_lake.engine.interop import packed
from kafka_lake.formats.base import Part
from kafka_lake.formats.columns import Target, columns_of, spark_type
from kafka_lake.formats.decoder import Decoder, Learned, observed_in_tasks
from kafka_lake.formats.json.task.decoder import json_decoder
from kafka_lake.formats.json.task.types import settled
from kafka_lake.formats.task.columns import Rules
from kafka_lake.formats.task.decoded import Observed
from kafka_lake.schema.names import column_name


def decoder(part: Part) -> Decoder:
    """Return the decoder of a part."""
    spec = part.spec
    rules = Rules(
        timestamp_unit=spec.timestamp_unit,
        max_columns=spec.max_columns,
        unwanted=part.excluded,
    )
    orders = spec.order_by if part.name == "value" else ()
    return Json(part.declared, spec.infer_timestamps, rules, observes=part.name == "value", order_by=orders)


@dataclass(frozen=True)
class Json(Decoder):
    """Decodes JSON objects by declared columns, or by those of the table and what the records have shown.

    Args:
        infer_timestamps: Whether a new field becomes a date or timestamp column if all its values in a batch are text
            of that form.
        observes: Whether to learn what is in no column. Other fields of keys don't matter.
        shown: What the records look like beyond the table's columns, in one or more schemas.
        type_errors: What the values look like that fit no column, one schema for each pass.
        left_out: What the records of the last pass had that no column has: path → explanation.
        order_by: Columns that order changes, so they become dates or timestamps too.
    """

    declared: Target | None = None
    infer_timestamps: bool = False
    rules: Rules = field(default_factory=Rules)
    observes: bool = True
    shown: tuple[T.StructType, ...] = ()
    type_errors: tuple[T.StructType, ...] = ()
    left_out: tuple[tuple[str, str], ...] = ()
    order_by: tuple[str, ...] = ()

    @property
    def fixed(self) -> Target | None:
        """The declared columns."""
        return self.declared

    def key_task(self, target: Target, learns: bool) -> Mapping[str, Any]:
        """Return the data of the tasks' decoder of keys within change events."""
        declared = None if learns else Target(T.StructType([]))
        return replace(self, declared=declared, observes=False).for_tasks(target, None)

    def incoming(self) -> Sequence[tuple[str, T.StructType]]:
        """Return what the records have shown."""
        shown = [("the records", fields) for fields in self.shown]
        return [*shown, *(("the records that don't fit", fields) for fields in self.type_errors)]

    def for_tasks(self, target: Target, max_record_bytes: int | None) -> Mapping[str, Any]:
        """Return the data of the tasks' decoder."""
        any_case = target.any_case or self.declared is not None
        rules = replace(self.rules, infer=self.declared is None, any_case=any_case)
        return {
            "decoder": packed(json_decoder),
            "columns": columns_of(target.columns, target),
            "rules": asdict(rules),
            "max_bytes": max_record_bytes,
        }

    def learn(self, observed: Observed, records: DataFrame | None, target: Target) -> Learned | None:
        """Return a decoder that knows what a pass has shown."""
        if not (self.observes and observed):
            return Learned(replace(self, left_out=()), again=False) if self.left_out else None
        return Learned(self.with_observed(observed, target), again=False)

    def with_observed(self, observed: Observed, target: Target) -> "Json":
        """Return a decoder that knows what tasks observed."""
        left_out = _left_out(observed)
        if self.declared is not None:
            times = "has no declared column, and had a value {} times"
            left_out |= {path: times.format(count) for path, count in observed.unmapped.items()}
        known = replace(self, left_out=tuple(sorted(left_out.items())))
        if self.declared is not None:
            return known
        shown, type_errors = self.shown, self.type_errors
        if observed.new_fields:
            first, others = _with_new_fields(
                target.columns, observed.new_fields, target, prefix="", times=self.infer_timestamps
            )
            new = observed.new_fields.get("new", {}).items()
            orders = {name: settled(kind, True) for name, kind in new if column_name(name, ()) in self.order_by}
            first = T.StructType(
                [T.StructField(f.name, spark_type(orders[f.name])) if orders.get(f.name) else f for f in first]
            )
            shown = tuple(dict.fromkeys((*shown, first, *(_with_required(fields, target) for fields in others))))
        if (kind := settled(observed.type_errors, False)) is not None:
            fields = spark_type(kind)
            assert isinstance(fields, T.StructType)
            type_errors = tuple(dict.fromkeys((*type_errors, _with_required(fields, target))))
        return replace(known, shown=shown, type_errors=type_errors)

    def not_stored(self) -> Mapping[str, str]:
        """Return what the records of the last pass had that no column has."""
        return dict(self.left_out)

    def inspect(self, records: DataFrame) -> "Json":
        """Return a decoder that knows what records look like, by a pass of its own unless columns are declared."""
        if self.declared is not None:
            return self
        no_columns = Target(T.StructType([]))
        observed = observed_in_tasks(records, self.for_tasks(no_columns, None), self.rules.max_columns)
        return replace(self.with_observed(observed, no_columns), left_out=())


def _left_out(observed: Observed) -> dict[str, str]:
    texts = {
        path: f"{count} times had digits beyond microseconds, which were cut"
        for path, count in observed.truncated.items()
    }
    texts |= {
        path: f"{count} numbers have more digits than the column's type holds; they were rounded to the nearest one"
        for path, count in observed.rounded.items()
    }
    texts |= dict.fromkeys(observed.empty, "has no column yet: all its values were null, [] or {}")
    if observed.more:
        texts["…"] = f"{observed.more} more fields without a column, counted once in each batch of records"
    return texts


def _with_new_fields(
    columns: T.StructType, new_fields: Mapping[str, Any], target: Target, prefix: str, times: bool
) -> tuple[T.StructType, list[T.StructType]]:
    """Return the schema of records with new fields, by the fields' names: the types of the columns, and new fields.

    If a field feeds several columns, the new fields of all but the first column are in further schemas.
    """
    fields: dict[str, T.StructField] = {}
    others: list[T.StructType] = []
    for column in columns:
        path = f"{prefix}{column.name}"
        source = target.feeds(path, column.name)[0]
        inner = new_fields.get("in", {}).get(column.name)
        kind, other_kinds = _with_new_parts(column.dataType, inner or {}, target, path=path, times=times)
        others += [T.StructType([T.StructField(source, other)]) for other in other_kinds]
        if source not in fields:
            fields[source] = T.StructField(source, kind, column.nullable)
        elif inner is not None:
            others.append(T.StructType([T.StructField(source, kind)]))
    for name, new in new_fields.get("new", {}).items():
        if (known := settled(new, times)) is not None:
            fields[name] = T.StructField(name, spark_type(known))
    return T.StructType(list(fields.values())), others


def _with_new_parts(
    kind: T.DataType, new_fields: Mapping[str, Any], target: Target, path: str, times: bool
) -> tuple[T.DataType, list[T.DataType]]:
    if isinstance(kind, T.StructType):
        first, others = _with_new_fields(kind, new_fields, target, prefix=f"{path}.", times=times)
        return first, list(others)
    inner = new_fields.get("in", {})
    if isinstance(kind, T.ArrayType):
        element, others = _with_new_parts(
            kind.elementType, inner.get("element", {}), target, path=f"{path}.element", times=times
        )
        return T.ArrayType(element, kind.containsNull or bool(inner)), [T.ArrayType(other) for other in others]
    if isinstance(kind, T.MapType):
        value, others = _with_new_parts(
            kind.valueType, inner.get("value", {}), target, path=f"{path}.value", times=times
        )
        whole = T.MapType(kind.keyType, value, kind.valueContainsNull or bool(inner))
        return whole, [T.MapType(kind.keyType, other) for other in others]
    return kind, []


def _with_required(fields: T.StructType, target: Target) -> T.StructType:
    """Return the fields, and those of required columns: a record without them becomes no row anyway."""
    return T.StructType([*fields, *_required(target, set(fields.fieldNames()))])


def _required(target: Target, present: set[str]) -> Iterator[T.StructField]:
    for column in target.columns:
        source = target.feeds(column.name, column.name)[0]
        if not column.nullable and source not in present:
            kind, _ = _with_new_parts(column.dataType, {}, target, path=column.name, times=False)
            yield T.StructField(source, kind, nullable=False)
