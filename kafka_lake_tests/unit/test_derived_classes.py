"""What is called keyed or row-wise is it: random queries that aren't refused, computed by DuckDB over random rows."""

from collections import Counter
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

import duckdb
import pytest

from kafka_lake.derive.classify import query_problems
from kafka_lake.derive.derived_table import DerivedTable
from kafka_lake.derive.query import parsed, tables_read, with_origin
from kafka_lake_tests.lanes import exhaustive

Rows = Mapping[str, Sequence[tuple[Any, ...]]]
UPSTREAM, NAMES, VALUES = ("orders", "refunds"), ("k", "x", "d"), (None, 0, 1, 2)


class Written:
    """Queries over tables that all have the columns k, x, d and _kafka: some keyed, some row-wise, most neither."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self.odd = self._random.choice([0.05, 0.15, 0.3])

    def _of(self, usual: str, *odd: str) -> str:
        """Return what is usual, and now and then something else."""
        return usual if self._random.random() > self.odd else self._random.choice(odd)

    def _expression(self, name: str, names: Sequence[str]) -> str:
        other = self._random.choice(names)
        return self._of(name, other, f"({name})", f"{name} + 1", f"coalesce({name}, 0)", "1", f"{name} + {other}")

    def _source(self, depth: int, number: int) -> str:
        if depth and self._random.random() < 0.5:
            return f"({self.query(depth - 1)}) AS t{number}"
        return f"{self._random.choice(['orders', 'orders', 'refunds', 'stores', 'c'])} AS t{number}"

    def _from(self, depth: int) -> tuple[str, int]:
        text, count = self._source(depth, 0), self._random.choice([1, 1, 1, 2, 2, 3])
        for number in range(1, count):
            kind = self._random.choice(["JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", "SEMI JOIN", "ANTI JOIN"])
            before = self._random.randrange(number)
            one, other = self._of("k k", "x x", "k x", "x k").split()
            on = f"ON t{before}.{one} {self._of('=', '>', 'IS NOT DISTINCT FROM')} t{number}.{other}"
            on += self._of("", f" AND t{number}.x > 0", f" OR t{number}.x > 0")
            how = self._random.choice([on, on, "USING (k)"])
            text += self._of(f" {kind} {self._source(depth, number)} {how}", f", {self._source(depth, number)}")
        return text, count

    def _where(self, names: Sequence[str], count: int) -> str:
        read = self._random.choice(["orders", "stores", "refunds", "c"])
        return self._of(
            self._random.choice(["", f" WHERE {self._random.choice(names)} > 0"]),
            f" WHERE {self._random.choice(names)} IN (SELECT x FROM {read})",
            f" WHERE t0.k = t{count - 1}.k",
            f" WHERE EXISTS (SELECT 1 FROM {read} e WHERE e.k = t0.k)",
        )

    def query(self, depth: int) -> str:
        pick = self._random.choice
        if depth and self._random.random() < 0.2:
            sides = [f"(SELECT k, x, {self._of('d', 'k AS d')}, _kafka FROM ({self.query(depth - 1)}))" for _ in "ab"]
            return f" {pick(['UNION ALL', 'UNION ALL', 'UNION', 'EXCEPT', 'INTERSECT'])} ".join(sides)
        text, count = self._from(depth)
        names = [f"t{number}.{name}" for number in range(count) for name in NAMES]
        names += ["k"] if count > 1 else list(NAMES)
        k = self._expression(pick(["k", "t0.k"]), names)
        x, d = (self._expression(pick(names), names) for _ in "ab")
        where, origin = self._where(names, count), f"t{self._of('0', str(count - 1))}._kafka"
        shape = pick(["plain", "plain", "star", "distinct", "group", "all", "window", "odd"])
        if shape == "star":
            return f"SELECT {pick(['*', 't0.*']) if count == 1 else 't0.*'} FROM {text}{where}"
        if shape in ("group", "all"):
            by = self._of(f"{k}, {d}", d, k, "1, 3", "k, d", f"ROLLUP ({k}, {d})")
            total = pick([f"sum({x})", f"count(DISTINCT {x})", "count(*)"])
            over = self._of("", f" + sum(sum({x})) OVER (PARTITION BY {pick([k, d])})")
            return (
                f"SELECT {k} AS k, {total}{over} AS x, {d} AS d, max({origin}) AS _kafka FROM {text}{where} "
                f"GROUP BY {by if shape == 'group' else 'ALL'}{self._of('', ' HAVING count(*) > 1')}"
            )
        if shape == "window":
            by = self._of(f"PARTITION BY {k}", f"PARTITION BY {d}, {k}", f"PARTITION BY {d}", "")
            x = f"sum({x}) OVER ({by})"
        first = "DISTINCT " if shape == "distinct" else ""
        end = pick([" LIMIT 1", " ORDER BY 1 LIMIT 2", ""]) if shape == "odd" else ""
        return f"SELECT {first}{k} AS k, {x} AS x, {d} AS d, {origin} FROM {text}{where}{end}"

    def statement(self) -> str:
        query, inner = self.query(self._random.choice([0, 1, 1, 2])), self.query(1)
        for read in ("FROM c ", "FROM c)", "JOIN c ", ", c "):
            inner = inner.replace(read, read.replace("c", "orders", 1))
        return f"WITH c AS ({inner}) {query}" if {"c"} & tables_read(parsed(query)) else query

    def rows(self) -> dict[str, list[tuple[Any, ...]]]:
        numbers = iter(range(100))
        return {
            name: [
                (*self._random.choices(VALUES, k=3), next(numbers)) for _ in range(self._random.choice([0, 2, 4, 8]))
            ]
            for name in (*UPSTREAM, "stores")
        }


def spec_of(sql: str, write: str) -> DerivedTable:
    read = {each.lower() for each in tables_read(parsed(sql))}
    return DerivedTable(
        table="t",
        write=write,
        sql=sql,
        sources=tuple(each for each in UPSTREAM if each in read) or ("orders",),
        join=("stores",) if "stores" in read else (),
        key={"k": "k"} if write == "aggregate" else {},
    )


def computed(connection: duckdb.DuckDBPyConnection, sql: str, tables: Rows) -> list[dict[str, Any]]:
    for name, rows in tables.items():
        connection.execute(f"DELETE FROM {name}")
        if rows:
            connection.executemany(f"INSERT INTO {name} VALUES (?, ?, ?, ?)", rows)
    relation = connection.execute(sql)
    names = [each[0].lower() for each in relation.description]
    return [dict(zip(names, row, strict=True)) for row in relation.fetchall()]


def counted(rows: Sequence[Mapping[str, Any]]) -> Counter[str]:
    return Counter(str(each) for each in rows)


def where(tables: Rows, chosen: set[int]) -> Rows:
    return {n: [row for row in rows if n == "stores" or row[3] in chosen] for n, rows in tables.items()}


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("first", [0, *(exhaustive(number) for number in range(10_000, 60_000, 10_000))])
def test_what_is_not_refused_is_of_its_class(first: int) -> None:
    connection = duckdb.connect()
    for name in (*UPSTREAM, "stores"):
        connection.execute(f"CREATE TABLE {name} (k INT, x INT, d INT, _kafka INT)")
    judged = Counter[str]()
    for seed in range(first, first + (10_000 if first else 60)):
        written = Written(seed)
        sql, tables = written.statement(), written.rows()
        for write in ("aggregate", "append"):
            spec = spec_of(sql, write)
            if list(query_problems(spec)):
                continue
            text = with_origin(sql, spec.upstream) if write == "append" else sql
            try:
                whole = computed(connection, text, tables)
            except duckdb.Error:
                # What Spark refuses, too, as columns that are ambiguous.
                continue
            judged[write] += 1
            for number in range(3):
                random = Random(number)
                keys = set(random.sample(VALUES, 2))
                rows = [row for name in UPSTREAM for row in tables[name]]
                chosen = {row[3] for row in rows if (row[0] in keys if write == "aggregate" else random.random() < 0.5)}
                some = computed(connection, text, where(tables, chosen))
                if write == "aggregate":
                    assert counted(some) == counted([row for row in whole if row["k"] in keys]), (seed, sql, tables)
                else:
                    others = computed(connection, text, where(tables, {row[3] for row in rows} - chosen))
                    assert counted([*some, *others]) == counted(whole), (seed, sql, tables)
    assert min(judged["aggregate"], judged["append"]) > 5, judged
