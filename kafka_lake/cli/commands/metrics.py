"""``kafka-lake metrics …``: what Prometheus asks for."""

from typing import Annotated

import typer

from kafka_lake.cli import console

app = typer.Typer(no_args_is_help=True, help="Metrics for Prometheus: lag, rows, dead letters, the health of tables.")


@app.callback()
def _group() -> None:
    """Keep `serve` a command of its own, though it is the only one."""


@app.command()
def serve(
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen at.")] = 9464,
    host: Annotated[
        str, typer.Option(help="Address to listen at. 0.0.0.0 lets other machines ask; there is no password.")
    ] = "127.0.0.1",
    interval: Annotated[str, typer.Option(help="Pause between two collections: 15s, 1m.")] = "15s",
) -> None:
    """Serve metrics of all topics and their tables at /metrics until Ctrl-C.

    They come from the brokers and the tables: neither Dagster nor a run needs to be there. Values that the brokers or
    the catalog no longer give vanish, and kafka_lake_scrape_success is 0.
    """
    from kafka_lake.cli import metrics
    from kafka_lake.common.durations import seconds_of
    from kafka_lake.common.errors import ConfigurationError

    seconds = seconds_of(interval)
    if seconds < 1:
        raise ConfigurationError(f"--interval {interval} is too short.", "Give a second at least, as 15s.")
    metrics.serve(host, port, seconds, lambda line: console.err.print(line, markup=False, soft_wrap=True))
