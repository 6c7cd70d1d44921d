"""Histories of runs by the thousand that die, race, retry and are interfered with: every record is there exactly once.

The protocol is the real one; see `simulated` for what is not. With `MODEL_EXAMPLES=20000` pytest tries that many random
histories per machine instead of the suite's, which are the same every time.

Not promised, and so not tried: expiry of the very snapshot that tells what is to be reconciled before the next run has
settled it; a rollback to the middle of a replacement, where ``main`` never was; a rollback of the dead-letter table;
and schemas that records which are rows no longer fit.
"""

import logging
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from kafka_lake.catalog.branches import StagingBranch, staging_branches
from kafka_lake.catalog.positions import KIND, POSITION, RECONCILE, ancestors, head_of, read_state, summary_of
from kafka_lake.common.offsets import OffsetRange
from kafka_lake.dead_letters.pending import RECONCILED_FROM, STAGED_WITH
from kafka_lake.errors import PublishRefusedError
from kafka_lake.ingest import pipeline
from kafka_lake.runtime.decoding import Written
from kafka_lake_tests.exhaustive import exhaustive
from kafka_lake_tests.unit.simulated.catalog import SimulatedCatalog
from kafka_lake_tests.unit.simulated.decoding import SimulatedDecoding
from kafka_lake_tests.unit.simulated.frames import SimulatedFrames, Writer
from kafka_lake_tests.unit.simulated.history import LETTERS, PLACES, POISON, STEPS, TABLE, Attempt, Event, Record
from kafka_lake_tests.unit.simulated.world import World, without_pauses

EXAMPLES = int(os.environ.get("MODEL_EXAMPLES", "0"))
# A mutant needn't die of the shortest history.
MUTANTS = "KAFKA_LAKE_MUTANTS" in os.environ
HISTORIES = settings(
    max_examples=EXAMPLES or (20 if MUTANTS else 50),
    derandomize=not EXAMPLES,
    phases=[Phase.generate] if MUTANTS else tuple(Phase),
    stateful_step_count=12,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
    print_blob=False,
)

kinds = st.sampled_from(["good", "good", "good", "bad-0", "bad-1", POISON, "tombstone", None])
records = st.lists(kinds, min_size=1, max_size=6)
partitions = st.integers(0, 2)
interference = st.one_of(
    st.tuples(st.just("produce"), st.tuples(partitions, records)),
    st.tuples(st.just("retain"), st.tuples(partitions, st.integers(1, 4))),
    st.tuples(st.just("compact"), st.sampled_from([TABLE, LETTERS])),
    st.tuples(st.just("expire"), st.tuples(st.sampled_from([TABLE, LETTERS]), st.integers(1, 3))),
    st.tuples(st.just("roll back"), st.integers(1, 3)),
    st.tuples(st.just("mend"), st.sampled_from(["bad-0", "bad-1"])),
    st.tuples(st.just("add partition"), st.none()),
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
        # Only a publication lingers: what else arrives late goes to a branch that nobody looks at any more.
        at = "before publish" if action[0] == "linger" else place
        return Event(at, nth * 4 if at == "load" else nth, *action)

    return st.builds(event, places, st.sampled_from([1, 1, 2, 3]), actions)


def attempts(
    what: list[str], overtakers: st.SearchStrategy[Attempt] | None, fewest: int = 0, most: int = 2
) -> st.SearchStrategy[Attempt]:
    return st.builds(
        Attempt,
        st.sampled_from(what),
        st.sampled_from([None, None, frozenset({0}), frozenset({1}), frozenset({0, 2})]),
        st.sampled_from([100, 1, 2, 3]),
        st.sampled_from([True, True, False]),
        st.lists(events(overtakers), min_size=fewest, max_size=most).map(tuple),
        st.sampled_from([None, None, 1, 2]),
    )


def overtaken(what: list[str]) -> st.SearchStrategy[Attempt]:
    """Return runs during which another one runs to its end, which another one may overtake in its turn."""
    inner = attempts(what, attempts(what, None))

    def add(attempt: Attempt, place: str, by: Attempt) -> Attempt:
        return replace(attempt, events=(Event(place, 1, "overtake", by), *attempt.events))

    return st.builds(add, attempts(what, inner), places, inner)


NEXT = Attempt()
GOOD, BAD = ("produce", (0, ["good"])), ("produce", (0, ["bad-0"]))
INGEST, ANY = ["ingest"], ["ingest", "replay", "dead_letter_replay"]


class Histories(RuleBasedStateMachine):
    """What can happen to a topic, its table and its runs, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()

    @rule(event=interference)
    def interfere(self, event: tuple[str, object]) -> None:
        self.world.do(*event)

    @rule(attempt=attempts(INGEST, None), partition=partitions, more=records)
    def run(self, attempt: Attempt, partition: int, more: list[str | None]) -> None:
        self.world.produce(partition, more)
        self.world.run(attempt)

    @rule(attempt=attempts(INGEST, None, 1, 3), partition=partitions, more=records)
    def disturbed_run(self, attempt: Attempt, partition: int, more: list[str | None]) -> None:
        self.world.produce(partition, more)
        self.world.run(attempt)

    @rule(attempt=overtaken(INGEST), partition=partitions, more=records)
    def overtaken_run(self, attempt: Attempt, partition: int, more: list[str | None]) -> None:
        self.world.produce(partition, more)
        self.world.run(attempt)

    @invariant()
    def readers_see_every_record_once(self) -> None:
        assert not self.world.violations, self.world.violations

    def teardown(self) -> None:
        if not self.world.violations:
            self.world.finish()
            assert not self.world.violations, self.world.violations


class HistoriesWithRepairs(Histories):
    """The same with topics read again and letters delivered again."""

    @rule(attempt=attempts(["replay", "dead_letter_replay"], None))
    def repair(self, attempt: Attempt) -> None:
        self.world.run(attempt)

    @rule(attempt=overtaken(ANY))
    def overtaken_repair(self, attempt: Attempt) -> None:
        self.world.run(attempt)

    @rule()
    def recreate(self) -> None:
        self.world.do("recreate", None)


@pytest.fixture(autouse=True)
def simulation(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    without_pauses(monkeypatch)
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.slow
@pytest.mark.parametrize("machine", [exhaustive(Histories), HistoriesWithRepairs])
def test_every_history_ends_with_every_record_once(machine: type[Histories]) -> None:
    run_state_machine_as_test(machine, settings=HISTORIES)


def outcome(*history: Attempt | tuple[str, Any], world: World | None = None) -> World:
    """Return the world after a history, and after the undisturbed run that ends it."""
    world = world or World()
    for step in history:
        if isinstance(step, Attempt):
            world.run(step)
        else:
            world.do(*step)
    world.finish()
    return world


def overtaken_at(place: str, *first: tuple[str, Any], by: Attempt = NEXT, **settings: Any) -> Attempt:
    """Return a run that another one overtakes, after something else has happened at the same place."""
    happened = (*first, ("overtake", by))
    return Attempt(events=tuple(Event(place, 1, *item) for item in happened), **settings)


def rolled_back_at(place: str) -> Attempt:
    """Return a run during which somebody sets the table back by one commit."""
    return Attempt(events=(Event(place, 1, "roll back", 1),))


def dying_at(place: str) -> Attempt:
    return Attempt(events=(Event(place, 1, "die"),))


@pytest.mark.parametrize("growth", [("produce", (0, ["good"])), ("add partition", None)])
@pytest.mark.parametrize("accept_losses", [False, True])
def test_a_run_overtaken_by_one_that_saw_more_finds_no_loss(growth: tuple[str, Any], accept_losses: bool) -> None:
    overtaken = overtaken_at("planned", growth, accept_losses=accept_losses)
    world = outcome(("produce", (0, ["good"])), NEXT, ("produce", (0, ["good"])), overtaken)
    assert not world.violations
    assert not world.reported["stopped by losses"]


@pytest.mark.parametrize("regrown", [1, 2, 4])
@pytest.mark.parametrize("second", [False, True])
def test_a_log_that_was_cut_off_before_the_position_is_gone_on_with_at_the_cut(regrown: int, second: bool) -> None:
    """Whether the log ends before the position by then, at it, or beyond it, and if it was cut off twice."""
    world = World()
    world.mended |= {"first", "regrown", "again"}
    world.do("produce", (0, ["first"] * 5))
    world.run(NEXT)
    world.do("cut", (0, 3, ["regrown"] * regrown))
    if second:
        world.do("cut", (0, 4, ["again"] * regrown))
    assert world.run(replace(NEXT, accept_losses=False)) is None
    assert world.reported["stopped by losses"] == 1
    world.run(NEXT)
    assert world.reported["recorded cuts"] == 1
    world.finish()
    assert not world.violations
    held = [record.kind for record in world.view(TABLE).content()]
    assert held.count("regrown") == (1 if second else regrown)
    assert held.count("again") == (regrown if second else 0)
    assert world.reported["stopped by losses"] == 1


def test_a_log_that_was_cut_off_at_the_position_has_lost_nothing() -> None:
    world = World()
    world.do("produce", (0, ["good"] * 3))
    world.run(NEXT)
    world.do("cut", (0, 3, ["good"]))
    assert world.run(replace(NEXT, accept_losses=False)) is not None
    world.do("cut", (0, 4, []))
    world.finish()
    assert not world.violations
    assert not world.reported["recorded cuts"]


def test_restored_log_that_outgrew_the_position_is_refused() -> None:
    world = World()
    world.mended |= {"lost", "regrown"}
    world.do("produce", (0, ["good", "good", "good", "lost", "lost"]))
    world.run(NEXT)
    world.do("restore", (0, 3, ["regrown"] * 2))
    assert world.run(replace(NEXT, accept_losses=False)) is not None, "nothing is new, and so nothing is looked at"
    world.do("produce", (0, ["regrown"]))
    assert world.run(replace(NEXT, accept_losses=False)) is None
    assert world.reported["stopped by losses"] == 1
    world.run(NEXT)
    assert world.reported["recorded replacements"] == 1
    world.finish()
    assert not world.violations
    kinds = [record.kind for record in world.view(TABLE).content()]
    assert Counter(kinds) == {"good": 4, "lost": 2, "regrown": 1}
    assert world.reported["stopped by losses"] == 1


def test_letters_published_while_others_are_settled_stay() -> None:
    world = outcome(
        ("produce", (0, ["bad-0"])),
        dying_at("dead letters published"),
        ("mend", "bad-0"),
        dying_at("table published"),
        overtaken_at("before commit", ("produce", (0, ["bad-1"]))),
    )
    assert not world.violations


def test_letters_are_settled_time_and_again() -> None:
    dying = replace(dying_at("table published"), what="dead_letter_replay")
    first, second = ((("produce", (0, [kind])), NEXT, ("mend", kind), dying, NEXT) for kind in ("bad-0", "bad-1"))
    world = outcome(*first, *second)
    assert not world.violations
    assert not world.view(LETTERS).content()


@pytest.mark.parametrize("more", [False, True])
def test_letters_come_back_with_a_rollback_of_the_rows_that_they_became(more: bool) -> None:
    """And go again once they are decoded again; other letters that came meanwhile are where they were."""
    world = World()
    for step in (GOOD, BAD, NEXT, ("mend", "bad-0"), Attempt("dead_letter_replay")):
        world.run(step) if isinstance(step, Attempt) else world.do(*step)
    assert not world.view(LETTERS).content()
    if more:
        world.do("produce", (0, ["bad-1"]))
    world.do("roll back", 1)
    assert not {r.kind for r in world.view(TABLE).content()} & {"bad-0"}
    world.run(NEXT)
    assert sorted(r.kind for r in world.view(LETTERS).content()) == ["bad-0", *["bad-1"] * more]
    world.run(Attempt("dead_letter_replay"))
    assert [r.kind for r in world.view(LETTERS).content()] == ["bad-1"] * more
    world.do("expire", (LETTERS, 1))
    assert read_state(world.view(LETTERS)).position is not None, "it knows how far it is though all before is gone"
    assert Counter(r.kind for r in world.view(TABLE).content()) == {"good": 1, "bad-0": 1}
    world.finish()
    assert not world.violations


def test_letters_come_back_when_a_second_rollback_goes_further() -> None:
    world = World()
    world.do("produce", (0, ["bad-0"]))
    world.run(NEXT)
    world.do("mend", "bad-0")
    for attempt in (Attempt("dead_letter_replay"), Attempt("dead_letter_replay")):
        world.run(attempt)
    for back in (1, 2):
        world.do("roll back", back)
        world.do(*GOOD)
        world.run(NEXT)
    world.finish()
    assert not world.violations


def test_letters_from_the_position_on_are_not_delivered() -> None:
    world = World()
    for step in (GOOD, NEXT, BAD, NEXT, ("roll back", 1), ("mend", "bad-0"), Attempt("dead_letter_replay")):
        outcome_of = world.run(step) if isinstance(step, Attempt) else world.do(*step)
    assert outcome_of is not None
    assert [record.kind for record in world.view(TABLE).content()] == ["good"]
    world.finish()
    assert not world.violations


# Another program may let all snapshots expire that have a position.
FORGET = (("compact", LETTERS), ("expire", (LETTERS, 1)))


@pytest.mark.parametrize("happened", [(("recreate", None), BAD, NEXT), (BAD, NEXT, *FORGET)])
def test_letters_that_will_be_read_again_are_not_delivered(happened: Any) -> None:
    history = (GOOD, NEXT, *happened, ("roll back", 1), ("mend", "bad-0"), Attempt("dead_letter_replay"))
    assert not outcome(*history).violations


def test_letters_of_a_deleted_topic_are_delivered() -> None:
    history = (BAD, NEXT, ("recreate", None), GOOD, NEXT, ("mend", "bad-0"), Attempt("dead_letter_replay"))
    world = outcome(*history)
    assert not world.violations
    assert not world.view(LETTERS).content()


def test_letters_stay_known_after_their_positions_expired() -> None:
    before = (("add partition", None), GOOD, NEXT, BAD, NEXT, *FORGET, ("roll back", 1))
    history = (*before, ("produce", (1, ["bad-1"])), Attempt(partitions=frozenset({1})), NEXT)
    assert not outcome(*history).violations


def test_position_that_another_program_expired_is_recovered_from_rows() -> None:
    world = World()
    world.do("produce", (0, ["good", "good"]))
    world.run(NEXT)
    for step in (("compact", TABLE), ("expire", (TABLE, 1)), ("compact", TABLE)):
        world.do(*step)
    assert not read_state(world.view(TABLE)).positions
    world.finish()
    assert not world.violations


def test_letters_that_still_do_not_fit_keep_their_place_when_they_are_delivered() -> None:
    world = outcome(BAD, ("produce", (0, ["bad-1"])), NEXT, ("mend", "bad-0"), Attempt("dead_letter_replay"))
    assert not world.violations
    assert [r.kind for r in world.view(LETTERS).content()] == ["bad-1"]


def test_letters_that_still_do_not_fit_are_written_again() -> None:
    """Their errors may be other ones."""
    world = World()
    for step in (BAD, ("produce", (0, ["bad-1"])), NEXT, ("mend", "bad-0"), Attempt("dead_letter_replay")):
        world.run(step) if isinstance(step, Attempt) else world.do(*step)
    letters: Any = world.view(LETTERS)
    assert [record.kind for record in letters.content()] == ["bad-1"]
    written, *before = ancestors(letters, head_of(letters))
    assert summary_of(written)["added-records"] == "1"
    assert summary_of(written)[RECONCILED_FROM] == str(before[1].snapshot_id), "before the deletion"
    assert summary_of(written)[KIND] == RECONCILE


def test_branch_of_a_killed_reconciliation_names_its_head() -> None:
    """A clean-up knows by it whether the branch can still be published."""
    world = World()
    dying = replace(dying_at("dead letters reconciled"), what="dead_letter_replay")
    for step in (BAD, NEXT, ("mend", "bad-0"), dying):
        world.run(step) if isinstance(step, Attempt) else world.do(*step)
    letters: Any = world.view(LETTERS)
    [(name, (_, head))] = staging_branches(letters).items()
    assert head == head_of(letters)
    assert name.endswith("_settle")


def test_an_older_schema_leaves_no_letters_of_records_that_are_rows() -> None:
    world = outcome(
        ("produce", (0, ["bad-0"])),
        overtaken_at("audited", ("mend", "bad-0"), by=dying_at("table published")),
    )
    assert not world.violations


def test_letters_are_delivered_from_a_table_whose_maker_died() -> None:
    world = World()
    world.do("produce", (0, ["good"]))
    world.run(NEXT)
    world.do("produce", (0, ["bad-0"]))
    world.run(dying_at("after create table"))
    assert world.run(Attempt("dead_letter_replay")) is not None


@pytest.mark.parametrize("nth", [1, 2, 3])
def test_first_run_survives_a_commit_that_fails(nth: int) -> None:
    world = World()
    world.do("produce", (0, ["bad-poison"]))
    world.run(Attempt(events=(Event("before commit", nth, "fail"),)))
    assert world.reported["fail"] == 1
    world.finish()
    assert not world.violations


def test_a_publication_without_an_answer_is_a_commit() -> None:
    world = World()
    world.do(*GOOD)
    world.run(NEXT)
    world.do(*GOOD)
    report = world.run(Attempt(events=(Event("after publish", 1, "fail"),)))
    assert [commit.rows for commit in report.commits] == [1]
    world.finish()
    assert not world.violations


@pytest.mark.parametrize("keep", [False, True])
def test_rows_whose_records_kafka_compacted_away_stay_when_they_are_read_again(keep: bool) -> None:
    world = World()
    world.do("produce", (0, ["good"] * 3))
    world.run(NEXT)
    rows = sorted(world.view(TABLE).content())
    world.log[0][1] = None
    world.forgotten.add(rows[1])
    report = world.run(Attempt("replay", accept_losses=keep))
    assert sorted(world.view(TABLE).content()) == rows
    if keep:
        assert report is not None
        world.finish()
        assert not world.violations
    else:
        assert len(world.violations) == 1
        assert "partition 0 has 1 rows that Kafka no longer has, the first at offset 1" in world.violations[0]


def reading_on(patch: pytest.MonkeyPatch) -> None:
    """Read one record more than was asked for."""
    read = World.read

    def more(world: World, ranges: Sequence[OffsetRange]) -> list[Record]:
        return read(world, [OffsetRange(r.partition, r.start, r.end + 1) for r in ranges])

    patch.setattr(World, "read", more)


def losing_a_row(patch: pytest.MonkeyPatch) -> None:
    writing(patch, lambda rows: rows[1:])


def writing_a_row_in_place_of_another(patch: pytest.MonkeyPatch) -> None:
    writing(patch, lambda rows: [*rows[1:], rows[-1]])


def writing(patch: pytest.MonkeyPatch, what: Callable[[list[Record]], list[Record]]) -> None:
    write = SimulatedDecoding.write

    def other(decoding: SimulatedDecoding, *given: Any) -> Written:
        written = write(decoding, *given)
        return replace(written, files=tuple(what(list(written.files))))

    patch.setattr(SimulatedDecoding, "write", other)


@pytest.mark.parametrize("fault", [reading_on, losing_a_row, writing_a_row_in_place_of_another])
def test_what_the_engine_does_wrong_is_not_published(fault: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.do(*GOOD)
    world.run(NEXT)
    world.do("produce", (0, ["good"] * 3))
    before = world.view(TABLE)
    fault(monkeypatch)
    assert world.run(Attempt(limit=2)) is None
    assert all("failed: CheckFailedError" in violation for violation in world.violations)
    assert world.violations
    assert world.view(TABLE).metadata.refs == before.metadata.refs, "nothing is published, and nothing left behind"


def no_check(patch: pytest.MonkeyPatch, world: World) -> None:
    """Move ``main``, whatever it is by then."""
    publish_by(patch, world, lambda head, staged: True)


def ancestors_only(patch: pytest.MonkeyPatch, world: World) -> None:
    """Move ``main`` as Iceberg's ``fast_forward`` does: to any snapshot that it is an ancestor of."""

    def may(head: int | None, staged: int) -> bool:
        return head in {s.snapshot_id for s in ancestors(world.view(TABLE), staged)}  # type: ignore[arg-type]

    publish_by(patch, world, may)


def publish_by(patch: pytest.MonkeyPatch, world: World, may: Callable[[int | None, int], bool]) -> None:
    def publish(branch: StagingBranch, staged: int, *_: Any) -> None:
        if not may(head_of(world.view(branch.identifier)), staged):  # type: ignore[arg-type]
            raise PublishRefusedError("main is not an ancestor of the branch")
        world.change_refs(branch.identifier, {}, {"main": staged, branch.name: None})

    patch.setattr(StagingBranch, "publish", publish)


def expiry_without_an_age(patch: pytest.MonkeyPatch, world: World) -> None:
    """Expire what was staged, and with it all that is older than a table keeps by default."""
    call = SimulatedCatalog.call

    def ageless(catalog: SimulatedCatalog, procedure: str, *table: Any, older_than: str = "", **arguments: str) -> str:
        return call(catalog, procedure, *table, **arguments)

    patch.setattr(SimulatedCatalog, "call", ageless)


def late_branch(patch: pytest.MonkeyPatch, world: World) -> None:
    """Begin the branch at whatever the head is by then, instead of the head that the position was read from."""
    create, written = StagingBranch.create, StagingBranch.written

    def late(branch: StagingBranch) -> None:
        branch.head = head_of(world.view(branch.identifier)) or branch.head  # type: ignore[arg-type]
        create(branch)

    patch.setattr(StagingBranch, "create", late)
    # A write that goes elsewhere than was planned would be noticed too.
    patch.setattr(StagingBranch, "written", lambda branch, _: written(branch, branch.head))


def known_dead_letters_ignored(patch: pytest.MonkeyPatch, world: World) -> None:
    """Find no letter of what is read, whatever the dead-letter table has."""
    patch.setattr(SimulatedFrames, "within_topic", lambda _, letters, *__: letters.limit(0))


def letters_go_back(patch: pytest.MonkeyPatch, world: World) -> None:
    """Let the dead letters carry the position of the rows that are staged with them, however far they have been."""
    option = Writer.option

    def back(writer: Writer, key: str, value: str) -> Writer:
        if key.endswith(STAGED_WITH):
            rows = world.tables[TABLE].by_id[int(value)]
            option(writer, key.replace(STAGED_WITH, POSITION), summary_of(rows)[POSITION])  # type: ignore[arg-type]
        return option(writer, key, value)

    patch.setattr(Writer, "option", back)


def publish_again(patch: pytest.MonkeyPatch, world: World) -> None:
    """After a publication without an answer, put the same rows on top of what is there."""
    publish_once = StagingBranch.publish

    def publish(branch: StagingBranch, staged: int, *_: Any) -> None:
        unanswered, known = world.reported["fail"], world.tables[branch.identifier].by_id
        publish_once(branch, staged)
        if world.reported["fail"] > unanswered:
            added = Counter(known[staged].content) - Counter(known[branch.head].content)
            held = world.view(branch.identifier).content()
            properties = known[staged].summary.additional_properties
            carried = {key: value for key, value in properties.items() if key.startswith("kafka-lake")}
            world.commit(branch.identifier, "main", (*held, *added.elements()), added.total(), carried)

    patch.setattr(StagingBranch, "publish", publish)


def reconciled_nothing(patch: pytest.MonkeyPatch, world: World) -> None:
    patch.setattr(pipeline, "reconcile", lambda *_, **__: 0)


def looked_elsewhere(patch: pytest.MonkeyPatch, world: World) -> None:
    """Reconcile, but look for letters where the marked commits wrote nothing."""
    patch.setattr(SimulatedFrames, "places", lambda *_: [])


# Each way to break the protocol with a history that shows it; the real protocol, with all its parts, passes them all.
SABOTAGES = {
    ancestors_only: (GOOD, NEXT, GOOD, NEXT, GOOD, rolled_back_at("audited")),
    expiry_without_an_age: (GOOD, NEXT, GOOD, NEXT, GOOD, rolled_back_at("audited")),
    no_check: (
        ("add partition", None),
        GOOD,
        ("produce", (1, ["good"])),
        NEXT,
        GOOD,
        ("produce", (1, ["good"])),
        overtaken_at(
            "table staged",
            by=replace(dying_at("table published"), partitions=frozenset({1})),
            partitions=frozenset({0}),
        ),
    ),
    late_branch: (GOOD, NEXT, GOOD, overtaken_at("planned")),
    known_dead_letters_ignored: (BAD, dying_at("dead letters published")),
    letters_go_back: (
        ("add partition", None),
        BAD,
        dying_at("dead letters published"),
        ("produce", (1, ["bad-1"])),
        Attempt(partitions=frozenset({1})),
    ),
    reconciled_nothing: (BAD, dying_at("dead letters published"), ("mend", "bad-0"), NEXT),
    looked_elsewhere: (BAD, dying_at("dead letters published"), ("mend", "bad-0"), NEXT),
    publish_again: (GOOD, NEXT, GOOD, Attempt(events=(Event("after publish", 1, "fail"),))),
}


@pytest.mark.parametrize("sabotage", SABOTAGES)
def test_a_broken_protocol_shows(sabotage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not outcome(*SABOTAGES[sabotage]).violations
    world = World()
    sabotage(monkeypatch, world)
    found = outcome(*SABOTAGES[sabotage], world=world).violations
    assert any(re.search("times|is in both|is nowhere|has vanished|is back|has expired", problem) for problem in found)


# Those that a few random histories are enough for; the others take some hundred.
@pytest.mark.slow
@pytest.mark.parametrize("sabotage", [known_dead_letters_ignored, reconciled_nothing])
def test_random_histories_find_a_broken_protocol(sabotage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # Neither of them looks at the world.
    sabotage(monkeypatch, World())
    with pytest.raises(AssertionError, match=r"times|is in both|the last run has left"):
        run_state_machine_as_test(Histories, settings=settings(HISTORIES, max_examples=300, phases=[Phase.generate]))
