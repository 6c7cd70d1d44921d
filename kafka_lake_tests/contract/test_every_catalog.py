"""What readers find, whatever the layout; and what a run makes of a commit whose answer never came. For every pair."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import polars
import pytest
from botocore.exceptions import ConnectionClosedError
from pyiceberg.catalog import Catalog
from requests import ConnectionError as NoAnswer
from sqlalchemy.exc import OperationalError

from kafka_lake.ingest.run import ingest
from kafka_lake.runtime.context import Connections, RetryPolicy
from kafka_lake.spec.topic_table import TopicTable
from kafka_lake_tests.conftest import Topic, View
from kafka_lake_tests.written_by import by

pytestmark = [pytest.mark.integration, pytest.mark.contract, pytest.mark.in_contract]

_BEGIN = datetime(2025, 12, 31, 22, tzinfo=UTC)
_COLUMNS = "id bigint, store int, city string, price decimal(9,2), day date, moment timestamp"
_TRANSFORMS = (
    (),
    ("store",),
    ("year(moment)",),
    ("month(day)",),
    ("day(moment)", "bucket(4, id)"),
    ("hour(moment)", "truncate(2, city)"),
    ("bucket(3, city)", "truncate(10, store)"),
)

_LOST: Mapping[str, Callable[[], Exception]] = {
    "rest": lambda: NoAnswer("the connection was closed"),
    "sql": lambda: OperationalError("COMMIT", {}, OSError("the server closed the connection")),
    "glue": lambda: ConnectionClosedError(endpoint_url="http://127.0.0.1"),
    "hive": lambda: OSError("the server closed the connection"),
}


def _sent(topic: Topic, count: int) -> list[tuple[Any, ...]]:
    rows = []
    for number in range(count):
        at = _BEGIN + timedelta(minutes=37 * number)
        row = (number, number % 7 - 3, ["Zürich", "Rom", "Ulm"][number % 3], Decimal(number * 101) / 100, at.date(), at)
        value = {"id": row[0], "store": row[1], "city": row[2], "price": float(row[3])}
        topic.send({**value, "day": at.date().isoformat(), "moment": at.isoformat()}, number % 2)
        rows.append(row)
    return rows


def _rows(found: Any) -> list[tuple[Any, ...]]:
    def plain(value: Any) -> Any:
        # Spark gives times without a zone, in that of the session.
        return value.astimezone(UTC) if isinstance(value, datetime) else value

    return sorted(tuple(map(plain, row)) for row in found)


def _by_reader(catalog: Any, spec: TopicTable, session: Any, since: date) -> dict[str, Any]:
    names = [part.split()[0] for part in _COLUMNS.split(", ")]
    table = catalog.table(spec.identifier)
    listed, some = ", ".join(names), f"day >= DATE '{since}'"
    chosen = table.scan(row_filter=f"day >= '{since}'", selected_fields=tuple(names))
    lazy = polars.scan_iceberg(table, storage_options=table.io.properties)
    by_polars = lazy.filter(polars.col("day") >= since).select(names)
    return {
        "PyIceberg": (tuple(row[name] for name in names) for row in chosen.to_arrow().to_pylist()),
        "Spark": session.sql(f"SELECT {listed} FROM {catalog.spark_name(spec.identifier)} WHERE {some}").collect(),
        "DuckDB through PyIceberg": table.scan()
        .to_duckdb("rows")
        .sql(f"SELECT {listed} FROM rows WHERE {some}")
        .fetchall(),
        "Polars": by_polars.collect().rows(),
    }


@pytest.mark.parametrize("arrow", [True, False], ids=["by Arrow", "by Spark"])
@pytest.mark.parametrize("partition_by", _TRANSFORMS, ids=lambda given: ", ".join(given) or "unpartitioned")
def test_every_reader_finds_what_was_produced(
    new_topic: Callable[..., Topic],
    connections: Callable[[], Connections],
    view: Callable[[TopicTable], View],
    partition_by: tuple[str, ...],
    arrow: bool,
) -> None:
    topic = new_topic(2)
    spec = topic.spec(_COLUMNS, partition_by=partition_by, **by(arrow))
    rows = _sent(topic, 60)
    ingest(spec, connections(), "run-1")
    systems, since = connections(), date(2026, 1, 1)
    for reader, found in _by_reader(systems.catalog, spec, systems.spark(), since).items():
        assert _rows(found) == _rows(row for row in rows if row[4] >= since), reader
    view(spec).assert_exactly_once(topic.ledger)


@pytest.mark.parametrize("arrow", [True, False], ids=["by Arrow", "by Spark"])
def test_commits_whose_answers_are_lost_are_there_once(
    new_topic: Callable[..., Topic],
    connections: Callable[[], Connections],
    view: Callable[[TopicTable], View],
    arrow: bool,
) -> None:
    topic = new_topic()
    spec = topic.spec(**by(arrow))
    topic.send_ids([0])
    ingest(spec, connections(), "run-0")
    lost = 0
    for number in range(1, 20):
        topic.send(b"no JSON")
        topic.send_ids([number])
        systems = replace(connections(), retry=RetryPolicy(initial_seconds=0.01))
        with pytest.MonkeyPatch.context() as patch:
            struck = _lose_answer(patch, systems.catalog.pyiceberg, systems.catalog.type, number)
            ingest(spec, systems, f"run-{number}")
        view(spec).assert_exactly_once(topic.ledger)
        view(spec).assert_no_branches()
        if not struck:
            break
        lost += len(struck)
    # A branch for rows and one for dead letters; the two publications. Arrow appends by PyIceberg, too.
    assert lost >= 4 + arrow
    assert view(spec).ids() == list(range(number + 1))


def _lose_answer(patch: pytest.MonkeyPatch, catalog: Catalog, kind: str, number: int) -> list[int]:
    """Let a catalog's commit of that number happen, and its answer never come; return a list that then has it."""
    struck: list[int] = []
    commit, calls = catalog.commit_table, iter(range(1, 1000))

    def without_answer(*given: Any, **named: Any) -> Any:
        answer = commit(*given, **named)
        if next(calls) == number:
            struck.append(number)
            raise _LOST[kind]()
        return answer

    patch.setattr(catalog, "commit_table", without_answer)
    return struck
