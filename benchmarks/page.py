"""The tables of ``docs/performance.md``, made of the results that are kept beside it."""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import (
    anchors,
    backlog_tables,
    compaction,
    debezium_server,
    fresh,
    maintenance,
    matrix,
    startup,
    store,
    upsert,
    workers,
)
from benchmarks.data import SHAPES
from benchmarks.results import (
    DIRTY_HEADER,
    FRESHNESS_HEADER,
    HEADER,
    KEPT,
    dirty_rows,
    freshness_rows,
    in_markdown,
    load,
    throughput_rows,
)

PAGE = Path(__file__).parents[1] / "docs" / "performance.md"


def tables() -> dict[str, str]:
    """Return each table of the page by its name."""
    throughput, dirty, freshness = (load(name, KEPT) for name in ("throughput-peers", "dirty", "freshness"))
    kinds, fresh_reads, commands = load("matrix", KEPT), load("fresh", KEPT), load("startup", KEPT)
    anchored = load("anchors", KEPT)
    return {
        "machine": _machine(throughput, dirty, freshness),
        **{name: in_markdown(HEADER, throughput_rows(throughput, name)) for name in SHAPES},
        "dirty": in_markdown(DIRTY_HEADER, dirty_rows(dirty)),
        "freshness": in_markdown(FRESHNESS_HEADER, freshness_rows(freshness)),
        "fresh machine": _load(fresh_reads),
        "fresh": in_markdown(fresh.HEADER, fresh.rows(fresh_reads)),
        "matrix machine": _made_on(kinds),
        "matrix": in_markdown(matrix.HEADER, matrix.rows(kinds)),
        "anchors machine": _made_on(anchored),
        "anchors": in_markdown(anchors.HEADER, anchors.rows(anchored)),
        **_measured("workers", workers.HEADER, workers.rows),
        **_measured("backlog", backlog_tables.PHASES_HEADER, backlog_tables.page_rows),
        **_measured("store", store.HEADER, store.rows),
        **_measured("compaction", compaction.PAGE_HEADER, compaction.page_rows),
        **_measured("maintenance", maintenance.PAGE_HEADER, maintenance.page_rows, "long maintenance"),
        **_upserts(),
        **_beside_debezium_server(),
        "startup machine": f"Medians of {commands['settings']['repeats']}; {_where(commands)}",
        "startup": in_markdown(startup.HEADER, startup.rows(commands)),
    }


def _upserts() -> dict[str, str]:
    found = _of_sizes(upsert.NAME)
    return {
        "upsert machine": _where_each(found),
        "upsert": in_markdown(upsert.PAGE_HEADER, upsert.page_rows(found)),
    }


def _beside_debezium_server() -> dict[str, str]:
    found = _of_sizes(debezium_server.NAME)
    rows = [row for result in found for row in debezium_server.rows(result)]
    return {
        f"{debezium_server.NAME} machine": _where_each(found),
        debezium_server.NAME: in_markdown(debezium_server.HEADER, rows),
    }


def _of_sizes(name: str) -> list[dict[str, Any]]:
    """Return a benchmark's results, one for each size of the table."""
    found = [load(path.stem, KEPT) for path in KEPT.glob(f"{name}-*.json")]
    return sorted(found, key=lambda result: result["settings"]["rows"])


def _where_each(found: Sequence[Mapping[str, Any]]) -> str:
    def size(settings: Mapping[str, Any]) -> str:
        return f"{settings['rows']:,} rows{', text keys' if settings.get('text_keys') else ''}"

    return "\n".join(f"- {size(result['settings'])}: {_where(result)}" for result in found)


def _measured(
    name: str, header: Sequence[str], rows: Callable[[dict[str, Any]], list[tuple[str, ...]]], table: str | None = None
) -> dict[str, str]:
    """Return a result's table and where it was measured."""
    found, table = load(name, KEPT), table or name
    return {f"{table} machine": _where(found), table: in_markdown(header, rows(found))}


def update() -> None:
    """Write the tables into the page."""
    text = PAGE.read_text()
    for name, table in tables().items():
        text = between(name).sub(f"{table}\n", text)
    PAGE.write_text(text)


def between(name: str) -> re.Pattern[str]:
    """Return what matches the table of that name in the page."""
    return re.compile(rf"(?<=<!-- {name} -->\n).*?(?=<!-- /{name} -->)", re.DOTALL)


def _machine(throughput: Mapping[str, Any], dirty: Mapping[str, Any], freshness: Mapping[str, Any]) -> str:
    """Return where, when and with what the results were made."""
    machine, settings = throughput["machine"], throughput["settings"]
    rows = [
        ("machine", f"{machine['cores']} cores ({machine['cpu']}), {machine['memory_gib']} GiB"),
        ("throughput", f"{settings['records']:,} records, medians of {settings['repeats']}; {_made(throughput)}"),
        (
            "bad records",
            f"{dirty['settings']['records']:,} records, medians of {dirty['settings']['repeats']}; {_made(dirty)}",
        ),
        ("freshness", f"{freshness['settings']['seconds']:.0f} s each; {_made(freshness)}"),
        ("versions", ", ".join(f"{name} {version}" for name, version in throughput["versions"].items())),
    ]
    return in_markdown(("", ""), rows)


def _made_on(result: Mapping[str, Any]) -> str:
    settings = result["settings"]
    return f"{settings['records']:,} records, medians of {settings['repeats']}; {_where(result)}"


def _load(result: Mapping[str, Any]) -> str:
    settings = result["settings"]
    return f"{settings['rate']:,.0f} records/s, commits every {settings['every']:g} s; {_where(result)}"


def _where(result: Mapping[str, Any]) -> str:
    machine = result["machine"]
    return f"{_made(result)}; {machine['cores']} cores ({machine['cpu']}), {machine['memory_gib']} GiB"


def _made(result: Mapping[str, Any]) -> str:
    return f"{result['made'][:10]}, load average {result['machine']['load_before']} before"
