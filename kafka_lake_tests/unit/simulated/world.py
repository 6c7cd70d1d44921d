"""The log and the catalog that all processes share."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import tenacity
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException
from pyiceberg.table.snapshots import Operation
from pyspark.errors import PySparkException

from kafka_lake.common.errors import DataLossError, KafkaLakeError, PublishRefusedError
from kafka_lake.common.last_record import LastRecord, last_record
from kafka_lake.common.offsets import OffsetRange, Position, Watermarks, losses_from_json
from kafka_lake.ingest.dead_letters.unreconciled import Unreconciled, unreconciled
from kafka_lake.ingest.maintenance.clean import sweep
from kafka_lake.ingest.observer import ignore
from kafka_lake.ingest.runner import Runner
from kafka_lake.lake.positions import LOSSES, ancestors, head_of, read_state, summary_of
from kafka_lake_tests.unit.simulated.catalog import View
from kafka_lake_tests.unit.simulated.history import (
    IDENTITY,
    LETTERS,
    TABLE,
    TOPIC,
    Attempt,
    Killed,
    Metadata,
    Poison,
    Record,
    Ref,
    Snapshot,
)
from kafka_lake_tests.unit.simulated.process import Process, job_of, spec_of


class World:
    """The log and the catalog that all processes share, and what must hold of them at every moment."""

    def __init__(self, format_version: int = 2) -> None:
        self.format_version = format_version
        self.log: dict[int, list[str | None]] = {0: []}
        self.low = {0: 0}
        self.cuts: dict[int, list[int]] = {}
        self.restored: dict[int, range] = {}
        self.forgotten: set[Record] = set()
        self.mended: set[str] = set()
        self.tables: dict[tuple[str, str], Metadata] = {}
        self.losses: set[tuple[int, int, int]] = set()
        self.unknowable: dict[int, int] = {}
        self.heads: set[int | None] = set()
        self.rolled_away: set[int] = set()
        self.rolling_back = False
        self.late: list[list[Any]] = []
        self.violations: list[str] = []
        self.told: Counter[str] = Counter()
        self._ids = self._runs = 0

    # Kafka

    def produce(self, partition: int, kinds: Iterable[str | None]) -> None:
        """Append records; None is an offset without one: aborted, a transaction marker, or compacted away."""
        self.log[partition % len(self.log)] += kinds

    def add_partition(self) -> None:
        self.low[len(self.log)] = 0
        self.log[len(self.log)] = []

    def retain(self, partition: int, share: int) -> None:
        """Delete the older records of a partition: so many quarters of what there is."""
        partition %= len(self.log)
        low, end = self.low[partition], len(self.log[partition])
        self.low[partition] = low + (end - low) * share // 4

    def cut(self, partition: int, at: int, kinds: Iterable[str | None]) -> None:
        """Lose all records of a partition from an offset on, and get others instead, by another leader."""
        kept, lost = self.log[partition][:at], self.log[partition][at:]
        self.forgotten |= {Record(partition, o, kind) for o, kind in enumerate(lost, at) if kind is not None}
        self.log[partition] = [*kept, *kinds]
        self.cuts.setdefault(partition, []).append(at)

    def cut_off(self, position: Position, partitions: Iterable[int]) -> dict[int, int | None]:
        """Return where logs were cut off before a position, as `KafkaCluster.cut_off` does."""
        since = {p: self.cuts.get(p, [])[position.epochs[p] :] for p in partitions}
        return {p: min(cuts) for p, cuts in since.items() if cuts and min(cuts) < position.offsets[p]}

    def last_records(self, _: str, ranges: Iterable[OffsetRange]) -> dict[OffsetRange, list[LastRecord]]:
        """Return what is remembered of records, as `KafkaCluster.last_records` does."""
        return {
            each: [
                last_record(o, 0, None, kind.encode())
                for o, kind in enumerate(self.log[each.partition][: each.end])
                if kind is not None and o >= max(each.start, self.low[each.partition])
            ]
            for each in ranges
        }

    def restore(self, partition: int, at: int, kinds: Iterable[str | None]) -> None:
        """Bring a partition back from an older copy of all that the brokers have, and append records."""
        self.restored[partition] = range(at, len(self.log[partition]))
        self.cut(partition, at, kinds)
        self.cuts[partition].pop()

    def watermarks(self) -> Watermarks:
        ends = {p: len(kinds) for p, kinds in self.log.items()}
        return Watermarks(IDENTITY, dict(self.low), ends, {p: len(self.cuts.get(p, ())) for p in ends})

    def read(self, ranges: Sequence[OffsetRange]) -> list[Record]:
        for r in ranges:
            if len(r) and r.start < self.low[r.partition]:
                raise PySparkException(
                    "Some data may have been lost; if you don't want that to fail the query, set failOnDataLoss to "
                    f"false. Reason: Could not read records in offset [{r.start}, {r.end}) for topic partition "
                    f"{TOPIC}-{r.partition}"
                )
        kinds = ((r.partition, o, self.log[r.partition][o]) for r in ranges for o in range(r.start, r.end))
        return [Record(p, o, kind) for p, o, kind in kinds if kind is not None]

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
            # Format v1 has none.
            self._ids if self.format_version > 1 else 0,
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
        if unknown := {each for each in wanted.values() if each is not None} - set(metadata.by_id):
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
        self.violations += [f"a run has expired snapshot {each} of main" for each in sorted(snapshots & history)]
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
        self.violations += [f"snapshot {each} was rolled back and is back" for each in sorted(back)]
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
        if identifier not in self.tables or self.unreconciled() is not None:
            return
        view = self.view(identifier)
        kept = {s.snapshot_id for s in list(ancestors(view, head_of(view)))[:keep]}  # type: ignore[arg-type]
        kept |= {ref.snapshot_id for ref in view.metadata.refs.values()}
        self.remove(identifier, set(view.metadata.by_id) - kept)

    def unreconciled(self) -> Unreconciled | None:
        """Return what the next run will reconcile before anything else."""
        if not {TABLE, LETTERS} <= set(self.tables):
            return None
        table, letters = (read_state(self.view(name)) for name in (TABLE, LETTERS))  # type: ignore[arg-type]
        return unreconciled(table, letters)

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
            for each in ancestors(view, head_of(view)):  # type: ignore[arg-type]
                if each.snapshot_id == to:
                    break
                self.rolled_away.add(each.snapshot_id)
            self.set_ref(TABLE, "main", to)
            self.rolling_back = False

    def do(self, action: str, argument: Any) -> None:
        """Do what isn't a run's own."""
        self.told[action] += 1
        if action == "overtake":
            self.run(argument)
        elif action == "mend":
            self.mended.add(argument)
        elif action == "add partition":
            self.add_partition()
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
        self.told[attempt.what] += 1
        try:
            return self.perform(process, name)
        except Killed:
            self.told["killed runs"] += 1
        except DataLossError:
            self.told["stopped by losses"] += 1
            if attempt.accept_losses and attempt.what == "ingest":
                self.violations.append(f"{attempt} was stopped by a loss although it was told to go on")
        except KafkaLakeError as error:
            self.told[type(error).__name__] += 1
            bearable = isinstance(error, PublishRefusedError) and attempt.events
            impossible = "has no partition" if attempt.what == "ingest" else "has no position yet|has no partition"
            asked_for = re.search(impossible, str(error))
            if not bearable and not asked_for:
                self.violations.append(f"{attempt} failed: {type(error).__name__}: {error}")
        except (CommitFailedException, CommitStateUnknownException, PySparkException) as error:
            self.told["failed runs"] += 1
            if not attempt.events:
                self.violations.append(f"{attempt} failed: {error}")
        except Poison:
            # A letter of that kind fails all that are delivered with it.
            self.told["poisoned dead-letter replays"] += 1
            if attempt.what != "dead_letter_replay":
                self.violations.append(f"{attempt} was stopped by one record")
        except Exception as error:
            self.violations.append(f"{attempt} failed: {type(error).__name__}: {error}")
        return None

    def process(self, attempt: Attempt) -> Process:
        """Return a process that makes an attempt."""
        return Process(self, attempt)

    def perform(self, process: Process, run_id: str) -> Any:
        """Run to the end in a process, and return the report."""
        context = process.context(run_id)
        return Runner(context, job_of(process.attempt, context)).run()

    def finish(self) -> None:
        """Run once more, undisturbed, and check that every record is in one place exactly once."""
        self.late.clear()
        self.produce(0, ["good"])
        self.run(Attempt())
        rows, letters = (Counter(self.view(name).content()) for name in (TABLE, LETTERS))
        self.violations += [f"{record} is in both tables" for record in sorted((rows & letters).keys())]
        position = read_state(self.view(TABLE)).position  # type: ignore[arg-type]
        ends = dict(self.watermarks().end)
        if position is None or position.offsets != ends:
            self.violations.append(f"the position is {position}, the topic ends at {ends}")
        if due := self.unreconciled():
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
        ledger = {
            Record(p, o, kind) for p, kinds in self.log.items() for o, kind in enumerate(kinds) if kind is not None
        }
        found += [
            f"{record} is nowhere in the log" for record in (rows.keys() | letters.keys()) - ledger - self.forgotten
        ]
        fits = {"good", *self.mended}
        found += [f"{record} is no row" for record in rows if record.kind not in fits]
        found += [f"{record} is no dead letter" for record in letters if not record.kind.startswith("bad")]
        position = read_state(self.view(TABLE)).position  # type: ignore[arg-type]
        reached = position.offsets if position else {}
        if (due := self.unreconciled()) and due.restore is not None:
            # Rolled back beyond a commit that turned letters into rows: the next run brings the letters back first.
            reached = {}
        found += [
            f"{record} lies before the position {dict(reached)} and is nowhere"
            for record in ledger - rows.keys() - letters.keys()
            if record.kind != "tombstone" and record.offset < reached.get(record.partition, 0)
            if not self._lost(record)
        ]
        self.violations += sorted(found)

    def _lost(self, record: Record) -> bool:
        """Return whether a run couldn't read a record, and a commit says so, or Kafka deleted it and none could."""
        partition, offset, _ = record
        recorded = any(p == partition and start <= offset < end for p, start, end in self.losses)
        return recorded or offset < min(self.low[partition], self.unknowable.get(partition, 0))

    def _note_losses(self, before: View) -> None:
        now = self.view(TABLE)
        known = {s.snapshot_id for s in ancestors(before, head_of(before))}  # type: ignore[arg-type]
        was = read_state(before).position  # type: ignore[arg-type]
        # A position that is rebuilt knows the partitions that have rows.
        at = was.offsets if was else {record.partition for record in before.content()}
        for snapshot in ancestors(now, head_of(now)):  # type: ignore[arg-type]
            if snapshot.snapshot_id in known:
                break
            for loss in losses_from_json(summary_of(snapshot).get(LOSSES, "[]")):
                if loss.reason == "truncated" and loss.start in self.cuts.get(loss.partition, ()):
                    self.told["recorded cuts"] += 1
                elif loss.reason == "replaced" and loss.start in self.restored.get(loss.partition, ()):
                    self.told["recorded replacements"] += 1
                    self.losses.add((loss.partition, self.restored[loss.partition].start, loss.end or 0))
                elif loss.reason != "retention" or loss.end is None or loss.end > self.low[loss.partition]:
                    self.violations.append(f"{loss} was recorded, the log begins at {self.low}")
                else:
                    self.losses.add((loss.partition, loss.start, loss.end))
            # A table without a position in a partition begins at what there is: no run can know what there was.
            if read_state(now).position is not None:  # type: ignore[arg-type]
                for partition in set(self.low) - set(at):
                    self.unknowable[partition] = max(self.unknowable.get(partition, 0), self.low[partition])


def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for nothing: the pauses of `StagingBranch` are tenacity's own, and nothing takes time here."""
    monkeypatch.setattr(tenacity.nap, "time", SimpleNamespace(sleep=ignore))
