"""The audit refuses what an incremental run computes otherwise than all upstream rows give, and shows one key."""

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest

from kafka_lake.config.derived_table import DerivedTable
from kafka_lake.errors import AuditFailedError
from kafka_lake.ingest.run import ingest
from kafka_lake_tests.integration.test_derived import LOOSE, START, World, orders, world

__all__ = ["world"]
pytestmark = pytest.mark.integration
STORE, HOUR = {"store": "store"}, {"hour": "date_trunc('hour', at)"}
BY_HOUR = "SELECT date_trunc('hour', at) AS hour, sum(total) AS revenue, {more} FROM {{source}} GROUP BY 1"
WRONG: Mapping[str, tuple[str, Mapping[str, Any], str]] = {
    "share of a total": (
        "aggregate", {"key": STORE}, "SELECT store, sum(total) / sum(sum(total)) OVER () AS n FROM {source} GROUP BY 1"
    ),
    "number of others": (
        "aggregate", {"key": STORE},
        "SELECT store, (SELECT count(DISTINCT store) FROM {source}) AS n FROM {source} GROUP BY 1",
    ),
    "hour before": ("aggregate", {"key": HOUR}, BY_HOUR.format(more="lag(sum(total)) OVER (ORDER BY 1) AS n")),
    "hour after": (
        "aggregate", {"key": HOUR},
        "SELECT *, lead(revenue) OVER (ORDER BY hour) AS n FROM (SELECT date_trunc('hour', at) AS hour, "
        "sum(total) AS revenue FROM {source} GROUP BY 1)",
    ),
    "rows of other keys": (
        "aggregate", {"key": STORE},
        "SELECT a.store, count(b.id) AS n FROM {source} a LEFT JOIN {source} b ON b.id = a.id + 1 GROUP BY 1",
    ),
    "another key": ("aggregate", {"key": {"hour": "date_trunc('hour', at)"}},
        "SELECT date_trunc('hour', at) + INTERVAL 1 HOUR AS hour, count(*) AS n FROM {source} GROUP BY 1"),
    "rows so far": ("append", {}, "SELECT *, count(*) OVER (ORDER BY id) AS n FROM {source}"),
    "first of each": (
        "append", {}, "SELECT * EXCEPT (n) FROM "
        "(SELECT *, row_number() OVER (PARTITION BY store ORDER BY id) AS n FROM {source}) WHERE n = 1"
    ),
    "answers that come later": (
        "append", {}, "SELECT a.*, b.id AS n FROM {source} a LEFT JOIN {source} b ON b.id = a.id + 2"
    ),
    "ten rows": ("append", {}, "SELECT * FROM {source} ORDER BY id DESC LIMIT 2"),
    "running total": (
        "upsert", {"key": STORE, "order_by": ("id",)},
        "SELECT *, sum(total) OVER (PARTITION BY store ORDER BY id) AS n FROM {source}",
    ),
}  # fmt: skip


def send(world: World, numbers: range) -> None:
    for number in numbers:
        at = (START + timedelta(hours=number // 2)).isoformat()
        world.topic.send({"id": number, "store": f"s{number % 5}", "total": number + 0.5, "at": at}, number % 2)
    ingest(world.spec, world.connections(), f"run-{numbers.start}")


def refusal(world: World, spec: DerivedTable) -> str:
    """Return why a run publishes nothing; empty if it publishes."""
    try:
        world.derive(spec)
    except AuditFailedError as error:
        return str(error)
    return ""


@pytest.mark.exhaustive
def test_wrong_incremental_queries_are_refused_with_both_rows(world: World) -> None:
    world.spec = world.topic.spec(LOOSE)
    send(world, range(12))
    specs = [orders(world, f"w{n}", write, sql, **more) for n, (write, more, sql) in enumerate(WRONG.values())]
    for spec in specs:
        assert world.derive(spec.model_copy(update={"verify": 0})).verified == 0
    send(world, range(12, 15))
    before = [world.table(spec) for spec in specs]
    found = {name: refusal(world, spec) for name, spec in zip(WRONG, specs, strict=True)}
    assert [world.table(spec) for spec in specs] == before
    assert [world.branches(spec) for spec in specs] == [{"main"}] * len(specs)
    assert "rows of the query have keys that no row read" in found.pop("another key")
    shown = r"the result is ({.*}|no row) from the rows that a run reads, and ({.*}|no row) from all rows\. main"
    assert {name: text for name, text in found.items() if not re.search(shown, " ".join(text.split()))} == {}


def test_wrong_incremental_query_is_refused_at_first_commit(world: World) -> None:
    world.spec = world.topic.spec(LOOSE)
    # Of few records, half may be none whose answer is among the others.
    send(world, range(24))
    share, after, later = (WRONG[name] for name in ("share of a total", "hour after", "answers that come later"))
    for number, (write, more, sql) in enumerate((share, after, later)):
        assert "differ: for" in refusal(world, orders(world, f"w{number}", write, sql, **more))
    right = orders(world, "right", "aggregate", BY_HOUR.format(more="count(*) AS n"), key=HOUR)
    assert world.derive(right).verified == 6, "half of the hours: all of them depend on no others"
    send(world, range(24, 27))
    assert world.derive(right).verified == 14, "two hours that have new rows, and the twelve before"
