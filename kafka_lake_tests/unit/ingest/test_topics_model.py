"""Histories of runs over two topics in one table: each record of each topic is once a row, or once a dead letter.

What is real and what is simulated is as in `test_protocol_model`. A commit is of one topic and carries on the position
in the other one, so what is at stake are runs of both topics that die, race and are rolled back: no position may be
lost or go back, and no record of a topic may be taken for one of the other with the same partition and offset.
"""

import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from kafka_lake.catalog import positions
from kafka_lake.catalog.positions import read_state
from kafka_lake_tests.unit.ingest.test_protocol_model import (
    ANY,
    HISTORIES,
    INGEST,
    attempts,
    interference,
    overtaken,
    partitions,
    records,
)
from kafka_lake_tests.unit.simulated.frames import SimulatedFrames
from kafka_lake_tests.unit.simulated.history import LETTERS, OTHER_TOPIC, TABLE, TOPIC, Attempt, Event
from kafka_lake_tests.unit.simulated.shared_world import SharedWorld
from kafka_lake_tests.unit.simulated.world import without_pauses

BOTH = (TOPIC, OTHER_TOPIC)
of_other = st.one_of(
    st.tuples(st.just(f"produce of {OTHER_TOPIC}"), st.tuples(partitions, records)),
    st.tuples(st.just(f"retain of {OTHER_TOPIC}"), st.tuples(partitions, st.integers(1, 4))),
    st.tuples(st.just(f"add partition of {OTHER_TOPIC}"), st.none()),
)
topics = st.sampled_from([BOTH, BOTH[::-1], BOTH[:1], BOTH[1:]])


def of_topics(runs: st.SearchStrategy[Attempt]) -> st.SearchStrategy[Attempt]:
    """Return runs over some topics, overtaken by runs over some topics."""

    def over(attempt: Attempt, chosen: tuple[str, ...], by: tuple[str, ...]) -> Attempt:
        events = (
            replace(event, argument=over(event.argument, by, chosen)) if event.action == "overtake" else event
            for event in attempt.events
        )
        return replace(attempt, topics=chosen, events=tuple(events))

    return st.builds(over, runs, topics, topics)


class Histories(RuleBasedStateMachine):
    """What can happen to two topics, their table and the runs, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.world = SharedWorld()

    @rule(event=interference | of_other)
    def interfere(self, event: tuple[str, object]) -> None:
        self.world.do(*event)

    @rule(
        attempt=of_topics(attempts(INGEST, None) | attempts(INGEST, None, 1, 3) | overtaken(INGEST)),
        partition=partitions,
        one=records,
        other=records,
    )
    def run(self, attempt: Attempt, partition: int, one: list[str | None], other: list[str | None]) -> None:
        for log, kinds in zip(self.world.logs.values(), (one, other), strict=True):
            log.produce(partition, kinds)
        self.world.run(attempt)

    @rule(attempt=of_topics(attempts(ANY, None, 0, 1)))
    def run_anything(self, attempt: Attempt) -> None:
        self.world.run(attempt)

    @invariant()
    def each_record_is_once_in_one_place(self) -> None:
        assert not self.world.violations, self.world.violations

    def teardown(self) -> None:
        if not self.world.violations:
            self.world.finish()
            assert not self.world.violations, self.world.violations


@pytest.fixture(autouse=True)
def simulation(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    without_pauses(monkeypatch)
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.slow
def test_each_record_of_each_topic_ends_in_one_place() -> None:
    run_state_machine_as_test(Histories, settings=HISTORIES)


def outcome(*history: Attempt | tuple[str, Any]) -> SharedWorld:
    """Return the world after a history, and after the undisturbed run that ends it."""
    world = SharedWorld()
    for event in history:
        if isinstance(event, Attempt):
            world.run(event)
        else:
            world.do(*event)
    world.finish()
    return world


def produced(*kinds: str | None) -> tuple[tuple[str, Any], tuple[str, Any]]:
    return ("produce", (0, list(kinds))), (f"produce of {OTHER_TOPIC}", (0, list(kinds)))


ONE, OTHER = Attempt(topics=BOTH[:1]), Attempt(topics=BOTH[1:])
RUN = Attempt(topics=BOTH)


def test_run_reads_one_topic_where_kafka_lost_records_of_another() -> None:
    world = SharedWorld()
    for event in (*produced("good", "good"), RUN, *produced("good", "bad-0"), ("retain", (0, 4))):
        world.run(event) if isinstance(event, Attempt) else world.do(*event)
    assert world.run(replace(RUN, accept_losses=False)) is None
    assert world.reported["stopped by losses"] == world.reported["topics left"] == 1
    reached = {topic: its.offsets for topic, its in read_state(world.view(TABLE)).positions.items()}  # type: ignore[arg-type]
    assert reached == {TOPIC: {0: 2}, OTHER_TOPIC: {0: 4}}
    assert [record.topic for record in world.view(LETTERS).content()] == [OTHER_TOPIC]
    world.finish()
    assert not world.violations


def test_topic_without_records_has_a_position_once_it_was_looked_at() -> None:
    world = SharedWorld()
    world.produce(0, ["good"])
    world.run(RUN)
    assert set(read_state(world.view(TABLE)).positions) == set(BOTH)  # type: ignore[arg-type]
    world.finish()
    assert not world.violations


def test_topic_without_rows_skips_nothing_if_positions_are_gone() -> None:
    world, latest = SharedWorld(), replace(RUN, start="latest")
    # Others compact the table and expire all other snapshots: the rows tell the position in one topic alone.
    for event in (latest, ("produce", (0, ["good"])), latest, ("compact", TABLE), ("expire", (TABLE, 1))):
        world.run(event) if isinstance(event, Attempt) else world.do(*event)
    for event in produced("good", "good"):
        world.do(*event)
    assert world.run(latest) is None
    assert not read_state(world.view(TABLE)).positions  # type: ignore[arg-type]
    assert [f"`kafka-lake reset {OTHER_TOPIC} --to …`" in violation for violation in world.violations] == [True, True]
    world.violations.clear()
    world.finish()
    assert not world.violations


def test_reset_reads_nothing_twice_if_positions_are_gone() -> None:
    world, latest = SharedWorld(), replace(RUN, start="latest")
    for event in (latest, ("produce", (0, ["good", "bad-0"])), latest, ("compact", TABLE), ("expire", (TABLE, 1))):
        world.run(event) if isinstance(event, Attempt) else world.do(*event)
    assert world.run(latest) is None
    # What the error says: the rows that are there will be read again.
    assert world.run(replace(latest, what="reset")) is not None
    assert not world.view(TABLE).content()
    world.violations.clear()
    world.finish()
    assert not world.violations


def position_of_other_topic_is_lost(patch: pytest.MonkeyPatch) -> None:
    """Let a commit carry its own topic's position alone, and the audit find nothing."""
    patch.setattr(positions.TableState, "others", property(lambda _: {}, lambda *_: None), raising=False)


def positions_are_mixed_up(patch: pytest.MonkeyPatch) -> None:
    """Take the position in the table's first topic for that of any."""
    of = positions.position_in
    patch.setattr(positions, "position_in", lambda found, topic, chosen: of(found, min(found, default=topic), chosen))


def dead_letters_are_those_of_any_topic(patch: pytest.MonkeyPatch) -> None:
    """Take a dead letter of one topic for the one of the other that has its partition and offset."""
    patch.setattr(SimulatedFrames, "within_topic", lambda self, rows, ranges, *_: self.within(rows, ranges))
    patch.setattr(SimulatedFrames, "of_topic", lambda _, rows, *__: rows)


# Each way to break the runs with a history that shows it; as they are, they pass them all.
SABOTAGES = {
    position_of_other_topic_is_lost: (
        *produced("good", "bad-0"),
        RUN,
        ("expire", (TABLE, 1)),
        *produced("good"),
        ONE,
        OTHER,
    ),
    positions_are_mixed_up: (*produced("good", "good"), ONE, *produced("good"), OTHER),
    dead_letters_are_those_of_any_topic: (
        *produced("bad-0", "good"),
        RUN,
        ("mend", "bad-0"),
        replace(ONE, what="dead_letter_replay", events=(Event("audited", 1, "die"),)),
        replace(OTHER, what="replay"),
        replace(ONE, what="dead_letter_replay"),
    ),
}


@pytest.mark.parametrize("sabotage", SABOTAGES)
def test_broken_runs_over_topics_show(sabotage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not outcome(*SABOTAGES[sabotage]).violations
    sabotage(monkeypatch)
    assert outcome(*SABOTAGES[sabotage]).violations
