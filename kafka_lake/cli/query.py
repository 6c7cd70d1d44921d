"""``kafka-lake query``: SQL over a topic's table, by the deployment's own Spark. Reads only."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pyspark.errors import PySparkException
from pyspark.sql import functions as F
from pyspark.sql import types as T
from rich.table import Table
from rich.text import Text

from kafka_lake.catalog.lake_catalog import quoted
from kafka_lake.common.text import printable
from kafka_lake.errors import KafkaLakeError
from kafka_lake.runtime.context import Connections
from kafka_lake.spec.topic_table import TopicTable

_NESTED = (T.StructType, T.ArrayType, T.MapType, T.VariantType)
# The microseconds that a table keeps; Spark's own format of JSON cuts them to milliseconds.
_JSON_FORMATS = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    "ignoreNullFields": "false",
}


@dataclass(frozen=True)
class Answer:
    """What a query gives.

    Args:
        columns: Their names; two of the same name are told apart by a number.
        rows: A text for each column, None for null; times are UTC. Of an answer in JSON, one JSON object in each row.
        more: Whether there are rows beyond the limit.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[str | None, ...], ...]
    more: bool


def ask(spec: TopicTable, connections: Connections, sql: str, limit: int, as_json: bool = False) -> Answer:
    """Run a query in which the topic's table goes by its own name and as ``this``.

    Tables of other namespaces go by ``namespace.table``.
    """
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
        # As a part of a query of ours it can be nothing but a query itself.
        asked = spark.sql(f"SELECT * FROM (\n{sql.strip().rstrip(';')}\n)")
        columns = unique(asked.columns)
        named = asked.toDF(*columns)
        in_json = [F.to_json(F.struct("*"), _JSON_FORMATS)]
        shown = in_json if as_json else [_as_text(f) for f in named.schema.fields]
        rows = named.limit(limit + 1).select(*shown).collect()
    except PySparkException as error:
        raise KafkaLakeError(
            f"Spark can't run this query on {name}: {_first_line(error)}",
            f"The table is {spec.identifier[1]} or this; its columns are shown by `kafka-lake schema {spec.full_topic} "
            "--sample 0`.",
        ) from error
    return Answer(columns, tuple(tuple(row) for row in rows[:limit]), len(rows) > limit)


def unique(names: Iterable[str]) -> tuple[str, ...]:
    """Return names of columns of which no two are the same.

    >>> unique(["id", "ID", "id"])
    ('id', 'ID__2', 'id__3')
    """
    taken: set[str] = set()
    found = []
    for name in names:
        number, free = 1, name
        while free.lower() in taken:
            number += 1
            free = f"{name}__{number}"
        taken.add(free.lower())
        found.append(free)
    return tuple(found)


def answer_table(answer: Answer) -> Table:
    """Return an answer as a table, a row each."""
    rows = f"{len(answer.rows):,} row{'' if len(answer.rows) == 1 else 's'}"
    shown = Table(caption=f"the first {rows}; --limit shows more" if answer.more else rows, min_width=40)
    for name in answer.columns:
        shown.add_column(Text(printable(name)), overflow="fold")
    for row in answer.rows:
        shown.add_row(*(Text("null", "dim") if text is None else Text(printable(text)) for text in row))
    return shown


def answer_json(rows: Sequence[Sequence[str | None]]) -> str:
    """Return the rows of an answer in JSON as one JSON array, a line each."""
    return "[" + ",\n ".join(str(row[0]) for row in rows) + "]"


def _as_text(field: T.StructField) -> F.Column:
    column = F.col(quoted(field.name))
    text = F.to_json(column, _JSON_FORMATS) if isinstance(field.dataType, _NESTED) else column.cast("string")
    return text.alias(field.name)


def _first_line(error: PySparkException) -> str:
    # Without the line of a statement that isn't the user's, nor the plan that follows.
    text = (error.getMessage() or str(error)).strip().splitlines()[0].partition(" SQLSTATE:")[0]
    return text if text.endswith(".") else f"{text}."
