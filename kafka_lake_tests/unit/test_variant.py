"""Tables with columns of type variant are loaded and read by PyIceberg, but for those columns."""

import json
from pathlib import Path
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.schema import Schema
from pyiceberg.table import StaticTable

from kafka_lake.errors import TableError
from kafka_lake.lake.catalog import LakeCatalog
from kafka_lake.lake.pyiceberg_compat.variant import VariantType, teach_pyiceberg
from kafka_lake.lake.schema import Change, changes

NAME = ("a", "events")
VARIANT = pa.struct([pa.field("metadata", pa.binary(), False), pa.field("value", pa.binary(), False)])


def numbered(number, name, kind):
    return pa.field(name, kind, metadata={"PARQUET:field_id": str(number)})


# As Iceberg writes it: what a variant is made of has no field ids.
FILE = pa.schema(
    [
        numbered(1, "id", pa.int64()),
        numbered(2, "payload", VARIANT),
        numbered(3, "nested", pa.struct([numbered(5, "x", VARIANT), numbered(6, "y", pa.int32())])),
        numbered(4, "many", pa.list_(numbered(7, "element", VARIANT))),
        numbered(
            8, "by_key", pa.map_(numbered(9, "key", pa.string()).with_nullable(False), numbered(10, "value", VARIANT))
        ),
    ]
)
FIELDS = [
    {"id": 1, "name": "id", "required": False, "type": "long"},
    {"id": 2, "name": "payload", "required": False, "type": "variant"},
    {
        "id": 3,
        "name": "nested",
        "required": False,
        "type": {
            "type": "struct",
            "fields": [
                {"id": 5, "name": "x", "required": False, "type": "variant"},
                {"id": 6, "name": "y", "required": False, "type": "int"},
            ],
        },
    },
    {
        "id": 4,
        "name": "many",
        "required": False,
        "type": {"type": "list", "element-id": 7, "element": "variant", "element-required": False},
    },
    {
        "id": 8,
        "name": "by_key",
        "required": False,
        "type": {
            "type": "map",
            "key-id": 9,
            "key": "string",
            "value-id": 10,
            "value": "variant",
            "value-required": False,
        },
    },
]


@pytest.fixture(scope="module")
def metadata_file(tmp_path_factory):
    """A table of format version 3: PyIceberg's own of version 2, with the file and the schema put in its place."""
    home = tmp_path_factory.mktemp("variant")
    catalog = LakeCatalog("lake", {"type": "sql", "uri": f"sqlite:///{home}/c.db", "warehouse": f"file://{home}/w"})
    catalog.ensure_namespace("a")
    table = catalog.pyiceberg.create_table(NAME, schema=pa.schema([pa.field("id", pa.int64())]))
    table.append(pa.table({"id": [1, 2]}))
    (file,) = table.scan().plan_files()
    one = {"metadata": b"\x01\x00", "value": b"\x0c\x01"}
    rows = [
        {"id": i, "payload": one, "nested": {"x": one, "y": i * 10}, "many": [one], "by_key": [("k", one)]}
        for i in (1, 2)
    ]
    pq.write_table(pa.Table.from_pylist(rows, FILE), urlsplit(file.file.file_path).path)

    path = Path(urlsplit(table.metadata_location).path)
    metadata = json.loads(path.read_text())
    metadata |= {"format-version": 3, "next-row-id": 2, "last-column-id": 10}
    metadata["schemas"] = [{"type": "struct", "schema-id": 0, "fields": FIELDS, "identifier-field-ids": []}]
    path.write_text(json.dumps(metadata))
    return str(path)


@pytest.fixture
def table(metadata_file):
    teach_pyiceberg()
    return StaticTable.from_metadata(metadata_file)


def test_opening_a_catalog_is_enough(tmp_path):
    here = LakeCatalog("lake", {"type": "sql", "uri": f"sqlite:///{tmp_path}/c.db", "warehouse": f"file://{tmp_path}"})
    assert here.pyiceberg
    assert str(Schema.model_validate({"type": "struct", "fields": FIELDS[:2]}).fields[1].field_type) == "variant"


def test_types_are_known_at_every_depth(table):
    schema = table.schema()
    assert [schema.find_type(n) for n in ("payload", "nested.x", "many.element", "by_key.value")] == [VariantType()] * 4
    assert VariantType().minimum_format_version() == 3


def test_a_schema_is_written_as_it_was_read(table):
    written = json.loads(table.schema().model_dump_json())
    assert written["fields"] == FIELDS
    assert Schema.model_validate(written) == table.schema()
    assert table.metadata.model_dump()["schemas"][0]["fields"][1]["type"] == "variant"


def test_other_columns_can_be_selected(table):
    assert table.scan(selected_fields=("id", "nested.y")).to_arrow().to_pylist() == [
        {"id": 1, "nested": {"y": 10}},
        {"id": 2, "nested": {"y": 20}},
    ]
    found = table.scan(selected_fields=("nested.y",), row_filter="id > 1").to_arrow().to_pylist()
    assert found == [{"nested": {"y": 20}}]
    assert table.scan(selected_fields=("id",)).count() == 2


@pytest.mark.parametrize(
    ("selected", "named"),
    [
        ("*", "payload .field 2."),
        ("payload", "payload"),
        ("nested", "x .field 5."),
        ("many", "element"),
        ("by_key", "value"),
    ],
)
def test_a_variant_is_refused_by_name(table, selected, named):
    with pytest.raises(TableError, match=f"Column {named}.*PyIceberg can't read.*Spark"):
        table.scan(selected_fields=(selected,)).to_arrow()


def test_structs_that_only_look_like_a_variant_are_read(tmp_path):
    catalog = LakeCatalog(
        "lake", {"type": "sql", "uri": f"sqlite:///{tmp_path}/c.db", "warehouse": f"file://{tmp_path}/w"}
    )
    catalog.ensure_namespace("a")
    rows = pa.table({"a": [{"metadata": b"x", "value": b"y"}], "b": [{"metadata": "x", "value": 1}], "c": [{"a": [1]}]})
    catalog.pyiceberg.create_table(NAME, rows.schema).append(rows)
    assert catalog.table(NAME).scan().to_arrow().to_pylist() == rows.to_pylist()


def test_a_variant_is_no_other_type(table):
    other = [{**field, "type": "string"} if field["name"] == "payload" else field for field in FIELDS]
    after = Schema.model_validate({"type": "struct", "fields": other})
    assert changes(table.schema(), after) == [Change("payload", "type changed", "variant", "string")]
    assert changes(table.schema(), table.schema()) == []
