"""Which table takes a record, as a column of Spark's: the number of the first route whose condition holds."""

from collections.abc import Sequence

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from kafka_lake.common.errors import ConfigurationError
from kafka_lake.ingest.route import When
from kafka_lake.ingest.routes.field_text import text_of
from kafka_lake.ingest.topic_table import TopicTable

ROUTE = "_route"
"""The column: the number of a route, or `OWN`.

As text: numbers are a part of the code that Spark compiles for a plan, which would be compiled anew for each table.
"""
OWN = -1
"""What the column has for records that no route takes."""


def routed(records: DataFrame, spec: TopicTable) -> DataFrame:
    """Return records with the number of the route that takes each, lazily.

    Args:
        records: As Kafka gives them.
        spec: The topic's settings.

    Raises:
        ConfigurationError: If a condition in SQL is none on the columns of a record.
    """
    whens = [route.when for route in spec.routes]
    for route in spec.routes:
        if route.when.sql is not None:
            _check(records, spec, route.when.sql, ".".join(route.to.identifier))
    sources = list(dict.fromkeys(when.source for when in whens))
    # Each source is read once for all routes.
    texts = {source: f"{ROUTE}_{number}" for number, source in enumerate(sources)}
    read = records.withColumns({texts[source]: _read(*source) for source in sources})
    return read.withColumn(ROUTE, _first(whens, texts)).drop(*texts.values())


def records_of(records: DataFrame, topic: TopicTable, table: TopicTable) -> DataFrame:
    """Return the records of one of a topic's tables, lazily; all if the topic has no routes.

    Args:
        records: Of the topic.
        topic: Its settings.
        table: One of its `tables`.
    """
    if not topic.routes:
        return records
    return of_route(routed(records, topic), topic.tables.index(table) - 1)


def of_route(routed_records: DataFrame, number: int) -> DataFrame:
    """Return the records of a route, as Kafka gave them."""
    return routed_records.filter(F.col(ROUTE) == str(number)).drop(ROUTE)


def _first(whens: Sequence[When], texts: dict[tuple[str, str], str]) -> Column:
    first, *others = enumerate(whens)
    column = F.when(_holds(F.col(texts[first[1].source]), first[1]), F.lit(str(first[0])))
    for number, when in others:
        column = column.when(_holds(F.col(texts[when.source]), when), F.lit(str(number)))
    return column.otherwise(F.lit(str(OWN)))


def _read(kind: str, name: str) -> Column:
    """Return what a condition looks at: text, or of SQL whether it holds."""
    if kind == "sql":
        return F.expr(name).cast("boolean")
    if kind == "header":
        named = F.filter("headers", lambda header: header["key"] == name)
        return F.try_element_at(named, F.lit(-1))["value"].cast("string")
    return text_of(name)


def _holds(found: Column, when: When) -> Column:
    return found if when.sql is not None else found.isin(*when.values)


def _check(records: DataFrame, spec: TopicTable, sql: str, table: str) -> None:
    try:
        # A filter takes nothing but a condition on single rows; Connect looks at it when the schema is asked.
        records.filter(F.expr(sql)).schema  # noqa: B018
    except AnalysisException as error:
        reason = str(error).splitlines()[0].partition(" SQLSTATE")[0].rstrip(" ;.")
        raise ConfigurationError(
            f"Topic {spec.topic}: routes: {table}: {sql!r} is no condition on a record: {reason}.",
            f"Nothing was published. Correct when: sql:; the record's columns are {', '.join(records.columns)}.",
        ) from error
