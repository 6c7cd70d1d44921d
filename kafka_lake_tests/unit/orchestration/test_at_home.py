"""Components follow the conventions of Dagster's own: specs, overrides, translation, forms, scaffolding."""

import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pyiceberg.catalog
import pytest
from dagster.components.component_scaffolding import scaffold_object
from dagster.components.testing import create_defs_folder_sandbox
from pyiceberg.catalog.sql import SqlCatalog

import kafka_lake
from kafka_lake.discovery import discover
from kafka_lake.discovery.discover import Discovered
from kafka_lake.discovery.guess import Guess
from kafka_lake.errors import ConfigurationError
from kafka_lake.orchestration.check_results import check_result
from kafka_lake.orchestration.keys import table_key
from kafka_lake.orchestration.metadata import topics_of
from kafka_lake.orchestration.steps import as_failures
from kafka_lake.runtime.commit import CHECKS, Finding
from kafka_lake.spec.topic_table import TopicTable

TYPES = [kafka_lake.KafkaTopic, kafka_lake.KafkaTopics, kafka_lake.KafkaCluster, kafka_lake.DerivedTable]
CLUSTER = "type: kafka_lake.KafkaCluster\nattributes: {}\n"
BIG = "table: big, from: orders, write: append, sql: SELECT * FROM orders WHERE total > 9"


class Bronze(kafka_lake.KafkaTopic):
    """A topic whose tables have keys, groups, kinds and metadata of a company's own."""

    def get_asset_spec(self, table: TopicTable) -> dg.AssetSpec:
        """Return the asset with another key."""
        asset = super().get_asset_spec(table).merge_attributes(metadata={"tier": 1})
        return asset.replace_attributes(key=["bronze", table.table], group_name="bronze", kinds={"table"})

    def get_topic_spec(self, topic: TopicTable) -> dg.AssetSpec:
        """Return the asset of the topic with the key that its producer's code location has."""
        return super().get_topic_spec(topic).replace_attributes(key=["producer", topic.topic])

    def execute(self, context: dg.AssetExecutionContext, topic: TopicTable) -> Iterator[Any]:
        """Give one event instead of a run."""
        yield dg.MaterializeResult(asset_key=table_key(topic), metadata={"topic": topic.topic})
        yield from (
            dg.AssetCheckResult(asset_key=key.asset_key, check_name=key.name, passed=True)
            for key in context.selected_asset_check_keys
        )


@contextmanager
def loaded(**documents: str) -> Iterator[dg.Definitions]:
    with create_defs_folder_sandbox() as sandbox:
        for name, text in {"cluster": CLUSTER, **documents}.items():
            folder = sandbox.defs_folder_path / name
            folder.mkdir()
            (folder / "defs.yaml").write_text(textwrap.dedent(text))
        with sandbox.build_all_defs() as definitions:
            yield definitions


@pytest.fixture(autouse=True)
def default_keys() -> Iterator[None]:
    yield
    # Keys hold for the process.
    kafka_lake.KafkaTopic(topic="orders").topic_table()


def test_definitions_have_table_name_and_storage_kind() -> None:
    with loaded(orders="type: kafka_lake.KafkaTopic\nattributes: {topic: orders}") as definitions:
        metadata = definitions.resolve_asset_graph().get(dg.AssetKey(["lake", "orders"])).metadata
    assert metadata["dagster/table_name"] == "lake.lake.orders"
    assert metadata["dagster/storage_kind"] == "iceberg"
    assert metadata["dead_letter_table"] == "lake.orders__dead_letters"


def test_subclass_changes_assets_and_execution() -> None:
    bronze = f"type: {__name__}.Bronze\nattributes: {{topic: orders}}"
    derived = f"type: kafka_lake.DerivedTable\nattributes: {{{BIG}}}"
    key = dg.AssetKey(["bronze", "orders"])
    with loaded(orders=bronze, big=derived) as definitions:
        repository = definitions.get_repository_def()
        node = repository.asset_graph.get(key)
        assert node.parent_keys == {dg.AssetKey(["producer", "orders"])}
        assert node.child_keys == {dg.AssetKey(["lake", "big"])}
        assert (node.group_name, node.kinds, node.metadata["tier"]) == ("bronze", {"table"}, 1)
        assert {check.asset_key for check in repository.asset_graph.asset_check_keys if check.name == "row_count"} == {
            key
        }
        assert [table_key(spec) for spec in topics_of(repository)] == [key]
        (ingest,) = [
            asset for asset in definitions.assets or () if isinstance(asset, dg.AssetsDefinition) and key in asset.keys
        ]
        with dg.DagsterInstance.ephemeral() as instance:
            instance.add_dynamic_partitions("kafka/orders", ["0"])
            used = ingest.required_resource_keys - {"io_manager"}
            resources = dict.fromkeys(used, dg.ResourceDefinition.none_resource())
            assert dg.materialize([ingest], partition_key="0", instance=instance, resources=resources).success


def test_translation_leaves_settings_checked() -> None:
    text = """
        type: kafka_lake.KafkaTopic
        attributes:
          topic: orders
          table: {write: {mode: append, key: [id]}}
          translation: {key: "silver/{{ table.table }}"}
    """
    with pytest.raises(Exception, match="orders"), loaded(orders=text):
        pass


def test_translation_changes_key_and_kinds_of_tables() -> None:
    text = """
        type: kafka_lake.KafkaTopic
        attributes:
          topic: orders
          tables: [{name: shop.orders, where: {field: type, equals: order}}, {name: shop.others}]
          translation:
            key: "silver/{{ table.table }}"
            kinds: [table]
            metadata: {was: "{{ spec.key.to_user_string() }}"}
    """
    with loaded(orders=text) as definitions:
        graph = definitions.resolve_asset_graph()
        node = graph.get(dg.AssetKey(["silver", "orders"]))
        assert (node.kinds, node.metadata["was"]) == ({"table"}, "shop/orders")
        assert {key.to_user_string() for key in graph.materializable_asset_keys} == {"silver/orders", "silver/others"}


def test_post_processing_adds_an_automation_condition() -> None:
    derived = f"""
        type: kafka_lake.DerivedTable
        attributes: {{{BIG}, every: never}}
        post_processing:
          assets:
            - attributes: {{automation_condition: "{{{{ dg.AutomationCondition.eager() }}}}"}}
    """
    with loaded(orders="type: kafka_lake.KafkaTopic\nattributes: {topic: orders}", big=derived) as definitions:
        node = definitions.resolve_asset_graph().get(dg.AssetKey(["lake", "big"]))
        assert node.automation_condition == dg.AutomationCondition.eager()
        assert not definitions.schedules


def snippets(page: str, language: str) -> list[str]:
    text = (Path(__file__).parents[3] / "docs" / page).read_text()
    return [block.partition("```")[0] for block in text.split(f"```{language}\n")[1:]]


def test_page_on_dagster_has_valid_documents() -> None:
    topic, big = snippets("dagster.md", "yaml")
    with loaded(orders=topic.replace("topic: shop.orders", "topic: orders"), big=big) as definitions:
        keys = {key.to_user_string() for key in definitions.resolve_asset_graph().materializable_asset_keys}
    assert keys == {"bronze/orders", "lake/big_orders"}
    (code,) = snippets("dagster.md", "python")
    scope: dict[str, Any] = {}
    exec(code, scope)
    assert scope["Bronze"](topic="orders").topic_table().identifier == ("lake", "orders")
    assert table_key(TopicTable("orders")) == dg.AssetKey(["bronze", "orders"])


def test_page_on_dagster_plus_has_an_asset_that_reads(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    catalog = SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/c.db", warehouse=f"file://{tmp_path}")
    rows = pa.table({"total": [50, 150]})
    catalog.create_namespace("lake")
    catalog.create_table("lake.orders", rows.schema).append(rows)
    # PyIceberg reads the environment once, when it is imported.
    monkeypatch.setattr(pyiceberg.catalog, "load_catalog", {"lake": catalog}.get)
    (code,) = snippets("dagster-plus.md", "python")
    scope: dict[str, Any] = {}
    exec(code, scope)
    asset = next(value for value in scope.values() if isinstance(value, dg.AssetsDefinition))
    (event,) = dg.materialize([asset]).get_asset_materialization_events()
    assert [entry.value for entry in event.materialization.metadata.values()] == [1]


@pytest.mark.parametrize("component", TYPES)
def test_types_describe_themselves(component: Any) -> None:
    spec = component.get_spec()
    assert spec.description.endswith(".")
    assert {"kafka", "iceberg"} <= {*spec.tags}
    assert spec.owners == ["team:kafka-lake"]
    assert spec.produces
    schema = component.get_model_cls().model_json_schema()
    assert schema["title"].split() == [part for part in schema["title"].split() if part.isalpha()]
    advanced = {name for name, field in schema["properties"].items() if field.get("ui:advanced")}
    assert advanced
    assert component.first_fields == schema["properties"].keys() - advanced


def test_scaffold_of_an_unknown_topic_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    unknown = [Discovered("shop.orders", error="Topic shop.orders doesn't exist.")]
    monkeypatch.setattr(discover, "discover", lambda *_, **__: unknown)
    with create_defs_folder_sandbox() as sandbox:
        (sandbox.defs_folder_path / "cluster").mkdir()
        (sandbox.defs_folder_path / "cluster" / "defs.yaml").write_text(CLUSTER)
        target = sandbox.defs_folder_path / "orders"
        with sandbox.build_all_defs(), pytest.raises(SystemExit, match=r"^Error: Topic shop.orders doesn't exist.$"):
            scaffold_object(target, "kafka_lake.KafkaTopic", '{"topic": "shop.orders"}', "yaml", sandbox.project_root)
        assert not target.exists()


def test_scaffold_writes_the_document_of_a_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    def found(topics: list[str], *_: object, **__: object) -> list[Discovered]:
        return [Discovered(topics[0], partitions=3, value=Guess(None, "the topic is empty"))]

    monkeypatch.setattr(discover, "discover", found)
    with create_defs_folder_sandbox() as sandbox:
        folder: Path = sandbox.defs_folder_path / "cluster"
        folder.mkdir()
        (folder / "defs.yaml").write_text(CLUSTER)
        target = sandbox.defs_folder_path / "orders"
        with sandbox.load_component_and_build_defs(folder):
            scaffold_object(target, "kafka_lake.KafkaTopic", '{"topic": "shop.orders"}', "yaml", sandbox.project_root)
        text = (target / "defs.yaml").read_text()
        assert "type: kafka_lake.KafkaTopic\n" in text
        assert "topic: shop.orders" in text
        with sandbox.build_all_defs() as definitions:
            assert dg.AssetKey(["lake", "shop_orders"]) in definitions.resolve_asset_graph().get_all_asset_keys()


def test_failed_step_shows_the_command_to_copy() -> None:
    with pytest.raises(dg.Failure) as failed, as_failures():
        raise ConfigurationError("Topic orders is unknown.", "Run `kafka-lake topics refresh`.")
    assert failed.value.description == "Topic orders is unknown. Run `kafka-lake topics refresh`."
    assert failed.value.metadata["what_to_do"].value == "```sh\nkafka-lake topics refresh\n```"
    with pytest.raises(dg.Failure) as failed, as_failures():
        raise ConfigurationError("Topic orders is unknown.", "Correct its name.")
    assert failed.value.metadata["what_to_do"].value == "Correct its name."


@pytest.mark.parametrize("check", sorted(CHECKS))
def test_check_without_a_commit_has_a_number(check: str) -> None:
    metadata = check_result(
        Finding(check, (), {}), dg.AssetKey("orders"), {"rows": 0} if check == "row_count" else None
    )
    assert any(isinstance(value, dg.IntMetadataValue) for value in metadata.metadata.values())


def test_check_shows_partitions_as_a_table() -> None:
    finding = Finding("offset_continuity", (), {"offsets_compared": 6, "orders/0": "5..9", "orders/1": "2..4"})
    metadata = check_result(finding, dg.AssetKey("orders")).metadata
    assert metadata["offsets_compared"].value == 6
    lines = [record.data for record in metadata["partitions"].records]
    assert lines == [{"partition": "orders/0", "offsets": "5..9"}, {"partition": "orders/1", "offsets": "2..4"}]
    assert metadata.keys() == {"offsets_compared", "partitions"}
