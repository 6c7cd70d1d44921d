"""What `dead-letters`, `replay` and `reset` show and do, on a real broker and a real Spark."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import Result

from kafka_lake.cli.commands.dead_letters import OffsetSpan, list_dead_letters
from kafka_lake.errors import ConfigurationError
from kafka_lake.ingest.run import ingest
from kafka_lake.runtime.context import Connections
from kafka_lake.spec.topic_table import TopicTable
from kafka_lake_tests.conftest import Topic, View

pytestmark = pytest.mark.integration

NewTopic = Callable[..., Topic]
NewConnections = Callable[[], Connections]
NewView = Callable[[TopicTable], View]
Cli = Callable[..., Result]


@pytest.fixture
def cli(command_line: Cli) -> Cli:
    """Return the command line over one topic."""

    def run(spec: TopicTable, command: str, *arguments: str, answer: str | None = None) -> Result:
        return command_line([spec], command, spec.topic, *arguments, answer=answer)

    return run


@pytest.fixture
def mixed(new_topic: NewTopic, connections: NewConnections) -> tuple[Topic, TopicTable]:
    """Return a topic of two partitions with four rows and five dead letters in its tables."""
    topic = new_topic(2)
    topic.send_ids(range(4), 2)
    topic.send(b"caf\xff, \x1b[2Jand more than fits into a line: " + 60 * b"x", partition=0)
    topic.send({"id": 7_000_000_000}, partition=1)
    topic.send(b"no json either", partition=1)
    topic.send({"id": 8_000_000_000}, partition=1)
    topic.send({"id": "nine"}, partition=1)
    spec = topic.spec("id int")
    ingest(spec, connections(), "run-1")
    return topic, spec


def test_dead_letters_are_listed_by_class(
    mixed: tuple[Topic, TopicTable], connections: NewConnections, cli: Cli
) -> None:
    _, spec = mixed
    found = list_dead_letters(spec, connections().catalog, samples=2)
    assert [(c.name, c.count, c.offsets) for c in found.classes] == [
        ("wrong_type", 3, (OffsetSpan(1, 2, 5),)),
        ("not_json", 2, (OffsetSpan(0, 2, 2), OffsetSpan(1, 3, 3))),
    ]
    assert found.count == 5
    assert [(s.partition, s.offset, s.value) for s in found.classes[0].samples] == [
        (1, 2, '{"id": 7000000000}'),
        (1, 4, '{"id": 8000000000}'),
    ]
    assert found.classes[1].samples[0].value.startswith("caf\ufffd, ")
    assert all(s.reason for c in found.classes for s in c.samples)

    shown = cli(spec, "dead-letters")
    assert shown.exit_code == 0
    assert "\x1b[2J" not in shown.output
    assert "The value isn't one JSON object in UTF-8." in " ".join(shown.output.split())
    assert max(map(len, shown.output.splitlines())) <= 100
    parsed = json.loads(cli(spec, "dead-letters", "--json", "--samples", "0").stdout)
    assert [(c["name"], c["count"], c["samples"]) for c in parsed[0]["classes"]] == [
        ("wrong_type", 3, []),
        ("not_json", 2, []),
    ]
    assert "no dead letters" in cli(spec, "dead-letters", "--where", "offset > 1000").output

    for where, count in {
        "error_class = 'not_json'": 2,
        "ERROR_CLASS = 'not_json' and partition = 1": 1,
        "offset in (2, 3) or error_message is null": 3,
        "timestamp > '2020-01-01T00:00:00+00:00' and failed_at < '2020-01-01T00:00:00+00:00'": 0,
    }.items():
        found = list_dead_letters(spec, connections().catalog, where)
        assert found.count == count, where
        assert sum(len(c.samples) for c in found.classes) == count, where

    for where in ("error_class =", "colour = 'red'", "offset = 'a'", "error_class like '%x'"):
        with pytest.raises(ConfigurationError) as caught:
            list_dead_letters(spec, connections().catalog, where)
        assert repr(where) in str(caught.value)
        assert "error_message" in caught.value.remedy
        print(caught.value)


@pytest.mark.exhaustive
def test_dead_letters_come_back_and_the_topic_is_read_again(
    mixed: tuple[Topic, TopicTable], view: NewView, cli: Cli
) -> None:
    topic, spec = mixed
    see = view(spec)
    name = ".".join(spec.identifier)
    before = see.fingerprint()
    for command in (("replay",), ("reset", "--to", "0:1,1:2"), ("reset", "--to", "0:1,1:2", "--partitions", "0")):
        declined = cli(spec, *command, answer="n\n")
        assert declined.exit_code == 1
        assert "Nothing was changed." in declined.output
    assert see.fingerprint() == before
    for command in (
        ("dead-letters", "--replay", "--where", "colour = 'red'"),
        ("reset", "--to", "7000", "--yes"),
        ("replay", "--partitions", "7"),
    ):
        refused = cli(spec, *command)
        assert refused.exit_code == 1
        assert refused.output.splitlines()[-1].startswith("Error: ")
    assert (see.ids(), see.position(), len(see.dead_letters())) == ([0, 1, 2, 3], {0: 3, 1: 6}, 5)

    mended = replace(spec, schema="id bigint")
    done = cli(mended, "dead-letters", "--replay", "--where", "error_class = 'wrong_type'")
    assert done.exit_code == 0
    shown = " ".join(done.output.split())
    assert f"{name}: 2 dead letters moved into the table, 1 of the examined ones remain" in shown
    assert see.ids() == [0, 1, 2, 3, 7_000_000_000, 8_000_000_000]
    assert [letter["error_class"] for letter in see.dead_letters()].count("not_json") == 2

    again = cli(mended, "replay", "--from", "1", "--partitions", "1")
    assert again.exit_code == 0
    assert f"{name}: 3 rows in 1 commit" in again.output
    see.assert_exactly_once(topic.ledger)

    assert "nothing to do" in cli(mended, "reset", "--to", "latest").output
    (shown,) = json.loads(cli(mended, "reset", "--to", "0:1,1:2", "--json").stdout)
    assert (shown["table"], shown["done"]) == (name, False)
    assert [(p["before"], p["after"], p["removed"]) for p in shown["partitions"]] == [(3, 1, [1, 3]), (6, 2, [2, 6])]
    assert see.position() == {0: 3, 1: 6}
    assert cli(mended, "reset", "--to", "0:1,1:2", answer="y\n").exit_code == 0
    assert see.position() == {0: 1, 1: 2}
    assert see.ids() == [0, 1, 3]

    stray = Path(see.table.location().removeprefix("file://")) / "data" / "stray.parquet"
    stray.write_bytes(b"left by a run that was killed")
    shown = cli(mended, "clean", "--older-than", "0s")
    assert shown.exit_code == 0
    assert str(stray) in shown.output.replace("\n", "")
    assert "Nothing was removed" in shown.output
    assert stray.exists()
    cleaned = cli(mended, "clean", "--older-than", "0s", "--yes")
    assert cleaned.exit_code == 0
    assert f"{name}: 0 branches and " in cleaned.output
    assert not stray.exists()
    assert see.ids() == [0, 1, 3]

    assert cli(mended, "ingest").exit_code == 0
    see.assert_exactly_once(topic.ledger)
