"""The setting `maintenance:`: that of a cluster, that of its topics over it, and what can't be."""

from pathlib import Path

import pytest
from dagster.components.testing import create_defs_folder_sandbox

from kafka_lake.cli.explain import explanation
from kafka_lake.components.assets import topics_of
from kafka_lake.components.maintenance_settings import MaintenanceSettings
from kafka_lake.components.topic_settings import TopicSettings
from kafka_lake.lake.maintenance.settings import Maintenance
from kafka_lake_tests.unit.test_clusters import Documents, loaded, write


def policies(documents: Documents) -> dict[str, Maintenance]:
    """Return the policy of each topic of a project."""
    with loaded(documents) as definitions:
        return {each.full_topic: each.maintenance for each in topics_of(definitions.get_repository_def())}


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
            "eu": "KafkaCluster\nname: eu\nmaintenance: {expire_after: 30d, keep_rows: 90d, compact_every: 7}",
            "us": "KafkaCluster\nname: us",
            "plain": "KafkaTopicTable\ntopic: plain\ncluster: eu",
            "own": "KafkaTopicTable\ntopic: own\ncluster: eu\n"
            "maintenance: {expire_after: 5d, keep_rows: null, window: '01:00-05:00'}",
            "quiet": "KafkaTopicTable\ntopic: quiet\ncluster: us\nmaintenance: {enabled: false}",
        }
    )
    assert found == {
        "eu/plain": Maintenance(expire_after="30d", keep_rows="90d", compact_every=7),
        # What is written counts, be it the default or null.
        "eu/own": Maintenance(expire_after="5d", keep_rows=None, compact_every=7, window="01:00-05:00"),
        "us/quiet": Maintenance(enabled=False),
    }


def test_a_cluster_without_a_name_is_that_of_all_topics() -> None:
    found = policies({"one": "KafkaCluster\nmaintenance: {orphan_files: true}", "t": "KafkaTopicTable\ntopic: t"})
    assert found == {"t": Maintenance(orphan_files=True)}


@pytest.mark.parametrize(
    ("cluster", "topic", "said"),
    [
        ("keep_rows: 90d", "write: upsert\nkey: [id]", "keep_rows: 90d isn't for write: upsert"),
        ("keep_rows: 90d", "metadata_column: null", "keep_rows needs Kafka's timestamp"),
        ("keep_rows: 90d, by: at", "schema: id bigint", "by: at isn't in schema:, whose columns are id, _kafka."),
        ("{}", "maintenance: {by: at}", "by: at has no effect without keep_rows"),
        ("keep_rows: 90", "", "YAML reads this value as the number 90"),
    ],
)
def test_what_cannot_be_is_said_with_the_topic_or_the_document(cluster: str, topic: str, said: str) -> None:
    given = "" if cluster == "{}" else f"\nmaintenance: {{{cluster}}}"
    text = refusal({"c": f"KafkaCluster\nread_committed: true{given}", "t": f"KafkaTopicTable\ntopic: shop.a\n{topic}"})
    assert said in text
    assert "defs.yaml" in text or "Topic shop.a" in text


def test_what_goes_well_together_is_not_refused() -> None:
    for settings in (
        {"write": "upsert", "key": ["id"], "maintenance": {"keep_rows": None}},
        {"metadata_column": None, "maintenance": {"keep_rows": "90d", "by": "at"}},
        {"schema": "id bigint, inner struct<at: date>", "maintenance": {"keep_rows": "90d", "by": "inner.at"}},
        {"schema": "id bigint", "maintenance": {"keep_rows": "90d", "by": "_kafka.timestamp"}},
        {"schema": "id bigint", "transform": "a:b", "maintenance": {"keep_rows": "90d", "by": "made"}},
    ):
        TopicSettings.model_validate({"topic": "t", **settings}).topic_table()


def test_settings_over_none_are_the_settings() -> None:
    assert MaintenanceSettings().policy() == Maintenance() == MaintenanceSettings().policy(MaintenanceSettings())
