"""Metrics as a scraper sees them: over HTTP, in Prometheus' text format."""

import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from kafka_lake.common.processes import free_port
from kafka_lake.observability.serve import Samples, start_server


@dataclass(frozen=True)
class Scraped:
    """The samples of one scrape, by name and labels."""

    values: dict[tuple[str, tuple[tuple[str, str], ...]], float]

    def of(self, name: str, **labels: str) -> float | None:
        """Return the value that has these labels; None if there is none."""
        return self.values.get((f"kafka_lake_{name}", tuple(sorted(labels.items()))))

    def all(self, name: str, **labels: str) -> list[tuple[dict[str, str], float]]:
        """Return the samples that have these labels among others."""
        return [
            (dict(found), value)
            for (known, found), value in self.values.items()
            if known == f"kafka_lake_{name}" and labels.items() <= dict(found).items()
        ]


def scrape(address: str) -> Scraped:
    with urllib.request.urlopen(address, timeout=10) as answer:
        text = answer.read().decode()
    found: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in found, f"{key} occurs twice"
            found[key] = sample.value
    return Scraped(found)


@contextmanager
def served(samples: Samples) -> Iterator[str]:
    """Serve samples during the block, and yield their address."""
    port = free_port()
    server, thread = start_server(samples, "127.0.0.1", port)
    try:
        yield f"http://127.0.0.1:{port}/metrics"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
