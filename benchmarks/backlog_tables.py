"""A result of `benchmarks.backlog` as the cells of tables, and whether its runs kept a budget of memory."""

from collections.abc import Mapping
from typing import Any

from benchmarks.backlog import is_exact

HEADER = (
    "Run",
    "end",
    "commits",
    "records",
    "s",
    "CPU s",
    "records/s",
    "largest commit",
    "peak memory",
    "Java",
    "Python",
)


def rows(result: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return the runs of a result as the cells of a table, see `HEADER`."""
    return [
        (
            str(number),
            "killed" if run["killed"] else "done",
            f"{run['commits']:,}",
            f"{run['records']:,}",
            f"{run['seconds']:.0f}",
            f"{run['cpu_seconds']:.0f}",
            f"{run['records_per_second']:,.0f}",
            f"{run['largest_commit']:,}",
            *(f"{run[name] / 2**20:,.0f} MiB" for name in ("peak_memory", "peak_java", "peak_python")),
        )
        for number, run in enumerate(result["runs"], 1)
    ]


PHASES_HEADER = ("Run", "of its time", "records so far", "peak memory", "Java", "Python")


def phase_rows(result: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return the peaks over the time of each run as the cells of a table, see `PHASES_HEADER`."""
    return [
        (
            str(number),
            f"{100 * part // len(run['phases'])} %",
            f"{phase['records']:,}",
            *(f"{phase[name] / 2**20:,.0f} MiB" for name in ("peak_memory", "peak_java", "peak_python")),
        )
        for number, run in enumerate(result["runs"], 1)
        for part, phase in enumerate(run["phases"], 1)
    ]


def page_rows(result: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return the first, middle and last phase of each run, see `PHASES_HEADER`."""
    found, count = phase_rows(result), len(result["runs"][0]["phases"])
    return [row for number, row in enumerate(found) if number % count in (0, count // 2 - 1, count - 1)]


PARTITIONS_HEADER = ("Partition", "offsets in Kafka", "offsets in the table", "rows", "twice", "exactly once")


def partition_rows(result: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return what was counted of each partition as the cells of a table, see `PARTITIONS_HEADER`."""
    return [
        (
            str(part["partition"]),
            f"{part['low']:,} to {part['end'] - 1:,}",
            f"{part['first']:,} to {part['last']:,}" if part["rows"] else "none",
            f"{part['rows']:,}",
            f"{part['rows'] - part['distinct']:,}",
            "yes" if is_exact(part) else "NO",
        )
        for part in result["partitions"]
    ]


def beyond(result: Mapping[str, Any], budget: int) -> list[str]:
    """Return what there is to say about runs whose memory was above a budget, or wasn't looked at."""
    return [
        f"run {number}: {run['peak_memory'] >> 20:,} MiB" if run["peak_memory"] else f"run {number}: not looked at"
        for number, run in enumerate(result["runs"], 1)
        if not 0 < run["peak_memory"] <= budget
    ]
