"""The benchmarks' command line: measure, print tables, write JSON and charts to ``benchmarks/results/``."""

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from benchmarks import results
from benchmarks.ours import Engine
from benchmarks.throughput import Settings, measure
from kafka_lake.demo.stack import interruptible
from kafka_lake.errors import KafkaLakeError

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help=__doc__)
_out = Console()

Keep = Annotated[bool, typer.Option(help="Write JSON and charts to docs/ too, for the pages.")]


@app.command()
def throughput(
    records: Annotated[int, typer.Option(min=1000, help="In each topic.")] = 5_000_000,
    repeats: Annotated[int, typer.Option(min=1)] = 3,
    peers: Annotated[bool, typer.Option(help="The Iceberg sink of Kafka Connect too.")] = False,
    cores: Annotated[int, typer.Option(min=1, help="Of Spark's local master.")] = 2,
    heap: Annotated[str, typer.Option(help="Of Spark's JVM, and of the peer's.")] = "2g",
    conf: Annotated[list[str], typer.Option(help="key=value for Spark; may be repeated.")] = [],  # noqa: B006
    keep: Keep = False,
) -> None:
    """Records per second and per CPU-second, beside the limits of the machine and, with --peers, a peer."""
    engine = Engine(cores, heap, dict(each.split("=", 1) for each in conf))
    settings = Settings(records, repeats, peers=peers, engine=engine)
    result = measure(settings, lambda line: _out.log(line, _stack_offset=2))
    for topic in settings.topics:
        title = f"{topic}: {records:,} records of {result['bytes_per_record'][topic]:.0f} B, medians of {repeats}"
        _out.print(results.on_terminal(title, results.HEADER, results.throughput_rows(result, topic)))
    _save(result, keep)


def _save(result: dict[str, object], keep: bool) -> None:
    from benchmarks.chart import draw

    for folder, images in [(results.FOLDER, results.FOLDER), *([(results.KEPT, results.IMAGES)] if keep else [])]:
        _out.print(f"Written: {_short(results.save(result, folder))}, {_short(draw(result, images))}")


def _short(path: Path) -> Path:
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def main() -> None:
    """Run the command line; what a user can mend is told without a stack trace."""
    try:
        with interruptible():
            app()
    except KafkaLakeError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
