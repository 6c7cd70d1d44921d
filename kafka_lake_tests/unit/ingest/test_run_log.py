"""What runs log: a line for each step with its topic, run and snapshot; three lines if they fail; as text or JSON."""

import io
import json
import logging
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
from typer.testing import CliRunner

from kafka_lake.cli.main import app
from kafka_lake.common.logs import log_to
from kafka_lake.errors import ConfigurationError, KafkaError
from kafka_lake.ingest.run import RunLog
from kafka_lake.runtime.commit import NOT_KEPT, ColumnNote, Commit, Finding
from kafka_lake.runtime.context import Observer
from kafka_lake.runtime.plan import Plan

RUN = "3f2a1b2c-0000-0000-0000-000000000000"


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], list[str]]]:
    """Give what begins to log in a format, and returns the lines so far."""
    logger = logging.getLogger("kafka_lake.run")
    before = logger.handlers[:], logger.level, logger.propagate
    stream = io.StringIO()

    def begin(name: str) -> list[str]:
        log_to(cast(Any, stream), name)
        return stream.getvalue().splitlines()

    yield begin
    logger.handlers[:], logger.level, logger.propagate = before


def committed() -> tuple[Commit, Plan]:
    commit: Any = object.__new__(Commit)
    numbers = {"snapshot": 42, "rows": 5, "dead_letters": 1, "records": 7, "tombstones": 1}
    notes = tuple(ColumnNote(f"c{n}", NOT_KEPT, "", "", "2 numbers were rounded") for n in range(12))
    findings = (Finding("schema_evolution", (), {}, (ColumnNote("n", "added", "", "long"), *notes)),)
    for name, value in {**numbers, "findings": findings, "sides": {}}.items():
        object.__setattr__(commit, name, value)
    plan: Any = type("APlan", (), {"remaining": 0})()
    return commit, plan


def test_each_step_is_a_line_of_json_with_topic_run_and_snapshot(lines: Callable[[str], list[str]]) -> None:
    lines("json")
    reported: list[Any] = []
    observer = RunLog("lake.orders", RUN, "orders").observing(
        Observer(reported.append, lambda commit, plan: reported.append(commit), reported.append)
    )
    commit, plan = committed()
    observer.step_done("planned")
    observer.on_commit(commit, plan)
    observer.warn("main moved")
    found = [json.loads(line) for line in lines("json")]
    assert reported == ["planned", commit, "main moved"], "who else looks on is told too"
    assert [line["level"] for line in found] == ["INFO"] * 13 + ["WARNING"]
    lines_about_columns = [line["message"].partition(": ")[2] for line in found[2:-1]]
    assert lines_about_columns[:2] == ["column c0: 2 numbers were rounded", "column c1: 2 numbers were rounded"]
    assert lines_about_columns[10:] == ["and 2 more columns"]
    assert all((line["topic"], line["table"], line["run"]) == ("orders", "lake.orders", RUN) for line in found)
    assert found[0]["step"] == "planned"
    assert found[0]["seconds"] >= 0
    numbers = {"snapshot": 42, "rows": 5, "dead_letters": 1, "records": 7, "tombstones": 1, "remaining": 0}
    assert numbers.items() <= found[1].items()
    assert found[1]["message"].startswith("Topic orders, run 3f2a1b2c: committed snapshot 42: 5 rows, 1 dead letters")


def test_a_failure_is_three_lines_and_one_object(lines: Callable[[str], list[str]]) -> None:
    lines("text")
    lines("text")
    RunLog("lake.orders", RUN, "orders").failed(KafkaError("Brokers don't answer.", "Start them."))
    what, remedy, stays = lines("text")
    assert what.endswith("ERROR Topic orders, run 3f2a1b2c: KafkaError: Brokers don't answer.")
    assert (remedy, stays[:23]) == ("Start them.", "Table lake.orders keeps")


def test_a_failure_that_nobody_can_mend_has_its_trace(lines: Callable[[str], list[str]]) -> None:
    lines("json")
    for error in (KafkaError("Brokers don't answer."), ZeroDivisionError("a mistake")):
        RunLog("lake.revenue", RUN).failed(error)
    mend, mistake = (json.loads(line) for line in lines("json"))
    assert mend["message"].startswith("Table lake.revenue, run 3f2a1b2c: KafkaError: ")
    assert (mend["error"], mend["retry_helps"]) == ("KafkaError", True)
    assert "#kafkaerror" in mend["what_to_do"]
    assert "trace" not in mend
    assert "ZeroDivisionError: a mistake" in mistake["trace"]
    assert "topic" not in mistake


def test_another_format_is_refused(lines: Callable[[str], list[str]]) -> None:
    with pytest.raises(ConfigurationError, match="KAFKA_LAKE_LOG=xml is neither text nor json"):
        lines("xml")
    refused = CliRunner().invoke(app, ["--log", "xml", "status"], env={"KAFKA_LAKE_LOG": ""})
    assert refused.exit_code == 1
    assert "KAFKA_LAKE_LOG=xml" in refused.output
