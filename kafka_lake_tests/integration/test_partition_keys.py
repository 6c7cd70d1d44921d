"""The command line makes the topics' partitions known to Dagster, whether its sensor runs or not."""

from collections.abc import Callable, Sequence
from pathlib import Path

import dagster as dg
import pytest
from typer.testing import CliRunner, Result

from kafka_lake.cli import project
from kafka_lake.cli.main import app
from kafka_lake.devstack.servers import EmbeddedBroker
from kafka_lake.orchestration.partitions import partitions_of
from kafka_lake.spec.topic_table import TopicTable
from kafka_lake_tests.conftest import Topic

pytestmark = pytest.mark.integration

NewTopic = Callable[..., Topic]
Run = Callable[..., Result | None]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broker: EmbeddedBroker) -> Run:
    """Return the command line of a fresh deployment over some topics; no command: one that may start the broker."""
    monkeypatch.setenv("KAFKA_LAKE_HOME", str(tmp_path))
    monkeypatch.setenv("KAFKA_LAKE_BOOTSTRAP_SERVERS", broker.bootstrap_servers)
    monkeypatch.delenv("DAGSTER_HOME", raising=False)

    def invoke(specs: Sequence[TopicTable], *arguments: str) -> Result | None:
        chosen = lambda topic=None: [spec for spec in specs if topic in (None, spec.topic)]  # noqa: E731
        monkeypatch.setattr(project, "topic_tables", chosen)
        if arguments:
            return CliRunner().invoke(app, list(arguments))
        with project.open_connections(with_catalog=False, starts_broker=True):
            return None

    return invoke


def known(folder: Path, topic: Topic) -> Sequence[str]:
    with dg.DagsterInstance.from_config(str(folder)) as instance:
        return instance.get_dynamic_partitions(str(partitions_of(topic.name).name))


def test_first_command_registers_partitions_of_all_topics(new_topic: NewTopic, run: Run, tmp_path: Path) -> None:
    asked, other, gone = new_topic(3), new_topic(12), new_topic()
    gone.delete()
    run([topic.spec() for topic in (asked, other, gone)])
    assert known(tmp_path / "dagster", asked) == ["0", "1", "2"]
    assert known(tmp_path / "dagster", other) == [str(p) for p in range(12)], "in numeric order"
    assert known(tmp_path / "dagster", gone) == []


@pytest.mark.exhaustive
def test_a_deployment_with_a_dagster_of_its_own_gets_them_there(
    new_topic: NewTopic, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "dagster.yaml").touch()
    monkeypatch.setenv("DAGSTER_HOME", str(own))
    topic = new_topic(2)
    run([topic.spec()])
    assert known(own, topic) == ["0", "1"]
    assert not (tmp_path / "dagster").exists()


@pytest.mark.exhaustive
def test_a_topic_that_discover_writes_has_its_partitions_at_once(new_topic: NewTopic, run: Run, tmp_path: Path) -> None:
    topic = new_topic(2)
    topic.send({"id": 1})
    result = run([], "discover", topic.name, "--write", "--into", str(tmp_path / "defs"))
    assert result
    assert result.exit_code == 0
    assert known(tmp_path / "dagster", topic) == ["0", "1"]


def test_a_storage_that_does_not_open_stops_no_command(
    new_topic: NewTopic, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "dagster").write_text("no folder")
    topic = new_topic()
    run([topic.spec()])
    assert "Dagster doesn't know the topics' partitions yet" in capsys.readouterr().err
