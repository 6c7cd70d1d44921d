"""Avro schemas as columns: which types they become, what is refused and how the message says where."""

import json
import re
from typing import Any

import fastavro
import pytest
from avro.schema import make_avsc_object
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_schema

from kafka_lake.catalog.tables import schema_of
from kafka_lake.errors import SchemaNotSupportedError
from kafka_lake.formats.registered import avro_type, inlined
from kafka_lake.kafka.registry import WriterSchema
from kafka_lake_tests.meta.type_tables import AVRO_TYPES as TYPES


def writer(schema: Any, **references: Any) -> WriterSchema:
    return WriterSchema("AVRO", json.dumps(schema), {name: json.dumps(item) for name, item in references.items()}, id=7)


def record(name: str = "R", **fields: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": key, "type": kind} for key, kind in fields.items()]}


def named(schema: Any, **references: Any) -> str:
    return str(avro_type(writer(schema, **references)).simpleString())


def refusal(schema: Any, **references: Any) -> str:
    with pytest.raises(SchemaNotSupportedError) as refused:
        avro_type(writer(schema, **references))
    assert refused.value.message.startswith("Avro: schema id 7")
    assert refused.value.remedy
    return refused.value.message.removeprefix("Avro: schema id 7").removeprefix(", ").removeprefix(": ")


def fixed(logical: str | None = None, size: int = 16, **more: Any) -> dict[str, Any]:
    return {"type": "fixed", "name": "F", "size": size, **({"logicalType": logical} if logical else {}), **more}


EXAMPLES: dict[tuple[str, str, str], Any] = {
    **{(kind, "", ""): kind for kind in ("boolean", "int", "long", "float", "double", "string", "bytes")},
    ("bytes, fixed", "decimal", "decimal(p, s)"): fixed("decimal", precision=9, scale=2),
    ("bytes, fixed", "decimal", "string"): {"type": "bytes", "logicalType": "decimal", "precision": 39, "scale": 2},
    ("fixed", "", ""): fixed(),
    ("enum", "", ""): {"type": "enum", "name": "E", "symbols": ["A"]},
    ("record", "", ""): record(a="int"),
    ("record without fields", "", ""): record(),
    ("array", "", ""): {"type": "array", "items": "int"},
    ("map", "", ""): {"type": "map", "values": "int"},
    ("union of null and T", "", ""): ["null", "int"],
    ("union of several", "", ""): ["int", "string"],
}
REFUSED = ("null", "a type that contains itself")
SHAPES = {"struct<…>": "struct<", "array<…>": "array<", "map<string, …>": "map<string,", "list<…>": "list<", "T": "int"}


@pytest.mark.parametrize("row", [row for row in TYPES if row[0] not in REFUSED], ids=lambda row: f"{row[0]} {row[1]}")
def test_the_documented_types_are_those_of_the_columns(row: tuple[str, ...]) -> None:
    avro, logical, spark, iceberg, _ = row
    example = EXAMPLES.get((avro, logical, "")) or EXAMPLES.get((avro, logical, spark))
    kind = avro_type(writer(record("Root", c=example or {"type": avro, "logicalType": logical})))
    assert isinstance(kind, T.StructType)
    (column,) = schema_of(to_arrow_schema(kind)).fields
    for found, reported in ((kind["c"].dataType.simpleString(), spark), (str(column.field_type), iceberg)):
        exact, start = plain(reported.replace("(p, s)", "(9, 2)")), SHAPES.get(reported)
        assert plain(found).startswith(start) if start else plain(found) == exact


def plain(kind: str) -> str:
    """Return a type's text as Spark and Iceberg agree upon: without spaces, field ids and nullability."""
    return re.sub(r"\d+: |optional | ", "", kind)


def test_every_column_element_and_value_may_be_null() -> None:
    kind = avro_type(writer(record(a={"type": "array", "items": record("S", m={"type": "map", "values": "int"})})))
    assert kind == T.StructType([
        T.StructField("a", T.ArrayType(T.StructType([T.StructField("m", T.MapType(T.StringType(), T.IntegerType()))])))
    ])  # fmt: skip


def test_docs_of_fields_become_comments() -> None:
    schema = record(a="int", b="int", c="int")
    schema["fields"][0]["doc"], schema["fields"][1]["doc"] = "How many.", ""
    kind = avro_type(writer(schema))
    assert isinstance(kind, T.StructType)
    assert [field.metadata for field in kind] == [{"comment": "How many."}, {}, {}]


@pytest.mark.parametrize(
    ("schema", "spark"),
    [
        ({"type": "int", "logicalType": "uuid"}, "int"),
        ({"type": "string", "logicalType": "date"}, "string"),
        ({"type": "int", "logicalType": "unheard-of"}, "int"),
        ({"type": "int", "logicalType": ["date"]}, "int"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 5}, "binary"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 0}, "binary"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": -1}, "binary"),
        ({"type": "bytes", "logicalType": "decimal", "scale": 2}, "binary"),
        ({"type": "bytes", "logicalType": "decimal", "precision": "4"}, "binary"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 38}, "decimal(38,38)"),
        (fixed("decimal", 4, precision=9), "decimal(9,0)"),
        (fixed("decimal", 4, precision=10), "binary"),
        (fixed("uuid"), "binary"),
        (fixed("duration", 12), "binary"),
        ({"type": "long", "logicalType": "timestamp-nanos"}, "bigint"),
        (["int", "long"], "struct<int:int,long:bigint>"),
        (fixed("big-decimal"), "binary"),
    ],
)
def test_logical_types_that_are_not_valid_count_as_absent(schema: Any, spark: str) -> None:
    assert named(schema) == spark


def test_nested_type_keys_names_and_namespaces() -> None:
    assert named({"type": {"type": {"type": "int", "logicalType": "date"}}}) == "date"
    line = {"type": "record", "name": "Line", "fields": [{"name": "q", "type": "int"}]}
    order = {
        "type": "record", "name": "Order", "namespace": "shop",
        "fields": [{"name": "first", "type": line}, {"name": "second", "type": "Line"},
                   {"name": "third", "type": {"type": "shop.Line"}},
                   {"name": "lines", "type": {"type": "array", "items": "Line"}}],
    }  # fmt: skip
    struct = "struct<q:int>"
    assert named(order) == f"struct<first:{struct},second:{struct},third:{struct},lines:array<{struct}>>"


def test_references_are_found_by_their_full_names() -> None:
    money = {"type": "record", "name": "Money", "namespace": "base", "fields": [{"name": "cents", "type": "long"}]}
    price = {"type": "record", "name": "base.Price", "fields": [{"name": "net", "type": "Money"}]}
    order = {"type": "record", "name": "shop.Order", "fields": [
        {"name": "price", "type": "base.Price"}, {"name": "tip", "type": ["null", "base.Money"]},
        {"name": "plain", "type": "NoSpace"},
    ]}  # fmt: skip
    plain = {"type": "enum", "name": "NoSpace", "symbols": ["A"]}
    found = named(order, money=money, price=price, plain=plain)
    assert found == "struct<price:struct<net:struct<cents:bigint>>,tip:struct<cents:bigint>,plain:string>"
    assert named("base.Money", money=money) == "struct<cents:bigint>"


def test_branches_of_a_union_have_names_of_their_own() -> None:
    def branch(name: str) -> Any:
        return {"type": "enum", "name": name, "symbols": ["A"]}

    union = ["null", "int", {"type": "long", "logicalType": "time-micros"}, branch("shop.Order"), branch("old.order")]
    assert named(record(u=union)) == "struct<u:struct<int:int,long:string,shop_Order:string,old_order:string>>"
    clash = [branch("a.X"), branch("b.x"), branch("a_X"), "string"]
    assert named(record(u=clash)) == "struct<u:struct<a_X:string,b_x:string,a_X_2:string,string:string>>"
    assert named([record(a="int"), record("S", b="int")]) == "struct<R:struct<a:int>,S:struct<b:int>>"
    assert named([{"type": "int", "logicalType": "date"}, "long"]) == "struct<int:date,long:bigint>"


def test_what_takes_no_bytes_is_no_column() -> None:
    schema = record(a="null", b=["null"], c="int", d=record("S"), e={"type": "map", "values": "null"})
    assert named(schema) == "struct<c:int,d:struct<_set:boolean>,e:map<string,string>>"
    assert avro_type(writer(record())) == T.StructType([])


def test_fields_that_differ_in_case_stay_two_fields() -> None:
    assert named(record(a="int", A="string")) == "struct<a:int,A:string>"


def test_a_type_within_itself_is_refused() -> None:
    tree = record("shop.Tree", value="int", children={"type": "array", "items": ["null", "shop.Tree"]})
    said = "children.element: the type shop.Tree contains itself, which no table can hold."
    assert refusal(tree) == said


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("null", "the type is null, which no column can hold."),
        (["null"], "the type is null, which no column can hold."),
        ("Unheard", 'the type is unknown: "Unheard".'),
        (record(a={"type": "map", "values": "b.C"}), 'a.value: the type is unknown: "b.C".'),
        (7, "the type isn't an Avro type: 7."),
        ({"name": "x"}, "the type isn't an Avro type: {\"name\": \"x\"}."),
        ({"type": "array"}, 'the type has no items: {"type": "array"}.'),
        ({"type": "record", "name": "R"}, 'the type has no fields: {"type": "record", "name": "R"}.'),
        ({"type": "record", "name": "R", "fields": [{"name": "a"}]}, 'a: the type has no type: {"name": "a"}.'),
        ({"type": "record", "name": "R", "fields": ["a"]}, 'the type has a field without a name: "a".'),
        ({**record(), "fields": [{"name": "a", "type": "int"}] * 2}, "the type has the field a twice."),
        ({"type": "enum", "name": "E"}, 'the type has no symbols: {"type": "enum", "name": "E"}.'),
        (fixed(size=-1), "the type has an invalid size: -1."),
        (["int", ["string"]], "the type is an empty union, or one within another."),
        ([], "the type is an empty union, or one within another."),
        (["int", {"type": "int", "logicalType": "date"}], "the type is a union with int twice."),
        (record(a=record("S", x="int"), b=record("S", y="int")), "the type S is defined twice."),
        ({"type": "array", "items": "null"}, "the type is an array whose elements take no bytes, or are all null."),
        (record(a={"type": "array", "items": record("S", x="null", f=fixed(size=0))}),
         "a: the type is an array whose elements take no bytes, or are all null."),
    ],
)  # fmt: skip
def test_what_is_refused_says_where_and_why(schema: Any, message: str) -> None:
    assert refusal(schema) == message


def test_text_that_is_no_schema_is_refused() -> None:
    with pytest.raises(SchemaNotSupportedError, match=r"Avro: schema id 7 isn't JSON: Expecting"):
        avro_type(WriterSchema("AVRO", "{", id=7))
    with pytest.raises(SchemaNotSupportedError, match=r"Avro: the schema file refers to a\.avsc, which isn't JSON"):
        avro_type(WriterSchema("AVRO", '"int"', {"a.avsc": "{"}))


@pytest.mark.slow
def test_schemas_beyond_all_measure_are_refused_and_soon() -> None:
    deep: Any = "int"
    for _ in range(101):
        deep = {"type": "array", "items": deep}
    assert "nested more than 100 deep" in refusal(deep)
    many = record("T0", a="int")
    for number in range(1, 40):
        many = record(f"T{number}", a=many, b=f"T{number - 1}")
    assert "more than 20000 parts" in refusal(many)
    with pytest.raises(SchemaNotSupportedError, match=r"nested too deeply|maximum recursion depth"):
        avro_type(WriterSchema("AVRO", "[" * 100_000))


def test_inlined_text_is_a_schema_by_itself() -> None:
    money = {"type": "record", "name": "Money", "namespace": "base", "fields": [{"name": "cents", "type": "long"}]}
    price = {"type": "record", "name": "base.Price", "fields": [{"name": "net", "type": "Money"}]}
    order = {"type": "record", "name": "shop.Order", "fields": [
        {"name": "tips", "type": {"type": "map", "values": ["null", "base.Money"]}, "default": {}},
        {"name": "price", "type": "base.Price", "doc": "All in all."},
        {"name": "next", "type": ["null", "Order"], "default": None},
    ]}  # fmt: skip
    text = inlined(writer(order, money=money, price=price))
    assert make_avsc_object(json.loads(text)).fullname == "shop.Order"
    parsed: Any = fastavro.parse_schema(json.loads(text))
    canonical = json.loads(fastavro.schema.to_parsing_canonical_form(parsed))
    net = {"name": "net", "type": "base.Money"}
    in_place = {"name": "base.Money", "type": "record", "fields": [{"name": "cents", "type": "long"}]}
    assert canonical["fields"] == [
        {"name": "tips", "type": {"type": "map", "values": ["null", in_place]}},
        {"name": "price", "type": {"name": "base.Price", "type": "record", "fields": [net]}},
        {"name": "next", "type": ["null", "shop.Order"]},
    ]  # fmt: skip
    assert [field.get("doc") for field in parsed["fields"]] == [None, "All in all.", None]
    assert json.loads(inlined(writer("int"))) == "int"
