"""``kafka-lake query``: SQL over a topic's table, by the deployment's own Spark; fresh reads by DuckDB."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from kafka_lake.cli import project
from kafka_lake.cli.arguments import AsJson
from kafka_lake.cli.output import Output, note, working
from kafka_lake.common.offsets import place
from kafka_lake.common.text import counted, printable
from kafka_lake.errors import KafkaLakeError

if TYPE_CHECKING:
    from pyspark.errors import PySparkException
    from pyspark.sql import functions as F
    from pyspark.sql import types as T

    from kafka_lake.fresh import Fresh
    from kafka_lake.runtime.context import Connections
    from kafka_lake.spec.topic_table import TopicTable

# The microseconds that a table keeps; Spark's default format of JSON cuts them to milliseconds.
_JSON_FORMATS = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    "ignoreNullFields": "false",
}


def query(
    table: Annotated[
        str,
        typer.Argument(help="Table, or a Kafka topic (its own table); eu/orders if several clusters have the topic."),
    ],
    sql: Annotated[str, typer.Argument(metavar="SQL", help='Spark SQL, such as "SELECT count(*) FROM this".')],
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of rows.")] = 100,
    as_json: AsJson = False,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Include unread records. The query is then DuckDB SQL.")
    ] = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="With --fresh: show the snapshot, the offsets read, and the seconds.")
    ] = False,
) -> None:
    """Query a topic's table with read-only Spark SQL.

    Use the table's own name, or this; other tables are namespace.table. With --fresh, the query can read only this
    table.
    """
    from kafka_lake.routing.by_value import find_table, find_topic

    topic, read = find_topic(project.topic_tables(), table), None
    with (
        project.open_connections(with_broker=fresh, cluster=topic.cluster) as connections,
        working("Running the query"),
    ):
        if fresh:
            read, result = _fresh_result(topic, table, connections, sql=sql, limit=limit, as_json=as_json)
        else:
            spec = find_table(topic, table, connections.catalog)
            result = run_query(spec, connections, sql=sql, limit=limit, as_json=as_json)
    _show(result, as_json)
    for line in _explained(read) if explain and read else ():
        note(line)


def _show(result: QueryResult, as_json: bool) -> None:
    if as_json:
        typer.echo("[" + ",\n ".join(str(row[0]) for row in result.rows) + "]")
    Output(as_json).show(_table(result))


def _fresh_result(
    topic: TopicTable, name: str, connections: Connections, *, sql: str, limit: int, as_json: bool
) -> tuple[Fresh, QueryResult]:
    from kafka_lake.fresh import table_of

    with table_of(topic, name, connections) as table:
        return table.reading(lambda fresh: (fresh, _run_fresh_query(fresh, sql=sql, limit=limit, as_json=as_json)))


def _run_fresh_query(fresh: Fresh, sql: str, limit: int, as_json: bool) -> QueryResult:
    """Run a query on a table with its unread records; the query can read nothing else."""
    import duckdb

    from kafka_lake.runtime.snapshot_rows import quoted as quoted_in_duckdb

    try:
        database, text = fresh.restricted(), f"SELECT * FROM (\n{sql.strip().rstrip(';')}\n)"
        if len(database.extract_statements(text)) > 1:
            # A statement behind the query could write to the table's folder.
            raise duckdb.ParserException("it has several statements")
        relation = database.sql(text)
        columns = unique_names(relation.columns)
        named = relation.project(
            ", ".join(f"#{n} AS {quoted_in_duckdb(column)}" for n, column in enumerate(columns, 1))
        )
        texts = "to_json(r)::VARCHAR" if as_json else "COLUMNS(*)::VARCHAR"
        shown = named.query("r", f"SELECT {texts} FROM r LIMIT {limit + 1}")
        rows = shown.fetchall() if shown is not None else []
    except duckdb.Error as error:
        raise fresh.error(error) from error
    return QueryResult(columns, tuple(rows[:limit]), len(rows) > limit)


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
        columns: Their names, made unique by a number.
        rows: A text for each column, None for null; times are UTC. In JSON, one JSON object in each row.
        more: Whether there are rows beyond the limit.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[str | None, ...], ...]
    more: bool


def run_query(spec: TopicTable, connections: Connections, sql: str, limit: int, as_json: bool = False) -> QueryResult:
    """Run a query in which the topic's table has its own name and the name ``this``."""
    from pyspark.errors import PySparkException
    from pyspark.sql import functions as F

    from kafka_lake.catalog.lake_catalog import quoted

    name = ".".join(spec.identifier)
    if connections.catalog.table(spec.identifier) is None:
        raise KafkaLakeError(
            f"Topic {spec.topic} has no table {name} yet: no run has published any of its records.",
            f"`kafka-lake ingest {spec.full_topic}` starts one.",
        )
    spark = connections.spark()
    try:
        spark.sql(f"USE {quoted(connections.catalog.name)}.{quoted(spec.namespace)}")
        spark.table(connections.catalog.spark_name(spec.identifier)).createOrReplaceTempView("this")
        # Inside a subquery, only a query is valid SQL.
        result = spark.sql(f"SELECT * FROM (\n{sql.strip().rstrip(';')}\n)")
        columns = unique_names(result.columns)
        named = result.toDF(*columns)
        in_json = [F.to_json(F.struct("*"), _JSON_FORMATS)]
        selected = in_json if as_json else [_as_text(f) for f in named.schema.fields]
        rows = named.limit(limit + 1).select(*selected).collect()
    except PySparkException as error:
        raise KafkaLakeError(
            f"Spark can't run this query on {name}: {_first_line(error)}",
            f"The table's name is {spec.identifier[1]} or this; `kafka-lake schema {spec.full_topic} --sample 0` "
            "shows its columns.",
        ) from error
    return QueryResult(columns, tuple(tuple(row) for row in rows[:limit]), len(rows) > limit)


def unique_names(names: Iterable[str]) -> tuple[str, ...]:
    """Return names of columns with a number added to those that occurred before.

    >>> unique_names(["id", "ID", "id"])
    ('id', 'ID__2', 'id__3')
    """
    taken: set[str] = set()
    unique = []
    for name in names:
        number, free = 1, name
        while free.lower() in taken:
            number += 1
            free = f"{name}__{number}"
        taken.add(free.lower())
        unique.append(free)
    return tuple(unique)


def _table(result: QueryResult) -> Table:
    rows = counted(len(result.rows), "row")
    table = Table(caption=f"the first {rows}; --limit shows more" if result.more else rows, min_width=40)
    for name in result.columns:
        table.add_column(Text(printable(name)), overflow="fold")
    for row in result.rows:
        table.add_row(*(Text("null", "dim") if text is None else Text(printable(text)) for text in row))
    return table


def _as_text(field: T.StructField) -> F.Column:
    from pyspark.sql import functions as F
    from pyspark.sql import types as T

    from kafka_lake.catalog.lake_catalog import quoted

    nested = (T.StructType, T.ArrayType, T.MapType, T.VariantType)
    column = F.col(quoted(field.name))
    text = F.to_json(column, _JSON_FORMATS) if isinstance(field.dataType, nested) else column.cast("string")
    return text.alias(field.name)


def _first_line(error: PySparkException) -> str:
    # The following lines quote the statement, which isn't the user's own, and the plan.
    text = (error.getMessage() or str(error)).strip().splitlines()[0].partition(" SQLSTATE:")[0]
    return text if text.endswith(".") else f"{text}."
