"""Columns as Spark has them and as Iceberg has them are the same columns, comments included."""

from dataclasses import replace

from pyspark.sql import types as T

from kafka_lake.cdc.changes import Changes
from kafka_lake.formats.columns import Target, iceberg_columns, spark_columns
from kafka_lake.formats.json.driver import Json


def field(name: str, kind: T.DataType, comment: str = "", nullable: bool = True) -> T.StructField:
    return T.StructField(name, kind, nullable, {"comment": comment} if comment else {})


COLUMNS = T.StructType(
    [
        field("id", T.LongType(), "which one", nullable=False),
        field("price", T.DecimalType(10, 2)),
        field("at", T.TimestampType()),
        field("local", T.TimestampNTZType()),
        field("day", T.DateType()),
        field("raw", T.BinaryType()),
        field("flag", T.BooleanType()),
        field("ratio", T.FloatType()),
        field("n", T.IntegerType()),
        field("s", T.StructType([field("a", T.StringType(), "within a struct")]), "a struct"),
        field("l", T.ArrayType(T.StructType([field("b", T.DoubleType(), "within a list")]))),
        field("m", T.MapType(T.StringType(), T.StructType([field("c", T.LongType(), "within a map")]))),
    ]
)


def test_there_and_back() -> None:
    assert spark_columns(iceberg_columns(COLUMNS)) == COLUMNS


def test_docs() -> None:
    columns = iceberg_columns(COLUMNS)
    assert {f.name: f.doc for f in columns.fields if f.doc} == {"id": "which one", "s": "a struct"}


def test_the_target_of_a_part_has_the_paths_below_it() -> None:
    target = Target(COLUMNS, {"s.a": "A", "id": "ID"}, {"s.a": ("old",)})
    part = target.part("s")
    assert part.columns == COLUMNS["s"].dataType
    assert (part.feeds("a", "a"), target.feeds("id", "id"), target.feeds("n", "n")) == (["A", "old"], ["ID"], ["n"])
    assert target.without("s").columns.fieldNames() == [n for n in COLUMNS.fieldNames() if n != "s"]


def test_the_key_of_a_record_names_fields_whose_columns_are_called_otherwise() -> None:
    target = Target(
        T.StructType([field(name, T.LongType()) for name in ("ID", "id__2", "a_b", "new", "plain")]),
        {"id__2": "id", "a_b": "a.b"},
        {"new": ("old",)},
    )
    names = ("id", "a.b", "old", "plain", "nowhere")
    rows = Json(declared=target)
    of_record = Changes(rows=rows, envelope="debezium", key=names, order_by=(), of_record=True, looks=True)
    assert of_record.key_in(target) == ("id__2", "a_b", "new", "plain", "nowhere")
    # What settings name is a column.
    assert replace(of_record, of_record=False).key_in(target) == names
