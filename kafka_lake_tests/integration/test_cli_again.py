"""What the commands for a second time show and do, on a real broker and a real Spark."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import kafka_lake.cli_topics
from kafka_lake.cli import app
from kafka_lake.cli_again import LetterOffsets, dead_letters
from kafka_lake.errors import ConfigurationError
from kafka_lake.ingest.pipeline import ingest
from kafka_lake.ingest.systems import Systems
from kafka_lake.ingest.topic_table import TopicTable
from kafka_lake_tests.conftest import Topic, View

pytestmark = pytest.mark.integration

NewTopic = Callable[..., Topic]
NewSystems = Callable[[], Systems]
NewView = Callable[[TopicTable], View]
Cli = Callable[..., Result]


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, systems: NewSystems) -> Callable[..., Result]:
    """Return the command line over one topic's settings, with the test session's systems."""

    @contextmanager
    def at_hand(*_: object, **__: object) -> Iterator[Systems]:
        yield systems()

    monkeypatch.setattr(kafka_lake.cli_topics, "systems_at_hand", at_hand)

    def run(spec: TopicTable, command: str, *arguments: str, answer: str | None = None) -> Result:
        monkeypatch.setattr(kafka_lake.cli_topics, "topic_tables", lambda topic=None: [spec])
        result = CliRunner(env={"COLUMNS": "100"}).invoke(app, [command, spec.topic, *arguments], input=answer)
        print(result.output)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result

    return run


@pytest.fixture
def mixed(new_topic: NewTopic, systems: NewSystems) -> tuple[Topic, TopicTable]:
    """Return a topic of two partitions with four rows and five dead letters in its tables."""
    topic = new_topic(2)
    topic.send_ids(range(4), 2)
    topic.send(b"caf\xff, \x1b[2Jand more than fits into a line: " + 60 * b"x", partition=0)
    topic.send({"id": "seven"}, partition=1)
    topic.send(b"no json either", partition=1)
    topic.send({"id": "eight"}, partition=1)
    topic.send({"id": "nine"}, partition=1)
    spec = topic.spec()
    ingest(spec, systems(), "run-1")
    return topic, spec


def test_dead_letters_are_listed_by_class(mixed: tuple[Topic, TopicTable], systems: NewSystems, cli: Cli) -> None:
    _, spec = mixed
    found = dead_letters(spec, systems().catalog, samples=2)
    assert [(c.name, c.count, c.offsets) for c in found.classes] == [
        ("wrong_type", 3, (LetterOffsets(1, 2, 5),)),
        ("not_json", 2, (LetterOffsets(0, 2, 2), LetterOffsets(1, 3, 3))),
    ]
    assert found.count == 5
    assert [(s.partition, s.offset, s.value) for s in found.classes[0].samples] == [
        (1, 2, '{"id": "seven"}'),
        (1, 4, '{"id": "eight"}'),
    ]
    assert found.classes[1].samples[0].value.startswith("caf\ufffd, ")
    assert all(s.reason for c in found.classes for s in c.samples)

    shown = cli(spec, "dead-letters")
    assert shown.exit_code == 0
    assert "\x1b[2J" not in shown.output
    assert "The value is not one JSON object in UTF-8." in " ".join(shown.output.split())
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
        found = dead_letters(spec, systems().catalog, where)
        assert found.count == count, where
        assert sum(len(c.samples) for c in found.classes) == count, where

    for where in ("error_class =", "colour = 'red'", "offset = 'a'", "error_class like '%x'"):
        with pytest.raises(ConfigurationError) as caught:
            dead_letters(spec, systems().catalog, where)
        assert repr(where) in str(caught.value)
        assert "error_message" in caught.value.remedy
        print(caught.value)


def test_dead_letters_are_decoded_again(mixed: tuple[Topic, TopicTable], view: NewView, cli: Cli) -> None:
    topic, spec = mixed
    mended = replace(spec, schema="id bigint", transform="kafka_lake_tests.integration.test_cli_again:as_it_is")
    bad = cli(mended, "dead-letters", "--replay", "--where", "colour = 'red'")
    assert bad.exit_code == 1
    assert "'red'" in bad.output
    done = cli(mended, "dead-letters", "--replay", "--where", "error_class = 'not_json'", "--json")
    assert done.exit_code == 0
    answer: dict[str, Any] = json.loads(done.stdout)[0]
    assert (answer["moved"], answer["remaining"]) == (0, 2)
    assert [(c["name"], c["count"]) for c in answer["classes"]] == [("not_json", 2)]
    assert len(view(spec).dead_letters()) == 5


def test_replay_and_reset(mixed: tuple[Topic, TopicTable], view: NewView, cli: Cli) -> None:
    topic, spec = mixed
    see = view(spec)
    before = see.fingerprint()
    assert cli(spec, "replay", answer="n\n").exit_code == 1
    declined = cli(spec, "reset", "--to", "0:1,1:6", answer="n\n")
    assert declined.exit_code == 1
    assert "Nothing was changed." in declined.output
    assert see.fingerprint() == before

    again = cli(spec, "replay", "--from", "1", "--partitions", "1")
    assert again.exit_code == 0
    assert f"{'.'.join(spec.identifier)}: 1 rows in 1 commit" in again.output
    see.assert_exactly_once(topic.ledger)

    assert "nothing to do" in cli(spec, "reset", "--to", "latest").output
    done = cli(spec, "reset", "--to", "0:1,1:6", "--yes")
    assert done.exit_code == 0
    assert see.position() == {0: 1, 1: 6}
    assert see.ids() == [0, 1, 3]
    assert cli(spec, "reset", "--to", "7000", "--yes").exit_code == 1

    cleaned = cli(spec, "clean", "--older-than", "0s")
    assert cleaned.exit_code == 0
    assert see.ids() == [0, 1, 3]
