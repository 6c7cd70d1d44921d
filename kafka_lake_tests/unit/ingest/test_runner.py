"""A run's own share: what it tries how often, and whom it tells."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from kafka_lake.common.offsets import TopicIdentity, Watermarks
from kafka_lake.errors import KafkaError
from kafka_lake.ingest.jobs.append import Append
from kafka_lake.ingest.report import Reached
from kafka_lake.ingest.run import ingest, replay, reset
from kafka_lake.ingest.topic_runner import TopicRunner
from kafka_lake.runtime.context import Connections, Context, Observer, RetryPolicy
from kafka_lake.runtime.plan import ReplayRange
from kafka_lake.spec.topic_table import Route, TopicTable, When
from kafka_lake.writers.decoding import SparkDecoding

SPEC = TopicTable("pizzas", "pizza", "orders")
EMPTY = Watermarks(TopicIdentity("c", "t", "pizzas"), {0: 0}, {0: 0}, {0: 0})


def connected(answers: Any, catalog: Any) -> Connections:
    asked: Any = SimpleNamespace(watermarks_of=answers)
    return Connections(asked, {}, catalog, lambda: pytest.fail("Spark"), RetryPolicy(3, 0, 0))


@pytest.mark.parametrize(
    "run",
    [
        lambda *known, observer: ingest(*known, "run", observer=observer),
        lambda *known, observer: replay(*known, "run", ReplayRange(), observer),
        lambda *known, observer: reset(*known, "run", "earliest", observer=observer),
    ],
    ids=["append", "replay", "reset"],
)
def test_brokers_that_do_not_answer_are_asked_as_often_as_the_policy_says(run, catalog):
    asked, said = [], []

    def silent(topic):
        asked.append(topic)
        raise KafkaError("no broker answers")

    with pytest.raises(KafkaError, match="no broker answers"):
        run(SPEC, connected(silent, catalog), observer=Observer(warn=said.append))
    assert asked == ["pizzas"] * 3
    assert len(said) == 2


def test_an_empty_topic_is_no_work_and_touches_no_spark(catalog):
    steps = []
    report = ingest(SPEC, connected(lambda _: EMPTY, catalog), "run", observer=Observer(step_done=steps.append))
    assert (report.commits, report.reached) == ([], {SPEC.topic: Reached(EMPTY, None)})
    assert steps == ["planned"]


def test_run_that_fails_before_its_first_table_reports_nothing(catalog):
    several = replace(SPEC, routes=(Route(When(field="a", values=("b",)), replace(SPEC, table="b")),))
    context = Context(several, connected(lambda _: EMPTY, catalog), "run", decoding=SparkDecoding())
    assert not TopicRunner(context, Append).report().has_commits
