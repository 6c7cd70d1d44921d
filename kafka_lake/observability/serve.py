"""The newest samples of all topics, served over HTTP in Prometheus' text format."""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from threading import Lock, Thread
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, ProcessCollector, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from kafka_lake.errors import ConfigurationError
from kafka_lake.observability import metrics as m
from kafka_lake.observability.metrics import METRICS
from kafka_lake.observability.samples import Key, Sample

PARTS = ("brokers", "unread", "table")


@dataclass(frozen=True)
class _Part:
    samples: tuple[Sample, ...] = ()
    succeeded_at: float | None = None
    failed: bool = True
    error: str = ""


class LatestSamples:
    """The newest samples by topic and part, written by collecting threads and read by scrapes.

    Args:
        keys: All topics and their tables. Each part counts as failed until its first samples.
        max_age: Seconds after which samples expire.
    """

    def __init__(self, keys: Iterable[Key], max_age: float) -> None:
        self._max_age = max_age
        self._lock = Lock()
        self._parts = {(key, part): _Part() for key in keys for part in PARTS}
        self._collection: dict[str, tuple[float, float]] = {}

    def succeeded(self, key: Key, part: str, samples: Iterable[Sample], now: float) -> None:
        """Replace the samples of a part, collected at a time in seconds since the epoch."""
        collected = tuple(samples)
        with self._lock:
            self._parts[key, part] = _Part(collected, now, failed=False)

    def failed(self, key: Key, part: str, error: str) -> bool:
        """Remove the samples of a part; return whether the error differs from the last one."""
        with self._lock:
            before = self._parts[key, part]
            self._parts[key, part] = replace(before, failed=True, error=error)
        return before.error != error

    def collected(self, cluster: str, now: float, seconds: float) -> None:
        """Record a collection of all topics of a cluster."""
        with self._lock:
            self._collection[cluster] = (now, seconds)

    def samples(self, now: float, clusters: int) -> Iterator[Sample]:
        """Yield all samples, at a time in seconds since the epoch."""
        with self._lock:
            parts, collection = dict(self._parts), list(self._collection.values())
        yield Sample(m.TOPICS, (), len({topic for (topic, _), _ in parts}))
        if collection and len(collection) == clusters:
            yield Sample(m.COLLECTION_TIME, (), min(at for at, _ in collection))
            yield Sample(m.COLLECTION_SECONDS, (), max(seconds for _, seconds in collection))
        for (key, part), state in parts.items():
            at = state.succeeded_at
            fresh = not state.failed and at is not None and now - at <= self._max_age
            yield Sample(m.SCRAPE_SUCCESS, (*key, part), fresh)
            if at is not None:
                yield Sample(m.SCRAPE_TIME, (*key, part), at)
            if fresh:
                yield from state.samples


Samples = Callable[[float], Iterator[Sample]]


class Exposed(Collector):
    """The current samples as metric families of `prometheus_client`."""

    def __init__(self, samples: Samples) -> None:
        self._samples = samples

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics that have samples, in the order of their declaration."""
        now = time.time()
        by_name: dict[str, list[Sample]] = {}
        for sample in self._samples(now):
            by_name.setdefault(sample.metric.name, []).append(sample)
        for metric in METRICS:
            kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
            family = kind(metric.name.removesuffix("_total"), metric.help, labels=metric.labels)
            for sample in by_name.get(metric.name, ()):
                family.add_metric(sample.labels, sample.at(now))
            if family.samples:
                yield family

    def describe(self) -> Iterator[Metric]:
        """Yield nothing, so that the registry doesn't collect at the registration."""
        return iter(())


def start_server(samples: Samples, host: str, port: int) -> tuple[WSGIServer, Thread]:
    """Serve metrics in background threads."""
    registry = CollectorRegistry()
    registry.register(Exposed(samples))
    ProcessCollector(registry=registry)
    try:
        return start_http_server(port, host, registry)
    except OSError as error:
        raise ConfigurationError(
            f"The metrics can't be served at {host} port {port}: {error.strerror or error}.",
            "End the program that uses the port, or choose another with --port; --host is an address of this machine.",
        ) from error
