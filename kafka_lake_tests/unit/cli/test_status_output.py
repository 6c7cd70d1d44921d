"""What `kafka-lake status` and `kafka-lake topic tail` show, in a narrow terminal, a wide one and a pipe."""

import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

import kafka_lake.cli.commands.status
import kafka_lake.cli.project
import kafka_lake.orchestration.runs
from kafka_lake.cli.commands.status import PartitionStatus, TopicStatus, overview, status_table
from kafka_lake.cli.commands.topic import record_lines
from kafka_lake.cli.main import app
from kafka_lake.orchestration.runs import FailedRun
from kafka_lake.spec.topic_table import TopicTable

NOW = datetime(2026, 11, 27, 12, tzinfo=UTC)


def status(topic: str, *, lag: int | None = 0, rows: int = 0, age: float | None = 1, error: str = "") -> TopicStatus:
    committed = None if age is None else (NOW - timedelta(seconds=age)).isoformat()
    partitions = () if lag is None else (PartitionStatus(0, 5, 5 + lag, lag),)
    return TopicStatus(topic, f"shop.{topic}", partitions, lag, committed and 42, committed, rows, rows, error)


def shown(*what: Any, width: int) -> list[str]:
    console = Console(width=width, file=io.StringIO(), color_system=None)
    console.print(*what, sep="\n")
    written = console.file
    assert isinstance(written, io.StringIO)
    return [line.rstrip() for line in written.getvalue().splitlines()]


@pytest.mark.parametrize("width", [80, 160])
def test_topics_are_one_table_with_a_line_each(width: int) -> None:
    topics = [status(f"topic_{number}", rows=number, lag=7, age=10.0**number) for number in range(7)]
    lines = shown(*overview([*topics, status("new", age=None)], NOW), width=width)
    assert [line.split() for line in lines] == [
        ["topic", "table", "rows", "dead", "lag", "last", "commit"],
        ["topic_0", "shop.topic_0", "0", "0", "7", "1", "s", "ago"],
        ["topic_1", "shop.topic_1", "1", "1", "7", "10", "s", "ago"],
        ["topic_2", "shop.topic_2", "2", "2", "7", "2", "min", "ago"],
        ["topic_3", "shop.topic_3", "3", "3", "7", "17", "min", "ago"],
        ["topic_4", "shop.topic_4", "4", "4", "7", "2.8", "h", "ago"],
        ["topic_5", "shop.topic_5", "5", "5", "7", "1.2", "days", "ago"],
        ["topic_6", "shop.topic_6", "6", "6", "7", "11.6", "days", "ago"],
        ["new", "shop.new", "0", "0", "0", "no", "table"],
    ]


def test_unknown_lag_is_a_question_mark_with_its_reason_once() -> None:
    found = [status(name, lag=None, error="The broker is away.") for name in ("a", "b")]
    lines = shown(*overview(found, NOW), width=80)
    assert [line.split()[4] for line in lines[1:3]] == ["?", "?"]
    assert lines[3:] == ["The broker is away."]
    long = "sap.s4hana.sales.SalesOrder.Created.v1.production"
    folded = shown(*overview([status(long)], NOW), width=80)
    assert max(map(len, folded)) <= 80
    assert "".join(line.split(" ")[0] for line in folded[1:]) == long


def test_one_row_is_singular() -> None:
    assert shown(status_table(status("a", rows=1)), width=80)[-1].strip() == "1 row, 1 dead letter, lag 0"
    assert shown(status_table(status("a", rows=2000)), width=80)[-1].strip() == "2,000 rows, 2,000 dead letters, lag 0"


def test_records_value_has_a_line_of_its_own() -> None:
    value = b'{"order_id": 1001, "city": "S\xc3\xa3o Paulo", "text": "' + b"x" * 90 + b'"}'
    record = SimpleNamespace(partition=0, offset=1234, timestamp_ms=1_790_000_000_123, key=b"10\x1b[2J", value=value)
    lines = str(record_lines(record)).splitlines()
    assert lines == [
        "partition 0, offset 1,234, 2026-09-21 14:13:20.123, key 10�[2J",
        f"  {value.decode()}",
    ]
    assert str(record_lines(SimpleNamespace(partition=1, offset=0, timestamp_ms=-1, key=None, value=None))) == (
        "partition 1, offset 0, no time, key none\n  none"
    )


def test_a_pipe_gets_unbroken_lines() -> None:
    code = "from kafka_lake.cli.output import out; out.print('word ' * 60)"
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert len(done.stdout.splitlines()) == 1


@contextmanager
def unconnected(*_: object, **__: object) -> Iterator[SimpleNamespace]:
    yield SimpleNamespace(cluster=None, catalog=None)


def test_last_failure_is_shown_for_a_topic_that_lags(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = FailedRun("0f2a1b2c-d", "2026-11-27T09:00:00+00:00", "Topic a: 1001 new columns.")
    monkeypatch.setattr(kafka_lake.cli.project, "topic_tables", lambda _=None: [TopicTable("a"), TopicTable("b")])
    monkeypatch.setattr(kafka_lake.cli.project, "open_connections", unconnected)
    monkeypatch.setattr(kafka_lake.cli.commands.status, "collect", lambda *_: [status("a", lag=3), status("b")])
    monkeypatch.setattr(kafka_lake.orchestration.runs, "failed_runs", lambda _: {"a": failed})
    done = CliRunner().invoke(app, ["status", "--json"])
    assert done.exit_code == 0
    failures = {load["topic"]: load["last_failure"] for load in json.loads(done.stdout)}
    assert failures == {
        "a": {"run_id": failed.run_id, "failed_at": failed.failed_at, "error": failed.error},
        "b": None,
    }
    assert "The last run of topic a, 0f2a1b2c, failed at 2026-11-27T09:00:00+00:00: Topic a" in done.stderr
