"""Which tables take a record, as a column of Spark's: the numbers of the routes whose conditions hold."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from kafka_lake.common.errors import ConfigurationError
from kafka_lake.ingest.connections import Connections
from kafka_lake.ingest.decode.by_schema.names import name_of, names_in
from kafka_lake.ingest.decode.choose import fetch_of
from kafka_lake.ingest.route import When
from kafka_lake.ingest.topic_table import TopicTable

ROUTE = "_route"
"""The column: the number of a route, or `OWN`.

As text: numbers are a part of the code that Spark compiles for a plan, which would be compiled anew for each table.
"""
ROUTES = "_routes"
"""With ``all_matches``: the numbers of all routes that take the record, which is there once for each of them."""
OWN = -1
"""What the columns have for records that no route takes."""


_NONE: Mapping[bytes, str] = MappingProxyType({})


def asks_for_schemas(spec: TopicTable) -> bool:
    """Return whether a route goes by the schemas of values, so that `schema_names` are needed."""
    return any(route.when.schema for route in spec.routes)


def schema_names(records: DataFrame, spec: TopicTable, connections: Connections) -> Mapping[bytes, str]:
    """Return the names of the records' schemas that routes go by, by the bytes that values begin with.

    Args:
        records: As Kafka gives them; they are read only if a route goes by schemas.
        spec: The topic's settings.
        connections: The registry.

    Raises:
        RegistryError: If the registry doesn't answer.
        ConfigurationError: If there is none.
        TableError: If the values have too many ids.
    """
    if not asks_for_schemas(spec):
        return _NONE
    names = names_in(records, spec.topic, fetch_of(spec, connections, "value", spec.format))
    return {start: name for start, name in names.items() if any(route.when.means(name) for route in spec.routes)}


def routed(records: DataFrame, spec: TopicTable, names: Mapping[bytes, str] = _NONE) -> DataFrame:
    """Return records with the number of the route that takes each, lazily; with ``all_matches`` once for each of them.

    Args:
        records: As Kafka gives them.
        spec: The topic's settings.
        names: Of the records' schemas, as `schema_names` gives them.

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
    read = records.withColumns({texts[source]: _read(*source, names) for source in sources})
    holds = [_holds(F.col(texts[when.source]), when, names) for when in whens]
    if not spec.all_matches:
        return read.withColumn(ROUTE, _first(holds)).drop(*texts.values())
    return read.withColumn(ROUTES, _all(holds)).drop(*texts.values()).withColumn(ROUTE, F.explode(ROUTES))


def records_of(records: DataFrame, topic: TopicTable, table: TopicTable, connections: Connections) -> DataFrame:
    """Return the records of one of a topic's tables, lazily; all if the topic has no routes.

    Args:
        records: Of the topic.
        topic: Its settings.
        table: One of its `tables`.
        connections: The registry; raises as `schema_names`.
    """
    if not topic.routes:
        return records
    names = schema_names(records, topic, connections)
    return of_route(routed(records, topic, names), topic.tables.index(table) - 1)


def of_route(routed_records: DataFrame, number: int) -> DataFrame:
    """Return the records of a route, as Kafka gave them."""
    return routed_records.filter(F.col(ROUTE) == str(number)).drop(ROUTE, ROUTES)


def not_of_route(routed_records: DataFrame, number: int) -> DataFrame:
    """Return the records that a route doesn't take; each is there for each route that takes it."""
    if ROUTES in routed_records.columns:
        return routed_records.filter(~F.array_contains(ROUTES, str(number)))
    return routed_records.filter(F.col(ROUTE) != str(number))


def counts_of(routed_records: DataFrame) -> tuple[int, dict[int, int]]:
    """Return how many records there are, and how many each route takes, in one pass."""
    first = F.col(ROUTES)[0] == F.col(ROUTE) if ROUTES in routed_records.columns else F.lit(True)
    found = routed_records.groupBy(ROUTE).agg(F.count(F.lit(1)).alias("taken"), F.count_if(first).alias("records"))
    rows = found.collect()
    return sum(row["records"] for row in rows), {int(row[ROUTE]): row["taken"] for row in rows}


def _first(holds: Sequence[Column]) -> Column:
    first, *others = holds
    column = F.when(first, F.lit("0"))
    for number, each in enumerate(others, 1):
        column = column.when(each, F.lit(str(number)))
    return column.otherwise(F.lit(str(OWN)))


def _all(holds: Sequence[Column]) -> Column:
    numbered = F.array_compact(F.array(*(F.when(each, F.lit(str(number))) for number, each in enumerate(holds))))
    return F.when(F.size(numbered) > 0, numbered).otherwise(F.array(F.lit(str(OWN))))


def _read(kind: str, name: str, names: Mapping[bytes, str]) -> Column:
    """Return what a condition looks at: text, or of SQL whether it holds."""
    if kind == "sql":
        return F.expr(name).cast("boolean")
    if kind == "schema":
        return name_of(F.col("value"), names)
    if kind == "header":
        named = F.filter("headers", lambda header: header["key"] == name)
        return F.try_element_at(named, F.lit(-1))["value"].cast("string")
    return F.get_json_object(F.col("value").cast("string"), path_of(name))


def path_of(field: str) -> str:
    """Return the JSON path of a field; a dot leads into an object.

    >>> path_of("source.table")
    "$['source']['table']"
    """
    return "$" + "".join(f"['{name}']" for name in field.split("."))


def _holds(found: Column, when: When, names: Mapping[bytes, str]) -> Column:
    if when.sql is not None:
        return found
    if when.schema:
        meant = sorted({name for name in names.values() if when.means(name)})
        return found.isin(meant) if meant else F.lit(False)
    return found.isin(*when.values)


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
