"""What the demo counts as done, and how it tells that it won't be."""

from dataclasses import dataclass, field

import pytest

from examples.pizza_shop.watch import Watch, made
from kafka_lake.devstack.dagster_runs import Run, RunReport
from kafka_lake.errors import KafkaLakeError

TABLE = ("pizza", "deliveries")


def run(name: str, status: str = "SUCCESS", ended: float = 10.0, sensor: str = "kafka_offsets") -> Run:
    return Run(name, status, sensor, "__ASSET_JOB", ("pizza/deliveries",), ended)


@dataclass
class Told:
    """Answers to one question after the other, the last one for good."""

    answers: list[list[Run]]
    failure: str = ""
    asked: list[float] = field(default_factory=list)

    def since(self, moment: float) -> list[Run]:
        self.asked.append(moment)
        return self.answers[min(len(self.asked), len(self.answers)) - 1]

    def report(self, run_id: str) -> RunReport:
        return RunReport((), (), self.failure)


def watch(reported: Told, said: list[str], timeout: float = 20.0) -> Watch:
    return Watch(reported, 5.0, lambda: None, said.append, timeout)  # type: ignore[arg-type]


def test_made_are_those_that_succeeded_afterwards_oldest_first() -> None:
    runs = [
        run("late", ended=12),
        run("early", ended=11),
        run("before", ended=9),
        run("failed", "FAILURE"),
        run("under way", "STARTED", ended=0),
        run("by hand", ended=13, sensor=""),
        Run("another table", "SUCCESS", "kafka_offsets", "__ASSET_JOB", ("pizza/top_stores",), 11),
    ]
    assert [answer.run_id for answer in made(runs, TABLE, 9)] == ["early", "late", "by hand"]
    assert [answer.run_id for answer in made(runs, TABLE, 9, by_sensor=True)] == ["early", "late"]


@pytest.mark.processes
def test_it_waits_until_the_runs_are_done_and_tells_for_what() -> None:
    said: list[str] = []
    reported = Told([[], [run("12345678-9", "STARTED", ended=0)], [run("12345678-9")]])
    found = watch(reported, said).until(lambda runs: bool(made(runs, TABLE, 0)), "the sensor")
    assert [item.run_id for item in found] == ["12345678-9"]
    assert said == ["Waiting for the sensor", "run 12345678 of pizza/deliveries: STARTED"]
    assert set(reported.asked) == {5.0}


def test_a_failed_run_ends_the_wait_with_its_cause() -> None:
    reported = Told([[run("1", "FAILURE")]], failure="no space left")
    with pytest.raises(KafkaLakeError, match=r"Run 1 of pizza/deliveries: no space left"):
        watch(reported, []).until(lambda runs: False, "the sensor")


def test_a_failed_run_that_makes_nothing_is_told_by_its_job() -> None:
    reported = Told([[Run("1", "FAILURE", "kafka_maintenance", "maintain_tables", (), 10.0)]], failure="no space left")
    with pytest.raises(KafkaLakeError, match=r"Run 1 of maintain_tables: no space left"):
        watch(reported, []).until(lambda runs: False, "the sensor")


def test_time_is_up_at_some_point_and_the_error_tells_at_what() -> None:
    with pytest.raises(KafkaLakeError, match=r"after 0 s\. It was at this: Waiting for the sensor"):
        watch(Told([[]]), [], timeout=0.0).until(lambda runs: False, "the sensor")
