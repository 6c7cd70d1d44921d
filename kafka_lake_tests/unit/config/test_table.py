"""The groups ``table:``, ``tables:``, ``tables_by:``, and those in them that have no module of their own."""

import pytest

from kafka_lake.spec.topic_table import TopicTable, When
from kafka_lake_tests.unit.config import refusal, spec

SEVERAL = """
topic: shop.events
tables:
  - name: shop.orders
    where: {field: type, equals: order}
    columns: type string, id bigint
    rules: [{not_null: [id], on_failure: fail}]
    dead_letters: fail
    maintenance: {compact_every: 7}
  - {name: web.clicks, where: {header: kind, equals: [click, '7', 'true']}, write: {mode: upsert, key: [id]}}
  - {name: shop.events, redact: all}
"""


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("shop.orders", {"namespace": "shop", "table": "orders"}),
        ("orders", {"table": "orders"}),
        ("{name: shop.orders}", {"namespace": "shop", "table": "orders"}),
        ("{evolution: freeze}", {"evolution": "freeze"}),
        (
            "{evolution: {mode: ignore_new, on_incompatible: new_column}}",
            {"evolution": "ignore_new", "on_incompatible": "new_column"},
        ),
        ("{dead_letters: skip}", {"dead_letters": "skip"}),
        ("{dead_letters: {limit: 5%}}", {"max_dead_letters": "5%"}),
        ("{dead_letters: {mode: skip, limit: 5}}", {"dead_letters": "skip", "max_dead_letters": 5}),
        ("{redact: all}", {"samples": False}),
        ("{redact: none}", {"samples": True}),
        ("{redact: '[0-9]+'}", {"mask": ("[0-9]+",)}),
        ("{exclude_fields: [a, b]}", {"except_columns": ("a", "b")}),
        ("{freshness_limit: 5m, on_data_loss: continue}", {"max_age": "5m", "on_data_loss": "continue"}),
    ],
)
def test_settings_arrive(text: str, fields: dict[str, object]) -> None:
    assert spec(f"topic: a\ntable: {text}") == TopicTable("a", **{"table": "a", **fields})  # type: ignore[arg-type]


def test_each_of_several_tables_has_its_own_settings() -> None:
    found = spec(SEVERAL)
    own, orders, clicks = found.tables
    assert [table.identifier for table in found.tables] == [("shop", "events"), ("shop", "orders"), ("web", "clicks")]
    assert (own.schema, orders.schema, clicks.schema) == (None, "type string, id bigint", None)
    assert [table.samples for table in found.tables] == [False, True, True]
    assert [table.maintenance.compact_every for table in found.tables] == [100, 7, 100]
    assert [table.dead_letters for table in found.tables] == ["table", "fail", "table"]
    assert [len(table.named_rules) for table in found.tables] == [0, 1, 0]
    assert [table.write for table in found.tables] == ["append", "append", "upsert"]
    assert found.routes[1].when.values == ("click", "7", "true")
    assert found.where is None


def test_settings_of_the_topic_are_those_of_all_its_tables() -> None:
    found = spec(f"{SEVERAL}format: {{type: json, timestamp_unit: ms}}\nkey: string\nstarting_offsets: latest\n")
    each_has = [(table.timestamp_unit, table.key_format, table.start) for table in found.tables]
    assert each_has == [("ms", "string", "latest")] * 3


@pytest.mark.parametrize("unmatched", ["dead_letter", "ignore", "fail"])
def test_records_that_no_table_takes_go_where_the_topic_says(unmatched: str) -> None:
    tables = "[{name: b, where: {field: c, equals: d}}, {name: e, where: {field: c, equals: f}}]"
    found = spec(f"topic: a\ntables: {tables}\nunmatched: {unmatched}")
    assert found.unmatched == unmatched
    assert (found.table, found.where) == ("b", When(field="c", values=("d",)))
    assert [(route.to.table, route.when) for route in found.routes] == [("e", When(field="c", values=("f",)))]


def test_tables_without_conditions_have_all_records() -> None:
    found = spec("topic: a\ntables: [{name: now, write: upsert}, {name: past, write: history}]")
    assert (found.where, found.routes[0].when) == (When(sql="true"), When(sql="true"))


@pytest.mark.parametrize(
    ("table", "line"),
    [
        ("{name: a.b.c}", "table: name: 'a.b.c' can't be the name of a table. Write namespace.table"),
        ("{name: a/b}", "table: name: 'a/b' can't be the name of a table"),
        (f"{{name: {'x' * 256}}}", "table: name: a name of 256 bytes is too long. The maximum is 255"),
        ("{where: {field: a, equals: b}}", "table: where: is for tables:, as in tables: [{name: …, where: …}]"),
        ("{partition_by: [week(at)]}", "table: partition_by: 'week(at)' is not an Iceberg transform"),
        ("{sort_by: [lower(at)]}", "table: sort_by: 'lower(at)'"),
        ("{columns: id bigintt}", "table: columns: column 'id bigintt' has unknown type 'bigintt'"),
        ("{columns: 'id int, ID int'}", "twice"),
        ("{columns: id array<int}", "brackets"),
        ("{columns: 'id array<strng>'}", "array of 'strng' has unknown type 'strng'"),
        ("{columns: 'id struct<a: int, b: struct<c: intt>>'}", "has unknown type 'intt'"),
        ("{columns: 'id struct<a: int, A: int>'}", "field 'A' occurs twice"),
        ("{columns: 'id map<string>'}", "map has 1 types in it"),
        ("{columns: id array}", "array has no types in brackets"),
        ("{columns: 'id decimal(50, 2)'}", "decimal of 50 digits"),
        ("{columns: 'id decimal(5, 7)'}", "decimal of 5 digits, 7 of them"),
        ("{columns: id varchar}", "varchar without a length"),
        ("{columns: id int name string}", "'name string' isn't understood after int"),
        ("{columns: _KAFKA string}", "table: columns: has _kafka, which is the metadata column. Remove it"),
        ("{columns: _Key string}\nkey: string", "table: columns: has _key, which is also the column of the key"),
        ("{renames: {a: b, c: b, d: e}}", "table: renames: a and c would both be b. Give one of them another name"),
        ("{transform: somewhere}", "table: transform: 'somewhere' is not a reference. Write module:function"),
        ("{transform: 'somewhere:function'}", "table: transform: gets columns that aren't known. Declare them"),
        ("{evolution: never}", "table: evolution: mode: Input should be 'evolve', 'freeze' or 'ignore_new'"),
        ("{evolution: {on_incompatible: guess}}", "table: evolution: on_incompatible: Input should be 'dead_letter'"),
        ("{columns: id int, evolution: {on_incompatible: new_column}}", "on_incompatible: new_column needs inferred"),
        ("{evolution: {mode: freeze, on_incompatible: new_column}}", "on_incompatible: new_column adds a column, and"),
        ("{dead_letters: drop}", "table: dead_letters: 'drop' isn't known. Write one of table, fail, skip"),
        ("{dead_letters: {mode: fail, limit: 5}}", "table: dead_letters: limit: there is no such setting"),
        ("{dead_letters: {limit: some}}", "table: dead_letters: limit: 'some' isn't a limit"),
        ("{dead_letters: {limit: 101%}}", "table: dead_letters: limit: '101%' isn't a limit"),
        ("{redact: ['[']}", "table: redact: '[' isn't a regular expression"),
        ("{redact: ['[0-9]+', all]}", "table: redact: 'all' would be a regular expression here. Write all or none"),
        ("{redact: None}", "table: redact: 'None' would be a regular expression here"),
        ("{redact: []}", "table: redact: is empty. Write none, or leave it out"),
        ("{on_data_loss: ignore}", "table: on_data_loss: Input should be 'fail' or 'continue'"),
        ("{freshness_limit: soon}", "table: freshness_limit: 'soon' is not a duration"),
        ("{metadata_column: null}", "table: metadata_column: there is no such setting"),
        ("{properties: {write.distribution-mode: range}}", "table: properties: write.distribution-mode range reads"),
        ("kafka.a", "table: name: topic a and its table would be the same asset, kafka/a"),
        (
            "{exclude_fields: [_kafka]}",
            "table: exclude_fields: _kafka is in the metadata column, which",
        ),
        ("{exclude_fields: [ID], write: {mode: upsert, key: [id]}}", "exclude_fields: ID is in write: key"),
        ("{exclude_fields: [at], write: {mode: upsert, order_by: [at]}}", "exclude_fields: at is in write: order_by"),
        (
            "{write: upsert, maintenance: {verify: {schedule: '@daily', since: 7d}}}",
            "verify: since: can't be combined with write: upsert",
        ),
        ("{exclude_fields: [day], partition_by: [day(day)]}", "exclude_fields: day is in partition_by"),
        ("{exclude_fields: [day], sort_by: [day desc]}", "exclude_fields: day is in sort_by"),
        ("{exclude_fields: [v], write: {mode: upsert, ignore_null_updates: [v]}}", "v is in write: ignore_null_update"),
        ("{exclude_fields: [a], columns: 'id int, a int', transform: 'a:b'}", "exclude_fields: the transform returns"),
        ("{exclude_fields: [a], columns: id int}", "exclude_fields: a isn't in columns:"),
    ],
)
def test_what_a_table_cannot_be_is_refused(table: str, line: str) -> None:
    assert line in refusal(f"topic: a\ntable: {table}").splitlines()[0]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("format: avro\ntable: {columns: id int}", "table: columns: is for format json; avro brings its own columns"),
        ("format: string\ntable: {exclude_fields: [a]}", "table: exclude_fields: values in format string are one colu"),
        ("key: string\ntable: {exclude_fields: [_key]}", "table: exclude_fields: _key is in key: column"),
        ("table: a\ntables: [{name: b}]", "tables: can't be combined with table:. Add that table to the list"),
        ("unmatched: ignore", "unmatched: has no effect: table lake.a takes the records that no other table takes"),
        ("format: {type: json, infer_timestamps: true}\ntable: {columns: id int}", "infer_timestamps: has no effect"),
        ("tables: []", "tables: List should have at least 1 item"),
        (
            "tables: [{name: a}, {name: b}, {name: c, where: {sql: key IS NULL}}]",
            "tables: number 2: name: lake.a and lake.b have no where:, and others have one",
        ),
    ],
)
def test_what_cannot_go_with_the_topic_is_refused(text: str, line: str) -> None:
    assert line in refusal(f"topic: a\n{text}").splitlines()[0]


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (("name: shop.orders", "name: shop.Events"), "table shop.events would belong to events and Events"),
        (("name: shop.orders", "name: shop.events__dead_letters"), "would belong to events and events__dead_letters"),
        (("name: web.clicks", "name: shop.orders"), "table shop.orders would belong to orders twice"),
        (("name: web.clicks", "name: shop.clicks"), None),
        (("id bigint", "id bigintt"), "tables: number 1: columns: column 'id bigintt'"),
    ],
)
def test_what_several_tables_cannot_be_is_refused(change: tuple[str, str], line: str | None) -> None:
    text = SEVERAL.replace(*change)
    assert text != SEVERAL
    if line is None:
        assert len(spec(text).tables) == 3
    else:
        assert line in refusal(text).splitlines()[0]


def test_dead_letters_that_are_skipped_take_no_records() -> None:
    tables = "{name: b, where: {field: c, equals: d}, dead_letters: skip}, {name: e, where: {field: c, equals: f}}"
    assert refusal(f"topic: a\ntables: [{tables}]").startswith("unmatched: dead_letter with dead_letters: skip loses")
    assert spec(f"topic: a\ntables: [{tables}]\nunmatched: ignore").unmatched == "ignore"


BY = """
topic: shop.changes
table: shop.changes
tables_by: {field: source.table, name: 'shop.shop_{value}', max_tables: 9, partition_by: [id]}
"""


def test_tables_by_value_have_settings_of_their_own() -> None:
    by = spec(BY).route_by
    assert by is not None
    assert (by.kind, by.name, by.table, by.namespace, by.max_tables) == (
        "field", "source.table", "shop_{value}", "shop", 9,
    )  # fmt: skip
    assert (by.to.topic, by.to.partition_by) == ("shop.changes", ("id",))


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (("field: source.table, ", ""), "tables_by: has none of field, schema_name, source_table"),
        (("field: source.table", "field: a, schema_name: true"), "tables_by: has field and schema_name of"),
        (("field: source.table", "field: a..b"), "tables_by: field: 'a..b' can't name a field here"),
        (("field: source.table", "field: ''"), "tables_by: field: Value should have at least 1 item"),
        (("field: source.table", "schema_name: a"), "tables_by: schema_name: Input should be a valid boolean"),
        (("field: source.table", "schema_name: true"), "tables_by: schema names need avro"),
        (("shop.shop_{value}", "shop.all"), "tables_by: name: 'all' gives all values the same table"),
        (("shop.shop_{value}", "{colour}"), "tables_by: name: '{colour}' uses {colour}. Available: {value}"),
        (("shop.shop_{value}", "{parent}.{name}"), "tables_by: name: '{parent}' can't be the name of a namespace"),
        (("max_tables: 9", "max_tables: 0"), "tables_by: max_tables: Input should be greater than or equal to 1"),
        (("max_tables: 9", "columns: id bigint what"), "tables_by: columns: "),
        (("topic: ", "format: avro\ntopic: "), "tables_by: field: is for JSON, and format is avro. Use schema_name:"),
    ],
)
def test_what_tables_by_value_cannot_be_is_refused(change: tuple[str, str], line: str) -> None:
    text = BY.replace(*change)
    assert text != BY
    assert line in refusal(text).splitlines()[0]


def test_one_table_may_have_a_condition() -> None:
    found = spec("topic: a\ntables: [{name: b, where: {sql: key IS NULL}}]")
    assert (found.where, found.routes, found.may_match_several) == (When(sql="key IS NULL"), (), False)
