"""The setting `maintenance:`: that of a cluster, that of its topics over it, and what can't be."""

from pathlib import Path

import pytest
from dagster.components.testing import create_defs_folder_sandbox

from kafka_lake.cli.load_definitions import explanation
from kafka_lake.config.topic import Topic
from kafka_lake.orchestration.metadata import topics_of
from kafka_lake.spec.maintenance import Maintenance
from kafka_lake_tests.unit.orchestration.test_clusters import Documents, loaded, write


def policies(documents: Documents) -> dict[str, Maintenance]:
    """Return the policy of each topic of a project."""
    with loaded(documents) as definitions:
        return {topic.full_topic: topic.maintenance for topic in topics_of(definitions.get_repository_def())}


def refusal(documents: Documents) -> str:
    with create_defs_folder_sandbox() as sandbox:
        write(Path(sandbox.defs_folder_path), documents)
        with pytest.raises(Exception, match=r"defs\.yaml") as refused, sandbox.build_all_defs():
            pass
        said = explanation(refused.value, sandbox.defs_folder_path)
    assert said is not None
    return str(said)


def test_a_cluster_s_settings_are_its_topics_defaults_setting_by_setting() -> None:
    found = policies(
        {
            "eu": "KafkaCluster\nname: eu\nmaintenance: {expire_after: 30d, row_retention: 90d, compact_every: 7}",
            "us": "KafkaCluster\nname: us",
            "plain": "KafkaTopic\ntopic: plain\ncluster: eu",
            "own": "KafkaTopic\ntopic: own\ncluster: eu\ntable: {maintenance: {expire_after: 5d, row_retention: null}}",
            "never": "KafkaTopic\ntopic: never\ncluster: us\ntable: {maintenance: {compact_every: null}}",
            "quiet": "KafkaTopic\ntopic: quiet\ncluster: us\ntable: {maintenance: {enabled: false}}",
        }
    )
    assert found == {
        "eu/plain": Maintenance(expire_after="30d", row_retention="90d", compact_every=7),
        # What is written counts, be it the default or null.
        "eu/own": Maintenance(expire_after="5d", row_retention=None, compact_every=7),
        "us/never": Maintenance(compact_every=None),
        "us/quiet": Maintenance(enabled=False),
    }


def test_a_cluster_s_settings_are_those_of_each_table_unless_it_has_its_own() -> None:
    tables = (
        "tables:\n- {name: a, where: {field: k, equals: a}}\n"
        "- {name: b, where: {field: k, equals: b}, maintenance: {expire_after: 9d}}\n- {name: t}"
    )
    documents = {"c": "KafkaCluster\nmaintenance: {expire_after: 30d}", "t": f"KafkaTopic\ntopic: t\n{tables}"}
    with loaded(documents) as definitions:
        (topic,) = topics_of(definitions.get_repository_def())
    assert [table.maintenance.expire_after for table in topic.tables] == ["30d", "30d", "9d"]


def test_a_cluster_without_a_name_is_that_of_all_topics() -> None:
    found = policies({"one": "KafkaCluster\nmaintenance: {keep_snapshots: 7}", "t": "KafkaTopic\ntopic: t"})
    assert found == {"t": Maintenance(keep_snapshots=7)}


@pytest.mark.parametrize(
    ("cluster", "topic", "said"),
    [
        ("row_retention: 90d", "table: {write: upsert}", "an expired key would look like a new key"),
        ("row_retention: 90d", "topics: [a, b]\ntable: c", "row_retention: can't be combined with topics: yet"),
        (
            "row_retention: 90d",
            "tables: [{name: a, where: {field: k, equals: a}}, {name: b}]",
            "row_retention: can't be combined with tables: yet",
        ),
        ("expire_after: soon", "", "'soon' is not a duration"),
        ("row_retention: 0d", "", "0d would delete every row"),
        ("row_retention: 90", "", "YAML reads this value as the number 90"),
        ("verify: {schedule: nightly}", "", "month, weekday: 0 3 * * *"),
    ],
)
def test_what_cannot_be_is_said_with_the_topic_or_the_document(cluster: str, topic: str, said: str) -> None:
    given = "" if cluster == "{}" else f"\nmaintenance: {{{cluster}}}"
    name = "" if topic.startswith("topics:") else "topic: shop.a\n"
    text = refusal({"c": f"KafkaCluster\nread_committed: true{given}", "t": f"KafkaTopic\n{name}{topic}"})
    assert said in text
    assert "defs.yaml" in text or "Topic shop.a" in text


def test_what_goes_well_together_is_not_refused() -> None:
    for settings in (
        {"write": "upsert", "maintenance": {"row_retention": None}},
        {"columns": "id bigint", "transform": "a:b", "maintenance": {"row_retention": "90d"}},
    ):
        Topic.model_validate({"topic": "t", "table": settings}).topic_table()


def test_settings_over_none_are_the_settings() -> None:
    assert Maintenance().over(None) == Maintenance() == Maintenance().over(Maintenance())
