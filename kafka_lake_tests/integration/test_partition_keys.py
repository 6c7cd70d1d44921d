"""The partitions of topics become known to Dagster, whether its sensor runs or not."""

from collections.abc import Callable, Sequence
from pathlib import Path

import dagster as dg
import pytest

from kafka_lake.orchestration.partitions import partitions_of, register_topics
from kafka_lake.runtime.context import Connections
from kafka_lake_tests.conftest import Topic

pytestmark = pytest.mark.integration

NewTopic = Callable[..., Topic]
NewConnections = Callable[[], Connections]


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_LAKE_HOME", str(tmp_path))
    monkeypatch.delenv("DAGSTER_HOME", raising=False)


def known(folder: Path, topic: Topic) -> Sequence[str]:
    with dg.DagsterInstance.from_config(str(folder)) as instance:
        return instance.get_dynamic_partitions(str(partitions_of(topic.name).name))


def test_partitions_of_all_topics_are_registered(
    new_topic: NewTopic, connections: NewConnections, tmp_path: Path
) -> None:
    asked, other, gone = new_topic(3), new_topic(12), new_topic()
    gone.delete()
    register_topics([topic.spec() for topic in (asked, other, gone)], connections().cluster, pytest.fail)
    assert known(tmp_path / "dagster", asked) == ["0", "1", "2"]
    assert known(tmp_path / "dagster", other) == [str(p) for p in range(12)], "in numeric order"
    assert known(tmp_path / "dagster", gone) == []


@pytest.mark.exhaustive
def test_a_deployment_with_a_dagster_of_its_own_gets_them_there(
    new_topic: NewTopic, connections: NewConnections, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "dagster.yaml").touch()
    monkeypatch.setenv("DAGSTER_HOME", str(own))
    topic = new_topic(2)
    register_topics([topic.spec()], connections().cluster, pytest.fail)
    assert known(own, topic) == ["0", "1"]
    assert not (tmp_path / "dagster").exists()


def test_a_storage_that_does_not_open_is_only_reported(
    new_topic: NewTopic, connections: NewConnections, tmp_path: Path
) -> None:
    (tmp_path / "dagster").write_text("no folder")
    said: list[str] = []
    register_topics([new_topic().spec()], connections().cluster, said.append)
    assert "Dagster doesn't know the topics' partitions yet" in said[0]
