"""Histories of runs over a topic with several tables: each record is in each table whose condition it meets, once.

Runs die, race, retry and are interfered with; tables are rolled back, dropped, added and removed, get other conditions,
or refuse their records for a while. What is real: `topic_runner`, `shared_read`, and all that is real in
`test_protocol_model`; conditions are on the kinds of records (`simulated.routing`). With `MODEL_EXAMPLES=20000` pytest
tries that many random histories instead of the suite's, which are the same every time.

A changed condition holds from the table's position on. So what a table must have before it is what the conditions of
the run said that moved its position over a record.
"""

import logging
import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from kafka_lake.common.offsets import OffsetRange
from kafka_lake.ingest import shared_read
from kafka_lake.ingest.jobs.append import Append
from kafka_lake.ingest.report import RunReport
from kafka_lake.ingest.shared_read import TableReader
from kafka_lake.ingest.topic_runner import TopicRunner
from kafka_lake.writers import stage
from kafka_lake_tests.unit.simulated import routing
from kafka_lake_tests.unit.simulated.history import OPERATIONS, POISON, STEPS, TABLE, UNROUTABLE, Attempt, Event
from kafka_lake_tests.unit.simulated.topic_world import OTHER, Conditions, TopicProcess, TopicWorld
from kafka_lake_tests.unit.simulated.world import without_pauses

EXAMPLES = int(os.environ.get("MODEL_EXAMPLES", "0"))
HISTORIES = settings(
    max_examples=EXAMPLES or 25,
    derandomize=not EXAMPLES,
    stateful_step_count=10,
    phases=[Phase.generate] if "MODEL_UNSHRUNK" in os.environ else tuple(Phase),
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
    print_blob=False,
)
PLACES = (*STEPS, *(f"{when} {what}" for what in OPERATIONS for when in ("before", "after")), "watermarks", "load")
NAMES = (OTHER, "a", "b")

states = st.sampled_from(["good", "good", "good", "bad-0", "bad-1", POISON, UNROUTABLE, "tombstone"])
kinds = st.one_of(st.none(), st.builds("{}/{}".format, states, st.sampled_from("abc")))
records = st.lists(kinds, min_size=1, max_size=5)
partitions = st.integers(0, 1)
types = st.frozensets(st.sampled_from("abc"), max_size=2)
conditions = st.builds(
    lambda a, b, names, own, unmatched: Conditions(
        tuple((name, its) for name, its in (("a", a), ("b", b)) if name in names),
        own,
        unmatched,
    ),
    types,
    types,
    st.sampled_from([("a", "b"), ("a", "b"), ("a",), ("b",)]),
    st.one_of(st.none(), types),
    st.sampled_from(["dead_letter", "dead_letter", "ignore"]),
)
names = st.sampled_from(NAMES)
# At any moment of a run; the others come between runs.
interference = st.one_of(
    st.tuples(st.just("produce"), st.tuples(partitions, records)),
    st.tuples(st.just("retain"), st.tuples(partitions, st.integers(1, 4))),
    st.tuples(st.just("roll back"), names),
    st.tuples(st.just("mend"), st.sampled_from(["bad-0", "bad-1"])),
    st.tuples(st.just("refuse"), names),
    st.tuples(st.just("add partition"), st.none()),
)
between_runs = st.one_of(
    interference,
    st.tuples(st.just("drop"), st.tuples(names, st.booleans())),
    st.tuples(st.just("conditions"), conditions),
)
misfortune = st.one_of(
    st.tuples(st.just("die"), st.none()),
    st.tuples(st.just("fail"), st.none()),
    st.tuples(st.just("linger"), st.integers(1, 12)),
)
places = st.one_of(st.sampled_from(STEPS), st.sampled_from(PLACES))


def events(overtakers: st.SearchStrategy[Attempt] | None) -> st.SearchStrategy[Event]:
    actions = misfortune | interference
    if overtakers is not None:
        actions = misfortune | st.tuples(st.just("overtake"), overtakers) | interference

    def event(place: str, nth: int, action: tuple[str, object]) -> Event:
        at = "before publish" if action[0] == "linger" else place
        return Event(at, nth * 4 if at == "load" else nth, *action)

    return st.builds(event, places, st.sampled_from([1, 1, 2, 3, 4, 6]), actions)


def attempts(overtakers: st.SearchStrategy[Attempt] | None, fewest: int = 0, most: int = 2) -> Any:
    return st.builds(
        Attempt,
        st.sampled_from(["ingest", "ingest", "ingest", "replay"]),
        st.sampled_from([None, None, frozenset({0}), frozenset({1})]),
        st.sampled_from([100, 1, 2, 3]),
        st.sampled_from([True, True, False]),
        st.lists(events(overtakers), min_size=fewest, max_size=most).map(tuple),
        st.sampled_from([None, None, 1, 2]),
    )


def overtaken() -> st.SearchStrategy[Attempt]:
    """Return runs during which another one runs to its end, which another one may overtake in its turn."""
    inner = attempts(attempts(None))

    def add(attempt: Attempt, place: str, by: Attempt) -> Attempt:
        return replace(attempt, events=(Event(place, 1, "overtake", by), *attempt.events))

    return st.builds(add, attempts(inner), places, inner)


class Topics(RuleBasedStateMachine):
    """What can happen to a topic, its tables and its runs, in any order."""

    world: TopicWorld

    @initialize(conditions=conditions)
    def begin(self, conditions: Conditions) -> None:
        self.world = TopicWorld(conditions)

    @rule(event=between_runs)
    def interfere(self, event: tuple[str, object]) -> None:
        self.world.do(*event)

    @rule(attempt=attempts(None), partition=partitions, more=records)
    def run(self, attempt: Attempt, partition: int, more: list[str | None]) -> None:
        self.world.produce(partition, more)
        self.world.run(attempt)

    @rule(attempt=attempts(None, 1, 3), partition=partitions, more=records)
    def disturbed_run(self, attempt: Attempt, partition: int, more: list[str | None]) -> None:
        self.world.produce(partition, more)
        self.world.run(attempt)

    @rule(attempt=overtaken(), partition=partitions, more=records)
    def overtaken_run(self, attempt: Attempt, partition: int, more: list[str | None]) -> None:
        self.world.produce(partition, more)
        self.world.run(attempt)

    @invariant()
    def each_table_has_what_it_takes_once(self) -> None:
        assert not self.world.violations, self.world.violations

    def teardown(self) -> None:
        if not self.world.violations:
            self.world.finish()
            assert not self.world.violations, self.world.violations


@pytest.fixture(autouse=True)
def simulation(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    without_pauses(monkeypatch)
    for name in routing.REPLACED:
        monkeypatch.setattr(shared_read, name, getattr(routing, name))
    monkeypatch.setattr(stage, "with_unmatched", routing.with_unmatched)
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.slow
def test_each_record_ends_in_each_table_that_takes_it_once() -> None:
    run_state_machine_as_test(Topics, settings=HISTORIES)


ALL = Conditions((("a", frozenset("a")), ("b", frozenset("b"))))
NEXT = Attempt()


def produced(*kinds: str | None, partition: int = 0) -> tuple[str, Any]:
    return "produce", (partition, list(kinds))


def outcome(*history: Attempt | tuple[str, Any], conditions: Conditions = ALL) -> TopicWorld:
    """Return the world after a history, and after the undisturbed run that ends it."""
    world = TopicWorld(conditions)
    for step in history:
        if isinstance(step, Attempt):
            world.run(step)
        else:
            world.do(*step)
    world.finish()
    return world


def begun(world: TopicWorld, attempt: Attempt, run_id: str) -> TopicRunner:
    """Return a run that goes on for as long as it is asked for commits."""
    world.by_run[run_id] = world.conditions
    return TopicRunner(TopicProcess(world, attempt).context(run_id), Append)


def test_tables_with_later_records_go_on_after_a_batch_fails() -> None:
    """The table that reads the batch refuses it; all that another one lacks lies behind that batch."""
    world = TopicWorld(ALL)
    world.do("refuse", "b")
    world.do(*produced("good/b", "good/b"))
    world.run(Attempt(limit=1))
    world.do(*produced("good/a"))
    world.run(Attempt(limit=2))
    assert world.reported["tables left"] == 2
    assert {name: world.position(name) for name in ("a", OTHER)} == {"a": {0: 3}, OTHER: {0: 3}}
    assert not world.violations
    assert len(world.view((TABLE[0], "b")).content()) == 0
    world.finish()
    assert not world.violations
    assert len(world.view((TABLE[0], "b")).content()) == 2


def test_record_without_an_answer_to_a_condition_is_no_tables_but_one() -> None:
    world = outcome(produced("good/a"), NEXT, produced(f"{UNROUTABLE}/a", "good/b", "good/a"), NEXT)
    assert not world.violations
    letters = world.view((TABLE[0], f"{OTHER}__dead_letters")).content()
    assert [record.offset for record in letters] == [1]


def test_retention_between_reading_and_writing_leaves_no_table() -> None:
    world = TopicWorld(ALL)
    world.do(*produced("good/a", "good/b", "good/c", "good/a"))
    world.run(Attempt(events=(Event("planned", 3, "retain", (0, 2)),)))
    assert not world.reported["tables left"]
    world.finish()
    assert not world.violations


def test_idle_table_keeps_how_far_it_is_by_one_commit() -> None:
    world = TopicWorld(ALL)
    world.do(*produced("good/a", "good/b"))
    world.run(NEXT)
    before = len(world.view((TABLE[0], "b")).metadata.snapshots)
    world.do(*produced(*["good/a"] * 9))
    world.run(Attempt(limit=2))
    assert world.position("b") == {0: 11}
    assert len(world.view((TABLE[0], "b")).metadata.snapshots) == before + 1
    world.finish()
    assert not world.violations


def test_dead_letter_that_no_table_takes_survives_a_killed_run() -> None:
    conditions = replace(ALL, own=frozenset("c"))
    killed = Attempt(events=(Event("dead letters published", 1, "die"),))
    world = outcome(produced("good/a", "good/d", "good/c"), killed, conditions=conditions)
    assert not world.violations
    letters = world.view((TABLE[0], f"{OTHER}__dead_letters")).content()
    assert [record.offset for record in letters] == [1]


def test_replay_leaves_no_row_in_a_table_that_takes_none() -> None:
    swapped = Conditions((("a", frozenset("b")), ("b", frozenset("a"))))
    world = outcome(produced("good/a", "bad-0/a"), NEXT, ("conditions", swapped), Attempt("replay"))
    assert not world.violations
    held = {name: len(world.view((TABLE[0], name)).content()) for name in ("a", "b", "b__dead_letters")}
    assert held == {"a": 0, "b": 2, "b__dead_letters": 1}


def test_idle_table_has_lost_nothing_that_it_has_read_before() -> None:
    world = TopicWorld(ALL)
    world.do(*produced("good/a", "good/b"))
    world.run(NEXT)
    world.do(*produced(*["good/a"] * 8))
    runner = begun(world, Attempt(accept_losses=False), "goes-on")
    while runner.next_commit():
        pass
    # Kafka deletes what the idle table has passed before its position is moved.
    world.do("retain", (0, 3))
    runner.topic.poll()
    runner.raise_errors(runner.finish())
    assert {name: world.position(name) for name in NAMES} == {name: {0: 10} for name in NAMES}
    world.finish()
    assert not world.violations


def test_rollback_to_before_a_partition_was_known_is_read_from_its_start() -> None:
    world = TopicWorld(ALL)
    world.do(*produced("good/a", "good/b"))
    world.run(NEXT)
    world.do("add partition", None)
    world.do(*produced(*["good/a"] * 2, partition=1))
    runner = begun(world, Attempt(limit=2), "goes-on")
    while runner.next_commit():
        pass
    world.do(*produced(*["good/c"] * 2, partition=1))
    runner.topic.poll()
    while runner.next_commit():
        pass
    # The table has passed the last two records, and forgets that there is such a partition.
    world.do("roll back", "a")
    world.do(*produced("good/c", partition=1))
    runner.topic.poll()
    while runner.next_commit():
        pass
    runner.finish()
    assert not world.violations
    world.finish()
    assert not world.violations
    assert len(world.view((TABLE[0], "a")).content()) == 4


def test_ignored_records_are_counted_once_by_a_run_that_goes_on() -> None:
    world = TopicWorld(replace(ALL, own=frozenset("c"), unmatched="ignore"))
    world.do(*produced("good/c", "good/a", "good/b"))
    world.run(NEXT)
    runner, reports = begun(world, NEXT, "goes-on"), list[RunReport]()
    for more in (["good/d"], ["good/d", "good/a"], ["good/c"]):
        world.do(*produced(*more))
        runner.topic.poll()
        while runner.next_commit():
            pass
        reports.append(runner.finish())
    assert [report.total("ignored") for report in reports] == [1, 1, 0]
    assert [report.total("elsewhere") for report in reports] == [1, 2, 0]
    assert not world.violations


def test_last_batch_leaves_nothing_in_sparks_memory() -> None:
    world = TopicWorld(ALL)
    world.do(*produced("good/a", "good/b"))
    lost = tuple(Event("before publish", nth, "fail") for nth in range(1, 30))
    assert world.run(Attempt(events=lost)) is None
    assert world.reported["failed runs"] == 1
    assert not world.violations


def offsets_that_pass_are_too_many(patch: pytest.MonkeyPatch) -> None:
    """Pass one offset more than was read."""
    passes = TableReader._pass

    def more(reader: TableReader, ranges: Any, seen: int) -> None:
        passes(reader, tuple(OffsetRange(r.partition, r.start, r.end + 1) for r in ranges), seen)

    patch.setattr(TableReader, "_pass", more)


def batch_covers_anything(patch: pytest.MonkeyPatch) -> None:
    """Take what is read for all that a table lacks."""
    patch.setattr(shared_read.Batch, "covers", lambda *_: True)


def batch_is_not_cut(patch: pytest.MonkeyPatch) -> None:
    """Let each table plan by itself, and take the batch of the round for what it planned."""
    patch.setattr(TableReader, "cut", lambda _, todo: todo)
    batch_covers_anything(patch)


def passed_offsets_count_from_anywhere(patch: pytest.MonkeyPatch) -> None:
    """Take what has been passed for passed, though the table was set back before it."""

    def behind(reader: TableReader, partition: int, offset: int) -> int:
        passed = reader._passed.get(partition)
        return max(passed.end, offset) if passed else offset

    patch.setattr(TableReader, "next", behind)


def nothing_is_settled(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TopicRunner, "_commit_positions", lambda _: None)


def one_table_ends_the_run(patch: pytest.MonkeyPatch) -> None:
    """End the run of all tables where one can't go on."""
    round_of = TopicRunner._round

    def first(runner: TopicRunner) -> Any:
        commits, is_done = round_of(runner)
        return ([], True) if runner.errors else (commits, is_done)

    patch.setattr(TopicRunner, "_round", first)


FIRST = produced("good/a", "good/b", "good/c")
# Each way to break the runs of a topic with a history that shows it; as they are, they pass them all.
SABOTAGES = {
    offsets_that_pass_are_too_many: (FIRST, NEXT, produced("good/b"), produced("good/b", "good/a"), Attempt(limit=1)),
    batch_covers_anything: (FIRST, NEXT, ("roll back", "a"), produced("good/b"), Attempt(limit=1)),
    batch_is_not_cut: (FIRST, ("refuse", "a"), NEXT, ("refuse", "a"), produced("good/a", "good/a"), Attempt(limit=2)),
    passed_offsets_count_from_anywhere: (
        FIRST,
        NEXT,
        produced("good/a"),
        NEXT,
        produced("good/b"),
        Attempt(limit=1, events=(Event("planned", 4, "roll back", "a"),)),
    ),
    nothing_is_settled: (FIRST, NEXT, produced("good/b"), NEXT),
    one_table_ends_the_run: (FIRST, NEXT, ("refuse", "a"), produced("good/a", "good/b", "good/b"), Attempt(limit=1)),
}


@pytest.mark.parametrize("sabotage", SABOTAGES)
def test_broken_runs_of_a_topic_show(sabotage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not outcome(*SABOTAGES[sabotage]).violations
    sabotage(monkeypatch)
    assert outcome(*SABOTAGES[sabotage]).violations
