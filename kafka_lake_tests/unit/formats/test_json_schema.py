"""JSON Schema to Spark types: the documented table, references, what is refused; and that valid values fit."""

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from pyspark.sql import types as T

from kafka_lake.errors import SchemaNotSupportedError
from kafka_lake.formats.columns import Target
from kafka_lake.formats.json_schema import json_schema_type
from kafka_lake.formats.registered import FromFile, writer_of
from kafka_lake.formats.task.decoders import unpack_decoder
from kafka_lake.kafka.registry import WriterSchema
from kafka_lake_tests.meta.type_tables import JSON_SCHEMA_TYPES as TYPES

INTEGER, STRING, NUMBER = {"type": "integer"}, {"type": "string"}, {"type": "number"}


def kind_of(schema: Any, **references: Any) -> T.DataType:
    text = schema if isinstance(schema, str) else json.dumps(schema)
    texts = {name: json.dumps(referenced) for name, referenced in references.items()}
    return json_schema_type(WriterSchema("JSON", text, texts, id=7))


def type_of(schema: Any, **references: Any) -> str:
    return kind_of(schema, **references).simpleString()


def record(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


@pytest.mark.parametrize(("schema", "kind", "remark"), TYPES)
def test_types_are_as_documented(schema: str, kind: str, remark: str) -> None:
    assert type_of(schema) == kind
    assert type_of(record(f=json.loads(schema))) == f"struct<f:{kind}>"
    assert remark == "" or remark.endswith(".")


@pytest.mark.parametrize(
    ("schema", "kind"),
    [
        ({"type": ["null", "object"], "properties": {"a": INTEGER}}, "struct<a:bigint>"),
        ({"type": ["string", "null"], "format": "date"}, "date"),
        ({"type": ["integer", "number", "null"]}, "double"),
        ({"type": ["integer", "string"]}, "string"),
        ({"type": ["integer", "boolean"]}, "string"),
        ({"type": "string", "format": ["odd"]}, "string"),
        ({"type": "any"}, "string"),
        ({"type": [], "format": "date-time"}, "string"),
        ({"type": "number", "enum": [1, 2]}, "double"),
        ({"enum": [1, 2.5]}, "double"),
        ({"enum": [True, None]}, "boolean"),
        ({"enum": [1, "a"]}, "string"),
        ({"enum": [2**63]}, "string"),
        ({"const": -(2**63)}, "bigint"),
        ({"const": None}, "string"),
        ({"const": {"a": 1}}, "string"),
        ({"properties": {}, "type": "object", "additionalProperties": False}, "string"),
        ({"type": "object", "additionalProperties": True}, "string"),
        ({"type": "object", "additionalProperties": {}}, "string"),
        ({**record(a=INTEGER), "additionalProperties": STRING}, "struct<a:bigint>"),
        ({"type": "object", "additionalProperties": record(a=INTEGER)}, "map<string,struct<a:bigint>>"),
        ({"patternProperties": {"^a": INTEGER}, "additionalProperties": NUMBER}, "map<string,double>"),
        ({"patternProperties": {"^a": INTEGER}, "additionalProperties": {}}, "map<string,string>"),
        ({"patternProperties": {"^a": INTEGER}, "additionalProperties": False}, "map<string,bigint>"),
        ({"type": "object", "additionalProperties": "odd"}, "string"),
        ({"additionalProperties": {"type": ["integer", "string"]}, "type": "object"}, "map<string,string>"),
        ({"type": "array", "items": record(a=INTEGER)}, "array<struct<a:bigint>>"),
        ({"type": "array", "items": [INTEGER, STRING]}, "array<string>"),
        ({"type": "array", "items": [INTEGER], "additionalItems": INTEGER}, "array<bigint>"),
        ({"type": "array", "items": False}, "array<string>"),
        ({"items": INTEGER}, "array<bigint>"),
        (record(b=STRING, a=INTEGER), "struct<b:string,a:bigint>"),
        (record(b={**STRING, "connect.index": 1}, a={**INTEGER, "connect.index": 0}), "struct<a:bigint,b:string>"),
        (record(a=True, b=False, c=7), "struct<a:string,b:string,c:string>"),
        ({"type": "number", "connect.type": "bytes", "connect.parameters": {"scale": "x"}}, "string"),
        ({"type": "number", "connect.type": "bytes", "connect.parameters": {"scale": "39"}}, "string"),
        ({"type": "number", "connect.type": "bytes", "connect.parameters": {"scale": "4"}}, "decimal(38,4)"),
    ],
)
def test_types(schema: Any, kind: str) -> None:
    assert type_of(schema) == kind


@pytest.mark.parametrize(
    ("schema", "kind"),
    [
        ({"allOf": [INTEGER, NUMBER]}, "bigint"),
        ({"allOf": [STRING, {"format": "date"}, {"minLength": 1}]}, "string"),
        ({"allOf": [STRING, {"type": "string", "format": "date-time"}]}, "timestamp"),
        ({"allOf": [record(a=NUMBER), record(a=INTEGER, b=STRING)]}, "struct<a:bigint,b:string>"),
        ({"allOf": [{"items": NUMBER}, {"items": INTEGER}]}, "array<bigint>"),
        ({"allOf": [{"type": "object"}, record(a=INTEGER)]}, "struct<a:bigint>"),
        (
            {"allOf": [{"additionalProperties": NUMBER}, {"additionalProperties": INTEGER}], "type": "object"},
            "map<string,bigint>",
        ),
        ({"oneOf": [record(a=INTEGER), {"type": "null"}]}, "struct<a:bigint>"),
        ({"anyOf": [record(a=INTEGER), record(b=STRING)]}, "struct<a:bigint,b:string>"),
        ({"anyOf": [record(a=INTEGER), record(a=STRING, b=STRING)]}, "struct<a:string,b:string>"),
        ({"anyOf": [record(a=record(x=INTEGER)), record(a=record(y=STRING))]}, "struct<a:struct<x:bigint,y:string>>"),
        ({"anyOf": [record(a=INTEGER), STRING]}, "string"),
        ({"anyOf": [{"items": INTEGER}, {"items": NUMBER}]}, "array<double>"),
        ({"anyOf": [{"type": "string", "format": "date"}, {"type": "string", "format": "date-time"}]}, "string"),
        ({**record(a=INTEGER), "oneOf": [{"required": ["a"]}, {"required": ["b"]}]}, "struct<a:bigint>"),
        (
            {**record(a=INTEGER), "anyOf": [{"required": ["a"]}, {"properties": {"b": STRING}}]},
            "struct<a:bigint,b:string>",
        ),
        (
            {**record(a=INTEGER), "if": {"required": ["a"]}, "then": {"properties": {"b": STRING}}},
            "struct<a:bigint,b:string>",
        ),
        ({**record(a=INTEGER), "dependentSchemas": {"a": {"properties": {"b": STRING}}}}, "struct<a:bigint,b:string>"),
        ({**record(a=INTEGER), "dependencies": {"a": ["b"]}}, "struct<a:bigint>"),
        ({"type": ["object", "null"], "properties": {"a": INTEGER}, "oneOf": [True]}, "struct<a:bigint>"),
        ({"oneOf": [{"type": "integer", "connect.type": "int16"}, INTEGER]}, "bigint"),
        (
            {"oneOf": [{"type": "number", "connect.type": "float32"}, {"type": "integer", "connect.type": "int8"}]},
            "double",
        ),
    ],
)
def test_schemas_of_schemas(schema: Any, kind: str) -> None:
    assert type_of(schema) == kind


def test_references_within_a_schema() -> None:
    schema = {
        "$id": "https://shop.example/order.json",
        **record(
            old={"$ref": "#/definitions/line"},
            new={"$ref": "#/$defs/li~1ne%20"},
            full={"$ref": "https://shop.example/order.json#/$defs/li~1ne%20"},
            id={"$ref": "sku.json"},
            anchor={"$ref": "#qty"},
            plain={"$ref": "#old-qty"},
            listed={"$ref": "#/allOf/0"},
            beside={"$ref": "#/definitions/line", "properties": {"b": STRING}},
        ),
        "definitions": {"line": record(a=INTEGER), "q": {"id": "#old-qty", "type": "integer"}},
        "$defs": {
            "li/ne ": record(sku={"$ref": "sku.json"}),
            "sku": {"$id": "sku.json", **STRING},
            "n": {"$anchor": "qty", **INTEGER},
        },
        "allOf": [{"type": "object"}],
    }
    assert type_of(schema) == (
        "struct<old:struct<a:bigint>,new:struct<sku:string>,full:struct<sku:string>,id:string,anchor:bigint,plain:bigint,"
        "listed:string,beside:struct<b:string,a:bigint>>"
    )


@pytest.mark.parametrize("base", [{}, {"$id": "https://shop.example/a/order.json"}, {"id": "urn:shop:order"}])
def test_references_to_other_schemas(base: dict[str, str]) -> None:
    line = {**record(p={"$ref": "product.json"}, q={"$ref": "#/definitions/q"}), "definitions": {"q": INTEGER}}
    product = {**record(sku=STRING), "definitions": {"c": {"type": "boolean"}}}
    order = {**base, **record(line={"$ref": "line.json"}, c={"$ref": "product.json#/definitions/c"})}
    assert (
        json_schema_type(
            WriterSchema(
                "JSON", json.dumps(order), {"product.json": json.dumps(product), "line.json": json.dumps(line)}
            )
        ).simpleString()
        == "struct<line:struct<p:struct<sku:string>,q:bigint>,c:boolean>"
    )


def test_a_reference_by_the_id_of_the_other_schema() -> None:
    other = {"$id": "https://elsewhere.example/line", **record(a=INTEGER)}
    assert (
        type_of(record(f={"$ref": "https://elsewhere.example/line#"}), some_name=other) == "struct<f:struct<a:bigint>>"
    )


def test_a_reference_by_name_from_a_schema_that_lives_elsewhere() -> None:
    texts = {
        "product.json": json.dumps(record(sku=STRING)),
        "https://b.example/line": json.dumps(record(p={"$ref": "product.json"})),
    }
    order = {"$id": "https://a.example/order", **record(line={"$ref": "https://b.example/line"})}
    kind = json_schema_type(WriterSchema("JSON", json.dumps(order), texts))
    assert kind.simpleString() == "struct<line:struct<p:struct<sku:string>>>"


def test_a_schema_with_the_id_of_one_that_it_refers_to() -> None:
    other = {"$id": "https://a.example/copied", **record(a=INTEGER)}
    schema = {"$id": "https://a.example/copied", **record(f={"$ref": "#/$defs/x"}), "$defs": {"x": INTEGER}}
    assert type_of(schema, other=other) == "struct<f:bigint>"


def test_what_looks_like_an_id_in_data_is_none() -> None:
    schema = {
        **record(f={"$ref": "#/definitions/a"}),
        "default": {"$id": "#/definitions/a"},
        "definitions": {"a": INTEGER},
    }
    assert type_of(schema) == "struct<f:bigint>"


def test_descriptions_become_comments() -> None:
    kind = kind_of(record(a={**INTEGER, "description": "How many."}, b={**INTEGER, "description": 3}, c=True))
    assert isinstance(kind, T.StructType)
    assert [field.metadata for field in kind] == [{"comment": "How many."}, {}, {}]
    merged = kind_of({"anyOf": [record(a=INTEGER), record(a={**NUMBER, "description": "How much."})]})
    assert isinstance(merged, T.StructType)
    assert merged["a"].metadata == {"comment": "How much."}
    assert all(field.nullable for field in kind)


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (
            {
                **record(a={"$ref": "#/definitions/0"}),
                "definitions": {
                    str(n): record(**{f"f{m}": {"$ref": f"#/definitions/{m}"} for m in range(9)}) for n in range(9)
                },
            },
            "it has more than 20,000 parts, including the schemas that it refers to",
        ),
        (record(a={"$ref": "#/definitions/none"}), "it refers to #/definitions/none, which doesn't exist"),
        ({**record(a={"$ref": "#/allOf/1"}), "allOf": [True]}, "it refers to #/allOf/1, which doesn't exist"),
        (record(a={"$ref": "#/type/0"}), "it refers to #/type/0, which doesn't exist"),
        (record(a={"$ref": "other.json"}), "it refers to other.json, which doesn't exist"),
        (record(a={"$ref": "#none"}), "it refers to #none, which doesn't exist"),
        ({**record(a={"$ref": "http://["}), "$id": "http://a/b"}, "it has the URI 'http://\\["),
        ("{", "it isn't valid JSON"),
        ("[" * 100_000, "it isn't valid JSON"),
        ("[]", "it isn't a JSON Schema"),
        ('"string"', "it isn't a JSON Schema"),
        ('{"items": ' * 300 + "true" + "}" * 300, "more than 64 levels deep"),
    ],
)
def test_what_is_refused(schema: Any, message: str) -> None:
    with pytest.raises(SchemaNotSupportedError, match=message):
        kind_of(schema)


def test_fields_beyond_a_schema_are_inferred_as_in_json() -> None:
    schema = record(a=INTEGER, s=record(b=INTEGER), l={"items": record(b=INTEGER)})
    decoder = FromFile(writer_of(WriterSchema("JSON", json.dumps(schema))))
    ((_, fields),) = decoder.incoming()
    target = Target(fields)
    value = {"a": "no integer", "x": "t", "s": {"b": 2, "y": 1}, "l": [{"z": 0.5}, {"z": None}]}
    contents = pa.array([json.dumps(record_value).encode() for record_value in (value, {**value, "a": 1})])
    decoded = unpack_decoder(decoder.for_tasks(target, None)).decode(contents)
    assert decoded.error_class.to_pylist() == ["wrong_type", None]
    records: Any = None
    learned = decoder.learn(decoded.seen, records, target)
    assert learned is not None
    (_, (_, shown)) = learned.decoder.incoming()
    assert (
        shown.simpleString()
        == "struct<a:bigint,s:struct<b:bigint,y:bigint>,l:array<struct<b:bigint,z:double>>,x:string>"
    )


def test_the_same_schema_in_two_places_is_no_recursion() -> None:
    schema = {
        **record(a={"$ref": "#/definitions/x"}, b={"$ref": "#/definitions/x"}),
        "definitions": {"x": record(c=STRING)},
    }
    assert type_of(schema) == "struct<a:struct<c:string>,b:struct<c:string>>"


@pytest.mark.parametrize(
    ("schema", "kind"),
    [
        (record(value=INTEGER, parts={"type": "array", "items": {"$ref": "#"}}),
         "struct<value:bigint,parts:array<string>>"),
        ({**record(node={"$ref": "#/definitions/node"}),
          "definitions": {"node": record(v=NUMBER, next={"$ref": "#/definitions/node"})}},
         "struct<node:struct<v:double,next:string>>"),
        ({**record(a=STRING), "additionalProperties": {"$ref": "#"}}, "struct<a:string>"),
        (record(m={"type": "object", "additionalProperties": {"$recursiveRef": "#"}}), "struct<m:map<string,string>>"),
        ({**record(a=INTEGER), "allOf": [{"$ref": "#"}]}, "struct<a:bigint>"),
        ({"$ref": "#"}, "string"),
    ],
)  # fmt: skip
def test_a_schema_within_itself_is_text(schema: Any, kind: str) -> None:
    assert type_of(schema) == kind


def test_deep_schemas_are_fine() -> None:
    assert type_of('{"items": ' * 60 + "true" + "}" * 60).count("array") == 60


# No fields that schemas name: one of two alternatives allows whatever is a field of the other only, which is taken for
# that field all the same, and may be none.
values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from([0.5, -2.5]) | st.sampled_from(["", "a", "1"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("xyz"), inner, max_size=3),
    max_leaves=5,
)


def combined(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    some = st.lists(inner, min_size=1, max_size=3)
    fields = st.dictionaries(st.sampled_from("abc"), inner, max_size=2)
    anything = st.sampled_from([["object", "null"], "object"])
    base = st.builds(lambda kind, properties: {"type": kind, "properties": properties}, anything, fields)
    return st.one_of(
        base,
        st.builds(lambda item: {"type": "object", "additionalProperties": item}, inner),
        st.builds(lambda item: {"type": "array", "items": item}, inner),
        st.builds(lambda item, rest: {"type": "array", "prefixItems": item, "items": rest}, some, inner),
        st.builds(lambda key, item: {key: item}, st.sampled_from(["allOf", "anyOf", "oneOf"]), some),
        st.builds(lambda own, key, item: {**own, key: item}, base, st.sampled_from(["allOf", "anyOf", "oneOf"]), some),
        st.builds(
            lambda own, one, two: {**own, "if": {"required": ["a"]}, "then": one, "else": two}, base, inner, inner
        ),
        st.builds(lambda own, item: {**own, "dependentSchemas": {"a": item}}, base, inner),
        st.builds(lambda own, item: {"$defs": {"x": item}, **own, "$ref": "#/$defs/x"}, st.just({}) | base, inner),
    )


names = st.sampled_from(["string", "integer", "number", "boolean", "null"])
leaves = st.one_of(
    st.booleans(),
    st.just({}),
    names.map(lambda name: {"type": name}),
    st.lists(names, min_size=1, max_size=3, unique=True).map(lambda item: {"type": item}),
    st.lists(st.none() | st.booleans() | st.integers(-2, 2) | st.sampled_from(["a", 0.5]), min_size=1).map(
        lambda item: {"enum": item}
    ),
)


def fits(value: Any, kind: T.DataType) -> bool:
    match kind:
        case T.StringType():
            return True
        case _ if value is None:
            return True
        case T.BooleanType():
            return isinstance(value, bool)
        case T.LongType():
            return isinstance(value, int) and not isinstance(value, bool)
        case T.DoubleType():
            return isinstance(value, int | float) and not isinstance(value, bool)
        case T.ArrayType():
            return isinstance(value, list) and all(fits(element, kind.elementType) for element in value)
        case T.MapType():
            return isinstance(value, dict) and all(fits(element, kind.valueType) for element in value.values())
        case T.StructType():
            known = {field.name: field.dataType for field in kind}
            return isinstance(value, dict) and all(fits(value[name], known[name]) for name in value.keys() & known)
    raise AssertionError(kind)


def likely(draw: st.DrawFn, schema: Any, root: Any, depth: int = 0) -> Any:
    """Return a value that has a good chance to be valid."""
    if not isinstance(schema, dict) or not schema or depth > 6:
        return draw(values)
    if "enum" in schema:
        return draw(st.sampled_from(schema["enum"]))
    names = schema.get("type", "any")
    name = draw(st.sampled_from(names)) if isinstance(names, list) else names
    simple = {"string": "a", "integer": 7, "number": draw(st.sampled_from([7, 0.5])), "boolean": True, "any": {}}
    found: Any = simple.get(name)
    if name == "object":
        members = {**schema.get("properties", {}), "z": schema.get("additionalProperties")}
        found = {
            key: likely(draw, value, root, depth + 1)
            for key, value in members.items()
            if value is not None and draw(st.booleans())
        }
    if name == "array":
        rest = [schema["items"]] * draw(st.integers(0, 2))
        found = [likely(draw, item, root, depth + 1) for item in [*schema.get("prefixItems", []), *rest]]
    parts = [*schema.get("allOf", []), *({"$ref"} & schema.keys() and [root["$defs"]["x"]])]
    parts += [draw(st.sampled_from(schema[key])) for key in ("anyOf", "oneOf") if key in schema]
    parts += [schema[draw(st.sampled_from(["then", "else"]))]] if "if" in schema else []
    parts += schema.get("dependentSchemas", {}).values()
    for part in parts:
        more = likely(draw, part, root, depth + 1)
        found = (
            {**found, **more}
            if isinstance(found, dict) and isinstance(more, dict)
            else draw(st.sampled_from([found, more]))
        )
    return found


@pytest.mark.slow
@settings(max_examples=500, deadline=None, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
@given(st.data(), st.recursive(leaves, combined, max_leaves=6))
def test_valid_values_fit(data: st.DataObject, schema: Any) -> None:
    try:
        kind = kind_of(schema)
    except SchemaNotSupportedError:
        assume(False)
    value = likely(data.draw, schema, schema)
    try:
        assume(Draft202012Validator(schema).is_valid(value))
    except RecursionError:
        # A schema that is nothing but itself.
        assume(False)
    assert fits(value, kind), kind.simpleString()


KEYS = [
    "type", "properties", "additionalProperties", "patternProperties", "items", "prefixItems", "additionalItems",
    "enum", "const", "$ref", "$id", "id", "$anchor", "$recursiveRef", "$defs", "definitions", "allOf", "anyOf", "oneOf",
    "if", "then", "else", "dependentSchemas", "dependencies", "format", "description", "default", "connect.type",
    "connect.parameters", "connect.index", "scale", "connect.decimal.precision", "a",
]  # fmt: skip
TEXTS = [
    "object", "array", "string", "integer", "number", "null", "bytes", "int32", "date", "#", "#/", "#/a", "#/$defs/a",
    "#a", "a", "a#/a", "http://a/b", "http://[", "urn:a", "//", "#/items/0", "%", "#%zz", "99999999999999999999", "٣",
]  # fmt: skip
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(TEXTS) | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=2), inner, max_size=5)
    ),
    max_leaves=15,
)


@pytest.mark.slow
@settings(max_examples=500, deadline=None)
@given(anything, anything)
def test_whatever_a_registry_has_is_a_type_or_refused(schema: Any, other: Any) -> None:
    try:
        kind = json_schema_type(WriterSchema("JSON", json.dumps(schema), {"a": json.dumps(other)}))
    except SchemaNotSupportedError:
        return
    assert "variant" not in kind.simpleString()
    assert "void" not in kind.simpleString()
