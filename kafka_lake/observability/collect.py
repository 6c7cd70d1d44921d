"""Collecting: every few seconds, a thread for each cluster asks for all topics of it; the board gets the values."""

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
from kafka_lake.catalog.positions import TOPIC, ancestors, head_of, row_count, summary_of
from kafka_lake.catalog.totals import totals_of
from kafka_lake.common.offsets import Watermarks, in_topic
from kafka_lake.common.offsets import lag as lag_of
from kafka_lake.error_classification import user_message
from kafka_lake.kafka.cluster import KafkaCluster
from kafka_lake.kafka.records import Place, arrival_times, unread
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
from kafka_lake.runtime.record_keys import state_of
from kafka_lake.spec.topic_table import TopicTable

Job = Callable[[], object]


class Workers:
    """A few threads that do jobs; they end with the process, even if a job hangs.

    Args:
        count: How many. Jobs that hang keep one each.
    """

    def __init__(self, count: int) -> None:
        self._jobs: SimpleQueue[tuple[Hashable, Job]] = SimpleQueue()
        self._unfinished: set[Hashable] = set()
        self._changed = Condition()
        for number in range(count):
            Thread(target=self._work, name=f"metrics-{number}", daemon=True).start()

    def do(self, jobs: Mapping[Hashable, Job], seconds: float) -> set[Hashable]:
        """Have jobs done."""
        with self._changed:
            for name, job in jobs.items():
                if name not in self._unfinished:
                    self._unfinished.add(name)
                    self._jobs.put((name, job))
            left, deadline = self._unfinished & jobs.keys(), time.monotonic() + seconds
            while left and (rest := deadline - time.monotonic()) > 0:
                self._changed.wait(rest)
                before, left = left, self._unfinished & jobs.keys()
                if len(left) < len(before):
                    deadline = time.monotonic() + seconds
        return left

    def _work(self) -> None:
        while True:
            name, job = self._jobs.get()
            try:
                job()
            except Exception:
                # One thread less for all others would be worse.
                log.exception("A job of the metrics failed: %s", name)
            finally:
                with self._changed:
                    self._unfinished.discard(name)
                    self._changed.notify_all()


def topic_tables(spec: TopicTable, catalog: LakeCatalog) -> TopicTables:
    """Return what is known of a topic's tables."""
    loaded = {identifier: catalog.table(identifier) for identifier in spec.identifiers}
    table, letters = loaded[spec.identifier], loaded[spec.dead_letter_table]
    history = list(ancestors(table, head_of(table))) if table else []
    return TopicTables(
        position=state_of(spec, table).position if table else None,
        committed_at=_newest(each for each in history if summary_of(each).get(TOPIC) == spec.topic),
        dead_letters=row_count(letters),
        totals=totals_of(table) if table else None,
        losses=tuple(each for each in recorded_losses(table) if each.topic == spec.topic) if table else (),
        tables=tuple(_facts(spec, ".".join(name), each) for name, each in loaded.items() if each is not None),
    )


def _facts(spec: TopicTable, name: str, table: Table) -> TableFacts:
    needs = needs_of(table, spec.maintenance, int(time.time() * 1000))
    history = ancestors(table, head_of(table))
    head = table.current_snapshot()
    return TableFacts(
        name=name,
        health=needs.health,
        overdue=bool(needs.overdue),
        committed_at=_seconds(head) if head else None,
        compacted_at=_newest(each for each in history if compacts(each)),
    )


def _newest(snapshots: Iterable[Snapshot]) -> float | None:
    """Return when the first of some snapshots was committed; None if there is none."""
    return next((_seconds(each) for each in snapshots), None)


def _seconds(snapshot: Snapshot) -> float:
    return snapshot.timestamp_ms / 1000


log = logging.getLogger(__name__)

TABLE_SECONDS = 20.0
"""How long to wait while no job finishes; tables whose jobs are unfinished by then have failed this time."""
UNREAD_SECONDS = 10.0
_SLOW_SECONDS = 120.0
_WORKERS = 8


def max_age(interval: float) -> float:
    """Return for how many seconds values count that nothing newer has replaced."""
    return max(3 * interval, interval + _SLOW_SECONDS)


@dataclass
class ClusterCollector:
    """Collects the values of the topics of one cluster.

    Args:
        cluster: Connects to it; may fail.
        catalog: Connects to the catalog; may fail.
        tell_user: Called with a line when a part fails in another way than before.
    """

    specs: Sequence[TopicTable]
    cluster: Callable[[], KafkaCluster]
    catalog: Callable[[], LakeCatalog]
    latest: LatestSamples
    tell_user: Callable[[str], None]
    workers: Workers = field(default_factory=lambda: Workers(_WORKERS))
    _client: KafkaCluster | None = None
    # A record stays the oldest unread one until the table's position moves.
    _known: dict[Place, float | None] = field(default_factory=dict)

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
            now, found = answers[spec.topic], tables.get(key_of(spec))
            if isinstance(now, Exception):
                self._fail(spec, now, "brokers", "unread")
                continue
            behind = lag_samples(key_of(spec), now, found.position) if found else ()
            samples = chain(broker_samples(key_of(spec), now), behind)
            self.latest.succeeded(key_of(spec), "brokers", samples, time.time())
            if found is None:
                self._fail(spec, None, "unread")
            else:
                lagging.append((spec, now, found))
        self._unread(self._client, lagging)

    def _tables(self) -> dict[Key, TopicTables]:
        found: dict[Key, TopicTables] = {}

        def job(spec: TopicTable) -> Callable[[], None]:
            def load() -> None:
                try:
                    catalog = self.catalog()
                    tables = topic_tables(spec, catalog)
                    others = [(key_of(each), topic_tables(each, catalog)) for each in spec.tables[1:]]
                except Exception as error:
                    self._fail(spec, error, "table")
                    return
                found[key_of(spec)] = tables
                # A table of a route that gets no records has no commit, though all is well.
                of_routes = (table_samples(key, replace(each, committed_at=None)) for key, each in others)
                # A table that several topics fill is reported once, so that sums are right.
                is_first = spec.topic in (spec.topics[:1] or (spec.topic,))
                samples = chain((table_samples if is_first else topic_samples)(key_of(spec), tables), *of_routes)
                self.latest.succeeded(key_of(spec), "table", samples, time.time())

            return load

        late = self.workers.do({key_of(spec): job(spec) for spec in self.specs}, TABLE_SECONDS)
        for spec in self.specs:
            if key_of(spec) in late:
                self._fail(spec, TimeoutError(f"The catalog gave no answer in {TABLE_SECONDS:.0f} s."), "table")
        return dict(found)

    def _unread(self, client: KafkaCluster, topics: Sequence[tuple[TopicTable, Watermarks, TopicTables]]) -> None:
        """Find out when the oldest unread records came."""
        all_unread = {key_of(spec): unread(now, found.position) for spec, now, found in topics}
        wanted = {each for places in all_unread.values() for each in places.values()}
        # Where no record followed, one may by now.
        self._known = {each: at for each, at in self._known.items() if each in wanted and at is not None}
        failure: Exception = TimeoutError(f"The oldest unread records didn't come in {UNREAD_SECONDS:.0f} s.")
        try:
            self._known |= arrival_times(client, wanted - self._known.keys(), UNREAD_SECONDS)
        except Exception as error:
            failure = error
        for spec, now, found in topics:
            places = all_unread[key_of(spec)]
            oldest = {p: self._known[each] for p, each in places.items() if each in self._known}
            lags = lag_of(in_topic(found.position, now), now)
            if oldest.keys() == places.keys():
                samples = unread_samples(key_of(spec), lags, oldest)
                self.latest.succeeded(key_of(spec), "unread", samples, time.time())
            else:
                self._fail(spec, failure, "unread")

    def _fail(self, spec: TopicTable, error: Exception | None, *parts: str) -> None:
        """Remove the values of parts; without an error if another part has failed, which was reported there."""
        reason = "" if error is None else user_message(error) or type(error).__name__
        is_new = [self.latest.failed(key_of(spec), part, reason) for part in parts]
        if is_new[0] and reason:
            log.warning("Metrics of topic %s, %s: %s", spec.full_topic, parts[0], reason, exc_info=error)
            self.tell_user(f"{spec.full_topic}, {parts[0]}: {reason}")


def start_collecting(collectors: Mapping[str, ClusterCollector], latest: LatestSamples, interval: float) -> None:
    """Begin to collect, a thread for each cluster, until the process ends."""

    def go_on(name: str, collector: ClusterCollector) -> None:
        while True:
            began = time.monotonic()
            try:
                collector.collect()
                latest.collected(name, time.time(), time.monotonic() - began)
            except Exception:
                # The time of the last success stays, and values grow old.
                log.exception("Metrics could not be collected")
            time.sleep(interval)

    for name, collector in collectors.items():
        Thread(target=go_on, args=(name, collector), name=f"metrics-{name}", daemon=True).start()
