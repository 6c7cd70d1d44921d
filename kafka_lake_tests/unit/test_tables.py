"""Tables are created as the settings ask, once, or not at all."""

import pyarrow as pa
import pytest
from pyiceberg.table.sorting import NullOrder, SortDirection
from pyiceberg.types import LongType

from kafka_lake.errors import ConfigurationError
from kafka_lake.lake.catalog import LakeCatalog
from kafka_lake.lake.schema import needed_changes
from kafka_lake.lake.tables import (
    apply_changes,
    ensure_table,
    parse_partition_field,
    parse_sort_field,
    schema_of,
)

NAME = ("pizza", "orders")
SCHEMA = schema_of(
    pa.schema(
        [
            pa.field("id", pa.int32(), nullable=False),
            pa.field("ordered_at", pa.timestamp("us", "UTC")),
            pa.field("_kafka", pa.struct([pa.field("partition", pa.int32()), pa.field("offset", pa.int64())])),
        ]
    )
)


@pytest.fixture
def catalog(tmp_path):
    return LakeCatalog(
        "lake",
        {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/warehouse"},
    )


@pytest.mark.parametrize(
    ("text", "column", "transform"),
    [
        ("store_id", "store_id", "identity"),
        (" _kafka.partition ", "_kafka.partition", "identity"),
        ("identity(a)", "a", "identity"),
        ("day(ordered_at)", "ordered_at", "day"),
        ("days(ordered_at)", "ordered_at", "day"),
        ("date(ordered_at)", "ordered_at", "day"),
        ("Hour( OrderedAt )", "OrderedAt", "hour"),
        ("month(a)", "a", "month"),
        ("years(a)", "a", "year"),
        ("bucket(16, store_id)", "store_id", "bucket[16]"),
        ("truncate(4,name)", "name", "truncate[4]"),
    ],
)
def test_partition_fields(text, column, transform):
    found, how = parse_partition_field(text)
    assert (found, str(how)) == (column, transform)


@pytest.mark.parametrize(
    "text", ["", "week(a)", "bucket(a)", "day(3, a)", "day()", "day(a", "a b", "day(a, b)", "bucket(-1, a)", "void(a)"]
)
def test_no_partition_field(text):
    with pytest.raises(ConfigurationError, match="no Iceberg transform"):
        parse_partition_field(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a", ("a", SortDirection.ASC)),
        ("a asc", ("a", SortDirection.ASC)),
        (" a  DESC ", ("a", SortDirection.DESC)),
        ("_kafka.offset desc", ("_kafka.offset", SortDirection.DESC)),
    ],
)
def test_sort_fields(text, expected):
    assert parse_sort_field(text) == expected


@pytest.mark.parametrize("text", ["", "a down", "a, b", "lower(a)"])
def test_no_sort_field(text):
    with pytest.raises(ConfigurationError, match="sort_by"):
        parse_sort_field(text)


def create(catalog):
    return ensure_table(
        catalog,
        NAME,
        SCHEMA,
        partition_by=("days(ordered_at)", "bucket(4, id)", "_kafka.partition"),
        sort_by=("ordered_at desc", "ID"),
        properties={"write.parquet.compression-codec": "gzip", "team": "pizza"},
    )


def test_a_table_is_created_as_asked(catalog):
    table = create(catalog)
    schema = table.schema()
    spec = [(schema.find_column_name(f.source_id), str(f.transform), f.name) for f in table.spec().fields]
    assert spec == [
        ("ordered_at", "day", "ordered_at_day"),
        ("id", "bucket[4]", "id_bucket"),
        ("_kafka.partition", "identity", "_kafka.partition"),
    ]
    order = [(schema.find_column_name(f.source_id), f.direction, f.null_order) for f in table.sort_order().fields]
    assert order == [
        ("ordered_at", SortDirection.DESC, NullOrder.NULLS_LAST),
        ("id", SortDirection.ASC, NullOrder.NULLS_FIRST),
    ]
    assert schema.find_field("id").required
    assert table.properties["write.parquet.compression-codec"] == "gzip", "the user's properties win"
    assert table.properties["team"] == "pizza"
    assert table.properties["write.distribution-mode"] == "hash"
    assert table.properties["write.metadata.delete-after-commit.enabled"] == "true"
    assert table.current_snapshot() is not None
    assert table.scan().to_arrow().num_rows == 0


def test_without_partitions_rows_are_not_shuffled(catalog):
    assert ensure_table(catalog, NAME, SCHEMA).properties["write.distribution-mode"] == "none"


def test_a_second_call_changes_nothing(catalog):
    first = create(catalog)
    second = ensure_table(catalog, NAME, SCHEMA, properties={"team": "pasta"})
    assert second.metadata_location == first.metadata_location


@pytest.mark.parametrize("setting", ["partition_by", "sort_by"])
def test_an_unknown_column_is_refused_and_nothing_created(catalog, setting):
    with pytest.raises(ConfigurationError, match=rf"{setting}: there is no column 'nowhere'.*id, ordered_at"):
        ensure_table(catalog, NAME, SCHEMA, **{setting: ("nowhere",)})
    assert catalog.table(NAME) is None


def test_changes_are_applied_in_one_commit_and_main_stays(catalog):
    table = ensure_table(catalog, NAME, SCHEMA)
    head = table.current_snapshot().snapshot_id
    wanted = schema_of(pa.schema([pa.field("ID", pa.int64()), pa.field("sauce", pa.string())]))
    apply_changes(table, wanted, needed_changes(table.schema(), wanted))
    table = catalog.table(NAME)
    assert isinstance(table.schema().find_field("id").field_type, LongType)
    assert not table.schema().find_field("id").required
    assert not table.schema().find_field("sauce").required
    assert table.current_snapshot().snapshot_id == head
    assert len(table.metadata.schemas) == 2
    assert needed_changes(table.schema(), wanted) == []
