"""A YAML document becomes a topic's settings, or is refused with its file and line."""

import textwrap
from dataclasses import replace

import dagster as dg
import pytest
from dagster.components.testing import create_defs_folder_sandbox
from hypothesis import example, given
from hypothesis import strategies as st

from kafka_lake.cli.load_definitions import explanation
from kafka_lake.config.formats import FORMATS
from kafka_lake.orchestration.assets import IngestConfig, Mode
from kafka_lake.orchestration.components.kafka_topic import KafkaTopic, partitions_without_key
from kafka_lake.orchestration.keys import op_name, plain_name, pool_name
from kafka_lake.orchestration.metadata import SPEC
from kafka_lake.orchestration.resources import (
    CatalogResource,
    KafkaResource,
    RegistryResource,
    SparkResource,
)
from kafka_lake.spec.ddl import check_ddl
from kafka_lake.spec.topic_table import TopicTable

FULL = """
topic: shop.Orders-v2
table:
  name: shop.orders
  columns: id bigint not null, at timestamp, tags array<string>
  partition_by: [day(at), "bucket(16, id)"]
  sort_by: [at desc]
  properties: {write.parquet.compression-codec: gzip}
  transform: somewhere:function
  on_data_loss: continue
  dead_letters: {mode: table, limit: 5%}
  redact: ['[0-9]{12,19}', "[^@ ]+@[^@ ]+"]
  freshness_limit: 5m
  owners: ["team:shop"]
  group: sales
  description: Every order.
starting_offsets: "2026-01-01T00:00:00Z"
read: {max_records_per_commit: 1000, max_bytes_per_commit: 500000000}
"""


EVOLVING = """
topic: orders
format: {type: confluent, subject: shop.Order}
key: {format: json, column: who, schema: tenant string}
table:
  renames: {cust: customer, lines.element.sku: article}
  evolution: {mode: ignore_new, on_incompatible: new_column}
"""


TOPIC = "KafkaTopic"


def load(attributes, kind="KafkaTopic"):
    """Load a real defs.yaml through Dagster; the attributes begin at its third line."""
    with create_defs_folder_sandbox() as sandbox:
        folder = sandbox.defs_folder_path / "orders"
        folder.mkdir()
        text = f"type: kafka_lake.{kind}\nattributes:\n" + textwrap.indent(attributes.strip(), "  ") + "\n"
        (folder / "defs.yaml").write_text(text)
        with sandbox.load_component_and_build_defs(folder) as (component, defs):
            return component, defs


def refusal(attributes, kind="KafkaTopic"):
    """All that is said by the error and its causes."""
    with pytest.raises(Exception, match=r"defs\.yaml|topic|attributes") as refused:
        load(attributes, kind)
    text, error = "", refused.value
    while error is not None:
        text, error = f"{text}\n{error}", error.__cause__ or error.__context__
    return text


def resolved(defs):
    resources = {
        "kafka": KafkaResource(),
        "registry": RegistryResource(),
        "catalog": CatalogResource(),
        "spark": SparkResource(spark_config={}, catalog=CatalogResource()),
    }
    return dg.Definitions.merge(defs, dg.Definitions(resources=resources)).resolve_asset_graph()


def test_a_topic_is_enough():
    component, defs = load("topic: shop.Orders-v2")
    assert component.topic_table() == TopicTable("shop.Orders-v2", "lake", "shop_orders_v2")
    graph = resolved(defs)
    table = dg.AssetKey(["lake", "shop_orders_v2"])
    assert graph.get(table).parent_keys == {dg.AssetKey(["kafka", "shop.Orders-v2"])}
    assert graph.get(table).group_name == "lake"
    checks = {(key.asset_key.path[-1], key.name) for key in graph.asset_check_keys}
    assert checks == {
        ("shop_orders_v2", "row_count"),
        ("shop_orders_v2", "offset_continuity"),
        ("shop_orders_v2", "schema_evolution"),
        ("shop_orders_v2", "dead_letters"),
        ("shop_orders_v2", "data_loss"),
        ("shop_orders_v2", "no_dead_letters"),
        ("shop_orders_v2", "table_health"),
    }
    assert graph.get_all_asset_keys() == {table, dg.AssetKey(["kafka", "shop.Orders-v2"])}


@pytest.mark.parametrize("policy", ["fail", "skip"])
def test_a_topic_that_keeps_no_dead_letters_has_no_table_of_them(policy):
    _, defs = load(f"topic: orders\ntable: {{dead_letters: {policy}}}")
    assert "no_dead_letters" not in {key.name for key in resolved(defs).asset_check_keys}


@pytest.mark.parametrize("name", ["with-dash", "with space", "größe_zahl", "it's", "select"])
def test_a_namespace_and_a_table_may_have_names_that_dagster_has_no_room_for(name):
    _, defs = load(f'topic: orders\ntable: "{name}.{name}"')
    graph = resolved(defs)
    (table,) = [graph.get(key) for key in graph.materializable_asset_keys]
    assert table.metadata["dagster/table_name"] == f"lake.{name}.{name}"


def test_names_that_differ_have_ops_pools_and_groups_that_differ():
    pairs = [("a.b", "c"), ("a-b", "c"), ("a_b", "c"), ("a.b", "c.d")]
    specs = [TopicTable("t", *pair) for pair in pairs]
    for name_of in (op_name, pool_name, lambda spec: plain_name(".".join(spec.identifier))):
        assert len({name_of(spec) for spec in specs}) == len(specs)


@given(st.lists(st.tuples(*[st.text("a_.-", min_size=1, max_size=5)] * 2), unique=True, min_size=2, max_size=5))
@example([("shop", "eu_orders"), ("shop_eu", "orders")])
@example([("a_", "b"), ("a", "_b")])
@example([("a", "b__c"), ("a__b", "c")])
def test_no_two_tables_share_an_op_or_a_pool(pairs):
    specs = [TopicTable("t", *pair) for pair in pairs]
    for name_of in (op_name, pool_name, lambda spec: op_name(spec, "no_dead_letters")):
        assert len({name_of(spec) for spec in specs}) == len(specs)


@pytest.mark.parametrize(
    "pairs",
    [
        [("shop", "eu_orders"), ("shop_eu", "orders")],
        [("a_", "b"), ("a", "_b")],
        [("a", "b__c"), ("a__b", "c")],
        [("a", "b-c"), ("a", "b_c"), ("a", "b c")],
    ],
)
def test_tables_whose_names_are_alike_are_loaded_beside_each_other(pairs):
    loaded = [load(f"topic: t{number}\ntable: {a}.{b}")[1] for number, (a, b) in enumerate(pairs)]
    graph = resolved(dg.Definitions.merge(*loaded))
    tables = [graph.get(key) for key in graph.materializable_asset_keys]
    assert len({table.pools.copy().pop() for table in tables}) == len(pairs)


@pytest.mark.parametrize("name", ["a/b", "", " a", "a#b", "a?b", "a%20b", "a.b.c", ".a", "a.", "x" * 256])
def test_a_name_that_no_catalog_and_no_folder_takes_is_refused(name):
    assert "table" in refusal(f'topic: orders\ntable: "{name}"')


def test_the_longest_topic_has_a_dead_letter_table_with_a_name_of_its_own():
    specs = [KafkaTopic(topic="x" * 248 + last).topic_table() for last in "ab"]
    letters = [spec.dead_letter_table[1] for spec in specs]
    assert len({*letters}) == 2
    assert all(len(name) == 255 and name.endswith("__dead_letters") for name in letters)
    assert TopicTable("t", "n", "x" * 241).dead_letter_table[1] == "x" * 241 + "__dead_letters"


CLASHES = {
    "by name": (
        "topic: shop.orders\ntable: {dead_letters: skip}",
        "topic: shop-orders\ntable: {dead_letters: skip}",
        "Table lake.shop_orders ",
    ),
    "by settings": ("topic: a\ntable: n.t", "topic: b\ntable: n.t", "Table n.t "),
    "with letters": ("topic: a", "topic: b\ntable: a__dead_letters", "Table lake.a__dead_letters "),
    "same topic": ("topic: a", "topic: a", "Topic a is in two documents: "),
}


@pytest.mark.parametrize("clash", CLASHES)
def test_two_documents_with_one_table_are_refused_by_both_their_names(clash):
    first, second, named = CLASHES[clash]
    with create_defs_folder_sandbox() as sandbox:
        documents = {"cluster": ("KafkaCluster", ""), "one": (TOPIC, first), "two": (TOPIC, second)}
        for name, (kind, attributes) in documents.items():
            folder = sandbox.defs_folder_path / name
            folder.mkdir()
            text = f"type: kafka_lake.{kind}\nattributes:\n" + textwrap.indent(attributes or "{}", "  ")
            (folder / "defs.yaml").write_text(text)
        with pytest.raises(Exception, match="defs") as refused, sandbox.build_all_defs():
            pass
    said = explanation(refused.value, sandbox.defs_folder_path)
    assert said is not None
    assert named in said.message
    assert "one/defs.yaml" in said.message
    assert "two/defs.yaml" in said.message


def test_all_attributes():
    component, defs = load(FULL)
    spec = TopicTable(
        topic="shop.Orders-v2",
        namespace="shop",
        table="orders",
        schema="id bigint not null, at timestamp, tags array<string>",
        partition_by=("day(at)", "bucket(16, id)"),
        sort_by=("at desc",),
        table_properties={"write.parquet.compression-codec": "gzip"},
        start="2026-01-01T00:00:00Z",
        max_records_per_commit=1000,
        max_bytes_per_commit=500_000_000,
        transform="somewhere:function",
        on_data_loss="continue",
        dead_letters="table",
        max_dead_letters="5%",
        max_age="5m",
        mask=("[0-9]{12,19}", "[^@ ]+@[^@ ]+"),
    )
    assert component.topic_table() == spec
    node = resolved(defs).get(dg.AssetKey(["shop", "orders"]))
    assert (node.group_name, node.description) == ("sales", "Every order.")
    assert set(node.owners) == {"team:shop"}
    assert node.metadata[SPEC] == spec


def test_each_asset_of_a_topic_has_its_tags_beside_those_that_runs_need():
    _, defs = load("topic: orders\ntable: {tags: {domain: sales, pii: 'true'}}")
    shown = {node.key.to_user_string(): dict(node.tags) for node in resolved(defs).asset_nodes}
    assert set(shown) == {"kafka/orders", "lake/orders"}
    assert all(tags.items() >= {"domain": "sales", "pii": "true"}.items() for tags in shown.values())
    assert shown["lake/orders"]["kafka_lake/table"] == ""
    assert "kafka_lake/table" not in shown["kafka/orders"]


@pytest.mark.parametrize(
    ("tags", "says"),
    [
        ("{cost centre: a}", "cost centre: 'a': tags have letters"),
        ("{team: the shop}", "team: 'the shop': tags have letters"),
        ("{kafka_lake/table: a}", "kafka_lake/table is a tag that kafka_lake sets itself"),
        ("{pii: true}", "Write the text in quotes"),
    ],
)
def test_tags_that_dagster_does_not_take_are_refused(tags, says):
    assert says in refusal(f"topic: orders\ntable: {{tags: {tags}}}")


def test_samples_are_what_the_environment_says_where_a_topic_says_nothing(monkeypatch):
    def reported(more="{}"):
        return load(f"topic: orders\ntable: {more}")[0].topic_table().samples

    assert reported()
    monkeypatch.setenv("KAFKA_LAKE_SAMPLES", "False")
    assert not reported()
    assert reported("{redact: none}")
    assert not reported("{redact: null}")
    assert not reported("{redact: all}")
    monkeypatch.setenv("KAFKA_LAKE_SAMPLES", "none")
    assert "KAFKA_LAKE_SAMPLES=none is neither true nor false" in refusal("topic: orders")


@pytest.mark.parametrize("text", ["table: '{{ env.OF_A_TEST }}'", "table: null", "table:", "table: a_table"])
def test_a_table_may_be_a_template_or_nothing(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("OF_A_TEST", "a_table")
    spec = load(f"topic: Orders\n{text}")[0].topic_table()
    assert spec.table == ("a_table" if "a_table" in text or "env" in text else "orders")


@pytest.mark.parametrize("format_", FORMATS)
def test_every_format_is_accepted(format_):
    component, defs = load(f"topic: orders\nformat: {format_}")
    assert component.topic_table().format == format_
    assert resolved(defs).has(dg.AssetKey(["lake", "orders"]))


def test_settings_of_formats_and_evolution_arrive():
    component, _ = load(EVOLVING)
    assert component.topic_table() == TopicTable(
        "orders",
        "lake",
        "orders",
        format="confluent",
        subject="shop.Order",
        key_format="json",
        key_column="who",
        key_schema="tenant string",
        evolution="ignore_new",
        on_incompatible="new_column",
        renames={"cust": "customer", "lines.element.sku": "article"},
    )


def test_a_schema_file_is_found_beside_the_document(tmp_path):
    (tmp_path / "order.avsc").write_text("{}")
    component = KafkaTopic(topic="orders", format={"type": "avro", "schema": "order.avsc"})
    assert component.topic_table(tmp_path).schema_file == str(tmp_path / "order.avsc")


@pytest.mark.parametrize(
    ("ddl", "names"),
    [
        ("a int", ["a"]),
        ("`a b` int, `c,``d` string", ["a b", "c,`d"]),
        ("a: int, b:string", ["a", "b"]),
        ("a int not null comment 'one, \\'two\\'', b STRING COMMENT \"x\"", ["a", "b"]),
        ("a decimal, b decimal(38), c dec(10, 2), d varchar(5), e char(3)", list("abcde")),
        ("a array<array<map<string, struct<x: decimal(38,10), `y z`: int not null comment 'u, v'>>>>", ["a"]),
        ("a struct<b int, c: timestamp_ntz>, d timestamp without time zone", ["a", "d"]),
    ],
)
def test_what_spark_understands_is_accepted(ddl, names):
    assert check_ddl(ddl) == names


def test_runs_that_begin_together_do_not_end_together():
    assert IngestConfig().catch_up("a") is None
    assert IngestConfig(mode=Mode.replace, catch_up_for=300).catch_up("a") is None
    limits = {IngestConfig(catch_up_for=300, poll_every=2).catch_up(f"run {n}").time_limit for n in range(20)}
    assert len(limits) == 20
    assert min(limits) >= 225
    assert max(limits) <= 300
    assert IngestConfig(catch_up_for=1, poll_every=60).catch_up("a").trigger <= 1


def test_the_cluster_sets_for_how_long_catch_up_runs_continue():
    component, _ = load("sensor_interval_seconds: 2", "KafkaCluster")
    assert component.catch_up_for == "1h"
    component, defs = load("catch_up_for: 0s", "KafkaCluster")
    assert component.catch_up_for == "0s"
    assert [sensor.name for sensor in defs.sensors] == ["kafka_offsets", "kafka_maintenance"]
    said = refusal("catch_up_for: 5 minutes", "KafkaCluster")
    assert "'5 minutes' is not a duration" in said
    assert "catch_up_for" in said


def test_a_run_continues_as_its_configuration_says():
    found = []

    @dg.op
    def ingest(config: IngestConfig) -> None:
        found.append(config.catch_up("a"))

    @dg.job
    def one_op():
        ingest()

    one_op.execute_in_process(run_config={"ops": {"ingest": {"config": {"catch_up_for": 60.0, "poll_every": 2.0}}}})
    assert found == [IngestConfig(catch_up_for=60, poll_every=2).catch_up("a")]
    assert found[0].trigger == 2


@pytest.mark.parametrize("text", ["123", "007", "on", "null", "1e3", "0x10", "None", "True"])
def test_text_in_quotes_stays_as_it_is_written(text):
    component, _ = load(
        f'topic: "{text}"\ntable: {{description: "{text}", exclude_fields: ["{text}"], '
        f'properties: {{"{text}": "{text}"}}, renames: {{"{text}": "{text}"}}}}'
    )
    spec = component.topic_table()
    assert (component.table.description, component.table.exclude_fields) == (text, (text,))
    assert spec.topic == text
    assert (spec.table_properties, spec.renames) == ({text: text}, {text: text})


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("kafka_properties: {sasl.password: 0123}", "the number 83"),
        ("registry_properties: {basic.auth.user.info: 1.50}", "the number 1.5"),
        ("catalog_properties: {s3.region: no}", "false"),
        ("spark_config: {spark.executor.cores: 4}", "the number 4"),
    ],
)
def test_properties_are_text(line, kind):
    text = refusal(line, "KafkaCluster")
    assert f"{line.partition('{')[2].partition(':')[0]}: YAML reads this value as {kind}" in text
    assert "Write the text in quotes" in text


def test_templates_give_text(monkeypatch):
    monkeypatch.setenv("NUMBER_LIKE", "1e3")
    component, _ = load("topic: orders\ntable: {properties: {a: '{{ 1 + 2 }}'}, group: '{{ env.NUMBER_LIKE }}'}")
    assert (component.table.group, component.table.properties) == ("1e3", {"a": "3"})
    component, _ = load("topic: orders\ntable: {group: null, description: '{{ env.IT_IS_NOT_SET }}'}")
    assert (component.table.group, component.table.description) == (None, None)


@pytest.mark.parametrize(
    ("line", "read_as"),
    [
        ("table: 007", "the number 7"),
        ("table: on", "true"),
        ("table: {name: 2024}", "the number 2024"),
        ("table: {description: 5}", "the number 5"),
        ("starting_offsets: no", "false"),
        ("starting_offsets: null", "null"),
        ("table: {renames: {1: one}}", "the number 1"),
        ("table: {renames: {one: 1}}", "the number 1"),
        ("table: {renames: {one: ~}}", "null"),
        ("table: {owners: [1.5]}", "the number 1.5"),
        ("table: {properties: {1: one}}", "the number 1"),
        ("table: {properties: {one: null}}", "null"),
        ("table: {dead_letters: {limit: yes}}", "true"),
        ("read: {continuous: {for: 5}}", "the number 5"),
    ],
)
def test_what_yaml_reads_as_something_else_is_to_be_quoted(line, read_as):
    text = refusal(f"topic: orders\n{line}")
    assert "Write the text in quotes" in text
    assert f" as {read_as}" in text
    assert "defs.yaml:4" in text


@pytest.mark.parametrize("value", ["123", "on", "1.5"])
def test_a_topic_that_yaml_reads_as_something_else_is_to_be_quoted(value):
    assert "Write the text in quotes" in refusal(f"topic: {value}")


@pytest.mark.parametrize("line", ["renames: old to new", "properties: many"])
def test_text_is_no_mapping(line):
    assert "Input should be a valid" in refusal(f"topic: orders\ntable: {{{line}}}")


@pytest.mark.parametrize("line", ["table: shop.orders", "topic: null", "topic: ~", "topic:"])
def test_a_missing_topic_is_refused(line):
    assert "topic: is missing, or null without quotes" in refusal(line)


def test_a_bad_topic_name_is_refused():
    with pytest.raises(ValueError, match="topic"):
        KafkaTopic(topic="or ders")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"key": ["id"], "partition_by": ["day(at)", "bucket(4, id)"]}, "partition_by has at, and the key is id."),
        ({"key": ["id"], "partition_by": ["address.city"]}, "partition_by has address.city, and the key is id."),
        ({"key": ["shop_id", "day"], "partition_by": ["day", "bucket(4, shop_id)"]}, ""),
        ({"key": ["id"]}, ""),
        ({"partition_by": ["day(at)"]}, ""),
    ],
)
def test_a_partition_that_does_not_follow_from_the_key_is_warned_of(settings, said):
    partitions = settings.pop("partition_by", [])
    table = {"write": {"mode": "upsert", **settings}, "partition_by": partitions}
    spec = KafkaTopic(topic="orders", table=table).topic_table()
    reported = partitions_without_key(spec)
    assert reported.startswith(said)
    assert bool(reported) == bool(said)
    assert not partitions_without_key(replace(spec, write="append", key=()))


def test_the_warning_is_there_when_the_document_loads(caplog):
    load("topic: orders\ntable: {partition_by: [day(at)], write: {mode: upsert, key: [id]}}")
    assert [r.message for r in caplog.records if "partition_by has at" in r.message] != []
    assert caplog.records[-1].message.startswith("Topic orders: ")


def test_key_is_a_declared_column_of_any_name() -> None:
    table = {"columns": "`shop.id` int, v int", "write": {"mode": "upsert", "key": ["shop.id"]}}
    declared = KafkaTopic(topic="orders", table=table)
    assert declared.topic_table().key == ("shop.id",)


def test_assets_page_shows_the_settings_of_its_document():
    _, defs = load("topic: orders\ntable: {columns: id int, write: {mode: upsert, key: [id]}, freshness_limit: 5m}")
    metadata = resolved(defs).get(dg.AssetKey(["lake", "orders"])).metadata
    assert "write:\n    key:\n    - id\n    mode: upsert\n" in metadata["settings"].md_str
