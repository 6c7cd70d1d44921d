"""Collects metrics: a thread for each cluster asks the brokers and the catalog for its topics, every few seconds."""

import logging
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from queue import SimpleQueue
from threading import Condition, Thread

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from kafka_lake.catalog.history import recorded_losses
from kafka_lake.catalog.lake_catalog import LakeCatalog
from kafka_lake.catalog.positions import TOPIC, ancestors, head_of, row_count, state_of, summary_of
from kafka_lake.catalog.tables import totals_of
from kafka_lake.common.offsets import Watermarks, in_topic
from kafka_lake.common.offsets import lag as lag_of
from kafka_lake.error_classification import user_message
from kafka_lake.kafka.cluster import KafkaCluster
from kafka_lake.kafka.records import RecordReference, arrival_times, unread
from kafka_lake.maintenance.policy import compacts, needs_of
from kafka_lake.observability.samples import (
    Key,
    TableFacts,
    TopicTables,
    broker_samples,
    key_of,
    lag_samples,
    table_samples,
    topic_samples,
    unread_samples,
)
from kafka_lake.observability.serve import LatestSamples
from kafka_lake.spec.topic_table import TopicTable

TABLE_SECONDS = 20.0
"""A collection waits so long for the next table; tables that are missing then have failed this time."""
UNREAD_SECONDS = 10.0
_SLOW_SECONDS = 120.0
_WORKERS = 8

Job = Callable[[], object]

log = logging.getLogger(__name__)


def max_age(interval: float) -> float:
    """Return for how many seconds a value is served if no newer one replaces it."""
    return max(3 * interval, interval + _SLOW_SECONDS)


class Workers:
    """Daemon threads that run jobs. Unlike a pool of `concurrent.futures`, a hanging job doesn't delay the exit."""

    def __init__(self, count: int) -> None:
        self._jobs: SimpleQueue[tuple[Hashable, Job]] = SimpleQueue()
        self._unfinished: set[Hashable] = set()
        self._changed = Condition()
        for number in range(count):
            Thread(target=self._work, name=f"metrics-{number}", daemon=True).start()

    def run(self, jobs: Mapping[Hashable, Job], seconds: float) -> set[Hashable]:
        """Run jobs, and return those that are unfinished when none has finished for some seconds.

        A job that is still running from an earlier call isn't started again.
        """
        with self._changed:
            for name, job in jobs.items():
                if name not in self._unfinished:
                    self._unfinished.add(name)
                    self._jobs.put((name, job))
            pending, deadline = self._unfinished & jobs.keys(), time.monotonic() + seconds
            while pending and (remaining := deadline - time.monotonic()) > 0:
                self._changed.wait(remaining)
                before, pending = pending, self._unfinished & jobs.keys()
                if len(pending) < len(before):
                    deadline = time.monotonic() + seconds
        return pending

    def _work(self) -> None:
        while True:
            name, job = self._jobs.get()
            try:
                job()
            except Exception:
                # The thread must survive for the other jobs.
                log.exception("A job of the metrics failed: %s", name)
            finally:
                with self._changed:
                    self._unfinished.discard(name)
                    self._changed.notify_all()


def topic_tables(spec: TopicTable, catalog: LakeCatalog) -> TopicTables:
    """Return the state of a topic's tables."""
    loaded = {identifier: catalog.table(identifier) for identifier in spec.identifiers}
    table, dead_letters = loaded[spec.identifier], loaded[spec.dead_letter_table]
    snapshots = list(ancestors(table, head_of(table))) if table else []
    return TopicTables(
        position=state_of(spec, table).position if table else None,
        committed_at=_first_time(snapshot for snapshot in snapshots if summary_of(snapshot).get(TOPIC) == spec.topic),
        dead_letters=row_count(dead_letters),
        totals=totals_of(table) if table else None,
        losses=tuple(loss for loss in recorded_losses(table) if loss.topic == spec.topic) if table else (),
        tables=tuple(_facts(spec, ".".join(name), table) for name, table in loaded.items() if table is not None),
    )


def _facts(spec: TopicTable, name: str, table: Table) -> TableFacts:
    needs = needs_of(table, spec.maintenance, int(time.time() * 1000))
    head = table.current_snapshot()
    return TableFacts(
        name=name,
        health=needs.health,
        overdue=bool(needs.overdue),
        committed_at=_seconds(head) if head else None,
        compacted_at=_first_time(ancestor for ancestor in ancestors(table, head_of(table)) if compacts(ancestor)),
    )


def _first_time(snapshots: Iterable[Snapshot]) -> float | None:
    return next((_seconds(snapshot) for snapshot in snapshots), None)


def _seconds(snapshot: Snapshot) -> float:
    return snapshot.timestamp_ms / 1000


@dataclass
class ClusterCollector:
    """Collects the samples of one cluster's topics.

    Args:
        cluster: Connects to the cluster.
        catalog: Connects to the catalog.
        tell_user: Called with a line when the error of a part changes.
    """

    specs: Sequence[TopicTable]
    cluster: Callable[[], KafkaCluster]
    catalog: Callable[[], LakeCatalog]
    latest: LatestSamples
    tell_user: Callable[[str], None]
    workers: Workers = field(default_factory=lambda: Workers(_WORKERS))
    _client: KafkaCluster | None = None
    # Times of oldest unread records, which stay the oldest until the table's position moves.
    _known: dict[RecordReference, float | None] = field(default_factory=dict)

    def collect(self) -> None:
        """Ask for all topics once. Never raises: what fails shows on the latest."""
        tables = self._tables()
        try:
            if self._client is None:
                self._client = self.cluster()
            answers = self._client.watermarks(spec.topic for spec in self.specs)
        except Exception as error:
            for spec in self.specs:
                self._fail(spec, error, "brokers", "unread")
            return
        lagging: list[tuple[TopicTable, Watermarks, TopicTables]] = []
        for spec in self.specs:
            now, state = answers[spec.topic], tables.get(key_of(spec))
            if isinstance(now, Exception):
                self._fail(spec, now, "brokers", "unread")
                continue
            lags = lag_samples(key_of(spec), now, state.position) if state else ()
            samples = chain(broker_samples(key_of(spec), now), lags)
            self.latest.succeeded(key_of(spec), "brokers", samples, time.time())
            if state is None:
                self._fail(spec, None, "unread")
            else:
                lagging.append((spec, now, state))
        self._unread(self._client, lagging)

    def _tables(self) -> dict[Key, TopicTables]:
        states: dict[Key, TopicTables] = {}

        def job(spec: TopicTable) -> Job:
            def load() -> None:
                try:
                    catalog = self.catalog()
                    state = topic_tables(spec, catalog)
                    more = [(key_of(table), topic_tables(table, catalog)) for table in spec.tables[1:]]
                except Exception as error:
                    self._fail(spec, error, "table")
                    return
                states[key_of(spec)] = state
                # A table of a route that gets no records has no commit, though all is well.
                routed = (table_samples(key, replace(sample, committed_at=None)) for key, sample in more)
                # A table that several topics fill is reported once, so that sums are right.
                is_first = spec.topic in (spec.topics[:1] or (spec.topic,))
                samples = chain((table_samples if is_first else topic_samples)(key_of(spec), state), *routed)
                self.latest.succeeded(key_of(spec), "table", samples, time.time())

            return load

        late = self.workers.run({key_of(spec): job(spec) for spec in self.specs}, TABLE_SECONDS)
        for spec in self.specs:
            if key_of(spec) in late:
                self._fail(spec, TimeoutError(f"The catalog didn't answer in {TABLE_SECONDS:.0f} s."), "table")
        return dict(states)

    def _unread(self, client: KafkaCluster, topics: Sequence[tuple[TopicTable, Watermarks, TopicTables]]) -> None:
        """Read the timestamps of the oldest unread records."""
        all_unread = {key_of(spec): unread(now, state.position) for spec, now, state in topics}
        wanted = {record for by_partition in all_unread.values() for record in by_partition.values()}
        # A place without a record is read again: by now, there may be one.
        self._known = {record: at for record, at in self._known.items() if record in wanted and at is not None}
        failure: Exception = TimeoutError(f"The oldest unread records didn't come in {UNREAD_SECONDS:.0f} s.")
        try:
            self._known |= arrival_times(client, wanted - self._known.keys(), UNREAD_SECONDS)
        except Exception as error:
            failure = error
        for spec, now, state in topics:
            records = all_unread[key_of(spec)]
            oldest = {p: self._known[record] for p, record in records.items() if record in self._known}
            lags = lag_of(in_topic(state.position, now), now)
            if oldest.keys() == records.keys():
                samples = unread_samples(key_of(spec), lags, oldest)
                self.latest.succeeded(key_of(spec), "unread", samples, time.time())
            else:
                self._fail(spec, failure, "unread")

    def _fail(self, spec: TopicTable, error: Exception | None, *parts: str) -> None:
        """Remove the samples of parts. Without an error, another part has failed and reported it."""
        reason = "" if error is None else user_message(error) or type(error).__name__
        is_new = [self.latest.failed(key_of(spec), part, reason) for part in parts]
        if is_new[0] and reason:
            log.warning("Metrics of topic %s, %s: %s", spec.full_topic, parts[0], reason, exc_info=error)
            self.tell_user(f"{spec.full_topic}, {parts[0]}: {reason}")


def start_collecting(collectors: Mapping[str, ClusterCollector], latest: LatestSamples, interval: float) -> None:
    """Collect in a daemon thread for each cluster."""

    def collect(name: str, collector: ClusterCollector) -> None:
        while True:
            began = time.monotonic()
            try:
                collector.collect()
                latest.collected(name, time.time(), time.monotonic() - began)
            except Exception:
                # The time of the last success stays, and the samples expire.
                log.exception("Metrics could not be collected")
            time.sleep(interval)

    for name, collector in collectors.items():
        Thread(target=collect, args=(name, collector), name=f"metrics-{name}", daemon=True).start()
