"""A pattern that tells which topics fill one table: known from a file, and told before it changes."""

import json
from typing import Any

import pytest

from kafka_lake.cli.load_definitions import explanation
from kafka_lake.orchestration.components.base import cache_topics, cached_topics
from kafka_lake.orchestration.components.kafka_topic import KafkaTopic
from kafka_lake.orchestration.components.kafka_topics import new_topics
from kafka_lake_tests.unit.orchestration.test_component import refusal
from kafka_lake_tests.unit.orchestration.test_kafka_topics import Project, project  # noqa: F401

ALL = "KafkaTopic\ntopics: {pattern: shop\\..*, exclude: .*\\.internal}\ntable: shop"


def refreshed(many: Project) -> None:
    with many._sandbox.build_all_defs() as definitions:
        for component in definitions.component_tree.get_all_components(KafkaTopic):
            if component.pattern is not None:
                component.keep(many._topics())


def reported(many: Project) -> str:
    with many._sandbox.build_all_defs() as definitions:
        found = definitions.component_tree.get_all_components(KafkaTopic)
        return new_topics([topic for topic in found if topic.pattern is not None], many.topics)


def refused(many: Project) -> str:
    try:
        many.tables()
    except Exception as error:
        return str(explanation(error, many._sandbox.defs_folder_path))
    return ""


def test_topics_that_match_fill_one_table_once_they_are_known(project: Any, caplog: Any) -> None:  # noqa: F811
    many = project({"all": ALL, "own": "KafkaTopic\ntopic: shop.Users-v2"})
    assert list(many.tables()) == ["shop.Users-v2"]
    assert "all/defs.yaml: table lake.shop: no topics are known yet. Run `kafka-lake topics refresh`." in caplog.text
    assert "all/defs.yaml: 1 new topic matches and isn't in lake.shop yet: shop.orders." in reported(many)
    refreshed(many)
    found = many.tables()["shop.orders"]
    assert (found.identifier, found.topics) == (("lake", "shop"), ("shop.orders",))
    assert reported(many) == ""
    # A topic that comes is told of, and joins by the next refresh; one that goes leaves by it.
    many.topics += ["shop.a", "shop.b.internal"]
    many.topics.remove("shop.orders")
    assert "isn't in lake.shop yet: shop.a. Run `kafka-lake topics refresh`" in reported(many)
    assert many.tables()["shop.orders"].topics == ("shop.orders",)
    with many._sandbox.build_all_defs() as definitions:
        (document,) = [
            component
            for component in definitions.component_tree.get_all_components(KafkaTopic)
            if component.pattern is not None
        ]
        assert (document.known(), document.gone(many.topics)) == ([("shop.orders", "lake.shop")], ["shop.orders"])
    refreshed(many)
    assert many.tables()["shop.a"].topics == ("shop.a",)


def test_a_pattern_of_a_table_comes_before_those_that_give_tables_of_their_own(project: Any) -> None:  # noqa: F811
    many = project({"all": ALL, "rest": "KafkaTopics\ntopics: .*"})
    many.refreshed("rest")
    # As long as the table doesn't have them, they stay where they are.
    assert {topic: table.topics for topic, table in many.tables().items()} == dict.fromkeys(many._topics(), ())
    refreshed(many)
    tables = {topic: table.topics for topic, table in many.tables().items()}
    assert tables == {
        "shop.Users-v2": ("shop.Users-v2", "shop.orders"), "shop.users.internal": (), "crm.users": (), "payments": (),
    }  # fmt: skip


def test_two_patterns_that_take_the_same_topic_are_refused(project: Any) -> None:  # noqa: F811
    many = project({"all": ALL, "more": "KafkaTopic\ntopics: {pattern: .*orders}\ntable: orders"})
    refreshed(many)
    assert "Topic shop.orders is in two documents" in refused(many)


def test_a_derived_table_waits_for_the_topics_to_be_known(project: Any, caplog: Any) -> None:  # noqa: F811
    query = "DerivedTable\nfrom: lake.shop\ntable: counted\nwrite: replace\nsql: select count(*) as n from shop"
    many = project({"all": ALL, "counted": query})
    assert many.tables() == {}
    assert "Table lake.counted: from: lake.shop isn't known" in caplog.text
    refreshed(many)
    assert list(many.tables()) == ["shop.Users-v2"]


def test_a_damaged_file_is_named(project: Any) -> None:  # noqa: F811
    many = project({"all": ALL})
    refreshed(many)
    (state,) = many._sandbox.defs_folder_path.rglob(".local_defs_state/*/state")
    state.write_text(json.dumps({"topics": "shop.orders"}))
    assert "can't be read: TypeError" in refused(many)


@pytest.mark.parametrize(
    ("attributes", "says"),
    [
        ("topics: {pattern: shop.*, exclude: [(]}\ntable: shop", "exclude: '(' isn't a regular expression"),
        ("topics: {pattern: shop.*}", "is missing. Name the table that the topics fill"),
        ("topics: ['shop.*']\ntable: shop", "For a pattern, write topics: {pattern: "),
        ("topics: {pattern: shop.*}\ntable: {name: shop, write: upsert}", "upsert can't be combined with topics:"),
        ("topics: {pattern: shop.*}\ntable: kafka.shop_a", "would be the same asset, kafka/shop_a"),
    ],
)
def test_what_a_pattern_cannot_have_is_refused_by_name(attributes: str, says: str) -> None:
    assert says in refusal(attributes)


def test_a_refresh_that_dies_leaves_the_names_as_they_were(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    state = tmp_path / "state"
    cache_topics(state, ["shop.orders"])

    def die(self: Any, target: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(type(state), "replace", die)
    with pytest.raises(KeyboardInterrupt):
        cache_topics(state, ["shop.orders", "shop.users"])
    assert cached_topics(state, "shop/defs.yaml") == ("shop.orders",)
    assert list(tmp_path.iterdir()) == [state]
