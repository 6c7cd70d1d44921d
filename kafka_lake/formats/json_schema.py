"""JSON Schema to Spark types: which columns the records have. Pure.

What a table's types can't say becomes JSON text in a string column, so that nothing is lost: so does a schema within
itself. Of the drafts 4 to 2020-12, those keywords count that bear on types.
"""

import json
import re
from collections.abc import Callable, Iterator
from functools import reduce
from typing import Any
from urllib.parse import unquote, urljoin

from pyspark.sql import types as T

from kafka_lake.errors import SchemaNotSupportedError
from kafka_lake.kafka.registry import WriterSchema

_DATA = {"const", "default", "enum", "example", "examples"}
_ANCHORS = ("$anchor", "$dynamicAnchor", "$recursiveAnchor")


class SchemaError(ValueError):
    """What is wrong with a schema, without its name and a full stop."""


def parsed_schema(text: str) -> Any:
    """Return a schema's JSON."""
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SchemaError(f"it isn't valid JSON ({error})") from error
    if not isinstance(schema, dict | bool):
        raise SchemaError("it isn't a JSON Schema, which is an object or a boolean")
    return schema


class Documents:
    """Schemas and parts of them by their URIs.

    Args:
        base: The URI of the schema whose type is asked for, empty if it has none.

    Attributes:
        count: How many parts have been read.
    """

    def __init__(self, base: str) -> None:
        self.base = base
        self.count = 0
        self._by_uri: dict[str, tuple[Any, str]] = {}

    def add(self, document: Any, name: str) -> None:
        """Make a document known by its name, by its name relative to the base, and by the ids and anchors in it."""
        base = _join(self.base, name)
        self._by_uri.setdefault(name.rstrip("#"), (document, base))
        self._by_uri.setdefault(base, (document, base))
        rest = [(document, base)]
        while rest:
            part, base = rest.pop()
            if isinstance(part, dict):
                base = base_of(part, base)
                self._by_uri.setdefault(base, (part, base))
                names = [part[key] for key in _ANCHORS if isinstance(part.get(key), str)]
                names += [part[key][1:] for key in ("$id", "id") if str(part.get(key)).startswith("#")]
                self._by_uri.update((f"{base}#{anchor}", (part, base)) for anchor in names)
                rest += [(value, base) for key, value in part.items() if key not in _DATA]
            elif isinstance(part, list):
                rest += [(value, base) for value in part]

    def find(self, reference: str, base: str) -> tuple[Any, str]:
        """Return what a reference means in a place with that base URI, and the base URI there."""
        uri = _join(base, reference)
        document, _, fragment = uri.partition("#")
        for known in (uri, reference, document, reference.partition("#")[0]):
            if known not in self._by_uri:
                continue
            found, base = self._by_uri[known]
            if known in (uri, reference) or not fragment:
                return found, base
            if fragment.startswith("/"):
                return self._point(found, base, fragment, reference)
        raise SchemaError(f"it refers to {reference}, which doesn't exist")

    def _point(self, found: Any, base: str, pointer: str, reference: str) -> tuple[Any, str]:
        for escaped in unquote(pointer).split("/")[1:]:
            key = escaped.replace("~1", "/").replace("~0", "~")
            if isinstance(found, dict) and key in found:
                found = found[key]
            elif isinstance(found, list) and key in map(str, range(len(found))):
                found = found[int(key)]
            else:
                raise SchemaError(f"it refers to {reference}, which doesn't exist")
            base = base_of(found, base)
        return found, base


def base_of(schema: Any, base: str) -> str:
    """Return the base URI within a schema, which its id may change."""
    for key in ("$id", "id"):
        if isinstance(schema, dict) and isinstance(schema.get(key), str) and not schema[key].startswith("#"):
            return _join(base, schema[key])
    return base


def _join(base: str, reference: str) -> str:
    try:
        return urljoin(base, reference).rstrip("#")
    except ValueError as error:
        raise SchemaError(f"it has the URI {reference!r} ({error})") from error


# Within this module: whatever JSON can say, and nothing but null. Both are strings in the end.
ANY, NULL = T.VariantType(), T.NullType()
# Each from the narrowest to the widest.
_WHOLE, _BINARY = (T.IntegerType, T.LongType), (T.FloatType, T.DoubleType)
_NUMBERS = (*_WHOLE, T.DecimalType, *_BINARY)
_STRINGS = (T.TimestampType, T.DateType, T.StringType)


def both_of(one: T.DataType, other: T.DataType) -> T.DataType:
    """Return the type of values that have both types; of two that exclude each other, any."""
    if one == other or ANY in (one, other):
        return one if other == ANY else other
    if NULL in (one, other):
        return NULL
    for family in (_NUMBERS, _STRINGS):
        if isinstance(one, family) and isinstance(other, family):
            return min(one, other, key=lambda kind: family.index(type(kind)))
    return _inside(one, other, both_of)


def either_of(one: T.DataType, other: T.DataType) -> T.DataType:
    """Return a type for values that have one or the other."""
    if one == other or NULL in (one, other):
        return one if other == NULL else other
    if isinstance(one, _WHOLE) and isinstance(other, _WHOLE):
        return T.LongType()
    if isinstance(one, (*_WHOLE, *_BINARY)) and isinstance(other, (*_WHOLE, *_BINARY)):
        return T.DoubleType()
    if isinstance(one, _STRINGS) and isinstance(other, _STRINGS):
        return T.StringType()
    return _inside(one, other, either_of)


def _inside(one: T.DataType, other: T.DataType, combine: Callable[[T.DataType, T.DataType], T.DataType]) -> T.DataType:
    if isinstance(one, T.StructType) and isinstance(other, T.StructType):
        return T.StructType(_fields(one, other, combine))
    if isinstance(one, T.ArrayType) and isinstance(other, T.ArrayType):
        return T.ArrayType(combine(one.elementType, other.elementType))
    if isinstance(one, T.MapType) and isinstance(other, T.MapType):
        return T.MapType(T.StringType(), combine(one.valueType, other.valueType))
    return ANY


def _fields(
    one: T.StructType, other: T.StructType, combine: Callable[[T.DataType, T.DataType], T.DataType]
) -> list[T.StructField]:
    fields = {field.name: field for field in one}
    for field in other:
        if twin := fields.get(field.name):
            kind = combine(twin.dataType, field.dataType)
            field = T.StructField(field.name, kind, metadata=twin.metadata or field.metadata)
        fields[field.name] = field
    return list(fields.values())


def _table_type(kind: T.DataType) -> T.DataType:
    """Return a type as a table has it: text where it is any, or nothing but null, at every depth."""
    if isinstance(kind, T.StructType):
        return T.StructType([T.StructField(f.name, _table_type(f.dataType), metadata=f.metadata) for f in kind])
    if isinstance(kind, T.ArrayType):
        return T.ArrayType(_table_type(kind.elementType))
    if isinstance(kind, T.MapType):
        return T.MapType(T.StringType(), _table_type(kind.valueType))
    return T.StringType() if kind in (ANY, NULL) else kind


_REFERENCES = ("$ref", "$recursiveRef", "$dynamicRef")
_DEPTH, _MAX_PARTS = 64, 20_000
_REMEDY = "Use `format: bytes` and decode the values in a transform, or change the producer's schema."
_DECIMAL_DIGITS = 38
_OBJECT = {"properties", "patternProperties", "additionalProperties"}
_ARRAY = {"items", "prefixItems"}
_FORMATS = {"date-time": T.TimestampType(), "date": T.DateType()}

_Part = Callable[..., T.DataType]


def json_schema_type(schema: WriterSchema) -> T.DataType:
    """Return the type of a schema's values; docs/formats.md says which. All fields are nullable."""
    try:
        root = parsed_schema(schema.text)
        documents = Documents(base_of(root, ""))
        documents.add(root, documents.base)
        for name, text in schema.references.items():
            documents.add(parsed_schema(text), name)
        return _table_type(_type(documents, root, documents.base, path="", above=()))
    except SchemaError as error:
        label = f"{schema.label[0].upper()}{schema.label[1:]}"
        raise SchemaNotSupportedError(f"{label} can't be read: {error}.", _REMEDY) from error


def _type(documents: Documents, schema: Any, base: str, path: str, above: tuple[int, ...]) -> T.DataType:
    if not isinstance(schema, dict):
        return ANY
    if id(schema) in above:
        # Within itself it is JSON text.
        return ANY
    documents.count += 1
    if documents.count > _MAX_PARTS:
        raise SchemaError(f"it has more than {_MAX_PARTS:,} parts, including the schemas that it refers to")
    if len(above) == _DEPTH:
        raise SchemaError(f"{path} is nested more than {_DEPTH} levels deep")
    base, above = base_of(schema, base), (*above, id(schema))

    def part(subschema: Any, step: str = "") -> T.DataType:
        return _type(documents, subschema, base, path=f"{path}.{step}" if path and step else path or step, above=above)

    kind = _own(schema, part)
    for key in _REFERENCES:
        if isinstance(schema.get(key), str):
            found, there = documents.find(schema[key], base)
            kind = both_of(kind, _type(documents, found, there, path=path, above=above))
    for member in _list(schema, "allOf"):
        kind = both_of(kind, part(member))
    for branches in _alternatives(schema):
        kind = reduce(either_of, [both_of(kind, part(branch)) for branch in branches])
    return kind


def _list(schema: dict[str, Any], key: str) -> list[Any]:
    found = schema.get(key)
    return found if isinstance(found, list) else []


def _dict(schema: dict[str, Any], key: str) -> dict[str, Any]:
    found = schema.get(key)
    return found if isinstance(found, dict) else {}


def _alternatives(schema: dict[str, Any]) -> Iterator[list[Any]]:
    """Yield groups of schemas of which a value has at least one each."""
    for key in ("oneOf", "anyOf"):
        if branches := _list(schema, key):
            yield branches
    if "if" in schema:
        yield [schema.get("then"), schema.get("else")]
    for key in ("dependentSchemas", "dependencies"):
        yield from ([None, subschema] for subschema in _dict(schema, key).values())


def _own(schema: dict[str, Any], part: _Part) -> T.DataType:
    """Return what the schema says by itself, without the schemas that it combines."""
    declared = schema.get("type")
    if isinstance(declared, list) and declared:
        return reduce(either_of, [_named(schema, member, part) for member in declared])
    if declared is not None:
        return _named(schema, declared, part)
    if _OBJECT & schema.keys():
        return _object(schema, part)
    if _ARRAY & schema.keys():
        return _array(schema, part)
    values = [schema["const"]] if "const" in schema else _list(schema, "enum")
    return reduce(either_of, [_of_value(value) for value in values]) if values else ANY


def _named(schema: dict[str, Any], name: Any, part: _Part) -> T.DataType:
    connect = schema.get("connect.type")
    match name:
        case "object":
            return _object(schema, part)
        case "array":
            return _array(schema, part)
        case "string":
            return next((kind for form, kind in _FORMATS.items() if schema.get("format") == form), T.StringType())
        case "integer":
            return T.IntegerType() if connect in ("int8", "int16", "int32") else T.LongType()
        case "number" if connect == "bytes":
            return _decimal(_dict(schema, "connect.parameters"))
        case "number":
            return T.FloatType() if connect == "float32" else T.DoubleType()
        case "boolean":
            return T.BooleanType()
        case "null":
            return NULL
        case _:
            return ANY


def _decimal(parameters: dict[str, Any]) -> T.DataType:
    scale, precision = parameters.get("scale", "0"), parameters.get("connect.decimal.precision", str(_DECIMAL_DIGITS))
    if not (re.fullmatch("[0-9]{1,2}", str(scale)) and re.fullmatch("[0-9]{1,2}", str(precision))):
        return ANY
    possible = int(scale) <= int(precision) and 0 < int(precision) <= _DECIMAL_DIGITS
    return T.DecimalType(int(precision), int(scale)) if possible else ANY


def _object(schema: dict[str, Any], part: _Part) -> T.DataType:
    if properties := _dict(schema, "properties"):
        return T.StructType([_field(name, kind, part) for name, kind in sorted(properties.items(), key=_connect_index)])
    values, rest = list(_dict(schema, "patternProperties").values()), schema.get("additionalProperties")
    if (rest is True or isinstance(rest, dict)) and (values or rest not in (True, {})):
        values.append(rest)
    kinds = [part(value, "value") for value in values]
    return T.MapType(T.StringType(), reduce(either_of, kinds)) if kinds else ANY


def _connect_index(named: tuple[str, Any]) -> int:
    index = named[1].get("connect.index") if isinstance(named[1], dict) else None
    return index if isinstance(index, int) else 0


def _field(name: str, schema: Any, part: _Part) -> T.StructField:
    description = schema.get("description") if isinstance(schema, dict) else None
    return T.StructField(
        name, part(schema, name), metadata={"comment": description} if isinstance(description, str) else None
    )


def _array(schema: dict[str, Any], part: _Part) -> T.DataType:
    elements = [*_list(schema, "prefixItems"), *_list(schema, "items")]
    rest = schema.get("additionalItems" if isinstance(schema.get("items"), list) else "items")
    # A tuple that says nothing of further elements is taken to have none.
    if rest is True or isinstance(rest, dict):
        elements.append(rest)
    kinds = [part(element, "element") for element in elements]
    return T.ArrayType(reduce(either_of, kinds) if kinds else ANY)


def _of_value(value: Any) -> T.DataType:
    match value:
        case None:
            return NULL
        case bool():
            return T.BooleanType()
        case int() if -(2**63) <= value < 2**63:
            return T.LongType()
        case float():
            return T.DoubleType()
        case str():
            return T.StringType()
        case _:
            return ANY
