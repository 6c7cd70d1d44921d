"""The log and the catalog that all processes share."""

import re
from collections import Counter
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import tenacity
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException
from pyiceberg.table.snapshots import Operation
from pyspark.errors import PySparkException

from kafka_lake.catalog.positions import LOSSES, ancestors, head_of, read_state, summary_of
from kafka_lake.common.offsets import losses_from_json
from kafka_lake.dead_letters.pending import Pending, pending_reconciliation
from kafka_lake.errors import DataLossError, KafkaLakeError, PublishRefusedError
from kafka_lake.ingest.topic_runner import TopicRunner
from kafka_lake.maintenance.clean import sweep
from kafka_lake.runtime.context import ignore
from kafka_lake_tests.unit.simulated.catalog import View
from kafka_lake_tests.unit.simulated.history import (
    LETTERS,
    TABLE,
    Attempt,
    Killed,
    Metadata,
    Poison,
    Record,
    Ref,
    Snapshot,
    identity_of,
)
from kafka_lake_tests.unit.simulated.log import Log
from kafka_lake_tests.unit.simulated.process import Process, job_of, spec_of


class World(Log):
    """The log and the catalog that all processes share, and what must hold of them at every moment."""

    def __init__(self) -> None:
        super().__init__()
        self.mended: set[str] = set()
        self.tables: dict[tuple[str, str], Metadata] = {}
        self.losses: set[tuple[str, int, int, int]] = set()
        self.unknowable: dict[tuple[str, int], int] = {}
        self.heads: set[int | None] = set()
        self.rolled_away: set[int] = set()
        self.rolling_back = False
        self.late: list[list[Any]] = []
        self.violations: list[str] = []
        self.reported: Counter[str] = Counter()
        self._ids = self._runs = 0

    @property
    def logs(self) -> dict[str, Log]:
        """Return the logs of the table's topics."""
        return {self.topic: self}

    # Iceberg

    def view(self, identifier: tuple[str, str]) -> View:
        return View(identifier, lambda: self.tables.get(identifier))

    def commit(
        self,
        identifier: tuple[str, str],
        branch: str,
        content: Sequence[Record],
        added: int = 0,
        properties: dict[str, str] | None = None,
        operation: Operation = Operation.APPEND,
    ) -> None:
        """Add a snapshot to a branch; one that doesn't exist begins where ``main`` is, as in Iceberg."""
        metadata = self.tables[identifier]
        tip = metadata.refs.get(branch) or metadata.refs.get("main")
        self._ids += 1
        summary = {"total-records": str(len(content)), "added-records": str(added), **(properties or {})}
        snapshot = Snapshot(
            self._ids,
            tip.snapshot_id if tip else None,
            self._ids,
            1_790_000_000_000 + self._ids,
            SimpleNamespace(additional_properties=summary, operation=operation),
            tuple(content),
        )
        self._replace(identifier, {**metadata.refs, branch: self._ids}, {**metadata.by_id, self._ids: snapshot})

    def set_ref(self, identifier: tuple[str, str], name: str, snapshot: int | None) -> None:
        metadata = self.tables[identifier]
        refs = {key: value for key, value in metadata.refs.items() if key != name}
        self._replace(identifier, refs | ({} if snapshot is None else {name: snapshot}), metadata.by_id)

    def change_refs(
        self, identifier: tuple[str, str], expected: dict[str, int | None], wanted: dict[str, int | None]
    ) -> None:
        """Let refs point elsewhere, or remove those that shall be None, if each is what was expected."""
        metadata = self.tables[identifier]
        found = {name: getattr(metadata.refs.get(name), "snapshot_id", None) for name in expected}
        if found != expected:
            raise CommitFailedException(f"Requirement failed: expected {expected}, found {found}")
        if unknown := {snapshot for snapshot in wanted.values() if snapshot is not None} - set(metadata.by_id):
            raise ValueError(f"Cannot set a ref to unknown snapshot {unknown}")
        refs = {name: ref for name, ref in metadata.refs.items() if name not in wanted}
        self._replace(identifier, refs | {k: v for k, v in wanted.items() if v is not None}, metadata.by_id)

    def remove(self, identifier: tuple[str, str], snapshots: set[int]) -> None:
        metadata = self.tables[identifier]
        if referenced := snapshots & {ref.snapshot_id for ref in metadata.refs.values()}:
            raise PySparkException(f"Cannot expire {referenced}. Still referenced by refs")
        left = {key: value for key, value in metadata.by_id.items() if key not in snapshots}
        self._replace(identifier, metadata.refs, left)

    def expire_staged(self, identifier: tuple[str, str], snapshots: set[int], has_age: bool) -> None:
        """Expire snapshots by their ids; without an age, all that no ref needs go too, as old as everything is here."""
        view = self.view(identifier)
        history = {s.snapshot_id for s in ancestors(view, head_of(view))}  # type: ignore[arg-type]
        if not has_age:
            snapshots = snapshots | (set(view.metadata.by_id) - {r.snapshot_id for r in view.metadata.refs.values()})
        self.violations += [
            f"a run has expired snapshot {snapshot} of main" for snapshot in sorted(snapshots & history)
        ]
        self.remove(identifier, snapshots)

    def _replace(self, identifier: tuple[str, str], refs: dict[str, Any], by_id: dict[int, Snapshot]) -> None:
        before = self.view(identifier)
        refs = {k: Ref(v) if isinstance(v, int) else v for k, v in refs.items()}
        self.tables[identifier] = Metadata(refs, by_id)
        if head_of(self.view(identifier)) != head_of(before):  # type: ignore[arg-type]
            self.moved(identifier, before)
            self.check()

    def moved(self, identifier: tuple[str, str], before: View) -> None:
        """Note what is wrong with a move of a table's ``main``."""
        if identifier != TABLE:
            return
        now = self.view(TABLE)
        self.heads.add(head_of(now))  # type: ignore[arg-type]
        back = self.rolled_away & {s.snapshot_id for s in ancestors(now, head_of(now))}  # type: ignore[arg-type]
        self.violations += [f"snapshot {snapshot} was rolled back and is back" for snapshot in sorted(back)]
        self._note_losses(before)
        if not self.rolling_back:
            seen = {*self.view(TABLE).content(), *self.view(LETTERS).content()}
            self.violations += [f"{record} has vanished" for record in sorted(set(before.content()) - seen)]

    # What others do

    def compact(self, identifier: tuple[str, str]) -> None:
        if content := self.view(identifier).content():
            self.commit(identifier, "main", content, operation=Operation.REPLACE)

    def expire(self, identifier: tuple[str, str], keep: int) -> None:
        """Let all snapshots go but the newest of ``main`` and those that refs point to.

        Not while a commit waits to be reconciled: only that commit's snapshot has the mark that says so. Expiry with
        Iceberg's defaults keeps five days, and the next run reconciles.
        """
        if identifier not in self.tables or self.pending_reconciliation() is not None:
            return
        view = self.view(identifier)
        kept = {s.snapshot_id for s in list(ancestors(view, head_of(view)))[:keep]}  # type: ignore[arg-type]
        kept |= {ref.snapshot_id for ref in view.metadata.refs.values()}
        self.remove(identifier, set(view.metadata.by_id) - kept)

    def pending_reconciliation(self) -> Pending | None:
        """Return what the next run will reconcile before anything else."""
        if not {TABLE, LETTERS} <= set(self.tables):
            return None
        table, letters = (read_state(self.view(name)) for name in (TABLE, LETTERS))  # type: ignore[arg-type]
        return pending_reconciliation(table, letters)

    def roll_back(self, back: int) -> None:
        """Set ``main`` of the table to one of the snapshots before it.

        Not to one that ``main`` never was at: a replacement takes rows away and adds others in two snapshots that are
        published at once, and the one between them is a state that nobody promised anything about.
        """
        view = self.view(TABLE)
        history = [s.snapshot_id for s in ancestors(view, head_of(view)) if s.snapshot_id in self.heads]  # type: ignore[arg-type]
        if history:
            self.rolling_back = True
            to = history[min(back, len(history) - 1)]
            for ancestor in ancestors(view, head_of(view)):  # type: ignore[arg-type]
                if ancestor.snapshot_id == to:
                    break
                self.rolled_away.add(ancestor.snapshot_id)
            self.set_ref(TABLE, "main", to)
            self.rolling_back = False

    def do(self, action: str, argument: Any) -> None:
        """Do what isn't a run's own."""
        self.reported[action] += 1
        if action == "overtake":
            self.run(argument)
        elif action == "mend":
            self.mended.add(argument)
        elif action == "add partition":
            self.add_partition()
        elif action == "recreate":
            self.recreate()
        elif action == "roll back":
            self.roll_back(argument)
        elif action == "compact":
            self.compact(argument)
        else:
            actions: dict[str, Any] = {
                "produce": self.produce,
                "retain": self.retain,
                "expire": self.expire,
                "cut": self.cut,
                "restore": self.restore,
            }
            actions[action](*argument)

    # Runs

    def run(self, attempt: Attempt) -> Any:
        """Run to the end, whatever that is.

        Returns:
            The report; None if the run failed for a reason that it may fail for.
        """
        self._runs += 1
        process = self.process(attempt)
        name = f"run-{self._runs}"
        self.reported[attempt.what] += 1
        try:
            return self.perform(process, name)
        except Killed:
            self.reported["killed runs"] += 1
        except Exception as error:
            self.excuse(attempt, error)
        return None

    def excuse(self, attempt: Attempt, error: Exception) -> None:
        """Note a reason for which a run failed, if it is none that it may fail for."""
        if isinstance(error, DataLossError):
            self.reported["stopped by losses"] += 1
            if attempt.accept_losses and attempt.what == "ingest":
                self.violations.append(f"{attempt} was stopped by a loss although it was told to go on")
        elif isinstance(error, KafkaLakeError):
            self.reported[type(error).__name__] += 1
            bearable = isinstance(error, PublishRefusedError) and attempt.events
            impossible = "has no partition" if attempt.what == "ingest" else "has no position yet|has no partition"
            asked_for = re.search(impossible, str(error))
            if not bearable and not asked_for:
                self.violations.append(f"{attempt} failed: {type(error).__name__}: {error}")
        elif isinstance(error, CommitFailedException | CommitStateUnknownException | PySparkException):
            self.reported["failed runs"] += 1
            if not attempt.events:
                self.violations.append(f"{attempt} failed: {error}")
        elif isinstance(error, Poison):
            # A letter of that kind fails all that are delivered with it.
            self.reported["poisoned dead-letter replays"] += 1
            if attempt.what != "dead_letter_replay":
                self.violations.append(f"{attempt} was stopped by one record")
        else:
            self.violations.append(f"{attempt} failed: {type(error).__name__}: {error}")

    def process(self, attempt: Attempt) -> Process:
        """Return a process that makes an attempt."""
        return Process(self, attempt)

    def perform(self, process: Process, run_id: str) -> Any:
        """Run to the end in a process, and return the report."""
        context = process.context(run_id)
        return TopicRunner(context, lambda table: job_of(process.attempt, table)).run()

    def finish(self) -> None:
        """Run once more, undisturbed, and check that every record is in one place exactly once."""
        self.late.clear()
        for log in self.logs.values():
            log.produce(0, ["good"])
        self.run(Attempt(topics=tuple(self.logs)))
        rows, letters = (Counter(self.view(name).content()) for name in (TABLE, LETTERS))
        self.violations += [f"{record} is in both tables" for record in sorted((rows & letters).keys())]
        positions = read_state(self.view(TABLE)).positions  # type: ignore[arg-type]
        for topic, log in self.logs.items():
            position, ends = positions.get(topic), dict(log.watermarks().end)
            if position is None or position.offsets != ends:
                self.violations.append(f"the position is {position}, topic {topic} ends at {ends}")
        if due := self.pending_reconciliation():
            self.violations.append(f"the last run has left {due}")
        connections = Process(self, Attempt()).connections()
        if left := sweep(spec_of(Attempt()), connections):
            self.violations.append(f"the last run has left {left}")

    # What must hold

    def check(self) -> None:
        """Note what readers must never see, and see now."""
        found: list[str] = []
        rows, letters = (Counter(self.view(name).content()) for name in (TABLE, LETTERS))
        found += [f"{record} is in the table {n} times" for record, n in rows.items() if n > 1]
        found += [f"{record} is in the dead letters {n} times" for record, n in letters.items() if n > 1]
        ledger = {record for log in self.logs.values() for record in log.records()}
        forgotten = {record for log in self.logs.values() for record in log.forgotten}
        found += [f"{record} is nowhere in the log" for record in (rows.keys() | letters.keys()) - ledger - forgotten]
        fits = {"good", *self.mended}
        found += [f"{record} is no row" for record in rows if record.kind not in fits]
        found += [f"{record} is no dead letter" for record in letters if not record.kind.startswith("bad")]
        positions = read_state(self.view(TABLE)).positions  # type: ignore[arg-type]
        reached = {
            (position.identity.topic_id, p): o for position in positions.values() for p, o in position.offsets.items()
        }
        found += [
            f"{record} is a row and doesn't lie before the position {reached}"
            for record in rows.keys() - forgotten
            # A run continues at a cut of the log, and rows after it stay.
            if record.partition not in {**self.log_of(record).cuts, **self.log_of(record).restored}
            # Without a snapshot that has the position, the next run recovers it from the rows.
            if record.topic in positions and record.offset >= reached.get(record.place, 0)
        ]
        if (due := self.pending_reconciliation()) and due.restore is not None:
            # Rolled back beyond a commit that turned letters into rows: the next run brings the letters back first.
            reached = {}
        found += [
            f"{record} lies before the position {reached} and is nowhere"
            for record in ledger - rows.keys() - letters.keys()
            if record.kind != "tombstone" and record.offset < reached.get(record.place, 0)
            if not self._lost(record)
        ]
        self.violations += sorted(found)

    def _lost(self, record: Record) -> bool:
        """Return whether a run couldn't read a record, and a commit says so, or Kafka deleted it and none could."""
        offset, log = record.offset, self.log_of(record)
        recorded = any((t, p) == record.place and start <= offset < end for t, p, start, end in self.losses)
        return recorded or offset < min(log.low[record.partition], self.unknowable.get(record.place, 0))

    def log_of(self, record: Record) -> Log:
        """Return the log of a record's topic."""
        return self.logs[identity_of(record.topic).topic]

    def _note_losses(self, before: View) -> None:
        now = self.view(TABLE)
        known = {s.snapshot_id for s in ancestors(before, head_of(before))}  # type: ignore[arg-type]
        was = read_state(before).positions  # type: ignore[arg-type]
        for snapshot in ancestors(now, head_of(now)):  # type: ignore[arg-type]
            if snapshot.snapshot_id in known:
                break
            for loss in losses_from_json(summary_of(snapshot).get(LOSSES, "[]")):
                log = self.logs[loss.topic]
                where = identity_of(log.name).topic_id, loss.partition
                if loss.reason == "topic recreated" and log.generation > 1:
                    self.reported["recorded recreations"] += 1
                elif loss.reason == "truncated" and loss.start in log.cuts.get(loss.partition, ()):
                    self.reported["recorded cuts"] += 1
                elif loss.reason == "replaced" and loss.start in log.restored.get(loss.partition, ()):
                    self.reported["recorded replacements"] += 1
                    self.losses.add((*where, log.restored[loss.partition].start, loss.end or 0))
                elif loss.reason != "retention" or loss.end is None or loss.end > log.low[loss.partition]:
                    self.violations.append(f"{loss} was recorded, the log begins at {log.low}")
                else:
                    self.losses.add((*where, loss.start, loss.end))
        for topic, position in read_state(now).positions.items():  # type: ignore[arg-type]
            # A table without a position in a partition begins at what there is: no run can know what there was. A
            # position that is rebuilt knows the partitions that have rows.
            log, rows = self.logs[topic], {record.partition for record in before.content() if record.topic == topic}
            known_partitions = set(was[topic].offsets if topic in was else rows)
            if topic in was and not was[topic].identity.same_as(position.identity):
                known_partitions = set()
            for partition in set(log.low) - known_partitions:
                low, where = log.low[partition], (identity_of(log.name).topic_id, partition)
                self.unknowable[where] = max(self.unknowable.get(where, 0), low)


def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for nothing: the pauses of `StagingBranch` are tenacity's own, and nothing takes time here."""
    monkeypatch.setattr(tenacity.nap, "time", SimpleNamespace(sleep=ignore))
