"""One document for many topics: which ones, what their tables are called, what is said of those that are new."""

import asyncio
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster.components.testing import create_defs_folder_sandbox

from kafka_lake.cli.load_definitions import explanation
from kafka_lake.errors import KafkaError
from kafka_lake.kafka.cluster import KafkaCluster as Brokers
from kafka_lake.orchestration.components.kafka_topics import KafkaTopics, new_topics
from kafka_lake.orchestration.metadata import SPEC
from kafka_lake.spec.topic_table import TopicTable
from kafka_lake_tests.unit.orchestration.test_clusters import Documents, write

IN_CLUSTER = ["shop.orders", "shop.Users-v2", "shop.users.internal", "crm.users", "__consumer_offsets", "payments"]
CLUSTER = {"cluster": "KafkaCluster"}


class Project:
    """A defs folder, and a cluster that has some topics."""

    def __init__(self, folder: Any, monkeypatch: pytest.MonkeyPatch, topics: Iterable[str]) -> None:
        self.topics: list[str] = list(topics)
        self.asked = 0
        self._sandbox = folder
        monkeypatch.setattr(Brokers, "topics", lambda _: self._topics())

    def _topics(self) -> list[str]:
        self.asked += 1
        return sorted(name for name in self.topics if not name.startswith("__"))

    def refreshed(self, name: str = "many") -> None:
        """Ask the cluster, as `dg utils refresh-defs-state` does."""
        with self._sandbox.load_component_and_build_defs(self._sandbox.defs_folder_path / name) as (component, _):
            asyncio.run(component.refresh_state(self._sandbox.project_root))

    def tables(self) -> dict[str, TopicTable]:
        """Load all definitions; return what they say of topics, by topic."""
        asked = self.asked
        with self._sandbox.build_all_defs() as definitions:
            found = [dict(asset.metadata) for asset in definitions.resolve_all_asset_specs()]
        assert self.asked == asked, "loading asks no broker"
        return {spec.topic: spec for metadata in found if isinstance(spec := metadata.get(SPEC), TopicTable)}


@pytest.fixture
def project(monkeypatch: pytest.MonkeyPatch) -> Any:
    with create_defs_folder_sandbox() as sandbox:

        def made(documents: Documents, topics: Iterable[str] = IN_CLUSTER) -> Project:
            write(sandbox.defs_folder_path, {**CLUSTER, **documents})
            return Project(sandbox, monkeypatch, topics)

        yield made


def test_each_topic_that_matches_becomes_a_table(project: Any) -> None:
    many = project({"many": "KafkaTopics\ntopics: {pattern: shop\\..*, exclude: .*\\.internal}"})
    assert many.tables() == {}
    many.refreshed()
    assert many.tables() == {
        "shop.orders": TopicTable("shop.orders", table="shop_orders"),
        "shop.Users-v2": TopicTable("shop.Users-v2", table="shop_users_v2"),
    }
    # What is kept are all names: another pattern needs no refresh.
    assert many.asked == 1


def test_defaults_are_for_all_and_overrides_for_some(project: Any) -> None:
    many = project(
        {
            "many": r"""KafkaTopics
topics: {pattern: ['(?P<app>shop)\.(.*)', '(?P<app>crm)\.(.*)'], exclude: '.*\.internal'}
table: '{app}.raw_{2}'
defaults:
  table: {dead_letters: {limit: 5%}, redact: all}
  starting_offsets: "{{ 'la' ~ 'test' }}"
overrides:
  shop.orders: {table: {name: shop.orders, write: {mode: upsert, key: [id]}}}
  .*sers.*: {table: {partition_by: [day(_kafka.timestamp)], dead_letters: {limit: 10}}}
  crm.users: {table: {dead_letters: {limit: 3}}, read: {continuous: {trigger: 2s}}}
"""
        }
    )
    many.refreshed()
    found = many.tables()
    assert {name: value.identifier for name, value in found.items()} == {
        "shop.orders": ("shop", "orders"), "shop.Users-v2": ("shop", "raw_users_v2"), "crm.users": ("crm", "raw_users"),
    }  # fmt: skip
    assert {name: value.max_dead_letters for name, value in found.items()} == {
        "shop.orders": "5%", "shop.Users-v2": 10, "crm.users": 3,
    }  # fmt: skip
    assert all(spec.start == "latest" and not spec.samples for spec in found.values())
    assert (found["shop.orders"].write, found["shop.orders"].key) == ("upsert", ("id",))
    assert found["crm.users"].partition_by == ("day(_kafka.timestamp)",)


def test_a_topic_with_a_document_of_its_own_is_left_to_that(project: Any) -> None:
    many = project(
        {
            "many": "KafkaTopics\ntopics: .*\ntable: raw.{topic}",
            "one": "KafkaTopic\ntopic: payments\ntable: paid",
        }
    )
    many.refreshed()
    found = many.tables()
    assert found["payments"].identifier == ("lake", "paid")
    assert found["crm.users"].identifier == ("raw", "crm_users")
    assert len(found) == 5


@pytest.mark.parametrize(
    ("attributes", "said"),
    [
        ("topics: '['", "topics: pattern: '[' isn't a regular expression"),
        ("topics: []", "topics: pattern: List should have at least 1 item"),
        ("topics: {pattern: .*, exclude: (}", "topics: exclude: '(' isn't a regular expression"),
        ("topics: .*\noverrides: {'*': {}}", "overrides: '*' isn't a regular expression"),
        ("topics: {pattern: .*}\ntable: '{app}'", "table: '{app}' uses {app}, and the pattern '.*' has only {topic}"),
        ("topics: ['a(.*)', 'b']\ntable: '{1}'", "table: '{1}' uses {1}, and the pattern 'b' has only {topic}"),
        ("topics: .*\ndefaults: {topic: x}", "defaults: topic: belongs beside defaults:, not here"),
        ("topics: .*\noverrides: {a: {cluster: x}}", "overrides: a: cluster: belongs beside defaults:"),
        ("topics: .*\ndefaults: {formt: json}", "defaults: formt: there is no such setting"),
        ("topics: .*\ndefaults: {table: {write: {mode: append, key: a}}}", "defaults: table: write: key: there is no"),
        ("topics: .*\ndefaults: {format: {a: b}}", "defaults: format: "),
        ("topics: {pattern: .*}\ncluster: eu", "names Kafka cluster eu, and no document of type"),
        ("topics: .*\nfoo: 1", "foo"),
        ("topics: 3", "topics"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_before_there_is_any_topic(attributes: str, said: str, project: Any) -> None:
    many = project({"many": f"KafkaTopics\n{attributes}"})
    with pytest.raises(Exception, match="") as refused:
        many.tables()
    explained = explanation(refused.value, many._sandbox.defs_folder_path)
    assert explained is not None
    assert said in str(explained)
    assert "many/defs.yaml" in str(explained)


def test_a_setting_that_one_topic_cannot_have_names_the_topic(project: Any) -> None:
    many = project({"many": "KafkaTopics\ntopics: .*\noverrides: {crm.users: {table: {track: [a]}}}"})
    many.refreshed()
    with pytest.raises(Exception, match="") as refused:
        many.tables()
    explained = explanation(refused.value, many._sandbox.defs_folder_path)
    assert "many/defs.yaml: topic crm.users: table: track: belongs into write:" in str(explained)


def test_two_topics_do_not_share_a_table(project: Any) -> None:
    many = project({"many": "KafkaTopics\ntopics: .*"}, ["a.b", "a-b"])
    many.refreshed()
    with pytest.raises(Exception, match="") as refused:
        many.tables()
    said = str(explanation(refused.value, many._sandbox.defs_folder_path))
    assert "Table lake.a_b would belong to two topics: a-b (" in said
    assert "a.b (" in said


@pytest.mark.parametrize("more", ["", "\ntable: other.{topic}"])
def test_two_documents_are_not_about_the_same_topic(more: str, project: Any) -> None:
    many = project({"many": "KafkaTopics\ntopics: shop\\..*", "too": f"KafkaTopics\ntopics: .*orders{more}"})
    many.refreshed()
    many.refreshed("too")
    with pytest.raises(Exception, match="") as refused:
        many.tables()
    said = str(explanation(refused.value, many._sandbox.defs_folder_path))
    assert re.search(r"Topic shop.orders is in two documents: .*many/defs.yaml and .*too/defs.yaml", said)


@pytest.mark.parametrize("text", ["", "junk", "{}", "[]", '{"topics": "abc"}', '{"topics": [1]}'])
def test_a_damaged_state_is_told_by_its_file_and_can_be_made_anew(text: str, project: Any) -> None:
    many = project({"many": "KafkaTopics\ntopics: .*"})
    many.refreshed()
    (state,) = Path(many._sandbox.project_root).rglob("state")
    state.write_text(text)
    with pytest.raises(Exception, match="") as refused:
        many.tables()
    said = str(explanation(refused.value, many._sandbox.defs_folder_path))
    assert "many/defs.yaml: " in said
    assert f"the cached topic names in {state} can't be read" in said
    state.unlink()
    assert many.tables() == {}
    many.refreshed()
    assert len(many.tables()) == 5


def test_a_mistake_in_defaults_is_refused_where_no_topic_matches(project: Any) -> None:
    many = project({"many": "KafkaTopics\ntopics: none"})
    many.refreshed()
    document = many._sandbox.defs_folder_path / "many" / "defs.yaml"
    document.write_text(document.read_text() + "  defaults: {table: {rules: [{not_nul: [id]}]}}\n")
    with pytest.raises(Exception, match="") as refused:
        many.tables()
    said = str(explanation(refused.value, many._sandbox.defs_folder_path))
    assert "defaults: table: rules: number 1: not_nul: there is no such setting. Did you mean not_null?" in said
    assert "valid string" not in said


def test_an_override_for_a_topic_by_name_is_for_no_other_that_the_name_matches(project: Any) -> None:
    overrides = "{shop.orders: {table: {redact: all}}, 'crm[.].*': {table: {dead_letters: {limit: 5}}}}"
    many = project(
        {"many": f"KafkaTopics\ntopics: .*\ntable: 't_{{topic}}'\noverrides: {overrides}"},
        ["shop.orders", "shop2orders", "crm.a"],
    )
    many.refreshed()
    assert {name: (table.samples, table.max_dead_letters) for name, table in many.tables().items()} == {
        "shop.orders": (False, None), "shop2orders": (True, None), "crm.a": (True, 5),
    }  # fmt: skip


@pytest.mark.parametrize("places", [("a/kafka/many", "b/kafka/many"), ("both", "both")])
def test_documents_about_several_clusters_dont_share_what_is_known(
    places: tuple[str, str], project: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = project({"cluster": CLUSTER["cluster"] + "\nname: eu", "us": "KafkaCluster\nname: us"})
    folder = many._sandbox.defs_folder_path
    for place, cluster in zip(places, ("eu", "us"), strict=True):
        (folder / place).mkdir(parents=True, exist_ok=True)
        with (folder / place / "defs.yaml").open("a") as file:
            about = f"{{topics: .*, cluster: {cluster}, table: '{cluster}.{{topic}}'}}"
            file.write(f"---\ntype: kafka_lake.KafkaTopics\nattributes: {about}\n")
        monkeypatch.setenv(f"KAFKA_LAKE_KAFKA__{cluster.upper()}__BOOTSTRAP_SERVERS", f"{cluster}:9092")
    monkeypatch.setattr(Brokers, "topics", lambda brokers: [f"of_{brokers.bootstrap_servers[:2]}"])
    with many._sandbox.build_all_defs() as definitions:
        for component in definitions.component_tree.get_all_components(KafkaTopics):
            component.refresh()
    assert {name: spec.cluster for name, spec in many.tables().items()} == {"of_eu": "eu", "of_us": "us"}


def test_an_override_for_no_topic_is_told(project: Any, caplog: pytest.LogCaptureFixture) -> None:
    many = project({"many": "KafkaTopics\ntopics: .*\noverrides: {crm.user: {table: {redact: all}}}"})
    many.refreshed()
    many.tables()
    assert "overrides: crm.user matches none of the 5 topics" in caplog.text


def test_a_refresh_that_fails_leaves_the_topics_as_they_were(project: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    many = project({"many": "KafkaTopics\ntopics: .*"})
    many.refreshed()

    def fails(_brokers: Brokers) -> list[str]:
        raise KafkaError("The brokers don't answer.")

    monkeypatch.setattr(Brokers, "topics", fails)
    with pytest.raises(KafkaError):
        many.refreshed()
    assert len(many.tables()) == 5


def test_the_sensor_tells_of_topics_that_have_no_table_yet(project: Any) -> None:
    many = project({"many": "KafkaTopics\ntopics: shop\\..*", "one": "KafkaTopic\ntopic: shop.own"})
    many.refreshed()
    sandbox = many._sandbox
    with sandbox.load_component_and_build_defs(sandbox.defs_folder_path / "many") as (component, _):
        assert isinstance(component, KafkaTopics)
        assert component.new(IN_CLUSTER) == []
        now = [*IN_CLUSTER, "shop.own", "shop.new", "other"]
        assert component.new(now) == ["shop.new"]
        assert component.gone(["crm.users", "shop.orders"]) == ["shop.Users-v2", "shop.users.internal"]
        reported = new_topics([component], now)
        assert reported.endswith(
            "many/defs.yaml: 1 new topic matches and has no table yet: shop.new. Run `kafka-lake topics refresh` and "
            "reload the code location in Dagster."
        )
        assert new_topics([component], IN_CLUSTER) == ""


def test_the_state_is_a_list_of_names(project: Any) -> None:
    many = project({"many": "KafkaTopics\ntopics: .*"})
    many.refreshed()
    (state,) = Path(many._sandbox.project_root).rglob("state")
    assert json.loads(state.read_text())["topics"] == [
        "crm.users",
        "payments",
        "shop.Users-v2",
        "shop.orders",
        "shop.users.internal",
    ]


def test_the_sensor_of_a_cluster_without_any_topic_says_what_to_do(project: Any) -> None:
    many = project({"many": "KafkaTopics\ntopics: shop\\..*"})
    with many._sandbox.build_all_defs() as definitions:
        repository = definitions.get_repository_def()
        asked = {name: resource for name, resource in definitions.resources.items() if name in ("kafka", "catalog")}
        with dg.DagsterInstance.ephemeral() as instance:
            context = dg.build_sensor_context(instance=instance, repository_def=repository, resources=asked)
            reported = repository.get_sensor_def("kafka_offsets").evaluate_tick(context).skip_message
    assert reported is not None
    assert "3 new topics match and have no table yet: shop.Users-v2, shop.orders" in reported
