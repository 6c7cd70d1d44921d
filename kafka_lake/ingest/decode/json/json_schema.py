"""JSON Schema to Spark types: which columns the records have. Pure; Spark's own JSON functions decode by them.

What a table's types can't say becomes JSON text in a string column, so that nothing is lost: so does a schema within
itself. Of the drafts 4 to 2020-12, those keywords count that bear on types.
"""

import re
from collections.abc import Callable, Iterator
from functools import reduce
from typing import Any

from pyspark.sql import types as T

from kafka_lake.errors import SchemaNotSupportedError
from kafka_lake.ingest.decode.json.json_schema_combine import ANY, NULL, Record, both_of, either_of, settled
from kafka_lake.ingest.decode.json.json_schema_documents import Documents, SchemaError, base_of, parsed_schema
from kafka_lake.kafka.registry import WriterSchema

TYPES: tuple[tuple[str, str, str], ...] = (
    ('{"type": "string"}', "string", ""),
    ('{"type": "integer"}', "bigint", "One beyond 64 bits doesn't fit."),
    ('{"type": "number"}', "double", ""),
    ('{"type": "boolean"}', "boolean", ""),
    ('{"type": "string", "format": "date-time"}', "timestamp", ""),
    ('{"type": "string", "format": "date"}', "date", ""),
    ('{"type": "string", "format": "time"}', "string", "Any other format too, `uuid` and `byte` among them, as it is."),
    ('{"type": "string", "contentEncoding": "base64"}', "string", "As it is."),
    ('{"type": ["integer", "null"]}', "bigint", "Every column may be null, in whatever way the schema says so."),
    ('{"anyOf": [{"type": "null"}, {"type": "integer"}]}', "bigint", ""),
    ('{"enum": ["small", "large", null]}', "string", "`enum` and `const` have the type of their values."),
    ('{"const": 3}', "bigint", ""),
    (
        '{"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}}',
        "struct<a:bigint,b:string>",
        "`description` becomes the column's comment.",
    ),
    ('{"type": "object", "additionalProperties": {"type": "number"}}', "map<string,double>", "Without `properties`."),
    ('{"type": "object", "patternProperties": {"^x": {"type": "number"}}}', "map<string,double>", "Likewise."),
    ('{"type": "array", "items": {"type": "date"}}', "array<string>", "An unknown type is JSON text."),
    ('{"type": "array", "prefixItems": [{"type": "integer"}, {"type": "number"}]}', "array<double>", "See `anyOf`."),
    (
        '{"allOf": [{"properties": {"a": {"type": "integer"}}}, {"properties": {"b": {"type": "string"}}}]}',
        "struct<a:bigint,b:string>",
        "Fields of all; of two types for one field the narrower. `$ref` beside other keywords likewise.",
    ),
    (
        '{"oneOf": [{"properties": {"a": {"type": "integer"}}}, {"properties": {"a": {"type": "number"}, '
        '"b": {"type": "string"}}}]}',
        "struct<a:double,b:string>",
        "Fields of any; of two numeric types for one field the wider. `anyOf`, `then` and `else` likewise.",
    ),
    ('{"oneOf": [{"type": "integer"}, {"type": "string"}]}', "string", "Types that have no type in common: JSON text."),
    ('{"type": "object"}', "string", "An object of which no fields are known: JSON text."),
    ('{"type": "array"}', "array<string>", "Elements of which nothing is known: JSON text."),
    ("true", "string", "JSON text."),
    ('{"type": "null"}', "string", "Always null."),
    (
        '{"type": "integer", "connect.type": "int32"}',
        "int",
        "As Kafka Connect writes it; int8 and int16 too.",
    ),
    ('{"type": "number", "connect.type": "float32"}', "float", "Likewise."),
    (
        '{"type": "number", "connect.type": "bytes", "connect.parameters": {"scale": "2", '
        '"connect.decimal.precision": "9"}}',
        "decimal(9,2)",
        "Likewise; without a precision it is 38.",
    ),
)
"""Schemas, the types that they become, and what else is to be known."""
_REFERENCES = ("$ref", "$recursiveRef", "$dynamicRef")
_DEPTH, _MAX_PARTS = 64, 20_000
_REMEDY = "Take the topic with `format: bytes` and decode it in a transform, or let the writer change its schema."
_DECIMAL_DIGITS = 38
_OBJECT = {"properties", "patternProperties", "additionalProperties"}
_ARRAY = {"items", "prefixItems"}
_FORMATS = {"date-time": T.TimestampType(), "date": T.DateType()}

_Part = Callable[..., T.DataType]


def json_schema_type(schema: WriterSchema) -> T.DataType:
    """Return the type of a schema's values; `TYPES` says which. All fields are nullable.

    Args:
        schema: Its references are found by the names that it uses for them, also relative to its ``$id``.

    Raises:
        SchemaNotSupportedError: As `json_schema_content`.
    """
    return settled(json_schema_content(schema))


def json_schema_content(schema: WriterSchema) -> T.DataType:
    """Return what a schema's values may have, `Record` for objects with fields; `settled` makes a table's type of it.

    Raises:
        SchemaNotSupportedError: If it refers to what isn't there, is too large, or is no JSON Schema.
    """
    try:
        root = parsed_schema(schema.text)
        documents = Documents(base_of(root, ""))
        documents.add(root, documents.base)
        for name, text in schema.references.items():
            documents.add(parsed_schema(text), name)
        return _type(documents, root, documents.base, path="", above=())
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
        raise SchemaError(f"it has more than {_MAX_PARTS:,} parts, with what it refers to written out")
    if len(above) == _DEPTH:
        raise SchemaError(f"{path} lies more than {_DEPTH} schemas deep")
    base, above = base_of(schema, base), (*above, id(schema))

    def part(each: Any, step: str = "") -> T.DataType:
        return _type(documents, each, base, path=f"{path}.{step}" if path and step else path or step, above=above)

    kind = _own(schema, part)
    for key in _REFERENCES:
        if isinstance(schema.get(key), str):
            found, there = documents.find(schema[key], base)
            kind = both_of(kind, _type(documents, found, there, path=path, above=above))
    for each in _list(schema, "allOf"):
        kind = both_of(kind, part(each))
    for branches in _alternatives(schema):
        kind = reduce(either_of, [both_of(kind, part(each)) for each in branches])
    if isinstance(kind, Record) and "unevaluatedProperties" in schema:
        return Record(kind, _rest(schema, "unevaluatedProperties", part))
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
        yield from ([None, each] for each in _dict(schema, key).values())


def _own(schema: dict[str, Any], part: _Part) -> T.DataType:
    """Return what the schema says by itself, without the schemas that it combines."""
    declared = schema.get("type")
    if isinstance(declared, list) and declared:
        return reduce(either_of, [_named(schema, each, part) for each in declared])
    if declared is not None:
        return _named(schema, declared, part)
    if _OBJECT & schema.keys():
        return _object(schema, part)
    if _ARRAY & schema.keys():
        return _array(schema, part)
    values = [schema["const"]] if "const" in schema else _list(schema, "enum")
    return reduce(either_of, [_of_value(each) for each in values]) if values else ANY


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
        fields = [_field(name, kind, part) for name, kind in sorted(properties.items(), key=_connect_index)]
        return Record(fields, _rest(schema, "additionalProperties", part))
    values, rest = list(_dict(schema, "patternProperties").values()), schema.get("additionalProperties")
    if (rest is True or isinstance(rest, dict)) and (values or rest not in (True, {})):
        values.append(rest)
    kinds = [part(each, "value") for each in values]
    return T.MapType(T.StringType(), reduce(either_of, kinds)) if kinds else ANY


def _rest(schema: dict[str, Any], key: str, part: _Part) -> T.DataType | None:
    """Return the type of fields beside those of ``properties``; None if the schema allows no others."""
    others = list(_dict(schema, "patternProperties").values())
    if (rest := schema.get(key, True)) is not False:
        others.append(rest)
    kinds = [part(other, "value") for other in others]
    return reduce(either_of, kinds) if kinds else None


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
    kinds = [part(each, "element") for each in elements]
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
