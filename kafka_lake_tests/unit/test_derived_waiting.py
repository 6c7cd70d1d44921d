"""Records that are kept back until the rows that they look up are there: which, and when they are looked at."""

import random
import re
from dataclasses import replace
from typing import Any, cast

import dagster as dg
import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation

from kafka_lake.common.offsets import OffsetRange
from kafka_lake.components import derived_assets
from kafka_lake.derive.classify import query_problems
from kafka_lake.derive.derived_table import DerivedTable
from kafka_lake.derive.lookups import lacking_queries
from kafka_lake.derive.plan import DerivePlan, State, plan
from kafka_lake.derive.query import fingerprint
from kafka_lake.derive.record import Record, read_of
from kafka_lake.derive.report import DeriveReport
from kafka_lake.derive.waiting import Waiting, coarse, joined, without
from kafka_lake.lake.positions import DERIVED
from kafka_lake_tests.unit.test_derived_detect import Upstream, upstream_table

Offsets = set[tuple[int, int]]
RANGES = st.lists(st.builds(lambda p, a, n: OffsetRange(p, a, a + n), st.integers(0, 2), st.integers(0, 30),
                            st.integers(0, 6)), max_size=12)  # fmt: skip
SPEC = DerivedTable(
    table="t", sources=("orders",), join=("stores", "cities"), wait_for=("stores",), lookback="10s", write="append",
    sql="SELECT o.id, s.city FROM orders o LEFT JOIN stores s ON o.store = s.id JOIN cities c ON s.city = c.id",
)  # fmt: skip


def offsets(ranges: tuple[OffsetRange, ...] | list[OffsetRange]) -> Offsets:
    return {(each.partition, offset) for each in ranges for offset in range(each.start, each.end)}


@given(RANGES, RANGES, st.integers(1, 6))
def test_ranges_of_offsets_are_sets(some: list[OffsetRange], others: list[OffsetRange], most: int) -> None:
    one, left, fewer = joined(some), without(some, others), coarse(some, most)
    assert offsets(one) == offsets(some)
    assert offsets(left) == offsets(some) - offsets(others)
    assert offsets(fewer) >= offsets(some)
    assert len(fewer) <= max(most, len({each.partition for each in some}))
    for each in (one, left, fewer):
        assert sum(map(len, each)) == len(offsets(each)), "none is there twice"
        assert joined(each) == each


@pytest.mark.parametrize("count", [0, 1, 50, 51, 3000])
def test_what_a_snapshot_tells_of_records_that_wait_is_read_as_it_was_written(count: int) -> None:
    chance, ranges, at = random.Random(count), list[OffsetRange](), 10**12
    for number in range(count):
        at += chance.randrange(1, 5000)
        ranges.append(OffsetRange(number * 3 // max(1, count), at, at + chance.choice([1, 1, 7])))
        at += 8
    waiting = Waiting(joined(ranges), 1_700_000_000_000 if count else None)
    record = Record("q", {}, {}, "UTC", waiting)
    text = record.to_json()
    assert Record.from_json(text) == record
    assert len(text) < 60 + 30 * 50 + 8 * count, "it is in each snapshot that is kept"


def planned(spec: DerivedTable, waiting: Waiting, now: float, changed: str = "") -> DerivePlan | None:
    """Plan a commit behind one that kept records back, where one table has changed since, or none."""
    tables = {name: Upstream() for name in ("orders", "stores", "cities")}
    for each in tables.values():
        each.append(0, 0)
    reads = {name: read_of(each.table()) for name, each in tables.items()}
    record = Record(fingerprint(spec), {"orders": reads["orders"]}, {n: reads[n] for n in spec.joined}, "", waiting)
    made = Upstream()
    made.commit(Operation.APPEND, {}, {DERIVED: record.to_json()})
    table: Any = made.table()
    table.current_snapshot = lambda: made.snapshots[-1]
    if changed:
        tables[changed].append(0, 0)
    there = {name: upstream_table(each) for name, each in tables.items()}
    state = State(
        cast(Table, table), {"orders": there["orders"]}, {name: there[name] for name in spec.joined},
        {name: ("lake", name) for name in there},
    )  # fmt: skip
    return plan(spec, state, now=now)


def test_records_that_wait_are_looked_at_when_a_table_that_is_looked_up_has_changed_or_they_have_waited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kafka_lake.derive.plan.has_origin", lambda kind: kind is None)
    waiting = Waiting((OffsetRange(0, 0, 1),), oldest=100_000)
    assert planned(SPEC, waiting, 109.9) is None
    assert planned(SPEC, Waiting(), 999, "stores") is None, "no record waits"
    for todo in (planned(SPEC, waiting, 110.0), *(planned(SPEC, waiting, 1, each) for each in ("stores", "cities"))):
        assert todo is not None
        assert (todo.looks_again, todo.waiting, todo.full) == (True, waiting, "")
    news = planned(SPEC, waiting, 1, "orders")
    assert news is not None
    assert not news.looks_again, "nothing that they look up is another one"
    released = planned(replace(SPEC, wait_for=(), lookback=None), waiting, 1)
    assert released is not None
    assert released.looks_again, "they no longer wait"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"wait_for": ("shops",)}, "wait_for: shops is no table of join:"),
        ({"lookback": None}, "wait_for: needs lookback:"),
        ({"write": "aggregate", "key": {"id": "id"}}, "wait_for: isn't for write: aggregate, which computes keys"),
        ({"write": "replace"}, "wait_for: isn't for write: replace"),
        ({"sql": None, "transform": "a:b"}, "wait_for: needs sql:"),
        ({"sources": ("orders", "refunds")}, "one table under from:"),
        ({"sql": "SELECT s.city FROM orders, stores s JOIN cities"}, "without ON or USING|doesn't look rows up"),
        ({"sql": "SELECT o.a FROM orders o CROSS JOIN stores JOIN cities"}, "CROSS JOIN stores doesn't look rows up"),
        ({"sql": "SELECT o.a FROM orders o ANTI JOIN stores USING (a) JOIN cities"}, "ANTI JOIN stores doesn't look"),
        ({"sql": "SELECT a, _kafka FROM (SELECT * FROM orders) JOIN stores JOIN cities"}, "doesn't begin with orders"),
        ({"sql": "SELECT o.a FROM stores JOIN orders o USING (a) JOIN cities"}, "doesn't begin with orders"),
        ({"sql": "SELECT o.a FROM orders o JOIN (SELECT * FROM stores) USING (a) JOIN cities"}, "once, and directly"),
        ({"sql": "SELECT o.a FROM orders o JOIN stores s USING (a) JOIN stores t USING (b) JOIN cities"}, "once"),
        (
            {"sql": "WITH stores AS (SELECT * FROM cities JOIN stores) SELECT o.a FROM orders o JOIN stores USING (a)"},
            "isn't joined once, and directly",
        ),
        (
            {"sql": "SELECT a FROM orders JOIN stores USING (a) JOIN cities UNION ALL SELECT a FROM orders"},
            "no single SELECT",
        ),
    ],
)
def test_what_nobody_can_tell_to_wait_is_refused(change: dict[str, Any], said: str) -> None:
    problems = " ".join(query_problems(replace(SPEC, **change)))
    assert re.search(said, problems), problems


def test_a_query_that_can_wait_is_none_that_is_refused() -> None:
    assert list(query_problems(SPEC)) == []
    assert list(query_problems(replace(SPEC, write="upsert", key={"id": "id"}, wait_for=("stores", "cities")))) == []
    assert list(query_problems(replace(SPEC, time="at"))) == []
    assert fingerprint(SPEC) == fingerprint(replace(SPEC, wait_for=())), "rows that are there are the same"


@pytest.mark.parametrize("seed", range(20))
def test_a_row_lacks_a_row_where_joining_it_finds_none(seed: int) -> None:
    chance = random.Random(seed)
    how = chance.choice(["JOIN", "LEFT JOIN", "INNER JOIN"])
    on = chance.choice(["USING (k)", "ON o.k = s.k", "ON o.k = s.k AND s.v > 0", "ON s.k = o.k OR o.x = 2"])
    where = chance.choice(["", " WHERE o.x > 0", " WHERE x > 0", " WHERE s.v > 0", " WHERE x > 0 AND s.v IS NULL"])
    spec = replace(SPEC, join=("stores",), sql=f"SELECT o.x, s.v FROM orders o {how} stores s {on}{where}")
    assert list(query_problems(spec)) == []
    orders = [(n, chance.choice([None, 1, 2, 3]), chance.randrange(3)) for n in range(12)]
    stores = [(chance.choice([None, 1, 2]), chance.randrange(2)) for _ in range(3)]
    (lacking,) = lacking_queries(spec, ("_kafka", "k", "x"))
    database = duckdb.connect()
    database.execute("CREATE TABLE orders (_kafka int, k int, x int); CREATE TABLE stores (k int, v int)")
    database.executemany("INSERT INTO orders VALUES (?, ?, ?)", orders)
    database.executemany("INSERT INTO stores VALUES (?, ?)", stores)

    def meets(order: tuple[Any, ...], store: tuple[Any, ...]) -> bool:
        same = order[1] is not None and order[1] == store[0]
        return same and store[1] > 0 if "s.v > 0" in on else same or (" OR " in on and order[2] == 2)

    expected = {each[0] for each in orders if not any(meets(each, one) for one in stores)}
    if "x > 0" in where:
        expected &= {number for number, _, x in orders if x > 0}
    found = database.execute(lacking.replace("`", '"').replace("LEFT ANTI", "ANTI")).fetchall()
    assert {number for (number,) in found} == expected, lacking


def test_a_row_lacks_what_a_row_that_it_looks_up_looks_up() -> None:
    queries = lacking_queries(replace(SPEC, wait_for=("stores", "cities")))
    assert queries == [
        "SELECT `o`.`_kafka` FROM orders o\nLEFT ANTI JOIN stores s ON o.store = s.id",
        "SELECT `o`.`_kafka` FROM orders o\nLEFT JOIN stores s ON o.store = s.id\n"
        "LEFT ANTI JOIN cities c ON s.city = c.id",
    ]


_TEXTS = [
    # Functions that sqlglot would write as others: these round in another way, or forget their format.
    ("FROM orders o JOIN stores s ON floor(log10(o.n)) = s.id AND to_char(o.n, '000') = s.name", []),
    ("FROM orders o, cities c INNER JOIN stores USING (id) -- the last one\n WHERE o.x <=> 1", ["o.x <=> 1"]),
    (
        "FROM orders AS o -- first\n LEFT SEMI JOIN stores s ON left(o.x, 3) = s.x WHERE X > 1 OR y = 2",
        ["X > 1 OR y = 2"],
    ),
    (
        "FROM orders LEFT JOIN stores ON orders.at BETWEEN stores.a AND stores.b "
        "WHERE (ORDERS.x BETWEEN 1 AND 2 AND (item.price > 0)) AND CASE WHEN x AND y THEN true END AND stores.z AND q",
        ["ORDERS.x BETWEEN 1 AND 2", "item.price > 0", "CASE WHEN x AND y THEN true END"],
    ),
    (
        "FROM orders o JOIN stores s ON o.a[0] = s.id WHERE _kafka.offset > 5 AND NOT o.x AND s.x > 0 AND o.x IN "
        "(SELECT id FROM cities) AND o.x IS DISTINCT FROM o.y",
        ["_kafka.offset > 5", "NOT o.x", "o.x IS DISTINCT FROM o.y"],
    ),
    (
        "FROM orders o JOIN stores s ON o.x = s.x LATERAL VIEW explode(o.items) t AS i WHERE i > 0 AND t.i > 1 "
        "AND x > 2",
        ["x > 2"],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("text", "conditions"), _TEXTS)
@pytest.mark.parametrize("begins", ["SELECT o.id IS DISTINCT FROM s.b AS q ", "WITH c AS (SELECT 1) SELECT /* a */ 1 "])
def test_what_is_looked_up_and_dropped_is_as_the_query_says_it_word_by_word(
    begins: str, text: str, conditions: list[str]
) -> None:
    spec = replace(SPEC, join=("stores",), sql=f"{begins}{text};")
    (lacking,) = lacking_queries(spec, ("_kafka", "x", "y", "item"))
    told = " ".join(lacking.split())
    looked_up = " ".join(text.replace("-- the last one\n", "").partition(" JOIN ")[2].partition(" WHERE ")[0].split())
    assert f"LEFT ANTI JOIN {looked_up.partition(' LATERAL ')[0]}" in told
    expected = "".join(f" {'AND' if number else 'WHERE'} ({each})" for number, each in enumerate(conditions))
    assert told.endswith(expected)
    assert told.count(" WHERE ") == min(1, len(conditions)), told
    assert told.startswith("WITH c AS (SELECT 1) SELECT" if begins.startswith("WITH") else "SELECT")


def test_a_record_that_can_not_be_read_is_told() -> None:
    with pytest.raises(ValueError, match="no records that wait"):
        Waiting.of({"oldest": 1, "offsets": "bm90aGluZw=="})


def test_the_check_warns_of_records_that_were_written_without_their_row_or_expired_while_they_waited() -> None:
    key = dg.AssetKey(["lake", "t"])

    def told(**figures: int) -> tuple[bool, str | None]:
        (check,) = derived_assets._waiting(key, SPEC, DeriveReport("lake.t", **figures))
        return check.passed, check.description

    assert told() == (True, None)
    assert told(waiting=2, waiting_since=1000) == (
        True, "2 records wait for stores, the oldest since 1970-01-01 00:00:01 UTC",
    )  # fmt: skip
    passed, text = told(waited_in_vain=3)
    assert not passed
    assert str(text).startswith("3 records expired in orders while they waited, so no row was written for them")
    assert not told(unmatched=1)[0]
