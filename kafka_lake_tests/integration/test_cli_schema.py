"""What `kafka-lake schema` says beforehand is what the next run does; and it changes nothing."""

import json
from collections.abc import Callable

import pytest
from typer.testing import Result

from kafka_lake.ingest.preview import preview
from kafka_lake.ingest.run import ingest
from kafka_lake.runtime.context import Connections
from kafka_lake.spec.topic_table import TopicTable
from kafka_lake_tests.conftest import Topic, View

pytestmark = pytest.mark.integration

NewTopic = Callable[..., Topic]
NewConnections = Callable[..., Connections]
NewView = Callable[[TopicTable], View]
Cli = Callable[..., Result]


@pytest.fixture
def cli(command_line: Cli) -> Cli:
    """Return the command over one topic."""
    return lambda spec, *arguments: command_line([spec], "schema", spec.topic, *arguments)


@pytest.mark.exhaustive
def test_schema_preview_matches_the_next_run(
    new_topic: NewTopic, connections: NewConnections, view: NewView, cli: Cli
) -> None:
    topic = new_topic(2)
    spec = topic.spec(None, on_incompatible="new_column", renames={"old": "renamed"})
    topic.send({"id": 1, "price": 5, "old": "x", "s": {"a": 1}})
    before_all = cli(spec, "--json")
    (reported,) = json.loads(before_all.stdout)
    assert reported["columns"] == []
    assert [(n["column"], n["what"]) for n in reported["preview"]["notes"]] == [
        ("id", "added"), ("price", "added"), ("renamed", "added"), ("s", "added"),
    ]  # fmt: skip
    ingest(topic.spec(None), connections(), "run-1")
    topic.send({"id": 2, "price": 5.5, "renamed": "y", "Old": 1, "s": {"a": 2, "b": True}}, partition=1)
    topic.send(b"junk")
    see = view(spec)
    before = see.fingerprint()
    metadata = see.table.metadata
    (reported,) = json.loads(cli(spec, "--json").stdout)
    assert (see.fingerprint(), see.table.metadata) == (before, metadata)
    foretold = {(n["column"], n["what"], n["after"]) for n in reported["preview"]["notes"]}
    assert reported["preview"]["records"] == 3
    assert [(c["name"], c["count"]) for c in reported["preview"]["classes"]] == [("not_json", 1)]

    report = ingest(spec, connections(), "run-2")
    (finding,) = [f for f in report.findings() if f.check == "schema_evolution"]
    assert {(n.column, n.what, n.after) for n in finding.changes} == foretold
    assert {(column if what != "renamed" else after, what) for column, what, after in foretold} == {
        ("renamed", "renamed"), ("Old", "added"), ("s.b", "added"), ("price__v2", "added"), ("price", "not changed"),
    }  # fmt: skip
    assert preview(spec, connections(), 100).notes == ()


def test_schema_preview_shows_that_next_run_would_fail(
    new_topic: NewTopic, connections: NewConnections, cli: Cli
) -> None:
    topic = new_topic()
    topic.send({"id": 1})
    ingest(topic.spec(None), connections(), "run-1")
    topic.send({"id": 2, "more": 1})
    result = cli(topic.spec(None, evolution="freeze"))
    assert result.exit_code == 1
    assert "The next run would fail" in result.output
    assert "column more: added" in result.output
    assert "wouldn't change any column" not in result.output
    assert cli(topic.spec(None)).exit_code == 0


def test_a_topic_without_records_or_changes(new_topic: NewTopic, connections: NewConnections, cli: Cli) -> None:
    topic = new_topic()
    assert "no records" in cli(topic.spec(None)).output
    topic.send({"id": 1})
    ingest(topic.spec(None), connections(), "run-1")
    result = cli(topic.spec(None))
    assert "The next run wouldn't change any column." in result.output
    assert "bigint" not in result.output
    assert "long" in result.output


@pytest.mark.exhaustive
def test_the_history_names_snapshot_and_offsets(
    new_topic: NewTopic, connections: NewConnections, view: NewView, cli: Cli
) -> None:
    topic = new_topic()
    spec = topic.spec(None)
    topic.send({"id": 1})
    ingest(spec, connections(), "run-1")
    topic.send({"id": 2})
    ingest(spec, connections(), "run-2")
    topic.send({"id": 3, "more": "x"})
    ingest(spec, connections(), "run-3")
    head = view(spec).table.current_snapshot()
    assert head is not None
    (history,) = json.loads(cli(spec, "--history", "--json").stdout)
    assert [[c["column"] for c in version["changes"]] for version in history] == [["id", "_kafka"], ["more"]]
    assert history[1]["snapshot_id"] == head.snapshot_id
    assert history[1]["position"][topic.name]["offsets"] == {"0": 3}
    shown = cli(spec, "--history").output
    assert str(head.snapshot_id) in shown
    assert "more" in shown
