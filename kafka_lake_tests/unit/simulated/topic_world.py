"""A topic with several tables, and what must hold of each of them at every moment."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyiceberg.table.snapshots import Operation

from kafka_lake.catalog.positions import LOSSES, OFFSETS, POSITION, RUN_ID, ancestors, head_of, offsets_of, read_state
from kafka_lake.common.offsets import OffsetRange, Position, losses_from_json
from kafka_lake.dead_letters.pending import Pending, pending_reconciliation
from kafka_lake.errors import DataLossError, KafkaLakeError, PublishRefusedError
from kafka_lake.ingest.report import RunReport
from kafka_lake.ingest.topic_runner import LeftBehindError, TopicRunner
from kafka_lake.maintenance.clean import sweep
from kafka_lake.runtime.commit import CheckFailedError
from kafka_lake.runtime.context import Context
from kafka_lake.spec.topic_table import Route, TopicTable, Unmatched, When
from kafka_lake_tests.unit.simulated.catalog import View
from kafka_lake_tests.unit.simulated.history import TABLE, UNROUTABLE, Attempt, Record
from kafka_lake_tests.unit.simulated.history import Unmatched as UnmatchedRecord
from kafka_lake_tests.unit.simulated.process import Process, job_of, spec_of
from kafka_lake_tests.unit.simulated.world import World

MOST_STEPS = 3_000
OTHER = TABLE[1]
"""The table without a condition."""


class EndlessError(BaseException):
    """A run takes steps without end."""


@dataclass(frozen=True)
class Conditions:
    """Which tables a topic has, and which types of records each takes; `OTHER` takes what no other table takes.

    Args:
        types: By the names of tables.
        own: Which types `OTHER` takes, if it has a condition, too; None if it has none.
        unmatched: What becomes of records that no table takes.
    """

    types: tuple[tuple[str, frozenset[str]], ...]
    own: frozenset[str] | None = None
    unmatched: Unmatched = "dead_letter"

    @property
    def names(self) -> tuple[str, ...]:
        return (OTHER, *(name for name, _ in self.types))

    def takers(self, kind: str) -> tuple[str, ...]:
        state, _, its = kind.partition("/")
        if state == UNROUTABLE:
            return (OTHER,)
        found = [name for name, types in self.types if its in types]
        if self.own is not None:
            found = [OTHER, *found] if its in self.own else found
        return tuple(found) or (() if self.own is not None else (OTHER,))

    def is_unmatched(self, kind: str) -> bool:
        return self.own is not None and not self.takers(kind)

    def spec(self, attempt: Attempt) -> TopicTable:
        own = spec_of(attempt)
        routes = (
            Route(When(header="type", values=tuple(sorted(types))), replace(own, table=name))
            for name, types in self.types
        )
        where = When(header="type", values=tuple(sorted(self.own))) if self.own is not None else None
        return replace(own, routes=tuple(routes), where=where, unmatched=self.unmatched)


def refusal(name: str) -> str:
    return f"Table {name} refuses the records."


class TopicProcess(Process):
    """A process that runs over the topic as its settings were when it began."""

    def __init__(self, world: "TopicWorld", attempt: Attempt) -> None:
        super().__init__(world, attempt)
        self.topic_world, self.conditions = world, world.conditions
        self.steps = 0

    def context(self, run_id: str) -> Context:
        context = super().context(run_id)
        # Steps of the tables with a condition have the table in front.
        observer = replace(context.observer, step_done=lambda step: self.pass_by(step.rpartition(": ")[2]))
        return replace(context, spec=self.conditions.spec(self.attempt), observer=observer)

    def pass_by(self, place: str) -> None:
        self.steps += 1
        if self.steps > MOST_STEPS:
            raise EndlessError(place)
        super().pass_by(place)

    def evolve(self, identifier: tuple[str, str]) -> None:
        if identifier[1] in self.topic_world.refusing:
            raise CheckFailedError(refusal(identifier[1]), [], table=identifier)


class TopicWorld(World):
    """The log, the catalog and the topic's settings. What each table has passed is noted snapshot by snapshot."""

    def __init__(self, conditions: Conditions) -> None:
        super().__init__()
        self.conditions = conditions
        self.refusing: set[str] = set()
        self.by_run: dict[str, Conditions] = {}
        # Until a replay is done, what it moves may be in both tables or in none.
        self.replayed: set[Conditions] = set()
        self.reached: dict[int, dict[int, int]] = {}
        self.passed: dict[int, dict[tuple[int, int], Conditions | None]] = {}
        self.wrong: dict[int, list[str]] = {}
        self.reads = 0

    # The topic and its tables

    def read(self, ranges: Sequence[OffsetRange]) -> list[Record]:
        self.reads += 1
        return super().read(ranges)

    def commit(
        self,
        identifier: tuple[str, str],
        branch: str,
        content: Sequence[Record],
        added: int = 0,
        properties: dict[str, str] | None = None,
        operation: Operation = Operation.APPEND,
    ) -> None:
        super().commit(identifier, branch, content, added, properties, operation)
        if identifier[1].endswith("__dead_letters"):
            return
        snapshot = self.tables[identifier].by_id[self._ids]
        before, reported = snapshot.parent_snapshot_id or 0, properties or {}
        reached, passed = dict(self.reached.get(before, {})), dict(self.passed.get(before, {}))
        # A snapshot that is staged where another run has been meanwhile is never published.
        wrong = list(self.wrong.get(before, ()))
        if POSITION in reported:
            for partition, end in Position.from_json(reported[POSITION]).offsets.items():
                # Kafka may have deleted records since they were read.
                read = (record.offset for record in content if record.partition == partition)
                start = reached.get(partition, min((self.low[partition], *read)))
                passed |= {(partition, offset): self.by_run[reported[RUN_ID]] for offset in range(start, end)}
                if end < reached.get(partition, 0):
                    wrong.append(f"{identifier[1]} went back to {end} in partition {partition}")
                reached[partition] = end
            for r in offsets_of(reported.get(OFFSETS, "")):
                passed |= {(r.partition, offset): self.by_run[reported[RUN_ID]] for offset in range(r.start, r.end)}
            for loss in losses_from_json(reported.get(LOSSES, "[]")):
                if loss.reason != "retention" or loss.end is None or loss.end > self.low[loss.partition]:
                    wrong.append(f"{loss} was recorded, the log begins at {self.low}")
                passed |= {(loss.partition, offset): None for offset in range(loss.start, loss.end or 0)}
        self.reached[self._ids], self.passed[self._ids], self.wrong[self._ids] = reached, passed, wrong

    def roll_back(self, argument: Any) -> None:
        """Set ``main`` of a table to the snapshot before it."""
        identifier = (TABLE[0], argument)
        view = self.view(identifier)
        history = [s.snapshot_id for s in ancestors(view, head_of(view)) if s.snapshot_id in self.heads]  # type: ignore[arg-type]
        if len(history) > 1:
            self.rolling_back = True
            self.rolled_away.add(history[0])
            self.set_ref(identifier, "main", history[1])
            self.rolling_back = False

    def drop(self, name: str, with_letters: bool) -> None:
        """Drop a table, with its dead letters or without."""
        self.tables.pop((TABLE[0], name), None)
        if with_letters:
            self.tables.pop((TABLE[0], f"{name}__dead_letters"), None)

    def do(self, action: str, argument: Any) -> None:
        if action == "conditions":
            self.reported[action] += 1
            self.conditions = argument
        elif action == "refuse":
            self.reported[action] += 1
            self.refusing ^= {argument}
        elif action == "drop":
            self.reported[action] += 1
            self.drop(*argument)
        else:
            super().do(action, argument)

    # Runs

    def process(self, attempt: Attempt) -> Process:
        return TopicProcess(self, attempt)

    def perform(self, process: Process, run_id: str) -> RunReport | None:
        attempt, context = process.attempt, process.context(run_id)
        self.by_run[run_id] = self.conditions
        if attempt.what == "replay":
            self.replayed.add(self.conditions)
        try:
            return TopicRunner(context, lambda item: job_of(attempt, item)).run()
        except LeftBehindError as error:
            self.reported["tables left"] += 1
            self._check_left(attempt, error)
            return None
        except EndlessError:
            self.violations.append(f"{attempt} doesn't end")
            return None
        finally:
            if not process.dead and process.views:
                self.violations.append(f"{attempt} has left {len(process.views)} frames in Spark's memory")

    def _check_left(self, attempt: Attempt, left: LeftBehindError) -> None:
        for table, error in left.errors.items():
            name = table.partition(".")[2]
            is_asked_for = isinstance(error, CheckFailedError) and error.message == refusal(name)
            is_loss = isinstance(error, DataLossError) and not attempt.accept_losses
            is_overtaken = isinstance(error, PublishRefusedError) and attempt.events
            said = str(error) if isinstance(error, KafkaLakeError) else ""
            is_without = "has no partition" in said or (attempt.what == "replay" and "has no position" in said)
            if not (is_asked_for or is_loss or is_overtaken or is_without):
                self.violations.append(f"{attempt} left {name}: {type(error).__name__}: {error}")
        if not attempt.events and attempt.what == "ingest":
            stayed = {table.partition(".")[2] for table in left.errors}
            self._check_ends(set(self.conditions.names) - stayed, attempt.partitions)

    def _check_ends(self, names: set[str], partitions: frozenset[int] | None) -> None:
        ends = {p: end for p, end in self.watermarks().end.items() if partitions is None or p in partitions}
        for name in sorted(names):
            reached = self.position(name)
            if any(reached.get(p, 0) != end for p, end in ends.items()):
                self.violations.append(f"{name} is at {dict(reached)}, and the topic ends at {ends}")

    def finish(self) -> None:
        """Run once more, undisturbed, and check that each record is where its conditions say, and the run left nothing.

        A second run has nothing to do.
        """
        self.late.clear()
        self.refusing.clear()
        self.produce(0, ["good/a"])
        if self.run(Attempt()) is None:
            self.violations.append("the last run has failed")
        self._check_ends(set(self.conditions.names), None)
        self.check()
        for name in self.conditions.names:
            if due := self.due(name):
                self.violations.append(f"the last run has left {due} of {name}")
        connections = Process(self, Attempt()).connections()
        for spec in self.conditions.spec(Attempt()).tables:
            if left := sweep(spec, connections):
                self.violations.append(f"the last run has left {left}")
        reads, snapshots = self.reads, self._ids
        self.run(Attempt())
        if (self.reads, self._ids) != (reads, snapshots):
            self.violations.append("a run without anything to do has read, or written")
        self.run(Attempt("replay"))
        self._check_replayed()

    def _check_replayed(self) -> None:
        """Check that what Kafka has is where the conditions say by now, whatever they said before."""
        for name in self.conditions.names:
            view = [self.view((TABLE[0], table_name)).content() for table_name in (name, f"{name}__dead_letters")]
            rows, letters = ({item[:2] for item in held} for held in view)
            for partition, kinds in self.log.items():
                for offset, kind in enumerate(kinds):
                    if kind is None or offset < self.low[partition]:
                        continue
                    record = Record(partition, offset, kind)
                    is_its, fits = name in self.conditions.takers(kind), record.state in {"good", *self.mended}
                    is_unmatched = name == OTHER and self.conditions.is_unmatched(kind)
                    is_unmatched &= self.conditions.unmatched == "dead_letter"
                    is_letter = is_unmatched or (is_its and not fits)
                    expected = (is_its and fits, is_letter and record.state != "tombstone")
                    found = (record[:2] in rows, record[:2] in letters)
                    if found != expected:
                        self.violations.append(f"after a replay {record} is in {name}: {found}, expected {expected}")

    # What must hold

    def position(self, name: str) -> Mapping[int, int]:
        position = read_state(self.view((TABLE[0], name))).position  # type: ignore[arg-type]
        return position.offsets if position else {}

    def due(self, name: str) -> Pending | None:
        """Return what the next run reconciles of a table before anything else."""
        its = [(TABLE[0], name), (TABLE[0], f"{name}__dead_letters")]
        if not {*its} <= set(self.tables):
            return None
        table, letters = (read_state(self.view(item)) for item in its)  # type: ignore[arg-type]
        return pending_reconciliation(table, letters)

    def is_due(self, name: str) -> bool:
        """Return whether the next run brings letters back: the rows that they became were rolled back."""
        due = self.due(name)
        return due is not None and due.restore is not None

    def moved(self, identifier: tuple[str, str], before: View) -> None:
        if identifier[1].endswith("__dead_letters"):
            return
        now = self.view(identifier)
        self.heads.add(head_of(now))  # type: ignore[arg-type]
        self.violations += self.wrong.get(head_of(now) or 0, ())  # type: ignore[arg-type]
        back = self.rolled_away & {s.snapshot_id for s in ancestors(now, head_of(now))}  # type: ignore[arg-type]
        self.violations += [f"snapshot {snapshot} was rolled back and is back" for snapshot in sorted(back)]
        if not self.rolling_back:
            passed, name = self.passed.get(head_of(now) or 0, {}), identifier[1]  # type: ignore[arg-type]
            gone = {
                record
                for record in set(before.content()) - set(now.content())
                # A replay moves rows to the tables that take them by now.
                if (its := passed.get(record[:2])) is None or name in its.takers(record.kind)
            }
            self.violations += [f"{record} has vanished from {identifier[1]}" for record in sorted(gone)]

    def check(self) -> None:
        """Note what readers must never see, and see now."""
        found = [
            problem
            for namespace, name in sorted(self.tables)
            if not name.endswith("__dead_letters")
            for problem in self._problems((namespace, name))
        ]
        self.violations += found

    def _problems(self, identifier: tuple[str, str]) -> Iterator[str]:
        name, view = identifier[1], self.view(identifier)
        rows, letters = (Counter(self.view((TABLE[0], item)).content()) for item in (name, f"{name}__dead_letters"))
        yield from (f"{record} is in {name} {n} times" for record, n in rows.items() if n > 1)
        yield from (f"{record} is in the dead letters of {name} {n} times" for record, n in letters.items() if n > 1)
        log = {(p, o): Record(p, o, kind) for p, kinds in self.log.items() for o, kind in enumerate(kinds) if kind}
        yield from (f"{key} is nowhere in the log" for key in rows.keys() | letters.keys() if log[key[:2]] != key)
        yield from (f"{row} is no row" for row in rows if row.state not in {"good", *self.mended})
        yield from (
            f"{letter} is no dead letter"
            for letter in letters
            if not (letter.state.startswith("bad") or (name == OTHER and isinstance(letter, UnmatchedRecord)))
        )
        is_due, passed = self.is_due(name), self.passed.get(head_of(view) or 0, {})  # type: ignore[arg-type]
        yield from (f"{row} is in {name}, which hasn't come to it" for row in rows if row[:2] not in passed)
        for place, conditions in passed.items():
            record = log.get(place)
            if record is None or conditions is None:
                continue
            said = {conditions, *self.replayed}
            is_letter = name == OTHER and all(c.is_unmatched(record.kind) for c in said)
            is_letter &= {c.unmatched for c in said} == {"dead_letter"}
            if is_letter and record.state != "tombstone" and not letters[record] and not is_due:
                yield f"{record} is taken by no table, and is no dead letter"
            is_its = name in conditions.takers(record.kind)
            if not is_its and record in rows:
                yield f"{record} is in {name}, which doesn't take it"
            is_still = all(name in c.takers(record.kind) for c in said)
            if is_still and not is_due and record.state != "tombstone" and not rows[record] and not letters[record]:
                yield f"{record} lies before the position {dict(self.position(name))} of {name} and is nowhere"
