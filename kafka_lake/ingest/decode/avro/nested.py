"""Records, unions, arrays and maps: values that hold others."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from kafka_lake.executors.protobuf.model import SET
from kafka_lake.ingest.decode.avro.value import NULL, Expression, Value, avro_field, unless_null


@dataclass(frozen=True)
class Member:
    """A field: its name, the name of its raw value, and its type."""

    name: str
    raw: str
    value: Value
    doc: Any = None
    inner: str | None = None

    @property
    def same(self) -> bool:
        """Whether what `from_avro` gives is the field as it shall be."""
        return self.name == self.raw and self.inner is None and self.value.build is None

    def of(self, raw: Column) -> Column:
        """Return the raw value of the field within that of its record or union."""
        found = raw.getField(self.raw)
        return found if self.inner is None else found.getField(self.inner)

    def field(self) -> T.StructField:
        """Return the field as Spark knows it, its doc as the comment."""
        comment = {"comment": self.doc} if isinstance(self.doc, str) and self.doc else None
        return T.StructField(self.name, self.value.type, True, comment)


def record_value(fields: Sequence[Member], avro: Any) -> Value:
    """Return a record as a struct; one without fields as a struct that says that it is set, and that fields may join.

    Args:
        fields: Its fields, those of type null left out.
        avro: The type as `from_avro` gets it.
    """
    parts = [field for field in fields if not isinstance(field.value.type, T.NullType)]
    if not parts:
        kind = T.StructType([T.StructField(SET, T.BooleanType())])
        # A literal alone would be a column that is never null, and fields that come later are null in older rows.
        return Value(
            avro,
            kind,
            lambda raw: F.when(raw.isNotNull(), F.struct(F.when(raw.isNotNull(), True).alias(SET))),
        )

    def build(raw: Column) -> Column:
        return F.when(raw.isNotNull(), F.struct(*[part.value.built(part.of(raw)).alias(part.name) for part in parts]))

    def checks(raw: Column) -> list[Column]:
        return [check for part in parts if part.value.checks for check in part.value.checks(part.of(raw))]

    def texts(raw: Column, many: bool) -> list[Column]:
        return [text for part in parts if part.value.texts for text in part.value.texts(part.of(raw), many)]

    same = len(parts) == len(fields) and all(part.same for part in parts)
    return Value(
        avro,
        T.StructType([part.field() for part in parts]),
        build=None if same else build,
        checks=checks if any(part.value.checks for part in parts) else None,
        texts=texts if any(part.value.texts for part in parts) else None,
        loops=any(part.value.loops for part in parts),
        nests_text=any(part.value.nests_text for part in parts),
    )


def union_value(branches: Sequence[Value], names: Sequence[str], record: str) -> Value:
    """Return a union as a struct with a field for each branch, which Spark calls member0, member1….

    Spark makes one of int and long, and asks a value's Java class which branch it is of: what isn't a record becomes
    one with a single field, of the same encoding.
    """
    avro: list[Any] = []
    parts: list[Member] = []
    for branch in branches:
        if branch is NULL:
            avro.append("null")
            continue
        wrapped = not (isinstance(branch.avro, dict) and branch.avro["type"] == "record")
        name = f"{record}_{len(parts)}"
        avro.append(
            {"type": "record", "name": name, "fields": [avro_field("v", branch.avro)]} if wrapped else branch.avro
        )
        parts.append(Member(names[len(parts)], f"member{len(parts)}", branch, inner="v" if wrapped else None))
    return record_value(parts, avro)


def element_value(value: Value) -> Value:
    """Return the type of elements of arrays and maps: their number counts, even if each is null."""
    if isinstance(value.type, T.NullType):
        return replace(value, type=T.StringType(), build=lambda raw: raw.cast("string"))
    return value


def array_value(element: Value) -> Value:
    """Return an array of elements."""
    has_text = element.texts is not None

    def texts(raw: Column, many: bool) -> list[Column]:
        assert element.texts
        return element.texts(F.flatten(F.filter(raw, lambda each: each.isNotNull())) if many else raw, True)

    return Value(
        {"type": "array", "items": element.avro},
        T.ArrayType(element.type),
        build=(lambda raw: F.transform(raw, element.built)) if element.build else None,
        checks=(lambda raw: [_all(element, raw)]) if element.checks else None,
        texts=texts if has_text else None,
        loops=element.loops or element.nests_text or bool(element.build or element.checks),
        nests_text=has_text,
    )


def map_value(value: Value) -> Value:
    """Return a map from text to values."""

    def parts(raw: Column, many: bool, part: Expression) -> Column:
        return F.flatten(F.transform(F.filter(raw, lambda each: each.isNotNull()), part)) if many else part(raw)

    def texts(raw: Column, many: bool) -> list[Column]:
        values = value.texts(parts(raw, many, F.map_values), True) if value.texts else []
        return [parts(raw, many, F.map_keys), *values]

    return Value(
        {"type": "map", "values": value.avro},
        T.MapType(T.StringType(), value.type),
        build=(lambda raw: F.transform_values(raw, lambda _, each: value.built(each))) if value.build else None,
        checks=(lambda raw: [_all(value, F.map_values(raw))]) if value.checks else None,
        texts=texts,
        loops=value.loops or value.nests_text or bool(value.build or value.checks),
        nests_text=True,
    )


def _all(value: Value, raws: Column) -> Column:
    """Return the condition that the checks of every element hold; it is true of null."""

    def holds(raw: Column) -> Column:
        assert value.checks
        checks = value.checks(raw)
        return checks[0] if len(checks) == 1 else F.least(*checks)

    return unless_null(F.forall(raws, holds))
