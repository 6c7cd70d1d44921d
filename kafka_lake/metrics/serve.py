"""Serving: what is on the board, in Prometheus' text format, over HTTP."""

import time
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, ProcessCollector, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from kafka_lake.errors import ConfigurationError
from kafka_lake.metrics.declared import METRICS
from kafka_lake.metrics.facts import Sample

Samples = Callable[[float], Iterator[Sample]]


class Exposed(Collector):
    """The samples of a moment as `prometheus_client` wants them.

    Args:
        samples: Gives those of a time, in seconds since the epoch.
    """

    def __init__(self, samples: Samples) -> None:
        self._samples = samples

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics that have samples, in the order in which they are declared."""
        now = time.time()
        found: dict[str, list[Sample]] = {}
        for sample in self._samples(now):
            found.setdefault(sample.metric.name, []).append(sample)
        for metric in METRICS:
            kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
            family = kind(metric.name.removesuffix("_total"), metric.help, labels=metric.labels)
            for sample in found.get(metric.name, ()):
                family.add_metric(sample.labels, sample.at(now))
            if family.samples:
                yield family

    def describe(self) -> Iterator[Metric]:
        """Yield nothing: a registry that isn't told asks for all values when this is registered."""
        return iter(())


def start_server(samples: Samples, host: str, port: int) -> Callable[[], None]:
    """Serve metrics in threads of their own.

    Returns:
        What ends the server.

    Raises:
        ConfigurationError: If the port is in use, or the address isn't one of this machine.
    """
    registry = CollectorRegistry()
    registry.register(Exposed(samples))
    ProcessCollector(registry=registry)
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        raise ConfigurationError(
            f"The metrics can't be served at {host} port {port}: {error.strerror or error}.",
            "End the program that uses the port, or choose another by --port; --host is an address of this machine.",
        ) from error

    def end() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return end
