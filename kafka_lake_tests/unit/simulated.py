"""A log, a catalog and an engine in memory, for histories by the thousand of the real planner and commit protocol.

What is real: `runner`, `pipeline`, `plan`, `read`, `stage`, `audit`, `publish`, `reconcile`, `rebuild`, the jobs,
`clean.sweep`, `branches`, `ensure_table` and `positions`. What is simulated lies below them, and is given to a run as
any other would be: brokers, catalog, session and `Frames` by its connections, `Decoding` by its context.

Every statement, write, load and step of a run is a place where anything may happen (`Event`): the process dies, an
answer is lost, another whole run comes between, Kafka deletes records, somebody compacts, expires or rolls back.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import tenacity
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException, TableAlreadyExistsError
from pyiceberg.schema import Schema
from pyiceberg.table.snapshots import Operation
from pyiceberg.types import NestedField, StringType, StructType
from pyspark.errors import PySparkException
from pyspark.sql import Row
from pyspark.sql import types as T

from kafka_lake.common.errors import DataLossError, KafkaLakeError, PublishRefusedError
from kafka_lake.common.offsets import OffsetRange, Position, TopicIdentity, Watermarks, losses_from_json
from kafka_lake.ingest.connections import Connections
from kafka_lake.ingest.context import Context
from kafka_lake.ingest.dead_letters.due import Due, due
from kafka_lake.ingest.decode.decoder import Nothing
from kafka_lake.ingest.decode.target import Target
from kafka_lake.ingest.jobs.append import Append
from kafka_lake.ingest.jobs.dead_letter_replay import DeadLetterReplay
from kafka_lake.ingest.jobs.job import Job
from kafka_lake.ingest.jobs.replay import Extent, Replay
from kafka_lake.ingest.maintenance.clean import sweep
from kafka_lake.ingest.observer import Observer, ignore
from kafka_lake.ingest.retry import RetryPolicy
from kafka_lake.ingest.runner import Runner
from kafka_lake.ingest.stage.decoding import Decoded
from kafka_lake.ingest.stage.schema_plan import SchemaPlan
from kafka_lake.ingest.topic_table import TopicTable
from kafka_lake.lake.catalog import LakeCatalog
from kafka_lake.lake.positions import LOSSES, ancestors, head_of, read_state, summary_of
from kafka_lake.lake.tables.create import ensure_table

TOPIC, TABLE, LETTERS = "pizzas", ("pizza", "orders"), ("pizza", "orders__dead_letters")
IDENTITY = TopicIdentity("cluster-1", "topic-1", TOPIC)
ATTEMPTS = 3
POISON = "bad-poison"
# A dead-letter table whose maker died before its first snapshot: letters can't be delivered until there are some.

STEPS = (
    "planned", "table created", "primary staged", "dead letters staged", "audited", "dead letters published",
    "primary published", "dead letters reconciled", "reconciled dead letters published",
)  # fmt: skip
OPERATIONS = ("create branch", "commit", "publish", "drop branch", "expire", "create table")
PLACES = (*STEPS, *(f"{when} {what}" for what in OPERATIONS for when in ("before", "after")), "watermarks", "load")


class Record(NamedTuple):
    """A record of the log, and the row or letter that it becomes."""

    partition: int
    offset: int
    kind: str


@dataclass(frozen=True)
class Event:
    """What happens to a run when it passes a place for the nth time."""

    place: str
    nth: int
    action: str
    argument: Any = None


@dataclass(frozen=True)
class Attempt:
    """One run as a process of its own: what it is told to do, and what befalls it."""

    what: str = "ingest"
    partitions: frozenset[int] | None = None
    limit: int = 100
    accept_losses: bool = True
    events: tuple[Event, ...] = ()


class Poison(Exception):
    """What a record raises that no decoder gets along with."""


class Killed(BaseException):
    """The end of a process: nothing that it would still do happens."""


@dataclass(frozen=True)
class Snapshot:
    """As PyIceberg shows it, with its rows."""

    snapshot_id: int
    parent_snapshot_id: int | None
    sequence_number: int
    timestamp_ms: int
    summary: Any
    content: tuple[Record, ...]
    schema_id: None = None

    def manifests(self, _: Any) -> tuple[()]:
        """Return none: there are no files."""
        return ()


@dataclass(frozen=True)
class Ref:
    """What a branch points to."""

    snapshot_id: int
    max_ref_age_ms: None = None
    max_snapshot_age_ms: None = None
    min_snapshots_to_keep: None = None


@dataclass(frozen=True)
class Metadata:
    """One version of a table's metadata; a commit makes another."""

    refs: dict[str, Any]
    by_id: dict[int, Snapshot]
    schemas: tuple[()] = ()
    properties: tuple[()] = ()

    @property
    def snapshots(self) -> list[Snapshot]:
        return list(self.by_id.values())

    def snapshot_by_id(self, snapshot_id: int) -> Snapshot | None:
        return self.by_id.get(snapshot_id)


_ORIGIN = [NestedField(n, name, StringType()) for n, name in enumerate(("topic", "topic_id", "partition", "offset"), 2)]
SCHEMA = Schema(NestedField(1, "_kafka", StructType(*_ORIGIN)))
COLUMNS = T.StructType()


class View:
    """A table as loaded at some moment."""

    process: "Process"
    # What others overtake is planned anew: there are no files that could be followed.
    format_version = 1
    io = None

    def __init__(self, identifier: tuple[str, str], load: Callable[[], Metadata | None]) -> None:
        self._identifier, self.load = identifier, load
        self.metadata: Metadata = load() or Metadata({}, {})

    def append(self, _: Any) -> None:
        """Begin the table, with a snapshot that has no rows."""
        world = self.process.world
        with self.process.operation("commit"):
            if head_of(world.view(self._identifier)) is not None:  # type: ignore[arg-type]
                raise CommitFailedException("branch main has changed")
            world.commit(self._identifier, "main", ())

    def manage_snapshots(self) -> "RefChanges":
        return RefChanges(self.process, self._identifier, self.metadata)

    @property
    def properties(self) -> dict[str, str]:
        return {"kafka-lake.layout": "{}"}

    def refresh(self) -> "View":
        self.metadata = self.load() or self.metadata
        return self

    def name(self) -> tuple[str, str]:
        return self._identifier

    def current_snapshot(self) -> Snapshot | None:
        head = head_of(self, "main")  # type: ignore[arg-type]
        return None if head is None else self.metadata.by_id[head]

    def schema(self) -> Any:
        return SCHEMA

    def content(self) -> tuple[Record, ...]:
        """Return what readers of ``main`` see."""
        snapshot = self.current_snapshot()
        return snapshot.content if snapshot else ()


class RefChanges:
    """PyIceberg's changes of refs: one commit, which asserts what each of them was when the table was loaded."""

    def __init__(self, process: "Process", identifier: tuple[str, str], loaded: Metadata) -> None:
        self._process, self._identifier, self._loaded = process, identifier, loaded
        self._wanted: dict[str, int | None] = {}

    def create_branch(self, snapshot: int, name: str, *_: int | None) -> "RefChanges":
        self._wanted[name] = snapshot
        return self

    def remove_branch(self, name: str) -> "RefChanges":
        self._wanted[name] = None
        return self

    def commit(self) -> None:
        if "main" in self._wanted:
            what = "publish"
        else:
            what = "drop branch" if None in self._wanted.values() else "create branch"
        refs = self._loaded.refs
        expected = {name: refs[name].snapshot_id if name in refs else None for name in self._wanted}
        self._process.change_refs(what, self._identifier, expected, self._wanted)


class World:
    """The log and the catalog that all processes share, and what must hold of them at every moment."""

    def __init__(self, format_version: int = 2) -> None:
        self.format_version = format_version
        self.log: dict[int, list[str | None]] = {0: []}
        self.low = {0: 0}
        self.cuts: dict[int, list[int]] = {}
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
            if identifier == TABLE:
                now = self.view(TABLE)
                self.heads.add(head_of(now))  # type: ignore[arg-type]
                back = self.rolled_away & {s.snapshot_id for s in ancestors(now, head_of(now))}  # type: ignore[arg-type]
                self.violations += [f"snapshot {each} was rolled back and is back" for each in sorted(back)]
                self._note_losses(before)
                if not self.rolling_back:
                    seen = {*self.view(TABLE).content(), *self.view(LETTERS).content()}
                    self.violations += [f"{record} has vanished" for record in sorted(set(before.content()) - seen)]
            self.check()

    # What others do

    def compact(self, identifier: tuple[str, str]) -> None:
        if content := self.view(identifier).content():
            self.commit(identifier, "main", content, operation=Operation.REPLACE)

    def expire(self, identifier: tuple[str, str], keep: int) -> None:
        """Let all snapshots go but the newest of ``main`` and those that refs point to.

        Not while a commit waits to be settled: the mark that says so lives in that commit's snapshot alone. Expiry with
        Iceberg's defaults keeps five days, and the next run settles.
        """
        if identifier not in self.tables or self.due() is not None:
            return
        view = self.view(identifier)
        kept = {s.snapshot_id for s in list(ancestors(view, head_of(view)))[:keep]}  # type: ignore[arg-type]
        kept |= {ref.snapshot_id for ref in view.metadata.refs.values()}
        self.remove(identifier, set(view.metadata.by_id) - kept)

    def due(self) -> Due | None:
        """Return what the next run will settle before anything else."""
        if not {TABLE, LETTERS} <= set(self.tables):
            return None
        table, letters = (read_state(self.view(name)) for name in (TABLE, LETTERS))  # type: ignore[arg-type]
        return due(table, letters)

    def roll_back(self, back: int) -> None:
        """Set ``main`` of the table to one of the snapshots before it.

        Not to one that ``main`` never was at: a replacement takes rows away and adds others in two snapshots that are
        published at once, and the one between them is a state that nobody promised anything about.
        """
        view = self.view(TABLE)
        history = [s.snapshot_id for s in ancestors(view, head_of(view)) if s.snapshot_id in self.heads]
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
            }
            actions[action](*argument)

    # Runs

    def run(self, attempt: Attempt) -> Any:
        """Run to the end, whatever that is.

        Returns:
            The report; None if the run failed for a reason that it may fail for.
        """
        self._runs += 1
        process = Process(self, attempt)
        name = f"run-{self._runs}"
        self.told[attempt.what] += 1
        try:
            context = process.context(name)
            return Runner(context, job_of(attempt, context)).run()
        except Killed:
            self.told["killed runs"] += 1
        except DataLossError:
            self.told["stopped by losses"] += 1
            if attempt.accept_losses and attempt.what == "ingest":
                self.violations.append(f"{attempt} was stopped by a loss although it was told to go on")
        except KafkaLakeError as error:
            self.told[type(error).__name__] += 1
            bearable = isinstance(error, PublishRefusedError) and attempt.events
            asked_for = attempt.what != "ingest" and re.search("has no position yet|has no partition", str(error))
            if not bearable and not asked_for:
                self.violations.append(f"{attempt} failed: {type(error).__name__}: {error}")
        except (CommitFailedException, CommitStateUnknownException, PySparkException) as error:
            self.told["failed runs"] += 1
            if not attempt.events:
                self.violations.append(f"{attempt} failed: {error}")
        except Poison:
            # A letter of that kind fails all that are delivered with it.
            self.told["poisoned redeliveries"] += 1
            if attempt.what != "dead_letter_replay":
                self.violations.append(f"{attempt} was stopped by one record")
        except Exception as error:
            self.violations.append(f"{attempt} failed: {type(error).__name__}: {error}")
        return None

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
        if due := self.due():
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
        if (due := self.due()) and due.restore is not None:
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
        """Return whether Kafka deleted a record before a run could read it, and a commit says so or never could."""
        partition, offset, _ = record
        if offset >= self.low[partition]:
            return False
        recorded = any(p == partition and start <= offset < end for p, start, end in self.losses)
        return recorded or offset < self.unknowable.get(partition, 0)

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
                elif loss.reason != "retention" or loss.end is None or loss.end > self.low[loss.partition]:
                    self.violations.append(f"{loss} was recorded, the log begins at {self.low}")
                else:
                    self.losses.add((loss.partition, loss.start, loss.end))
            # A table without a position in a partition begins at what there is: no run can know what there was.
            if read_state(now).position is not None:  # type: ignore[arg-type]
                for partition in set(self.low) - set(at):
                    self.unknowable[partition] = max(self.unknowable.get(partition, 0), self.low[partition])


def spec_of(attempt: Attempt) -> TopicTable:
    return TopicTable(
        TOPIC,
        *TABLE,
        schema="id bigint",
        max_records_per_commit=attempt.limit,
        on_data_loss="continue" if attempt.accept_losses else "fail",
        # What simulates Spark's writer has no files for Arrow to write.
        arrow=False,
    )


def job_of(attempt: Attempt, context: Context) -> Job:
    if attempt.what == "dead_letter_replay":
        return DeadLetterReplay(context, None)
    if attempt.what == "replay":
        return Replay(context, Extent(partitions=attempt.partitions, keep_missing=attempt.accept_losses))
    return Append(context, attempt.partitions)


class Process:
    """A process that runs one attempt, until something ends it."""

    def __init__(self, world: World, attempt: Attempt) -> None:
        self.world, self.attempt = world, attempt
        # A process knows the schema that it was started with.
        self.fits = {"good", *world.mended}
        self.dead = False
        self.passed: Counter[str] = Counter()
        self.views: dict[str, Frame] = {}
        self.publishing: tuple[tuple[str, str], dict[str, int | None], dict[str, int | None]] | None = None

    def connections(self) -> Connections:
        cluster: Any = SimpleNamespace(watermarks_of=self._watermarks, commit_group=ignore, cut_off=self.world.cut_off)
        retry, spark, frames = RetryPolicy(ATTEMPTS, 0, 0), SimulatedSpark(self), SimulatedFrames(self)
        return Connections(cluster, {}, SimulatedCatalog(self), lambda: spark, retry, frames=frames)  # type: ignore[arg-type]

    def context(self, run_id: str) -> Context:
        observer = Observer(on_step=self.pass_by, warn=ignore)
        spec, decoding = spec_of(self.attempt), SimulatedDecoding(self)
        return Context(spec, self.connections(), run_id, observer, sleep=ignore, decoding=decoding)  # type: ignore[arg-type]

    def pass_by(self, place: str) -> None:
        """Let happen what happens here."""
        if self.dead:
            raise Killed
        for each in self.world.late:
            each[0] -= 1
        for each in [each for each in self.world.late if each[0] <= 0]:
            self.world.late.remove(each)
            each[1]()
        self.passed[place] += 1
        for event in self.attempt.events:
            if (event.place, event.nth) == (place, self.passed[place]):
                self._suffer(event)

    def _suffer(self, event: Event) -> None:
        if event.action == "die":
            self.dead = True
            raise Killed
        if event.action == "fail":
            # Before an operation the request is lost, after it the answer is: they look the same.
            self.world.told[event.action] += 1
            raise CommitStateUnknownException(event.place)
        if event.action == "linger":
            # The request of a publication is on its way for a while, and its sender gives up meanwhile.
            if self.publishing:
                self.world.told[event.action] += 1
                self.world.late.append([event.argument, lambda now=self.publishing: self._arrive(*now)])
            raise CommitStateUnknownException(event.place)
        self.world.do(event.action, event.argument)

    def _arrive(
        self, identifier: tuple[str, str], expected: dict[str, int | None], wanted: dict[str, int | None]
    ) -> None:
        with suppress(CommitFailedException, ValueError):
            self.world.change_refs(identifier, expected, wanted)

    def change_refs(
        self, what: str, identifier: tuple[str, str], expected: dict[str, int | None], wanted: dict[str, int | None]
    ) -> None:
        self.publishing = (identifier, expected, wanted) if what == "publish" else None
        with self.operation(what):
            self.world.change_refs(identifier, expected, wanted)
        self.publishing = None

    def _watermarks(self, _: str) -> Watermarks:
        self.pass_by("watermarks")
        return self.world.watermarks()

    @contextmanager
    def operation(self, what: str) -> Iterator[None]:
        self.pass_by(f"before {what}")
        yield
        self.pass_by(f"after {what}")


class SimulatedCatalog(LakeCatalog):
    """The catalog as one process sees it."""

    def __init__(self, process: Process) -> None:
        super().__init__("lake", {"type": "sql", "uri": "none", "warehouse": "none"})
        self._process = process
        self.pyiceberg = SimpleNamespace(
            create_namespace_if_not_exists=ignore, create_table=self._create, load_table=self.table
        )  # type: ignore[assignment]

    def table(self, identifier: tuple[str, str]) -> Any:
        world = self._process.world

        def load() -> Metadata | None:
            self._process.pass_by("load")
            return world.tables.get(identifier)

        if load() is None:
            return None
        view = world.view(identifier)
        view.load, view.process = load, self._process
        return view

    def _create(self, identifier: tuple[str, str], *_: Any, **__: Any) -> Any:
        with self._process.operation("create table"):
            if identifier in self._process.world.tables:
                raise TableAlreadyExistsError(identifier)
            self._process.world.tables[identifier] = Metadata({}, {})
        return self.table(identifier)


_NAME = r"`lake`\.`(\w+)`\.`(\w+)`"
_WRITE_NAME = re.compile(rf"{_NAME}\.`branch_(\w+)`")
_CALL = r"CALL `lake`\.system"
_AGE = r", older_than => TIMESTAMP '1970-01-01 00:00:00'"
_EXPIRE = re.compile(rf"{_CALL}\.expire_snapshots\(table => '{_NAME}', snapshot_ids => ARRAY\(([\d, ]+)\)({_AGE})?\)")
_SELECT = re.compile(rf"SELECT \* FROM {_NAME} VERSION AS OF (\d+)")
_DELETE = re.compile(rf"DELETE FROM {_NAME}\.`branch_(\w+)` WHERE .*")
_DELETED = re.compile(r"partition = (\d+) AND \S+offset >= (\d+) AND \S+offset < (\d+)")
_TAKE_OUT = re.compile(
    rf"DELETE FROM {_NAME}\.`branch_(\w+)` AS l WHERE \((.*)\) AND EXISTS \(SELECT 1 FROM (\w+) AS g WHERE "
    r"g\.their_topic_id <=> l\.topic_id AND g\.their_partition <=> l\.partition AND "
    r"g\.their_offset <=> l\.offset AND g\.their_timestamp <=> l\.timestamp\)"
)
_TAKEN_OUT = re.compile(r"l\.partition = (\d+) AND l\.offset BETWEEN (\d+) AND (\d+)")


class SimulatedSpark:
    """The statements that kafka_lake makes, interpreted; any other is an error of the test."""

    # Nothing is set, and columns are of no interest.
    conf: Mapping[str, str] = {}

    def __init__(self, process: Process) -> None:
        self._process, self._world = process, process.world
        self.catalog = SimpleNamespace(dropTempView=process.views.pop)

    def table(self, _: str) -> Any:
        return SimpleNamespace(schema=COLUMNS)

    @property
    def read(self) -> "Reader":
        return Reader(self._process)

    def sql(self, text: str) -> Any:
        for pattern, action in (
            (_EXPIRE, self._expire), (_SELECT, self._select), (_DELETE, self._delete), (_TAKE_OUT, self._take_out),
        ):  # fmt: skip
            if found := pattern.fullmatch(text):
                namespace, name, *rest = found.groups()
                done = action((namespace, name), *rest, *([text] if action == self._delete else []))
                return done if done is not None else SimpleNamespace(collect=list)
        raise NotImplementedError(text)

    def _expire(self, table: tuple[str, str], snapshots: str, age: str | None) -> None:
        with self._process.operation("expire"):
            self._world.expire_staged(table, {int(each) for each in snapshots.split(", ")}, age is not None)

    def _select(self, table: tuple[str, str], snapshot: str) -> "Frame":
        def rows() -> list[Record]:
            found = self._world.tables[table].by_id.get(int(snapshot))
            if found is None:
                raise PySparkException(f"Cannot find snapshot {snapshot}")
            return list(found.content)

        return Frame(self._process, rows)

    def _delete(self, table: tuple[str, str], branch: str, text: str) -> None:
        ranges = [OffsetRange(*map(int, found)) for found in _DELETED.findall(text)]
        with self._process.operation("commit"):
            metadata = self._world.tables[table]
            tip = metadata.refs.get(branch)
            if tip is None:
                raise PySparkException(f"Cannot use branch (does not exist): {branch}")
            held = metadata.by_id[tip.snapshot_id].content
            kept = [record for record in held if not within(ranges)(record)]
            self._world.commit(table, branch, kept, operation=Operation.OVERWRITE)

    def _take_out(self, table: tuple[str, str], branch: str, places: str, view: str) -> None:
        ranges = [OffsetRange(int(p), int(first), int(last) + 1) for p, first, last in _TAKEN_OUT.findall(places)]
        gone = {record[:2] for record in self._process.views[view].source()}
        with self._process.operation("commit"):
            metadata = self._world.tables[table]
            tip = metadata.refs.get(branch) or metadata.refs["main"]
            held = metadata.by_id[tip.snapshot_id].content
            kept = [r for r in held if r[:2] not in gone or not within(ranges)(r)]
            self._world.commit(table, branch, kept, operation=Operation.OVERWRITE)


class Reader:
    """Reads what was appended between two snapshots."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._options: dict[str, int] = {}

    def format(self, name: str) -> "Reader":
        assert name == "iceberg"
        return self

    def option(self, key: str, value: str) -> "Reader":
        self._options[key] = int(value)
        return self

    def load(self, name: str) -> "Frame":
        found = re.fullmatch(_NAME, name)
        assert found, name
        table, options = (found[1], found[2]), self._options

        def rows() -> list[Record]:
            by_id = self._process.world.tables[table].by_id
            before, new = (by_id.get(options[f"{which}-snapshot-id"]) for which in ("start", "end"))
            if before is None or new is None:
                raise PySparkException("Cannot find the snapshots to read between")
            return list((Counter(new.content) - Counter(before.content)).elements())

        return Frame(self._process, rows)


def within(ranges: Sequence[OffsetRange]) -> Callable[[Record], bool]:
    return lambda record: any(r.partition == record.partition and r.start <= record.offset < r.end for r in ranges)


class Frame:
    """Records that are looked at when they are needed, and each time anew."""

    columns = ()
    schema = COLUMNS

    def __init__(self, process: Process, source: Callable[[], list[Record]]) -> None:
        self.process, self.source = process, source

    def derived(self, function: Callable[[list[Record]], list[Record]]) -> "Frame":
        return Frame(self.process, lambda: function(self.source()))

    def filter(self, condition: Callable[[Record], bool]) -> "Frame":
        return self.derived(lambda records: [r for r in records if condition(r)])

    def select(self, *_: Any) -> "Frame":
        return self

    coalesce = sortWithinPartitions = select

    def persist(self) -> "Frame":
        return self

    def unpersist(self) -> None:
        pass

    def limit(self, count: int) -> "Frame":
        return self.derived(lambda records: records[:count])

    def count(self) -> int:
        return len(self.source())

    def unionByName(self, other: "Frame", **_: Any) -> "Frame":
        return self.derived(lambda records: records + other.source())

    def createOrReplaceTempView(self, name: str) -> None:
        self.process.views[name] = self

    def writeTo(self, name: str) -> "Writer":
        return Writer(self, name)


class SimulatedFrames:
    """What Spark computes of frames, by partition and offset alone: there is one topic, and no time."""

    # No gap: else all offsets there are would be near each other.
    apart = 1

    def __init__(self, process: Process) -> None:
        self._process = process

    def from_kafka(self, _: Any, options: Mapping[str, str]) -> Frame:
        partitions, starts, ends = (
            json.loads(options[name])[TOPIC] for name in ("assign", "startingOffsets", "endingOffsets")
        )
        ranges = [OffsetRange(p, starts[str(p)], ends[str(p)]) for p in partitions]
        return Frame(self._process, lambda: self._process.world.read(ranges))

    def keys(self, rows: Frame, *_: Any, **__: Any) -> Frame:
        return rows

    named = keys

    def within(self, rows: Frame, ranges: Sequence[OffsetRange], *_: Any) -> Frame:
        return rows.filter(within(ranges))

    within_topic = within

    def without(self, letters: Frame, others: Frame, *_: Any) -> Frame:
        return self._joined(letters, others, False)

    def among(self, letters: Frame, others: Frame, *_: Any) -> Frame:
        return self._joined(letters, others, True)

    rows_of = among

    def _joined(self, letters: Frame, others: Frame, with_twins: bool) -> Frame:
        def joined(records: list[Record]) -> list[Record]:
            theirs = {record[:2] for record in others.source()}
            return [record for record in records if (record[:2] in theirs) == with_twins]

        return letters.derived(joined)

    def places(self, keys: Frame) -> list[OffsetRange]:
        return [OffsetRange(r.partition, r.offset, r.offset + 1) for r in keys.source()]

    def counted(self, keys: Frame) -> list[Row]:
        return [Row(partition=p, rows=len(o), first=min(o)) for p, o in _by_partition(keys).items()]

    def partitions(self, rows: Frame, _: str) -> list[Row]:
        return [
            Row(partition=p, rows=len(o), first=min(o), last=max(o), distinct=len(set(o)))
            for p, o in _by_partition(rows).items()
        ]

    def furthest(self, rows: Frame, _: str) -> list[Row]:
        return [
            Row(topic=TOPIC, topic_id=IDENTITY.topic_id, partition=p, last=max(o))
            for p, o in _by_partition(rows).items()
        ]


def _by_partition(rows: Frame) -> dict[int, list[int]]:
    groups: dict[int, list[int]] = {}
    for record in rows.source():
        groups.setdefault(record.partition, []).append(record.offset)
    return groups


class Writer:
    """A write to a branch: the rows are there before the commit is."""

    def __init__(self, frame: Frame, name: str) -> None:
        found = _WRITE_NAME.fullmatch(name)
        assert found, name
        self.frame, self._table, self._branch = frame, (found[1], found[2]), found[3]
        self._properties: dict[str, str] = {}

    def option(self, key: str, value: str) -> "Writer":
        self._properties[key.removeprefix("snapshot-property.")] = value
        return self

    def append(self) -> None:
        added = self.frame.source()
        world = self.frame.process.world
        with self.frame.process.operation("commit"):
            metadata = world.tables[self._table]
            tip = metadata.refs.get(self._branch) or metadata.refs["main"]
            held = metadata.by_id[tip.snapshot_id].content
            world.commit(self._table, self._branch, (*held, *added), len(added), self._properties)


class SimulatedDecoder(Nothing):
    """A decoder that leaves records as they are; whether one fits is the process's to say."""

    fixed = None

    def decode(self, records: Any, *_: Any, **__: Any) -> Any:
        def decoded(held: list[Record]) -> list[Record]:
            if poisonous := [record for record in held if record.kind == POISON]:
                raise Poison(f"{poisonous[0]} is poisonous")
            return held

        return records.derived(decoded)


class SimulatedUnreadable(Nothing):
    """A decoder that looks at nothing."""

    fixed = None

    def decode(self, records: Any, *_: Any, **__: Any) -> Any:
        return records


class SimulatedDecoding:
    """Records become rows or letters by what the process knows; columns are those that there are."""

    def __init__(self, process: Process) -> None:
        self._process = process

    def decoder(self, *_: Any) -> SimulatedDecoder:
        return SimulatedDecoder()

    def unreadable(self, _: str) -> SimulatedUnreadable:
        return SimulatedUnreadable()

    def create_table(self, spec: TopicTable, connections: Connections, *_: Any) -> None:
        ensure_table(connections.catalog, spec.identifier, SCHEMA)

    def evolve_table(self, *_: Any) -> tuple[SchemaPlan, tuple[()]]:
        return SchemaPlan(Target(COLUMNS, {})), ()

    def decode(self, _: TopicTable, decoder: Any, target: Target, records: Frame, __: str) -> Decoded:
        judged, counts = decoder.decode(records, target), dict[str, int]()

        def rows(held: list[Record]) -> list[Record]:
            # Counted while the rows are written.
            counts["records"] = len(held)
            counts["tombstones"] = sum(r.kind == "tombstone" for r in held)
            counts["failed"] = sum(self._is_letter(r) for r in held)
            return [record for record in held if record.kind in self._process.fits]

        return Decoded(judged.derived(rows), lambda: counts, judged)

    def letters(self, _: TopicTable, judged: Any, *__: Any) -> Any:
        return judged.filter(self._is_letter)

    def classes(self, _: Any) -> tuple[()]:
        return ()

    def records(self, letters: Any) -> Any:
        return letters

    def _is_letter(self, record: Record) -> bool:
        return record.kind != "tombstone" and record.kind not in self._process.fits


def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for nothing: the pauses of `StagingBranch` are tenacity's own, and nothing takes time here."""
    monkeypatch.setattr(tenacity.nap, "time", SimpleNamespace(sleep=ignore))
