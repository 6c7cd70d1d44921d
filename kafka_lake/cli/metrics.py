"""``kafka-lake metrics serve``: collects and serves until a signal comes."""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from kafka_lake.catalog.lake_catalog import LakeCatalog
from kafka_lake.cli.project import configured_catalog, configured_clusters, topic_tables
from kafka_lake.common.text import counted
from kafka_lake.observability import declared as m
from kafka_lake.observability.collect import ClusterCollector, keep_collecting, max_age
from kafka_lake.observability.facts import Sample, key_of
from kafka_lake.observability.serve import Board, start_server

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def serve(host: str, port: int, interval: float, tell_user: Callable[[str], None]) -> None:
    """Serve the metrics of all topics of the project until a signal comes."""
    boards: list[Board] = []
    clusters: dict[str | None, ClusterCollector] = {}

    def samples(now: float) -> Iterator[Sample]:
        yield Sample(m.COLLECTION_INTERVAL, (), interval)
        for board in boards:
            yield from board.samples(now, len(clusters))

    with _until_told(tell_user):
        end = start_server(samples, host, port)
        try:
            specs = topic_tables()
            board = Board((key_of(spec) for spec in specs), max_age(interval))
            catalog = _for_each_thread(configured_catalog().open)
            for name, (kafka, _) in configured_clusters().items():
                of_cluster = [spec for spec in specs if spec.cluster == name]
                clusters[name] = ClusterCollector(
                    specs=of_cluster, cluster=kafka.cluster, catalog=catalog, board=board, tell_user=tell_user
                )
            boards.append(board)
            keep_collecting({name or "": each for name, each in clusters.items()}, board, interval)
            tell_user(f"Metrics of {counted(len(specs), 'topic')}: http://{host}:{port}/metrics (Ctrl-C ends it)")
            while True:
                time.sleep(3600)
        finally:
            end()


def _for_each_thread(make: Callable[[], LakeCatalog]) -> Callable[[], LakeCatalog]:
    """Return a function that gives each thread a catalog of its own: not all clients can be shared."""
    own = threading.local()

    def catalog() -> LakeCatalog:
        if not hasattr(own, "catalog"):
            own.catalog = make()
        found: LakeCatalog = own.catalog
        return found

    return catalog


@contextmanager
def _until_told(tell_user: Callable[[str], None]) -> Iterator[None]:
    """Let a signal end the block, and the command with exit code 0, whatever it is at."""

    def leave(_number: int, _frame: FrameType | None) -> None:
        # Once: what ends the server needn't be interrupted by an impatient user.
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        tell_user("Stopping…")
        raise SystemExit(0)

    before = {number: signal.signal(number, leave) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
