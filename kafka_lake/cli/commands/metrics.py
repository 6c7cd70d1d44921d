"""``kafka-lake metrics serve``."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from kafka_lake.cli import project
from kafka_lake.cli.output import note
from kafka_lake.common.text import counted, seconds_of
from kafka_lake.errors import ConfigurationError
from kafka_lake.observability import metrics as m

if TYPE_CHECKING:
    from kafka_lake.catalog.lake_catalog import LakeCatalog
    from kafka_lake.observability.collect import ClusterCollector
    from kafka_lake.observability.samples import Sample
    from kafka_lake.observability.serve import LatestSamples

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="Metrics for Prometheus: lag, rows, dead letters, the health of tables.",
)


@app.callback()
def _group() -> None:
    """Make `serve` a subcommand, although it is the only one."""


@app.command()
def serve(
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port.")] = 9464,
    host: Annotated[
        str, typer.Option(help="Address. 0.0.0.0 accepts other machines; there is no password.")
    ] = "127.0.0.1",
    interval: Annotated[str, typer.Option(help="Pause between two collections: 15s, 1m.")] = "15s",
) -> None:
    """Serve metrics of all topics and their tables at /metrics until Ctrl-C.

    Reads only brokers and tables, so Dagster and runs aren't needed.
    """
    from kafka_lake.observability.collect import ClusterCollector, max_age, start_collecting
    from kafka_lake.observability.samples import Sample, key_of
    from kafka_lake.observability.serve import LatestSamples, start_server

    seconds = seconds_of(interval)
    if seconds < 1:
        raise ConfigurationError(f"--interval {interval} is too short.", "Use at least one second, such as 15s.")
    latest: list[LatestSamples] = []
    collectors: dict[str | None, ClusterCollector] = {}

    def samples(now: float) -> Iterator[Sample]:
        yield Sample(m.COLLECTION_INTERVAL, (), seconds)
        for collected in latest:
            yield from collected.samples(now, len(collectors))

    # Prometheus gets an answer while the definitions are loaded.
    start_server(samples, host, port)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _stop)
    specs = project.topic_tables()
    latest.append(LatestSamples((key_of(spec) for spec in specs), max_age(seconds)))
    catalog = _per_thread(project.configured_catalog().open)
    for name, (kafka, _) in project.configured_clusters().items():
        collectors[name] = ClusterCollector(
            specs=[spec for spec in specs if spec.cluster == name],
            cluster=kafka.cluster,
            catalog=catalog,
            latest=latest[0],
            tell_user=note,
        )
    start_collecting({name or "": collector for name, collector in collectors.items()}, latest[0], seconds)
    note(f"Metrics of {counted(len(specs), 'topic')}: http://{host}:{port}/metrics (Ctrl-C ends it)")
    while True:
        time.sleep(3600)


def _per_thread(make: Callable[[], LakeCatalog]) -> Callable[[], LakeCatalog]:
    """Return a function that gives each thread its own catalog, since some clients can't be shared."""
    local = threading.local()

    def catalog() -> LakeCatalog:
        if not hasattr(local, "catalog"):
            local.catalog = make()
        own: LakeCatalog = local.catalog
        return own

    return catalog


def _stop(*_: object) -> None:
    note("Stopping…")
    raise SystemExit(0)
