"""A process that runs one attempt over the simulated systems."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException

from kafka_lake.common.offsets import OffsetRange, Watermarks
from kafka_lake.common.records import Probe
from kafka_lake.ingest.jobs.append import Append, Job
from kafka_lake.ingest.jobs.dead_letter_replay import DeadLetterReplay
from kafka_lake.ingest.jobs.replay import Replay, Reset
from kafka_lake.runtime.context import Connections, Context, Observer, RetryPolicy, ignore
from kafka_lake.runtime.plan import ReplayRange
from kafka_lake.spec.topic_table import TopicTable
from kafka_lake_tests.unit.simulated.catalog import SimulatedCatalog
from kafka_lake_tests.unit.simulated.decoding import SimulatedDecoding
from kafka_lake_tests.unit.simulated.frames import Frame, SimulatedFrames
from kafka_lake_tests.unit.simulated.history import ATTEMPTS, TABLE, TOPIC, Attempt, Event, Killed, Metadata
from kafka_lake_tests.unit.simulated.session import SimulatedSpark

if TYPE_CHECKING:
    from kafka_lake_tests.unit.simulated.world import World


def spec_of(attempt: Attempt) -> TopicTable:
    return TopicTable(
        TOPIC,
        *TABLE,
        schema="id bigint",
        start=attempt.start,
        max_records_per_commit=attempt.limit,
        max_bytes_per_commit=attempt.max_bytes,
        on_data_loss="continue" if attempt.accept_losses else "fail",
    )


def job_of(attempt: Attempt, context: Context) -> Job:
    if attempt.what == "dead_letter_replay":
        return DeadLetterReplay(context, attempt.where)
    if attempt.what == "reset":
        return Reset(context, "earliest", attempt.partitions)
    if attempt.what == "replay":
        return Replay(context, ReplayRange(partitions=attempt.partitions, keep_missing=attempt.accept_losses))
    return Append(context, attempt.partitions)


class Process:
    """A process that runs one attempt, until something ends it."""

    def __init__(self, world: "World", attempt: Attempt) -> None:
        self.world, self.attempt = world, attempt
        # A process knows the schema that it was started with.
        self.fits = {"good", *world.mended}
        self.dead = False
        self.passed: Counter[str] = Counter()
        self.views: dict[str, Frame] = {}
        self.publishing: tuple[tuple[str, str], dict[str, int | None], dict[str, int | None]] | None = None

    def connections(self) -> Connections:
        cluster: Any = SimpleNamespace(
            watermarks_of=self._watermarks,
            commit_group=ignore,
            cut_off=lambda position, chosen: self.world.logs[position.identity.topic].cut_off(position, chosen),
            last_records=lambda topic, ranges: self.world.logs[topic].last_records(ranges),
            reads_committed=True,
        )
        retry, spark, frames = RetryPolicy(ATTEMPTS, 0, 0), SimulatedSpark(self), SimulatedFrames(self)
        return Connections(
            cluster,
            {},
            SimulatedCatalog(self),
            lambda: spark,
            retry,
            frames=frames,  # type: ignore[arg-type]
            record_sizes=self._record_sizes,
        )

    def context(self, run_id: str) -> Context:
        observer = Observer(step_done=self.pass_by, warn=ignore)
        spec, decoding = spec_of(self.attempt), SimulatedDecoding(self)
        return Context(spec, self.connections(), run_id, observer, sleep=ignore, decoding=decoding)

    def evolve(self, _: tuple[str, str]) -> None:
        """Refuse records that a table can't take; here it takes them all."""

    def pass_by(self, place: str) -> None:
        """Let happen what happens here."""
        if self.dead:
            raise Killed
        for item in self.world.late:
            item[0] -= 1
        for value in [request for request in self.world.late if request[0] <= 0]:
            self.world.late.remove(value)
            value[1]()
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
            self.world.reported[event.action] += 1
            raise CommitStateUnknownException(event.place)
        if event.action == "linger":
            # The request of a publication is on its way for a while, and its sender gives up meanwhile.
            if self.publishing:
                self.world.reported[event.action] += 1
                self.world.late.append([event.argument, lambda now=self.publishing: self._arrive(*now)])
            raise CommitStateUnknownException(event.place)
        self.world.do(event.action, event.argument)

    def _arrive(
        self, identifier: tuple[str, str], expected: dict[str, int | None], wanted: dict[str, int | None]
    ) -> None:
        with suppress(CommitFailedException, ValueError, KeyError):
            self.world.change_refs(identifier, expected, wanted)

    def change_refs(
        self, what: str, identifier: tuple[str, str], expected: dict[str, int | None], wanted: dict[str, int | None]
    ) -> Metadata:
        """Change a table's refs, and return its metadata as that left them."""
        self.publishing = (identifier, expected, wanted) if what == "publish" else None
        with self.operation(what):
            self.world.change_refs(identifier, expected, wanted)
            left = self.world.tables[identifier]
        self.publishing = None
        return left

    def _record_sizes(self, _: Any, __: str, ranges: Sequence[OffsetRange], ___: int) -> list[Probe]:
        # Each record is of one byte, as `SimulatedDecoding` counts them.
        self.pass_by("record sizes")
        return [Probe(r.partition, r.start, len(r), len(r)) for r in ranges if len(r)]

    def _watermarks(self, topic: str) -> Watermarks:
        self.pass_by("watermarks")
        return self.world.logs[topic].watermarks()

    @contextmanager
    def operation(self, what: str) -> Iterator[None]:
        self.pass_by(f"before {what}")
        yield
        self.pass_by(f"after {what}")
