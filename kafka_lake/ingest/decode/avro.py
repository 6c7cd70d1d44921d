"""Avro values: `from_avro` in the JVM with the schema that they were written with, and what it lacks, in expressions.

`from_avro` is handed the schema in other words, never with other bytes: where a type is encoded like another one that
Spark reads better, it is declared as that; fields that take no bytes are left out. The value is read as the first field
of a record whose second is a number that is appended to each payload. A payload that is cut off, or goes on after its
value, doesn't have that number where it belongs, so that it can be told from one that is merely all null.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.avro.functions import from_avro

from kafka_lake.common.errors import SchemaNotSupportedError
from kafka_lake.kafka.schemas import WriterSchema

TYPES: tuple[tuple[str, str, str, str, str], ...] = (
    ("null", "", "", "", "No column. As a map's value: string, always null. An array of it is refused."),
    ("boolean", "", "boolean", "boolean", ""),
    ("int", "", "int", "int", ""),
    ("int", "date", "date", "date", ""),
    ("int", "time-millis", "string", "string", "`HH:MM:SS.ffffff`, which sorts by time: Spark has no such type."),
    ("long", "", "bigint", "long", ""),
    ("long", "time-micros", "string", "string", "`HH:MM:SS.ffffff`, which sorts by time."),
    ("long", "timestamp-millis", "timestamp", "timestamptz", ""),
    ("long", "timestamp-micros", "timestamp", "timestamptz", ""),
    ("long", "timestamp-nanos", "bigint", "long", "Nanoseconds since 1970-01-01 UTC, all of them."),
    ("long", "local-timestamp-millis", "timestamp_ntz", "timestamp", ""),
    ("long", "local-timestamp-micros", "timestamp_ntz", "timestamp", ""),
    ("long", "local-timestamp-nanos", "bigint", "long", "Nanoseconds since 1970-01-01 00:00 of no time zone."),
    ("float", "", "float", "float", ""),
    ("double", "", "double", "double", ""),
    ("string", "", "string", "string", "Bytes that are not UTF-8 make the record malformed."),
    ("string", "uuid", "string", "string", "In lower case; text that is no UUID stays as it is."),
    ("bytes", "", "binary", "binary", ""),
    ("bytes, fixed", "decimal", "decimal(p, s)", "decimal(p, s)", "Up to 38 digits."),
    ("bytes, fixed", "decimal", "string", "string", "Beyond 38 digits: all as text, `-12.50`; of at most 128 bytes."),
    ("bytes", "big-decimal", "string", "string", "All digits as text; `12E3` where the scale isn't 0 to 1024."),
    ("fixed", "", "binary", "binary", ""),
    ("fixed", "uuid", "string", "string", "Of 16 bytes; `8-4-4-4-12` in lower case."),
    ("fixed", "duration", "struct<months: bigint, days: bigint, millis: bigint>",
     "struct<months: long, days: long, millis: long>", "Of 12 bytes; the three counts are kept apart."),
    ("enum", "", "string", "string", "The symbol."),
    ("record", "", "struct<…>", "struct<…>", "A field's doc becomes the column's comment. At the root: the columns."),
    ("record without fields", "", "boolean", "boolean", "True where there is one. An array of them is refused."),
    ("array", "", "array<…>", "list<…>", ""),
    ("map", "", "map<string, …>", "map<string, …>", "Of a key that is there twice, the last counts."),
    ("union of null and T", "", "T", "T", "A union of one type is that type."),
    ("union of int and long", "", "bigint", "long", "Without logical types."),
    ("union of float and double", "", "double", "double", ""),
    ("union of several", "", "struct<…>", "struct<…>",
     "A field for each type, named by it: `int`, `map`, a record's, enum's or fixed's name without its namespace, "
     "and with it where that is ambiguous. One of them is set."),
    ("a type that contains itself", "", "", "", "Refused."),
)  # fmt: skip
"""What each Avro type becomes: Avro type, logical type, Spark type, Iceberg type, what else there is to know.

Every column, element and value is nullable, whatever the schema says: a table outlives the schema of one writer.
Logical types that are unknown, or not valid for their type, count as absent, as the specification says.
"""

_PRIMITIVES: Mapping[str, T.DataType] = {
    "boolean": T.BooleanType(),
    "int": T.IntegerType(),
    "long": T.LongType(),
    "float": T.FloatType(),
    "double": T.DoubleType(),
    "string": T.StringType(),
    "bytes": T.BinaryType(),
}
_AS_SPARK_READS_IT: Mapping[tuple[str, str], T.DataType] = {
    ("int", "date"): T.DateType(),
    ("long", "timestamp-millis"): T.TimestampType(),
    ("long", "timestamp-micros"): T.TimestampType(),
    ("long", "timestamp-nanos"): T.LongType(),
    ("long", "local-timestamp-millis"): T.TimestampNTZType(),
    ("long", "local-timestamp-micros"): T.TimestampNTZType(),
    ("long", "local-timestamp-nanos"): T.LongType(),
}
_TIMES = {("int", "time-millis"): "local-timestamp-millis", ("long", "time-micros"): "local-timestamp-micros"}
_WIDENED = {frozenset({"int", "long"}): T.LongType(), frozenset({"float", "double"}): T.DoubleType()}
_NAMED = ("record", "error", "enum", "fixed")
_NAME = re.compile(r"[^\W\d]\w*")

_OPTIONS = {"mode": "PERMISSIVE", "datetimeRebaseMode": "CORRECTED"}
_END = bytes.fromhex("f4a3db95f4f4e4f05c")
# The same as an Avro long. No end of a payload and beginning of this number make up this number.
_END_NUMBER = 3346396433918683386
_MANY_TYPES = 50
_MAX_TYPES = 20_000
_MAX_DEPTH = 100
_MAX_DIGITS = 38
_LONG_DIGITS = 18
_LONG_BYTES = 8
_MAX_UNSCALED_BYTES = 128
_MAX_SCALE = 1024
_LIMB = 10**9
_FIRST_MICROS, _LAST_MICROS = -62_135_596_800_000_000, 253_402_300_799_999_999
_UUID = r"^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\z"
_REMEDY = "Take the topic with `format: bytes` and decode it in a transform, or let the writer change its schema."


def avro_type(schema: WriterSchema) -> T.DataType:
    """Return the type that values of a schema become, see `TYPES`.

    Args:
        schema: An Avro schema and those that it refers to.

    Returns:
        A StructType for a record, and for a union of several types; the type itself of any other root.

    Raises:
        SchemaNotSupportedError: If the schema is invalid, contains itself, or has nothing that could be a column.
    """
    return _value_of(schema)[0].type


def decode_avro(payload: Column, schema: WriterSchema, *, field: str | None = None) -> Column:
    """Return the column that decodes Avro's binary encoding, without any framing.

    Malformed are: bytes that end before the value does, or go on after it (a sign of another schema); text that isn't
    UTF-8; times and decimals beyond their type's range; dates and timestamps outside of the years 1 to 9999; lengths
    beyond `AVRO_LIMITS` of the JVM.

    A record is decoded once if this column stands by itself in a projection. In a branch of a `when`, Spark may decode
    it anew for each field: make the payload null there instead, and choose among the results.

    Args:
        payload: Binary; null gives null.
        schema: The schema that the bytes were written with.
        field: Puts the value into a struct with one field of this name, so that a value that is null by itself, which
            a union with null at the root allows, can be told from malformed bytes.

    Returns:
        `avro_type`, without the comments; null where the bytes are malformed.

    Raises:
        SchemaNotSupportedError: As `avro_type`.
    """
    value, size = _value_of(schema)
    framed = {"type": "record", "name": "framed", "fields": [_field("value", value.avro), _field("end", "long")]}
    decoded = from_avro(F.concat(payload, F.lit(bytearray(_END))), json.dumps(framed), _OPTIONS)

    def whole(frame: Column) -> Column:
        # Spark sees that what is named twice, and not in a branch alone, is the same, and decodes once.
        ends = [frame.isNotNull(), frame.getField("end").eqNullSafe(F.lit(_END_NUMBER))]
        return F.least(*ends, *value.conditions(frame.getField("value")))

    def built(frame: Column) -> Column:
        made = value.built(frame.getField("value"))
        return made if field is None else F.struct(made.alias(field))

    if value.loops or size > _MANY_TYPES:
        # Each mention of `decoded` has a decoder of its own until Spark finds out that they are the same; and the
        # arguments of each function with a lambda are evaluated apart. Bound to a variable, there is one.
        good = F.filter(F.array(decoded), whole)
        if value.build is None and field is None:
            return F.get(good, F.lit(0)).getField("value")
        return F.get(F.transform(good, built), F.lit(0))
    return F.when(whole(decoded), built(decoded))


def inlined(schema: WriterSchema) -> str:
    """Return a schema's text with the types that it refers to written out where each is first used.

    Raises:
        SchemaNotSupportedError: If the schema is no JSON, or defines a type twice.
    """
    reader = _Reader(schema)
    return json.dumps(reader.inline(reader.text, "", set()))


Expression = Callable[[Column], Column]
Conditions = Callable[[Column], list[Column]]
Texts = Callable[[Column, bool], list[Column]]


@dataclass(frozen=True)
class _Value:
    """How Spark shall read a type, and what must be done with what it reads.

    Args:
        avro: The type as `from_avro` gets it: of the same encoding as the writer's.
        type: What it becomes.
        build: Makes it of what `from_avro` gives; None if that is it already.
        checks: Conditions, never null, that hold for what isn't malformed.
        texts: Strings, and arrays of strings, that must be UTF-8. The argument is a value, or an array of such values
            if the second argument is true.
        loops: Whether `build`, `checks` or `texts` of a single value have lambdas.
        nests_text: Whether `texts` of an array of such values have lambdas.
        takes_bytes: Whether every value takes at least one byte.
    """

    avro: Any
    type: T.DataType
    build: Expression | None = None
    checks: Conditions | None = None
    texts: Texts | None = None
    loops: bool = False
    nests_text: bool = False
    takes_bytes: bool = True

    def built(self, raw: Column) -> Column:
        """Return the value as it shall be."""
        return raw if self.build is None else self.build(raw)

    def conditions(self, raw: Column) -> list[Column]:
        """Return all that must be true of a value that isn't malformed."""
        texts = [F.is_valid_utf8(F.concat_ws(",", *self.texts(raw, False)))] if self.texts else []
        return [*texts, *(self.checks(raw) if self.checks else [])]


_NULL = _Value("null", T.NullType(), takes_bytes=False)


def _value_of(schema: WriterSchema) -> tuple[_Value, int]:
    """Return how a schema's values are read, and how many types it has."""
    try:
        reader = _Reader(schema)
        return reader.root(), reader.count
    except RecursionError:
        raise SchemaNotSupportedError(f"Avro: {schema.label} is nested too deeply.", _REMEDY) from None


class _Reader:
    """Reads a schema once; refuses what can't be columns."""

    def __init__(self, schema: WriterSchema) -> None:
        self.label = schema.label
        self.named: dict[str, tuple[Mapping[str, Any], str]] = {}
        self.open: list[str] = []
        self.count = 0
        for name, text in schema.references.items():
            self._define(self._parsed(text, f" refers to {name}, which"), "")
        self.text = self._parsed(schema.text, "")
        self._define(self.text, "")

    def root(self) -> _Value:
        value = self._read(self.text, "", ())
        if isinstance(value.avro, dict) and value.avro.get("fields") == []:
            return _Value(value.avro, T.StructType([]))
        if isinstance(value.type, T.NullType):
            raise self._error((), "is null: there is nothing that could be a column")
        return value

    def _parsed(self, text: str, what: str) -> Any:
        try:
            return json.loads(text)
        except ValueError as error:
            raise SchemaNotSupportedError(f"Avro: {self.label}{what} is no JSON: {error}.", _REMEDY) from None

    def _error(self, path: Sequence[str], what: str) -> SchemaNotSupportedError:
        at = f", {'.'.join(path)}" if path else ""
        return SchemaNotSupportedError(f"Avro: {self.label}{at}: the type {what}.", _REMEDY)

    def _define(self, node: Any, namespace: str) -> None:
        if isinstance(node, list):
            for each in node:
                self._define(each, namespace)
        elif isinstance(node, dict):
            if node.get("type") in _NAMED:
                namespace = self._name(node, namespace)
                fields = node.get("fields")
                self._define([f["type"] for f in fields or [] if isinstance(f, dict) and "type" in f], namespace)
            for key in ("type", "items", "values"):
                self._define(node.get(key), namespace)

    def _name(self, node: Mapping[str, Any], namespace: str) -> str:
        full = _full_name(node, namespace)
        if not full or not all(_NAME.fullmatch(part) for part in full.split(".")):
            raise self._error((), f"has the invalid name {full!r}")
        if self.named.setdefault(full, (node, namespace))[0] != node:
            raise self._error((), f"{full} is defined twice")
        return full.rpartition(".")[0]

    def inline(self, node: Any, namespace: str, defined: set[str]) -> Any:
        """Return a part of the schema, with types that are named and not yet defined written out."""
        if isinstance(node, list):
            return [self.inline(each, namespace, defined) for each in node]
        if isinstance(node, str):
            full = self._known(node, namespace)
            return node if full is None else full if full in defined else self.inline(*self.named[full], defined)
        if not isinstance(node, dict):
            return node
        if node.get("type") in _NAMED:
            full = _full_name(node, namespace)
            defined.add(full)
            namespace, _, name = full.rpartition(".")
            node = {**node, "name": name, "namespace": namespace}
            fields = node.get("fields")
            if isinstance(fields, list):
                node["fields"] = [{**f, "type": self.inline(f.get("type"), namespace, defined)} for f in fields]
            return node
        parts = {key: self.inline(node[key], namespace, defined) for key in ("type", "items", "values") if key in node}
        return {**node, **parts}

    def _known(self, name: str, namespace: str) -> str | None:
        return next((full for full in (f"{namespace}.{name}", name) if full in self.named), None)

    def _read(self, node: Any, namespace: str, path: tuple[str, ...]) -> _Value:
        self.count += 1
        if self.count > _MAX_TYPES or len(path) > _MAX_DEPTH:
            raise self._error((), f"has more than {_MAX_TYPES} parts, or is nested more than {_MAX_DEPTH} deep")
        if isinstance(node, list):
            return self._union(node, namespace, path)
        if isinstance(node, str):
            return self._reference({"type": node}, namespace, path)
        if not isinstance(node, dict) or "type" not in node:
            raise self._error(path, f"is no Avro type: {_shown(node)}")
        kind = node["type"]
        if isinstance(kind, dict | list):
            return self._read(kind, namespace, path)
        if kind in _NAMED:
            return self._definition(node, namespace, path)
        if kind == "array":
            return self._array(self._part(node, "items", namespace, (*path, "element")), path)
        if kind == "map":
            return _map(_some(self._part(node, "values", namespace, (*path, "value"))))
        return self._reference(node, namespace, path)

    def _part(self, node: Mapping[str, Any], key: str, namespace: str, path: tuple[str, ...]) -> _Value:
        if key not in node:
            raise self._error(path[:-1], f"has no {key}: {_shown(node)}")
        return self._read(node[key], namespace, path)

    def _reference(self, node: Mapping[str, Any], namespace: str, path: tuple[str, ...]) -> _Value:
        kind = node["type"]
        if kind == "null":
            return _NULL
        if kind in _PRIMITIVES:
            return _primitive(kind, node, f"d{self.count}")
        full = self._known(kind, namespace)
        if full is None:
            raise self._error(path, f"is unknown: {_shown(kind)}")
        return self._definition(*self.named[full], path)

    def _definition(self, node: Mapping[str, Any], namespace: str, path: tuple[str, ...]) -> _Value:
        full = _full_name(node, namespace)
        if full in self.open:
            raise self._error(path, f"{full} contains itself")
        name = f"t{self.count}"
        if node["type"] == "enum":
            return self._enum(node, name, path)
        if node["type"] == "fixed":
            return self._fixed(node, name, path)
        self.open.append(full)
        value = self._record(node, full.rpartition(".")[0], name, path)
        self.open.pop()
        return value

    def _enum(self, node: Mapping[str, Any], name: str, path: Sequence[str]) -> _Value:
        symbols = node.get("symbols")
        if not isinstance(symbols, list) or not all(isinstance(s, str) and _NAME.fullmatch(s) for s in symbols):
            raise self._error(path, f"has no symbols, or invalid ones: {_shown(symbols)}")
        if len(set(symbols)) < len(symbols):
            raise self._error(path, f"has a symbol twice: {_shown(symbols)}")
        return _Value({"type": "enum", "name": name, "symbols": symbols}, T.StringType())

    def _fixed(self, node: Mapping[str, Any], name: str, path: Sequence[str]) -> _Value:
        size = node.get("size")
        if not isinstance(size, int) or size < 0:
            raise self._error(path, f"has no size, or an invalid one: {_shown(size)}")
        avro = {"type": "fixed", "name": name, "size": size}
        logical = node.get("logicalType")
        if logical == "decimal" and (found := _decimal(avro, node, math.floor(math.log10(2) * (8 * size - 1)))):
            return found
        if logical == "uuid" and size == 16:
            return _Value(avro, T.StringType(), _uuid_of_bytes)
        if logical == "duration" and size == 12:
            return _Value(avro, _DURATION, _duration)
        return _Value(avro, T.BinaryType(), takes_bytes=size > 0)

    def _record(self, node: Mapping[str, Any], namespace: str, name: str, path: tuple[str, ...]) -> _Value:
        fields = node.get("fields")
        if not isinstance(fields, list):
            raise self._error(path, "has no fields")
        names = [self._field_name(field, path) for field in fields]
        if len(set(names)) < len(names):
            raise self._error(path, f"has the field {Counter(names).most_common(1)[0][0]} twice")
        # Spark finds no field whose name another one has, but for its case.
        clash = len({each.lower() for each in names}) < len(names)
        parts = []
        for number, field in enumerate(fields):
            value = self._part(field, "type", namespace, (*path, field["name"]))
            if value is not _NULL:
                parts.append(_Part(field["name"], f"f{number}" if clash else field["name"], value, field.get("doc")))
        avro = {"type": "record", "name": name, "fields": [_field(part.raw, part.value.avro) for part in parts]}
        return replace(_struct(parts, avro), takes_bytes=any(part.value.takes_bytes for part in parts))

    def _field_name(self, field: Any, path: Sequence[str]) -> str:
        name = field.get("name") if isinstance(field, dict) else None
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise self._error(path, f"has a field without a valid name: {_shown(field)}")
        return name

    def _array(self, element: _Value, path: Sequence[str]) -> _Value:
        if not element.takes_bytes:
            # A few bytes could claim billions of elements.
            raise self._error(path, "is an array whose elements take no bytes")
        return _array(_some(element))

    def _union(self, node: list[Any], namespace: str, path: tuple[str, ...]) -> _Value:
        name = f"u{self.count}"
        if not node or any(isinstance(each, list) for each in node):
            raise self._error(path, "is an empty union, or one within another")
        kinds = [self._kind(each, namespace) for each in node]
        if len(set(kinds)) < len(kinds):
            raise self._error(path, f"is a union with {Counter(kinds).most_common(1)[0][0]} twice")
        solid = [kind for kind in kinds if kind != "null"]
        labels = dict(zip(solid, _labels(solid), strict=True))
        several = len(solid) > 1
        branches = [self._read(each, namespace, (*path, labels[kind]) if several and kind in labels else path)
                    for each, kind in zip(node, kinds, strict=True)]  # fmt: skip
        values = [value for value in branches if value is not _NULL]
        if not several:
            return replace((values or branches)[0], avro=[branch.avro for branch in branches], takes_bytes=True)
        widened = _WIDENED.get(frozenset(solid))
        if widened is not None and all(value.avro == kind for value, kind in zip(values, solid, strict=True)):
            return _Value([branch.avro for branch in branches], widened)
        return _several(branches, list(labels.values()), name)

    def _kind(self, node: Any, namespace: str) -> str:
        """Return what no other branch of a union may be: the unnamed type, or the full name."""
        kind = node["type"] if isinstance(node, dict) and "type" in node else node
        if isinstance(kind, dict | list):
            return self._kind(kind, namespace)
        if kind in _NAMED:
            return _full_name(node, namespace)
        return str(kind) if kind in _PRIMITIVES else self._known(str(kind), namespace) or str(kind)


@dataclass(frozen=True)
class _Part:
    """A field: its name, the name of its raw value, and its type."""

    name: str
    raw: str
    value: _Value
    doc: Any = None
    inner: str | None = None

    @property
    def same(self) -> bool:
        return self.name == self.raw and self.inner is None and self.value.build is None

    def of(self, raw: Column) -> Column:
        found = raw.getField(self.raw)
        return found if self.inner is None else found.getField(self.inner)

    def field(self) -> T.StructField:
        comment = {"comment": self.doc} if isinstance(self.doc, str) and self.doc else None
        return T.StructField(self.name, self.value.type, True, comment)


def _struct(fields: Sequence[_Part], avro: Any) -> _Value:
    parts = [field for field in fields if not isinstance(field.value.type, T.NullType)]
    if not parts:
        return _Value(avro, T.BooleanType(), lambda raw: F.when(raw.isNotNull(), F.lit(True)))

    def build(raw: Column) -> Column:
        return F.when(raw.isNotNull(), F.struct(*[part.value.built(part.of(raw)).alias(part.name) for part in parts]))

    def checks(raw: Column) -> list[Column]:
        return [check for part in parts if part.value.checks for check in part.value.checks(part.of(raw))]

    def texts(raw: Column, many: bool) -> list[Column]:
        return [text for part in parts if part.value.texts for text in part.value.texts(part.of(raw), many)]

    same = len(parts) == len(fields) and all(part.same for part in parts)
    return _Value(
        avro,
        T.StructType([part.field() for part in parts]),
        None if same else build,
        checks if any(part.value.checks for part in parts) else None,
        texts if any(part.value.texts for part in parts) else None,
        loops=any(part.value.loops for part in parts),
        nests_text=any(part.value.nests_text for part in parts),
    )


def _several(branches: Sequence[_Value], names: Sequence[str], record: str) -> _Value:
    """Return a union as a struct with a field for each branch, which Spark calls member0, member1….

    Spark makes one of int and long, and asks a value's Java class which branch it is of: what isn't a record becomes
    one with a single field, of the same encoding.
    """
    avro: list[Any] = []
    parts: list[_Part] = []
    for branch in branches:
        if branch is _NULL:
            avro.append("null")
            continue
        wrapped = not (isinstance(branch.avro, dict) and branch.avro["type"] == "record")
        name = f"{record}_{len(parts)}"
        avro.append({"type": "record", "name": name, "fields": [_field("v", branch.avro)]} if wrapped else branch.avro)
        parts.append(_Part(names[len(parts)], f"member{len(parts)}", branch, inner="v" if wrapped else None))
    return _struct(parts, avro)


def _some(value: _Value) -> _Value:
    """Return the type of elements of arrays and maps: their number counts, even if each is null."""
    if isinstance(value.type, T.NullType):
        return replace(value, type=T.StringType(), build=lambda raw: raw.cast("string"))
    return value


def _array(element: _Value) -> _Value:
    has_text = element.texts is not None

    def texts(raw: Column, many: bool) -> list[Column]:
        assert element.texts
        return element.texts(F.flatten(F.filter(raw, lambda each: each.isNotNull())) if many else raw, True)

    return _Value(
        {"type": "array", "items": element.avro},
        T.ArrayType(element.type),
        (lambda raw: F.transform(raw, element.built)) if element.build else None,
        (lambda raw: [_all(element, raw)]) if element.checks else None,
        texts if has_text else None,
        loops=element.loops or element.nests_text or bool(element.build or element.checks),
        nests_text=has_text,
    )


def _map(value: _Value) -> _Value:
    def parts(raw: Column, many: bool, part: Expression) -> Column:
        return F.flatten(F.transform(F.filter(raw, lambda each: each.isNotNull()), part)) if many else part(raw)

    def texts(raw: Column, many: bool) -> list[Column]:
        values = value.texts(parts(raw, many, F.map_values), True) if value.texts else []
        return [parts(raw, many, F.map_keys), *values]

    return _Value(
        {"type": "map", "values": value.avro},
        T.MapType(T.StringType(), value.type),
        (lambda raw: F.transform_values(raw, lambda _, each: value.built(each))) if value.build else None,
        (lambda raw: [_all(value, F.map_values(raw))]) if value.checks else None,
        texts,
        loops=value.loops or value.nests_text or bool(value.build or value.checks),
        nests_text=True,
    )


def _all(value: _Value, raws: Column) -> Column:
    def holds(raw: Column) -> Column:
        assert value.checks
        checks = value.checks(raw)
        return checks[0] if len(checks) == 1 else F.least(*checks)

    return _unless_null(F.forall(raws, holds))


def _primitive(kind: str, node: Mapping[str, Any], name: str) -> _Value:
    logical = node.get("logicalType")
    if isinstance(logical, str):
        if found := _AS_SPARK_READS_IT.get((kind, logical)):
            checks = None if isinstance(found, T.LongType) else _is_of_a_table(found)
            return _Value({"type": kind, "logicalType": logical}, found, checks=checks)
        if twin := _TIMES.get((kind, logical)):
            # Both are numbers of variable length: an int is encoded like a long.
            return _Value({"type": "long", "logicalType": twin}, T.StringType(), _time, _is_time)
        if (kind, logical) == ("string", "uuid"):
            return _Value(kind, T.StringType(), _uuid_of_text, texts=lambda raw, _: [raw])
        if (kind, logical) == ("bytes", "decimal") and (found_decimal := _decimal(kind, node, math.inf)):
            return found_decimal
        if (kind, logical) == ("bytes", "big-decimal"):
            return _Value(_big_decimal_record(name), T.StringType(), _big_decimal, _is_big_decimal, loops=True)
    return _Value(kind, _PRIMITIVES[kind], texts=(lambda raw, _: [raw]) if kind == "string" else None)


def _is_of_a_table(kind: T.DataType) -> Conditions:
    """Return the condition that a date or timestamp is of the years 1 to 9999: no reader but Spark knows others."""

    def holds(raw: Column) -> list[Column]:
        first, last = (F.lit(text).cast(kind) for text in ("0001-01-01 00:00:00", "9999-12-31 23:59:59.999999"))
        if isinstance(kind, T.TimestampType):
            # Text would be a time of the session's zone.
            first, last = F.timestamp_micros(F.lit(_FIRST_MICROS)), F.timestamp_micros(F.lit(_LAST_MICROS))
        return [_unless_null(raw.between(first, last))]

    return holds


def _time(raw: Column) -> Column:
    # Spark leaves out zeros at the end.
    return F.overlay(F.lit("00:00:00.000000"), F.substring(raw.cast("string"), 12, 15), 1)


def _is_time(raw: Column) -> list[Column]:
    return [_unless_null(raw.cast("date") == F.lit("1970-01-01").cast("date"))]


def _uuid_of_text(raw: Column) -> Column:
    return F.when(F.rlike(raw, F.lit(_UUID)), F.lower(raw)).otherwise(raw)


def _uuid_of_bytes(raw: Column) -> Column:
    groups = [F.hex(F.substring(raw, at, size)) for at, size in ((1, 4), (5, 2), (7, 2), (9, 2), (11, 6))]
    return F.lower(F.concat(*[part for group in groups for part in (F.lit("-"), group)][1:]))


_DURATION = T.StructType([T.StructField(name, T.LongType()) for name in ("months", "days", "millis")])


def _duration(raw: Column) -> Column:
    def count(at: int) -> Column:
        big_endian = F.concat(*[F.substring(raw, at + offset, 1) for offset in (4, 3, 2, 1)])
        return F.conv(F.hex(big_endian), 16, 10).cast("bigint")

    counts = [count(4 * number).alias(name) for number, name in enumerate(_DURATION.names)]
    return F.when(raw.isNotNull(), F.struct(*counts))


def _decimal(avro: Any, node: Mapping[str, Any], most: float) -> _Value | None:
    """Return a decimal, or None if it is declared as the specification doesn't allow."""
    precision, scale = node.get("precision"), node.get("scale", 0)
    if not (isinstance(precision, int) and isinstance(scale, int) and 0 <= scale <= precision <= most) or not precision:
        return None
    if precision > _MAX_DIGITS:
        return _Value(
            avro,
            T.StringType(),
            lambda raw: _with_point(_digits(raw), F.lit(scale)),
            lambda raw: [_unless_null(F.octet_length(raw).between(1, _MAX_UNSCALED_BYTES))],
            loops=True,
        )
    kind = T.DecimalType(precision, scale)
    body = avro if isinstance(avro, dict) else {"type": avro}
    logical = {"logicalType": "decimal", "precision": precision, "scale": scale}
    if precision > _LONG_DIGITS or body.get("size", _LONG_BYTES + 1) <= _LONG_BYTES:
        return _Value({**body, **logical}, kind)
    # Spark takes the lowest 64 bits alone, whatever there is above them, of what it knows to fit them.
    return _Value(
        {**body, **logical, "precision": _LONG_DIGITS + 1},
        kind,
        lambda raw: raw.try_cast(kind),
        lambda raw: [raw.isNull() | raw.try_cast(kind).isNotNull()],
    )


def _big_decimal_record(name: str) -> Any:
    """Return how a big-decimal is encoded: its length, then the unscaled number as bytes, then the scale as int."""
    fields = [_field("length", "long"), _field("unscaled", "bytes"), _field("scale", "int")]
    return {"type": "record", "name": name, "fields": fields}


def _big_decimal(raw: Column) -> Column:
    return _with_point(_digits(raw.getField("unscaled")), raw.getField("scale"))


def _is_big_decimal(raw: Column) -> list[Column]:
    length, scale = F.octet_length(raw.getField("unscaled")), raw.getField("scale").cast("bigint")
    zigzag = F.when(scale < 0, -2 * scale - 1).otherwise(2 * scale)
    framed = raw.getField("length") == _varint_size(2 * length) + length + _varint_size(zigzag)
    return [_unless_null(framed & length.between(1, _MAX_UNSCALED_BYTES))]


def _varint_size(number: Column) -> Column:
    size = F.lit(5)
    for bits in (28, 21, 14, 7):
        size = F.when(number < 2**bits, F.lit(bits // 7)).otherwise(size)
    return size


def _let(value: Column, use: Expression) -> Column:
    """Return what `use` makes of a value that it names more than once, evaluated once."""
    return F.get(F.transform(F.array(value), use), F.lit(0))


def _digits(unscaled: Column) -> Column:
    """Return a number of two's complement as decimal text.

    Limbs of nine digits, the lowest first, take up 32 bits of the number after the other. What is negative counts as
    its complement, which is one less than its magnitude.
    """

    def text_of(limbs: Column) -> Column:
        nines = F.reverse(F.transform(limbs, lambda limb: F.lpad(limb.cast("string"), 9, "0")))
        stripped = F.ltrim(F.concat_ws("", nines), F.lit("0"))
        return _let(stripped, lambda digits: F.when(digits == "", "0").otherwise(digits))

    def of_hex(text: Column) -> Column:
        negative = F.substring(text, 1, 1) >= "8"
        of_64_bits = F.conv(F.lpad(text, 16, F.when(negative, "F").otherwise("0")), 16, -10)
        complement = F.translate(text, "0123456789ABCDEF", "FEDCBA9876543210")
        words = F.ceil(F.length(text) / 8).cast("int")
        padded = F.lpad(F.when(negative, complement).otherwise(text), words * 8, F.lit("0"))
        limbs = _let(padded, lambda whole: _limbs(whole, words))
        exact = _shifted(limbs, 1, F.when(negative, 1).otherwise(0).cast("bigint"))
        of_more = F.concat(F.when(negative, "-").otherwise(""), text_of(exact))
        return F.when(F.length(text) <= 16, of_64_bits).otherwise(of_more)

    return F.when(unscaled.isNotNull(), _let(F.hex(unscaled), of_hex))


def _limbs(text: Column, words: Column) -> Column:
    """Return the limbs of a number of so many words of eight hexadecimal digits."""
    zeros = F.array_repeat(F.lit(0).cast("bigint"), words + F.ceil(words / 8).cast("int"))

    def taken(limbs: Column, word: Column) -> Column:
        return _shifted(limbs, 2**32, F.conv(F.substr(text, word * 8 + 1, F.lit(8)), 16, 10).cast("bigint"))

    return F.aggregate(F.sequence(F.lit(0), words - 1), zeros, taken)


def _shifted(limbs: Column, factor: int, addend: Column) -> Column:
    start = F.struct(F.array().cast("array<bigint>").alias("limbs"), addend.alias("carry"))

    def step(state: Column, limb: Column) -> Column:
        total = limb * F.lit(factor) + state.getField("carry")
        done = F.concat(state.getField("limbs"), F.array(total % _LIMB))
        return F.struct(done.alias("limbs"), F.call_function("div", total, F.lit(_LIMB)).alias("carry"))

    return F.aggregate(limbs, start, step, lambda state: state.getField("limbs"))


def _with_point(number: Column, scale: Column) -> Column:
    def pointed(digits: Column) -> Column:
        magnitude = F.ltrim(digits, F.lit("-"))
        whole = F.greatest(F.length(magnitude) - scale, F.lit(1))
        padded = F.lpad(magnitude, whole + scale, F.lit("0"))
        sign = F.when(digits.startswith("-"), "-").otherwise("")
        plain = F.concat(sign, F.substr(padded, F.lit(1), whole), F.lit("."), F.right(padded, scale))
        scientific = F.concat(digits, F.lit("E"), (-scale.cast("bigint")).cast("string"))
        return F.when(scale == 0, digits).when(scale.between(1, _MAX_SCALE), plain).otherwise(scientific)

    return _let(number, pointed)


def _unless_null(condition: Column) -> Column:
    return F.coalesce(condition, F.lit(True))


def _field(name: str, kind: Any) -> dict[str, Any]:
    return {"name": name, "type": kind}


def _full_name(node: Mapping[str, Any], namespace: str) -> str:
    name, space = str(node.get("name", "")), node.get("namespace", namespace)
    return name if "." in name or not space else f"{space}.{name}"


def _labels(kinds: Sequence[str]) -> list[str]:
    """Return a name for each branch of a union, different but for the case.

    >>> _labels(["int", "shop.Order", "old.order", "Map"])
    ['int', 'shop_Order', 'old_order', 'Map']
    """
    short = [kind.rpartition(".")[2] for kind in kinds]
    often = Counter(each.lower() for each in short)
    names = [each if often[each.lower()] == 1 else kind.replace(".", "_")
             for each, kind in zip(short, kinds, strict=True)]  # fmt: skip
    found: list[str] = []
    for name in names:
        others = {each.lower() for each in found}
        found.append(next(n for n in (name, *(f"{name}_{i}" for i in range(2, 999))) if n.lower() not in others))
    return found


def _shown(node: Any) -> str:
    text = json.dumps(node)
    return text if len(text) <= 80 else text[:79] + "…"
