"""Of a topic that lags, `kafka-lake status` tells why its last run failed."""

from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pytest

from kafka_lake.errors import AuditFailedError, RegistryError
from kafka_lake.ingest.topic_runner import LeftBehindError
from kafka_lake.orchestration.keys import member_tag, op_name
from kafka_lake.orchestration.runs import FailedRun, dagster_at_hand, failed_runs
from kafka_lake.orchestration.steps import as_failures
from kafka_lake.spec.topic_table import TopicTable


@pytest.fixture(autouse=True)
def own_dagster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "dagster.yaml").touch()
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))


def ended(topic: str, error: Exception | None, *others: str) -> None:
    """Have a run of a topic, and of others that get along."""

    def op(name: str, error: Exception | None) -> dg.OpDefinition:
        @dg.op(name=op_name(TopicTable(name)))
        def read() -> None:
            if error is not None:
                raise error

        return read

    @dg.job(tags={member_tag(other): other for other in (topic, *others)})
    def made() -> None:
        for name, its in ((topic, error), *((other, None) for other in others)):
            op(name, its)()

    with dagster_at_hand() as instance:
        made.execute_in_process(instance=instance, raise_on_error=False)


def test_the_newest_run_tells_by_its_sentence_or_by_its_error() -> None:
    ended("orders", dg.Failure(description="Topic orders: 1001 new columns."))
    ended("clicks", ValueError("no sentence of ours"))
    ended("views", dg.Failure(description="Gone by now."))
    ended("views", None)
    found = failed_runs([TopicTable(name) for name in ("orders", "clicks", "views", "never_run")])
    assert [*found] == ["orders", "clicks"]
    orders = found["orders"]
    assert orders.error == "Topic orders: 1001 new columns."
    assert orders.line("orders") == (
        f"The last run of topic orders, {orders.run_id[:8]}, failed at {orders.failed_at}: {orders.error}"
    )
    assert datetime.fromisoformat(orders.failed_at).tzinfo is UTC
    assert "no sentence of ours" in found["clicks"].error


def test_shared_run_that_fails_counts_for_failed_topics_only() -> None:
    ended("orders", dg.Failure(description="Topic orders: 1001 new columns."), "clicks")
    found = failed_runs([TopicTable("orders"), TopicTable("clicks")])
    assert [*found] == ["orders"]
    assert found["orders"].error == "Topic orders: 1001 new columns."


def test_run_in_flight_hides_no_failed_one() -> None:
    ended("orders", dg.Failure(description="Topic orders: 1001 new columns."))
    with dagster_at_hand() as instance:
        tags = {member_tag("orders"): "orders"}
        instance.add_run(dg.DagsterRun("made", status=dg.DagsterRunStatus.STARTED, tags=tags))
    assert [*failed_runs([TopicTable("orders")])] == ["orders"]


def test_failed_run_without_a_time_says_so() -> None:
    line = FailedRun("0123456789", "", "gone").line("orders")
    assert line == "The last run of topic orders, 01234567, failed at an unknown time: gone"


def test_dagster_of_the_project_is_asked_without_a_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DAGSTER_HOME")
    monkeypatch.setenv("KAFKA_LAKE_HOME", str(tmp_path))
    with dagster_at_hand() as instance:
        assert instance.root_directory == str(tmp_path / "dagster")


def test_without_a_dagster_that_can_be_asked_nothing_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended("orders", dg.Failure(description="Topic orders: 1001 new columns."))
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "nowhere"))
    assert failed_runs([TopicTable("orders")]) == {}


@pytest.mark.parametrize(("other", "again"), [(AuditFailedError("refused"), False), (RegistryError("gone"), True)])
def test_step_is_not_tried_again_if_checks_refused(other: Exception, again: bool) -> None:
    report: Any = SimpleNamespace()
    errors = {"lake.orders": AuditFailedError("refused"), "lake.clicks": other}
    with pytest.raises(dg.Failure) as raised, as_failures():
        raise LeftBehindError("Topic events: some tables were not updated", errors, report)
    assert raised.value.allow_retries is again
