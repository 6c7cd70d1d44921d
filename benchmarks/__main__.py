"""The benchmarks' command line: measure, print tables, write JSON and charts to ``benchmarks/results/``."""

import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from benchmarks import anchors as beside_others
from benchmarks import backlog as long_backlog
from benchmarks import backlog_tables, page, results
from benchmarks import compaction as while_compacted
from benchmarks import debezium_server as without_kafka
from benchmarks import fresh as fresh_reads
from benchmarks import hot as hot_keys
from benchmarks import maintenance as of_tables
from benchmarks import matrix as of_kinds
from benchmarks import ratio as to_loop
from benchmarks import small as small_commits
from benchmarks import soak as everything
from benchmarks import startup as of_commands
from benchmarks import store as object_store
from benchmarks import upsert as upserts
from benchmarks import workers as of_clusters
from benchmarks.chart import draw
from benchmarks.dirty import Settings as DirtySettings
from benchmarks.dirty import measure as measure_dirty
from benchmarks.freshness import CASES
from benchmarks.freshness import measure as measure_freshness
from benchmarks.ours import Engine
from benchmarks.throughput import Settings, scratch
from benchmarks.throughput import measure as measure_throughput
from kafka_lake.devstack.stack import interruptible
from kafka_lake.errors import KafkaLakeError

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
# A file or a pipe has no width; tables have.
_out = Console(log_path=False, width=None if sys.stdout.isatty() else 180)

Keep = Annotated[bool, typer.Option(help="Write JSON, charts and tables to docs/ too.")]
Cores = Annotated[int, typer.Option(min=1, help="Of Spark's local master.")]
Heap = Annotated[str, typer.Option(help="Of Spark's JVM, and of the peer's.")]


@app.callback()
def benchmarks() -> None:
    """Measure on this machine, print tables, write JSON and charts to benchmarks/results/."""


@app.command()
def throughput(
    records: Annotated[int, typer.Option(min=1000, help="In each topic.")] = 5_000_000,
    repeats: Annotated[int, typer.Option(min=1)] = 3,
    peers: Annotated[bool, typer.Option(help="The Iceberg sink of Kafka Connect too.")] = False,
    cores: Cores = 2,
    heap: Heap = "2g",
    conf: Annotated[list[str], typer.Option(help="key=value for Spark; may be repeated.")] = [],  # noqa: B006
    keep: Keep = False,
) -> None:
    """Records per second and per CPU-second, beside the limits of the machine and, with --peers, a peer."""
    engine = Engine(cores, heap, dict(setting.split("=", 1) for setting in conf))
    settings = Settings(records, repeats, peers=peers, engine=engine)
    result = measure_throughput(settings, _tell_user)
    for topic in settings.topics:
        title = f"{topic}: {records:,} records of {result['bytes_per_record'][topic]:.0f} B, medians of {repeats}"
        _out.print(results.on_terminal(title, results.HEADER, results.throughput_rows(result, topic)))
    _save(result, keep)


@app.command()
def matrix(
    records: Annotated[int, typer.Option(min=10_000, help="In a whole topic.")] = 1_000_000,
    repeats: Annotated[int, typer.Option(min=1)] = 3,
    case: Annotated[list[str], typer.Option(help="Beginning of a case's name; may be repeated.")] = [],  # noqa: B006
    keep: Keep = False,
) -> None:
    """What each kind of topic costs, relative to declared JSON: formats, types, layouts, upserts."""
    result = of_kinds.measure(of_kinds.Settings(records, repeats, tuple(case)), _tell_user)
    title = f"{records:,} records in each whole topic, medians of {repeats}, warm"
    _show(result, title, of_kinds, keep)


@app.command()
def anchors(
    records: Annotated[int, typer.Option(min=20_000, help="In the topic, and rows of the upsert table.")] = 1_000_000,
    repeats: Annotated[int, typer.Option(min=1)] = 3,
    keep: Keep = False,
) -> None:
    """Figures per core and in dollars, beside a process without guarantees, Flink, Arrow and PyIceberg."""
    result = beside_others.measure(beside_others.Settings(records, repeats), _tell_user)
    _show(result, f"{records:,} records, medians of {repeats}", beside_others, keep)


@app.command()
def dirty(
    records: Annotated[int, typer.Option(min=1000, help="In each topic.")] = 1_000_000,
    repeats: Annotated[int, typer.Option(min=1, help="Of what is warm.")] = 2,
    peers: Annotated[bool, typer.Option(help="The Iceberg sink of Kafka Connect too.")] = False,
    cores: Cores = 2,
    heap: Heap = "2g",
    keep: Keep = False,
) -> None:
    """What records that can't be rows cost: none, 1 % and 10 % of them cut off, or with a value of a wrong type."""
    result = measure_dirty(DirtySettings(records, repeats, peers=peers, engine=Engine(cores, heap)), _tell_user)
    title = f"{records:,} records in each topic, medians of {repeats} where it is warm"
    _out.print(results.on_terminal(title, results.DIRTY_HEADER, results.dirty_rows(result)))
    _save(result, keep)


@app.command()
def freshness(
    case: Annotated[list[str], typer.Option(help="One of them; may be repeated.")] = list(CASES),  # noqa: B006
    seconds: Annotated[float, typer.Option(min=1, help="How long each case is measured.")] = 100,
    warm_up: Annotated[float, typer.Option(min=0, help="Seconds of load before.")] = 30,
    topics: Annotated[int | None, typer.Option(min=1, help="Instead of the cases' own number.")] = None,
    rate: Annotated[int | None, typer.Option(min=1, help="Records per second and topic.")] = None,
    keep: Keep = False,
) -> None:
    """Seconds from a record to its row, for runs that the sensor asks for and for continuous runs."""
    _refuse_unknown(case, CASES)
    chosen: dict[str, Any] = {name: value for name, value in (("topics", topics), ("rate", rate)) if value}
    cases = [replace(CASES[name], **chosen) for name in case]
    with scratch() as folder:
        result = measure_freshness(cases, seconds, warm_up, folder, _tell_user)
    _out.print(
        results.on_terminal(
            f"Seconds from produced to visible, measured for {seconds:.0f} s each",
            results.FRESHNESS_HEADER,
            results.freshness_rows(result),
        )
    )
    _save(result, keep)


@app.command()
def compaction(
    case: Annotated[list[str], typer.Option(help="One of them; may be repeated.")] = list(while_compacted.CASES),  # noqa: B006
    seconds: Annotated[float, typer.Option(min=1, help="How long each case is measured.")] = 300,
    warm_up: Annotated[float, typer.Option(min=0, help="Seconds of load before.")] = 30,
    keep: Keep = False,
) -> None:
    """Seconds from a record to its row while files are compacted, and who refused whose commits."""
    _refuse_unknown(case, while_compacted.CASES)
    with scratch() as folder:
        result = while_compacted.measure(seconds, warm_up, folder, _tell_user, case)
    title = f"Seconds from produced to visible, measured for {seconds:.0f} s each"
    _out.print(results.on_terminal(title, while_compacted.HEADER, while_compacted.rows(result)))
    _save(result, keep)


@app.command()
def backlog(
    records: Annotated[int, typer.Option(min=1, help="In the topic.")] = 5_000_000,
    record_bytes: Annotated[int, typer.Option(help="Of each record.")] = 200,
    max_records: Annotated[int | None, typer.Option(min=1, help="max_records_per_commit; else the default.")] = None,
    cores: Cores = 2,
    heap: Heap = "1g",
    memory: Annotated[int | None, typer.Option(min=1, help="MiB; it fails if a run's peak is above it.")] = None,
    keep: Keep = False,
) -> None:
    """A long backlog: peak memory over time, a run that is killed in the midst, and a count of every offset."""
    limits = {"max_records_per_commit": max_records} if max_records else {}
    settings = long_backlog.Settings(records, record_bytes, limits, Engine(cores, heap))
    result = long_backlog.measure(settings, _tell_user)
    for title, header, found in (
        (f"{records:,} records of {record_bytes:,} B", backlog_tables.HEADER, backlog_tables.rows(result)),
        ("Memory over the time of each run", backlog_tables.PHASES_HEADER, backlog_tables.phase_rows(result)),
        ("What DuckDB counted", backlog_tables.PARTITIONS_HEADER, backlog_tables.partition_rows(result)),
    ):
        _out.print(results.on_terminal(title, header, found))
    _out.print(f"Written: {_short(results.save(result, results.FOLDER))}")
    if not all(map(long_backlog.is_exact, result["partitions"])):
        raise KafkaLakeError("The table is not what the topic holds.", "See the last table.")
    if memory and (found := backlog_tables.beyond(result, memory << 20)):
        raise KafkaLakeError(f"The budget of {memory:,} MiB was not kept: {', '.join(found)}.", "See the second table.")
    if keep:
        results.save(result, results.KEPT)
        page.update()


@app.command()
def workers(
    records: Annotated[int, typer.Option(min=1000, help="In the topic.")] = 5_000_000,
    repeats: Annotated[int, typer.Option(min=1)] = 3,
    keep: Keep = False,
) -> None:
    """Records per second by a standalone cluster of 1, 2 and 4 workers of one core each."""
    result = of_clusters.measure(of_clusters.Settings(records, repeats), _tell_user)
    _show(result, f"{records:,} records, medians of {repeats}, warm", of_clusters, keep)


@app.command()
def upsert(
    rows: Annotated[int, typer.Option(min=1, help="Of the table.")] = 1_000_000,
    changes: Annotated[int, typer.Option(min=1, help="Of each batch.")] = 100_000,
    batches: Annotated[int, typer.Option(min=1, help="Of each kind of keys.")] = 3,
    cores: Cores = 2,
    heap: Heap = "2g",
    through_kafka: Annotated[
        bool, typer.Option(help="Fill the table through its topic; Spark itself writes the rows else, which is faster.")
    ] = True,
    peer: Annotated[bool, typer.Option(help="PyIceberg's upsert of as many rows too.")] = False,
    text_keys: Annotated[bool, typer.Option("--text-keys", help="Keys are texts of 32 characters.")] = False,
    keep: Keep = False,
) -> None:
    """Changes into a keyed table: of recent keys and of keys at random, and each row in the end."""
    settings = upserts.Settings(rows, changes, batches, Engine(cores, heap), through_kafka, peer, text_keys)
    result = upserts.measure(settings, _tell_user)
    _show(result, f"A keyed table of {rows:,} rows", upserts, keep and not result["differing"])
    _compared(result)


@app.command()
def debezium_server(
    release: Annotated[Path, typer.Option(exists=True, file_okay=False, help="Of debezium-server-iceberg, unpacked.")],
    rows: Annotated[int, typer.Option(min=1, help="Of each table.")] = 1_000_000,
    changes: Annotated[int, typer.Option(min=1, help="Of each batch.")] = 10_000,
    batches: Annotated[int, typer.Option(min=1, help="Of each kind of keys.")] = 3,
    keep: Keep = False,
) -> None:
    """Upserts by kafka_lake and by debezium-server-iceberg: the same changes, reads, and each row in the end."""
    result = without_kafka.measure(upserts.Settings(rows, changes, batches), release, _tell_user)
    title = f"Tables of {rows:,} rows, batches of {changes:,} changes"
    _show(result, title, without_kafka, keep and not result["differing"])
    _compared(result)


@app.command()
def soak(
    minutes: Annotated[float, typer.Option(min=0.5)] = 60.0,
    rate: Annotated[float, typer.Option(min=1, help="Records per second and topic.")] = 20.0,
    every: Annotated[int, typer.Option(min=1, help="Seconds between two looks of the sensor.")] = 20,
    kill_every: Annotated[float, typer.Option(min=0, help="Seconds between two kills; 0 for none.")] = 240.0,
    seed: Annotated[int, typer.Option(help="Decides what is killed when.")] = 7,
    keep: Keep = False,
) -> None:
    """Ten topics of a deployment with everything on, kills now and then, each record compared in the end."""
    with scratch() as folder:
        result = everything.measure(everything.Soak(minutes, rate, every, kill_every, seed), folder, _tell_user)
    _out.print(results.on_terminal(f"{result['records']:,} records", everything.HEADER, everything.rows(result)))
    for problem in result["problems"]:
        _out.print(problem, markup=False)
    _save(result, keep)
    if result["problems"]:
        raise typer.Exit(1)
    print(f"seed {seed}: {len(result['kills'])} kills, {result['records']:,} records, each is there once")


@app.command()
def hot(
    rows: Annotated[int, typer.Option(min=100, help="Of the table.")] = 2_000_000,
    minutes: Annotated[float, typer.Option(min=0.1, help="How long the table is changed.")] = 60,
    rate: Annotated[float, typer.Option(min=1, help="Changes per second.")] = 1000,
    every: Annotated[float, typer.Option(help="Seconds between the beginnings of two merges, at least.")] = 5,
    mode: Annotated[str, typer.Option(help=f"How the table is written: {', '.join(hot_keys.MODES)}.")] = next(
        iter(hot_keys.MODES)
    ),
    cores: Cores = 2,
    heap: Heap = "2g",
) -> None:
    """Hot keys, with maintenance on: time of the merges, memory and files over the time, and each row in the end."""
    if mode not in hot_keys.MODES:
        raise typer.BadParameter(f"{mode}: write {' or '.join(hot_keys.MODES)}.")
    result = hot_keys.measure(hot_keys.Settings(rows, minutes, rate, every, mode, Engine(cores, heap)), _tell_user)
    title = f"{rate:,.0f} changes a second into a keyed table of {rows:,} rows, {mode}"
    _show(result, title, hot_keys)
    _compared(result)


@app.command()
def maintenance(
    commits: Annotated[int, typer.Option(min=1, help="How many at most.")] = 302_400,
    minutes: Annotated[float, typer.Option(help="How long at most.")] = 120,
    every: Annotated[int, typer.Option(min=1, help="Commits between two looks of the maintenance.")] = 450,
    samples: Annotated[int, typer.Option(min=1, help="How often the table is measured.")] = 168,
    keep: Keep = False,
) -> None:
    """Seven days of commits, one every two seconds, by a fast writer with maintenance on: commit and planning time."""
    result = of_tables.measure(of_tables.Settings(commits, minutes, every, samples, Engine()), _tell_user)
    title = f"{result['expected'] // 10:,} commits, maintained after each {every:,}"
    _show(result, title, of_tables, keep)
    if result["rows"] != result["expected"]:
        raise KafkaLakeError(f"The table has {result['rows']:,} rows, {result['expected']:,} were committed.")


@app.command()
def ratio(
    records: Annotated[int, typer.Option(min=1000, help="In the topic.")] = 400_000,
    repeats: Annotated[int, typer.Option(min=1)] = 5,
    keep: Annotated[bool, typer.Option(help="What `make nightly` compares with from now on.")] = False,
) -> None:
    """CPU of an ingest beside that of a loop of Arrow's over the same records, in turn: comparable between machines."""
    result = to_loop.measure(to_loop.Settings(records, repeats), _tell_user)
    title = f"{records:,} records, {result['ratio']:.2f} times the loop; kept: {to_loop.kept():.2f}"
    _show(result, title, to_loop, keep)


@app.command()
def fresh(
    seconds: Annotated[float, typer.Option(min=1, help="How long records are produced and queried.")] = 60,
    tail: Annotated[int, typer.Option(min=1, help="Unread records of a read.")] = 50_000,
    keep: Keep = False,
) -> None:
    """Fresh reads: seconds from a record to a query that sees it, and reads of an unread tail."""
    result = fresh_reads.measure(fresh_reads.Settings(seconds=seconds, tail=tail), _tell_user)
    _out.print(results.on_terminal("Fresh reads", fresh_reads.HEADER, fresh_reads.rows(result)))
    _save(result, keep)


@app.command()
def small(
    records: Annotated[int, typer.Option(min=1, help="Of each commit.")] = 400,
    commits: Annotated[int, typer.Option(min=1)] = 20,
) -> None:
    """CPU of commits of a few records, by process: Spark in this process, and by a Connect server."""
    result = small_commits.measure(small_commits.Settings(records, commits), _tell_user)
    title = f"Commits of {records:,} records, medians of {commits}"
    _show(result, title, small_commits)


@app.command()
def store(
    records: Annotated[int, typer.Option(min=1, help="Of each commit.")] = 400,
    commits: Annotated[int, typer.Option(min=1)] = 10,
    keep: Keep = False,
) -> None:
    """Requests and seconds of commits to S3, each request 30 ms late, beside local files."""
    result = object_store.measure(object_store.Settings(records, commits), _tell_user)
    _show(result, f"Commits of {records:,} records, medians of {commits}", object_store, keep)


@app.command()
def startup(
    topics: Annotated[list[int], typer.Option(min=1, help="Of a project; may be repeated.")] = [1, 300],  # noqa: B006
    repeats: Annotated[int, typer.Option(min=1)] = 3,
    keep: Keep = False,
) -> None:
    """Seconds of commands, of the components' import, and of loading a code location with many topics."""
    result = of_commands.measure(of_commands.Settings(tuple(topics), repeats), _tell_user)
    _show(result, f"Medians of {repeats}", of_commands, keep)


def _show(result: dict[str, Any], title: str, benchmark: Any, keep: bool = False) -> None:
    """Print a result as the benchmark's table, and write its JSON."""
    _out.print(results.on_terminal(title, benchmark.HEADER, benchmark.rows(result)))
    for folder in (results.FOLDER, *([results.KEPT] if keep else [])):
        _out.print(f"Written: {_short(results.save(result, folder))}")
    if keep:
        page.update()


def _compared(result: dict[str, Any]) -> None:
    if result["differing"]:
        raise KafkaLakeError(f"The rows of {result['differing']:,} keys are not what was produced.")


def _refuse_unknown(asked: Iterable[str], cases: Iterable[str]) -> None:
    if unknown := set(asked) - set(cases):
        raise typer.BadParameter(f"{', '.join(unknown)}: write {' or '.join(cases)}.")


def _tell_user(line: str) -> None:
    _out.log(line)


def _save(result: dict[str, object], keep: bool) -> None:
    for folder, images in [(results.FOLDER, results.FOLDER), *([(results.KEPT, results.IMAGES)] if keep else [])]:
        _out.print(f"Written: {_short(results.save(result, folder))}, {_short(draw(result, images))}")
    if keep:
        page.update()
        _out.print(f"Written: {_short(page.PAGE)}")


def _short(path: Path) -> Path:
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def main() -> None:
    """Run the command line; what a user can fix is told without a stack trace."""
    try:
        with interruptible():
            app()
    except KafkaLakeError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
