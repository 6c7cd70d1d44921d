"""`kafka-lake topic …` on a real broker: what is produced is what the lines are, and it can be seen."""

import json
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from typer.testing import Result

import kafka_lake.cli.commands.topic
import kafka_lake.cli.output
from kafka_lake.devstack.servers import EmbeddedBroker

pytestmark = pytest.mark.integration

LINES = b'{"id": 1, "who": "\xc3\xa9va"}\r\n\n  {"id": 2}\nnot JSON\n\xff\xfe\n{"id": "b"}\n[1]'


@pytest.fixture
def name() -> str:
    return f"typed-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def run(command_line: Callable[..., Result], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    from rich.console import Console

    def ran(*arguments: str) -> Result:
        monkeypatch.setattr(kafka_lake.cli.output, "out", Console(width=200))
        return command_line([], "topic", *arguments)

    return ran


def records(broker: EmbeddedBroker, topic: str, partitions: int) -> list[tuple[bytes | None, bytes | None]]:
    settings = {"bootstrap.servers": broker.bootstrap_servers, "group.id": "test", "enable.partition.eof": True}
    consumer = Consumer({**settings, "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition(topic, p, 0) for p in range(partitions)])
    found, ended = [], 0
    while ended < partitions:
        message = consumer.poll(20)
        assert message is not None, "no record arrived"
        if message.error():
            ended += 1
        else:
            found.append((message.key(), message.value()))
    consumer.close()
    return found


def test_a_topic_is_created_once(run: Callable[..., Result], broker: EmbeddedBroker, name: str) -> None:
    assert run("create", name, "--partitions", "3").output.strip() == f"Topic {name} created."
    assert run("create", name).output.strip() == f"Topic {name} already exists."
    found = AdminClient({"bootstrap.servers": broker.bootstrap_servers}).list_topics(name, timeout=10).topics[name]
    assert len(found.partitions) == 3


@pytest.mark.parametrize("bad", ["a b", "", "x" * 250, ".."])
def test_invalid_topic_name_is_refused_with_its_reason(run: Callable[..., Result], bad: str) -> None:
    result = run("create", bad)
    assert result.exit_code == 1
    assert f"{bad!r} can't be the name of a topic" in result.output.replace("\n", "")


def test_every_line_is_a_record_as_it_is(
    run: Callable[..., Result], broker: EmbeddedBroker, name: str, tmp_path: Path
) -> None:
    file = tmp_path / "lines"
    file.write_bytes(LINES)
    run("create", name)
    assert run("produce", name, str(file)).output.strip() == f"6 records produced to topic {name}."
    values = [b'{"id": 1, "who": "\xc3\xa9va"}', b'  {"id": 2}', b"not JSON", b"\xff\xfe", b'{"id": "b"}', b"[1]"]
    assert records(broker, name, 1) == [(None, value) for value in values]


def test_a_field_becomes_the_key(run: Callable[..., Result], broker: EmbeddedBroker, name: str, tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_bytes(LINES)
    run("create", name)
    run("produce", name, str(file), "--key-field", "id")
    assert [key for key, _ in records(broker, name, 1)] == [b"1", b"2", None, None, b"b", None]


def test_the_newest_records_are_shown(run: Callable[..., Result], name: str, tmp_path: Path) -> None:
    run("create", name)
    assert run("tail", name).output.strip() == f"Topic {name} has no records."
    file = tmp_path / "lines"
    file.write_bytes(b"\n".join(b'{"n": %d, "text": "[red]\\u001b[2J"}' % n for n in range(20)) + b"\n\xff\x1b[2J")
    run("produce", name, str(file), "--key-field", "n")
    shown = run("tail", name, "-n", "3").output
    assert "\x1b" not in shown
    assert '{"n": 18, "text": "[red]\\u001b[2J"}' in shown
    assert '{"n": 17' not in shown
    assert [line.split(", 20")[0] for line in shown.splitlines()[::2]] == [
        f"partition 0, offset {n}" for n in (18, 19, 20)
    ]
    reported = [json.loads(line) for line in run("tail", name, "-n", "2", "--json").output.splitlines()]
    assert [(record["partition"], record["offset"]) for record in reported] == [(0, 19), (0, 20)]
    assert reported[0]["key"] == "19"
    assert json.loads(reported[0]["value"])["n"] == 19
    assert reported[1]["value_base64"] == "/xtbMko="


@pytest.mark.parametrize("command", ["produce", "tail"])
def test_a_topic_that_is_not_there_is_named(
    run: Callable[..., Result], name: str, command: str, tmp_path: Path
) -> None:
    file = tmp_path / "lines"
    file.write_bytes(LINES)
    result = run(command, name, *([str(file)] if command == "produce" else []))
    assert result.exit_code == 1
    assert f"Topic {name}: the cluster at" in result.output.replace("\n", " ")
    assert "has no such topic" in result.output.replace("\n", " ")
    if command == "produce":
        assert f"kafka-lake topic create {name}" in result.output.replace("\n", " ")


def test_a_file_that_is_not_there_is_named(run: Callable[..., Result], name: str) -> None:
    result = run("produce", name, "/nowhere/records.jsonl")
    assert result.exit_code == 1
    assert "/nowhere/records.jsonl can't be read: No such file or directory." in result.output.replace("\n", "")
