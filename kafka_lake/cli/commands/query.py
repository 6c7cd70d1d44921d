"""``kafka-lake query``: SQL over a topic's table, by DuckDB."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from kafka_lake.cli import project
from kafka_lake.cli.arguments import AsJson
from kafka_lake.cli.output import Output, note, working
from kafka_lake.common.offsets import place
from kafka_lake.common.text import counted, printable
from kafka_lake.errors import SnapshotExpiredError, TableError

if TYPE_CHECKING:
    from kafka_lake.fresh import Fresh
    from kafka_lake.runtime.context import Connections
    from kafka_lake.runtime.snapshot_rows import Database
    from kafka_lake.spec.topic_table import TopicTable


_TEXT_OR_NO_NUMBER = re.compile(r'"(?:[^"\\]|\\.)*"|-?Infinity|NaN')


def query(
    table: Annotated[
        str,
        typer.Argument(help="Table, or a Kafka topic (its own table); eu/orders if several clusters have the topic."),
    ],
    sql: Annotated[str, typer.Argument(metavar="SQL", help='DuckDB SQL, such as "SELECT count(*) FROM this".')],
    limit: Annotated[int, typer.Option(min=1, max=2**31, help="Maximum number of rows.")] = 100,
    as_json: AsJson = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Include unread records.")] = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="With --fresh: show the snapshot, the offsets read, and the seconds.")
    ] = False,
) -> None:
    """Query a topic's table with read-only SQL, by DuckDB.

    In SQL, the table's name is its own or `this`. The query reads no other table and needs no Spark.
    """
    from kafka_lake.routing.by_value import find_table, find_topic

    topic, read = find_topic(project.topic_tables(), table), None
    with (
        project.open_connections(with_broker=fresh, cluster=topic.cluster) as connections,
        working("Running the query"),
    ):

        def answer() -> QueryResult:
            nonlocal read
            if not fresh:
                spec = find_table(topic, table, connections.catalog)
                return _of_snapshot(spec, connections, sql, limit=limit, as_json=as_json)
            from kafka_lake.fresh import table_of

            with table_of(topic, table, connections) as opened, _spill_folder(opened.database):
                read = opened.read()
                return _of_fresh(read, sql, limit=limit, as_json=as_json)

        try:
            result = answer()
        except SnapshotExpiredError:
            result = answer()
    _show(result, as_json)
    for line in _explained(read) if explain and read else ():
        note(line)


def _show(result: QueryResult, as_json: bool) -> None:
    if as_json:
        typer.echo("[" + ",\n ".join(_valid_json(str(row[0])) for row in result.rows) + "]")
    Output(as_json).show(_table(result))


def _valid_json(text: str) -> str:
    r"""Return JSON with quotes around DuckDB's NaN and Infinity, which JSON doesn't have.

    >>> print(_valid_json(r'{"a": -Infinity, "b": "NaN, \" NaN", "c": [NaN]}'))
    {"a": "-Infinity", "b": "NaN, \" NaN", "c": ["NaN"]}
    """
    return _TEXT_OR_NO_NUMBER.sub(lambda found: found[0] if found[0][0] == '"' else f'"{found[0]}"', text)


def _explained(fresh: Fresh) -> list[str]:
    """Return lines about the snapshot, the offsets and the time of a fresh read."""
    ranges = "; ".join(
        f"{place(topic, r.partition)} offsets {r.start} to {r.end - 1}"
        for topic, read in fresh.ranges.items()
        for r in read
        if len(r)
    )
    steps = ", ".join(f"{step} {seconds:.3f}" for step, seconds in fresh.seconds.items())
    return [
        f"Snapshot {fresh.snapshot}; read from Kafka: {ranges or 'nothing'}.",
        f"{counted(fresh.records, 'unread record')}, {counted(fresh.dead_letters, 'dead letter')} among them.",
        f"Seconds: {steps}.",
    ]


@dataclass(frozen=True)
class QueryResult:
    """The rows of a query.

    Args:
        columns: Their names; DuckDB adds a number to a name that occurs again.
        rows: A text for each column, None for null; times are UTC. In JSON, one JSON object in each row.
        more: Whether there are rows beyond the limit.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[str | None, ...], ...]
    more: bool


def _of_snapshot(spec: TopicTable, connections: Connections, sql: str, *, limit: int, as_json: bool) -> QueryResult:
    from kafka_lake.catalog.positions import head_of
    from kafka_lake.runtime.snapshot_rows import (
        SnapshotRows,
        file_errors,
        open_database,
        query_errors,
        quoted,
        restrict,
        view_names,
    )

    name, loaded = ".".join(spec.identifier), connections.catalog.table(spec.identifier)
    if loaded is None:
        raise TableError(
            f"Topic {spec.topic} has no table {name} yet: no run has published a record for it.",
            f"`kafka-lake ingest {spec.full_topic}` starts one.",
        )
    with open_database() as database, _spill_folder(database):
        with file_errors(name):
            rows = SnapshotRows(database, loaded, head_of(loaded))
            query = rows.sql(database, "__deleted")
            for view in view_names(spec.table):
                database.execute(f"CREATE VIEW {quoted(view)} AS {query}")
        with query_errors(name, rows.columns):
            restrict(database, rows.paths)
            return _answer(database, sql, limit=limit, as_json=as_json)


@contextmanager
def _spill_folder(database: Database) -> Iterator[None]:
    """Let a database spill to a folder of its own, since queries can read it; by default it is in the current one."""
    with TemporaryDirectory(prefix="kafka-lake-query-") as folder:
        database.execute("SET temp_directory = ?", [folder])
        yield


def _of_fresh(fresh: Fresh, sql: str, *, limit: int, as_json: bool) -> QueryResult:
    from kafka_lake.runtime.snapshot_rows import query_errors, restrict

    with query_errors(fresh.table, fresh.columns):
        restrict(fresh.database, fresh.paths)
        return _answer(fresh.database, sql, limit=limit, as_json=as_json)


def _answer(database: Database, sql: str, *, limit: int, as_json: bool) -> QueryResult:
    """Run a query on a restricted database."""
    import duckdb

    # Inside a subquery, only a query is valid SQL.
    text = f"SELECT * FROM (\n{sql.strip().rstrip(';')}\n)"
    if len(database.extract_statements(text)) > 1:
        # A second statement could write to the table's files.
        raise duckdb.ParserException("it has several statements")
    try:
        relation = database.sql(text)
        # Longer than every column's name: a column of the same name would hide the row.
        row = "_" * (1 + max(map(len, relation.columns)))
        texts = f"to_json({row})::VARCHAR" if as_json else "COLUMNS(*)::VARCHAR"
        shown = relation.query(row, f"SELECT {texts} FROM {row} LIMIT {limit + 1}")
        rows = shown.fetchall() if shown is not None else []
    except RuntimeError as error:
        if "interrupted" in str(error):
            raise KeyboardInterrupt from error
        raise
    return QueryResult(tuple(relation.columns), tuple(rows[:limit]), len(rows) > limit)


def _table(result: QueryResult) -> Table:
    rows = counted(len(result.rows), "row")
    table = Table(caption=f"the first {rows}; --limit shows more" if result.more else rows, min_width=40)
    for name in result.columns:
        table.add_column(Text(printable(name)), overflow="fold")
    for row in result.rows:
        table.add_row(*(Text("null", "dim") if text is None else Text(printable(text)) for text in row))
    return table
