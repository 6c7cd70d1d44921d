"""What goes on beside the servers of `kafka-lake up` goes on after a server was away."""

from threading import Event

import pytest

from kafka_lake.cli.commands.up import repeated
from kafka_lake.errors import KafkaError


def test_task_that_fails_is_told_once_and_called_again() -> None:
    said: list[str] = []
    outcomes = [KafkaError("Away."), KafkaError("Away."), KafkaError("Still away."), None]
    calls: list[Event] = []

    def task(stop: Event) -> None:
        calls.append(stop)
        if (failure := outcomes[len(calls) - 1]) is not None:
            raise failure

    stop = Event()
    repeated(task, said.append, pause=0)(stop)
    assert calls == [stop] * 4
    assert said == ["Away. Retrying every 0 s.", "Still away. Retrying every 0 s."]


def test_task_ends_at_the_stop_and_with_a_defect() -> None:
    said: list[str] = []
    stop = Event()

    def stopped(event: Event) -> None:
        event.set()
        raise KafkaError("Its broker is gone.")

    repeated(stopped, said.append, pause=60)(stop)
    assert said == []
    with pytest.raises(ZeroDivisionError):
        repeated(lambda _: print(1 // 0), said.append)(Event())
