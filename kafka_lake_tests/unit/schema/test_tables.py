"""Tables are created as the settings ask, once, or not at all."""

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.catalog.memory import InMemoryCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.table.sorting import NullOrder, SortDirection
from pyiceberg.types import (
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
)

from kafka_lake.catalog.layout import check_layout
from kafka_lake.catalog.tables import (
    SOURCES,
    apply_changes,
    drop_if_unused,
    ensure_table,
    partition_names,
    schema_of,
    sources_of,
)
from kafka_lake.errors import ConfigurationError, TableError
from kafka_lake.schema.evolution.evolve import evolve
from kafka_lake.schema.evolution.model import Incoming, Policy
from kafka_lake.schema.rules import Change, changes, needed_changes, type_name
from kafka_lake.spec.layout import parse_partition_field, parse_sort_field

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
    assert (found, how) == (column, transform)


@pytest.mark.parametrize(
    "text", ["", "week(a)", "bucket(a)", "day(3, a)", "day()", "day(a", "`a", "day(a, b)", "bucket(-1, a)", "void(a)"]
)
def test_no_partition_field(text):
    with pytest.raises(ConfigurationError, match="not an Iceberg transform"):
        parse_partition_field(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a", ("a", "asc")),
        ("a asc", ("a", "asc")),
        (" a  DESC ", ("a", "desc")),
        ("_kafka.offset desc", ("_kafka.offset", "desc")),
    ],
)
def test_sort_fields(text, expected):
    assert parse_sort_field(text) == expected


@pytest.mark.parametrize("text", ["", "`a` down", "a, b", "lower(a)"])
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


def optional(number, name, kind, doc=None):
    return NestedField(number, name, kind, required=False, doc=doc)


DEEP = Schema(
    NestedField(1, "id", IntegerType(), required=True),
    optional(
        2, "where", StructType(NestedField(5, "zip", IntegerType(), required=True), optional(6, "city", StringType()))
    ),
    optional(3, "items", ListType(7, StructType(optional(8, "price", FloatType())), element_required=False)),
    optional(
        4, "by_key", MapType(9, StringType(), 10, StructType(optional(11, "x", IntegerType())), value_required=False)
    ),
)
RECORDS = StructType(
    optional(1, "key", LongType()),
    optional(2, "place", StructType(optional(3, "code", LongType()), optional(4, "geo.lat", DoubleType()))),
    optional(
        5,
        "items",
        ListType(6, StructType(optional(7, "price", DoubleType()), optional(8, "n", LongType())), False),
    ),
    optional(9, "by_key", MapType(10, StringType(), 11, StructType(optional(12, "y", StringType())), False)),
    optional(13, "new", ListType(14, StructType(optional(15, "a", StringType())), False), "What is new"),
)


def evolved(table, records, **policy):
    """What the records need of the table, and its schema once that is done."""
    done = evolve(table.schema().as_struct(), sources_of(table), [Incoming("the records", records)], Policy(**policy))
    apply_changes(table, Schema(*done.columns.fields), done.changes, done.sources)
    return done


def commits(table):
    return len(table.metadata.metadata_log)


def test_everything_at_once_is_one_commit_and_old_rows_stay_readable(catalog):
    table = ensure_table(catalog, NAME, DEEP)
    row = {"id": 1, "where": {"zip": 5, "city": "Ulm"}, "items": [{"price": 2.5}], "by_key": [("k", {"x": 3})]}
    table.append(pa.Table.from_pylist([row], table.schema().as_arrow()))
    before = commits(table)

    done = evolved(table, RECORDS, renames={"id": "key", "where": "place", "where.zip": "code"})

    table = catalog.table(NAME)
    assert commits(table) == before + 1
    assert changes(table.metadata.schemas[0], table.schema()) == [
        Change("id", "renamed", "id", "key"),
        Change("key", "made optional", "required", "optional"),
        Change("key", "widened", "int", "long"),
        Change("where", "renamed", "where", "place"),
        Change("place.zip", "renamed", "zip", "code"),
        Change("place.code", "made optional", "required", "optional"),
        Change("place.code", "widened", "int", "long"),
        Change("place.geo_lat", "added", "", "double"),
        Change("items.element.price", "widened", "float", "double"),
        Change("items.element.n", "added", "", "long"),
        Change("by_key.value.y", "added", "", "string"),
        Change("new", "added", "", "list<struct<a: string>>"),
    ]
    assert table.schema().find_field("new").doc == "What is new"
    assert type_name(table.schema().as_struct()) == type_name(done.columns)
    assert sources_of(table) == {"place.geo_lat": "geo.lat"}
    assert table.scan().to_arrow().to_pylist() == [
        {
            "key": 1,
            "place": {"code": 5, "city": "Ulm", "geo_lat": None},
            "items": [{"price": 2.5, "n": None}],
            "by_key": [("k", {"x": 3, "y": None})],
            "new": None,
        }
    ]


def test_nothing_to_do_is_no_commit(catalog):
    table = ensure_table(catalog, NAME, DEEP)
    before = table.metadata_location
    apply_changes(table, DEEP, [], {})
    apply_changes(table, DEEP, [])
    assert catalog.table(NAME).metadata_location == before


def test_sources_alone_are_a_commit_once(catalog):
    table = ensure_table(catalog, NAME, DEEP, sources={"id": "ID"})
    assert sources_of(table) == {"id": "ID"}
    apply_changes(table, DEEP, (), {"id": "I.D"})
    table = catalog.table(NAME)
    assert sources_of(table) == {"id": "I.D"}
    before = table.metadata_location
    apply_changes(table, DEEP, (), {"id": "I.D"})
    apply_changes(table, DEEP, (), None)
    assert catalog.table(NAME).metadata_location == before
    apply_changes(table, DEEP, (), {})
    assert sources_of(catalog.table(NAME)) == {}


def test_a_property_that_is_no_json_is_named(catalog):
    table = ensure_table(catalog, NAME, DEEP, properties={SOURCES: "["})
    with pytest.raises(TableError, match=r"pizza\.orders.*kafka-lake\.sources"):
        sources_of(table)


def test_columns_of_others_may_have_dots(catalog):
    table = ensure_table(catalog, NAME, Schema(optional(1, "a.b", StructType(optional(2, "c", IntegerType())))))
    wanted = Schema(optional(1, "a.b", StructType(optional(2, "c", LongType()), optional(3, "d.e", LongType()))))
    apply_changes(table, wanted, needed_changes(table.schema(), wanted))
    assert type_name(catalog.table(NAME).schema().as_struct()) == "struct<a.b: struct<c: long, d.e: long>>"


def test_a_dot_is_no_path_where_a_column_has_it(catalog):
    table = ensure_table(catalog, NAME, Schema(optional(1, "a", StructType(optional(2, "c", IntegerType())))))
    wanted = Schema(*table.schema().fields, optional(3, "a.b", LongType()))
    apply_changes(table, wanted, needed_changes(table.schema(), wanted))
    assert type_name(catalog.table(NAME).schema().as_struct()) == "struct<a: struct<c: int>, a.b: long>"


def test_a_schema_that_others_changed_meanwhile_is_left_alone(catalog):
    mine, other = ensure_table(catalog, NAME, DEEP), catalog.table(NAME)
    with other.update_schema() as update:
        update.add_column("other", StringType())
    wanted = Schema(optional(1, "mine", StringType()))
    with pytest.raises(CommitFailedException):
        apply_changes(mine, wanted, needed_changes(mine.schema(), wanted), {"mine": "m.ine"})
    assert [f.name for f in catalog.table(NAME).schema().fields] == ["id", "where", "items", "by_key", "other"]
    assert sources_of(catalog.table(NAME)) == {}


def test_tables_of_format_version_3_evolve_too(catalog):
    table = ensure_table(catalog, NAME, DEEP, properties={"format-version": "3"})
    wanted = Schema(*table.schema().fields, optional(100, "new", StringType()))
    apply_changes(table, wanted, needed_changes(table.schema(), wanted))
    table = catalog.table(NAME)
    assert table.format_version == 3
    assert table.schema().find_field("new").field_type == StringType()


# Partitions and sort order


def spec_of(table):
    schema = table.schema()
    return [(schema.find_column_name(f.source_id), str(f.transform), f.name) for f in table.spec().fields]


def test_error_about_another_layout_has_sql_for_it(catalog):
    table = create(catalog)
    with pytest.raises(ConfigurationError) as raised:
        check_layout(table, ("ordered_at", "bucket(8, id)", "_kafka.partition"), ("id desc",))
    assert "[day(ordered_at), bucket(4, id), _kafka.partition], sort_by: [ordered_at desc, id]" in raised.value.message
    statements = raised.value.remedy.rpartition("SQL: ")[2].rstrip(".").split("; ")
    assert [statement.removeprefix("ALTER TABLE lake.pizza.orders ") for statement in statements] == [
        "DROP PARTITION FIELD day(ordered_at)",
        "DROP PARTITION FIELD bucket(4, id)",
        "ADD PARTITION FIELD ordered_at",
        "ADD PARTITION FIELD bucket(8, id)",
        "WRITE DISTRIBUTED BY PARTITION LOCALLY ORDERED BY id desc",
    ]
    with pytest.raises(ConfigurationError, match=r"ALTER TABLE lake\.pizza\.orders WRITE DISTRIBUTED BY PARTITION\."):
        check_layout(table, ("_kafka.partition", "bucket(4,ID)", "day( ordered_at )"), ())


def test_layout_may_be_written_in_any_order_and_spelling(catalog):
    settings_ = ("_kafka.partition", "bucket(4,ID)", "day( ordered_at )"), ("ORDERED_AT desc", "id asc")
    check_layout(create(catalog), *settings_)


def test_table_of_another_program_may_have_another_layout(catalog):
    catalog.ensure_namespace(NAME[0])
    check_layout(catalog.pyiceberg.create_table(NAME, SCHEMA), ("id",), ("id",))


@pytest.mark.parametrize(
    ("settings_", "message"),
    [
        ({"partition_by": ("nowhere",), "sort_by": ()}, r"partition_by: there is no column 'nowhere'.*id, ordered_at"),
        ({"partition_by": (), "sort_by": ("nowhere",)}, r"sort_by: there is no column 'nowhere'"),
        ({"partition_by": ("day(id)",), "sort_by": ()}, r"'day\(id\)' can't be applied to column id of type int"),
    ],
)
def test_no_table_is_created_with_a_layout_that_cannot_be(catalog, settings_, message):
    with pytest.raises(ConfigurationError, match=message):
        ensure_table(catalog, NAME, SCHEMA, **settings_)
    assert catalog.table(NAME) is None


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()])
def test_no_table_is_partitioned_by_a_floating_point_column(catalog, kind):
    with pytest.raises(ConfigurationError, match="partition_by: 'price' can't be applied to column price of type"):
        ensure_table(catalog, NAME, schema_of(pa.schema([pa.field("price", kind)])), partition_by=("price",))
    assert catalog.table(NAME) is None


@pytest.mark.parametrize("column", ["id", "key"])
def test_a_renamed_column_stays_what_the_table_is_partitioned_by(catalog, column):
    table = ensure_table(catalog, NAME, SCHEMA, partition_by=("id",), sort_by=("id",))
    table.append(pa.Table.from_pylist([{"id": 1}], table.schema().as_arrow()))
    renames = {"id": "key"}
    evolved(table, StructType(optional(1, "id", IntegerType())), renames=renames)
    table = catalog.table(NAME)
    check_layout(table, (column,), (column,), renames)
    table.append(pa.Table.from_pylist([{"key": 2}], table.schema().as_arrow()))
    table = catalog.table(NAME)
    assert spec_of(table) == [("key", "identity", "id")]
    assert sorted(table.scan(row_filter="key > 0").to_arrow()["key"].to_pylist()) == [1, 2]
    with pytest.raises(ConfigurationError, match=r"DROP PARTITION FIELD key; .* ADD PARTITION FIELD bucket\(8, key\)"):
        check_layout(table, (f"bucket(8, {column})",), (column,), renames)


def test_a_new_table_may_be_partitioned_by_the_name_before_a_rename(catalog):
    table = ensure_table(catalog, NAME, SCHEMA, ("bucket(4, old)",), ("old",), renames={"old": "id"})
    assert [c for c, _, _ in spec_of(table)] == ["id"]


def test_columns_do_not_get_names_that_partitions_have(catalog):
    table = create(catalog)
    assert partition_names(table) == {"ordered_at_day", "id_bucket"}
    with table.update_spec() as update:
        for field in table.spec().fields:
            update.remove_field(field.name)
    table = catalog.table(NAME)
    assert partition_names(table) == {"ordered_at_day", "id_bucket"}, "old files are partitioned so"
    records = StructType(optional(1, "id_bucket", LongType()), optional(2, "ordered_at_day", DateType()))
    done = evolve(table.schema().as_struct(), {}, [Incoming("x", records)], Policy(), partition_names(table))
    apply_changes(table, Schema(*done.columns.fields), done.changes, done.sources)
    assert sources_of(catalog.table(NAME)) == {"id_bucket__2": "id_bucket", "ordered_at_day__2": "ordered_at_day"}


def test_a_partition_does_not_get_the_name_that_a_column_has(catalog):
    names = ("id", "id_bucket", "id_bucket_8")
    schema = Schema(*[optional(i, n, IntegerType()) for i, n in enumerate(names, 1)])
    table = ensure_table(catalog, NAME, schema, ("bucket(8, id)", "bucket(4, id)"))
    assert spec_of(table) == [("id", "bucket[8]", "id_bucket_8__2"), ("id", "bucket[4]", "id_bucket_4")]


# PyIceberg's own rules

COLUMNS = st.sampled_from(["a", "b", "c", "d"])
LEAVES = st.sampled_from(
    [
        *(IntegerType(), LongType(), FloatType(), DoubleType(), DecimalType(9, 2), DecimalType(12, 2), StringType()),
        *(BooleanType(), DateType(), TimestampType(), TimestamptzType()),
    ]
)


def struct_of(found):
    return StructType(*[optional(i, name, kind) for i, (name, kind) in enumerate(found.items(), 1)])


KINDS = st.recursive(
    LEAVES,
    lambda kind: st.one_of(
        st.dictionaries(COLUMNS, kind, min_size=1, max_size=3).map(struct_of),
        kind.map(lambda element: ListType(1, element, False)),
        kind.map(lambda value: MapType(1, StringType(), 2, value, False)),
    ),
    max_leaves=4,
)
SCHEMAS = st.dictionaries(COLUMNS, KINDS, min_size=1, max_size=4).map(
    lambda found: assign_fresh_schema_ids(Schema(*struct_of(found).fields))
)


@pytest.fixture(scope="module")
def memory(tmp_path_factory):
    catalog = InMemoryCatalog("memory", warehouse=f"file://{tmp_path_factory.mktemp('memory')}")
    catalog.create_namespace("any")
    return catalog


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(SCHEMAS, SCHEMAS)
def test_what_is_safe_here_is_what_pyiceberg_would_do(memory, before, after):
    memory.purge_table("any.table") if memory.table_exists("any.table") else None
    table = memory.create_table("any.table", before)
    done = evolve(table.schema().as_struct(), {}, [Incoming("the records", after.as_struct())], Policy())
    update = table.update_schema()
    try:
        theirs = update.union_by_name(after)._apply()
    except Exception:
        assert done.conflicts, "PyIceberg refuses what was found safe"
        theirs = None
    if not done.conflicts:
        assert type_name(theirs.as_struct()) == type_name(done.columns)
    elif theirs is not None:
        pytest.fail(f"PyIceberg does what was found unsafe: {done.conflicts}")
    assert all(c.safe for c in needed_changes(table.schema(), after)) is not bool(done.conflicts)

    apply_changes(table, Schema(*done.columns.fields), done.changes, done.sources)
    table = memory.load_table("any.table")
    assert type_name(table.schema().as_struct()) == type_name(done.columns)
    kept = {f.field_id: f.name for f in before.fields}
    assert {i: table.schema().find_column_name(i) for i in kept} == kept


UNUSED, SOMEBODYS = ("lake", "unused"), pa.table({"id": pa.array([1], pa.int64())})


def begun(catalog):
    return ensure_table(catalog, UNUSED, assign_fresh_schema_ids(Schema(NestedField(1, "id", LongType()))))


def test_a_table_that_nobody_has_used_is_dropped(catalog):
    begun(catalog)
    assert drop_if_unused(catalog, UNUSED)
    assert catalog.pyiceberg.list_tables("lake") == []
    assert not drop_if_unused(catalog, UNUSED)


@pytest.mark.parametrize("use", ["rows", "position", "branch"])
def test_a_table_that_somebody_uses_is_not_dropped(catalog, use):
    table = begun(catalog)
    if use == "branch":
        table.manage_snapshots().create_branch(table.current_snapshot().snapshot_id, "kafka_lake_stage").commit()
    else:
        table.append(SOMEBODYS if use == "rows" else SOMEBODYS[:0], {"kafka-lake.position": "{}"})
    assert not drop_if_unused(catalog, UNUSED)
    assert catalog.pyiceberg.list_tables("lake") == [UNUSED]


def test_emptied_table_without_older_snapshots_is_not_dropped(catalog):
    table = begun(catalog)
    table.append(SOMEBODYS, {"kafka-lake.position": "{}"})
    table.delete()
    *older, _ = [snapshot.snapshot_id for snapshot in table.refresh().snapshots()]
    table.maintenance.expire_snapshots().by_ids(older).commit()
    assert len(catalog.table(UNUSED).snapshots()) == 1
    assert not drop_if_unused(catalog, UNUSED)


def test_a_table_that_somebody_made_by_hand_is_not_dropped(catalog):
    catalog.ensure_namespace("lake")
    catalog.pyiceberg.create_table(UNUSED, SOMEBODYS.schema)
    assert not drop_if_unused(catalog, UNUSED)
    assert catalog.pyiceberg.list_tables("lake") == [UNUSED]


def test_a_commit_in_the_moment_of_the_drop_is_not_lost(catalog, monkeypatch):
    table, rename = begun(catalog), catalog.pyiceberg.rename_table

    def after_a_commit(*names):
        if names[0] == UNUSED:
            table.append(SOMEBODYS)
        return rename(*names)

    monkeypatch.setattr(catalog.pyiceberg, "rename_table", after_a_commit)
    assert not drop_if_unused(catalog, UNUSED)
    assert catalog.table(UNUSED).scan().to_arrow() == SOMEBODYS
    assert catalog.pyiceberg.list_tables("lake") == [UNUSED]
