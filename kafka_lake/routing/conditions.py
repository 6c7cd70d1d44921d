"""Which tables take a record, as a column of Spark's; and the tables that new values in records get."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from kafka_lake.catalog.positions import TableState
from kafka_lake.common.sql_text import unsafe_condition
from kafka_lake.errors import ConditionError
from kafka_lake.formats.redaction import quoted
from kafka_lake.formats.schema_names import SchemaNames, name_of, names_in
from kafka_lake.routing.by_value import Admission, admitted, knowing
from kafka_lake.runtime.choose_decoder import fetch_of
from kafka_lake.runtime.context import Connections, Context
from kafka_lake.runtime.plan import Plan, position_only
from kafka_lake.runtime.record_keys import state_of
from kafka_lake.spec.topic_table import LONGEST_VALUE, TopicTable, When

_SPACE = r"[ \t\r\n]*+"
# No escapes, no control characters, and no character that may stand for bytes that are none.
_CHARACTER = r"[ !#-\[\]-\uFFFC]"
_NUMBER = r"-?(?:0|[1-9][0-9]{0,99}+)(?:\.[0-9]{1,99}+)?(?:[eE][-+]?[0-9]{1,3}+)?"
_VALUE = rf'(?:"{_CHARACTER}*+"|{_NUMBER}|true|false|null)'
# A field further behind costs as much by the pattern as by the parser.
_FIELDS_BEFORE = 8


def text_of(field: str) -> Column:
    """Return the text of a field of ``value``, as `get_json_object` gives it; in values that end too early, too.

    By a pattern where that tells: `get_json_object` makes a parser and a writer for each record, which takes more time
    than all else of reading it.
    """
    value = F.col("value").cast("string")
    parsed = F.get_json_object(value, path_of(field))
    if (pattern := pattern_of(field)) is None:
        return parsed
    return F.coalesce(F.get(F.regexp_extract_all(value, F.lit(pattern), F.lit(1)), F.lit(0)), parsed)


def pattern_of(field: str) -> str | None:
    """Return a pattern of JSON objects, from their beginning to the text of a field, its only group; None if none can.

    Before the field there may be some others, none of them by its name, whose values are no objects and no arrays. What
    is matched can be read in one way only: so the first field of that name has this text, if all of it is JSON.
    """
    if "." in field or not re.fullmatch(_CHARACTER + "{1,200}", field):
        return None
    # re.escape of Python's writes what Java's patterns take, too.
    name = re.escape(field)
    before = (
        rf'(?:"(?!{name}"){_CHARACTER}{{0,200}}+"{_SPACE}:{_SPACE}{_VALUE}{_SPACE},{_SPACE}){{0,{_FIELDS_BEFORE}}}+'
    )
    return rf'\A{_SPACE}\{{{_SPACE}{before}"{name}"{_SPACE}:{_SPACE}"({_CHARACTER}*+)"{_SPACE}[,}}]'


def path_of(field: str) -> str:
    """Return the JSON path of a field; a dot leads into an object.

    >>> path_of("source.table")
    "$['source']['table']"
    """
    return "$" + "".join(f"['{name}']" for name in field.split("."))


ROUTE = "_route"
"""The column: the number of a route, `OWN` or `UNMATCHED`.

As text: numbers are a part of the code that Spark compiles for a plan, which would be compiled anew for each table.
"""
ROUTES = "_routes"
"""Where a record may be for several tables: the numbers of all of them. The record is there once for each."""
OWN = -1
"""The number of the table whose settings are the topic's."""
UNMATCHED = -2
"""The number of records that no table takes."""


_NONE: SchemaNames = MappingProxyType({})


def asks_for_schemas(spec: TopicTable) -> bool:
    """Return whether a route goes by the schemas of values, so that `schema_names` are needed."""
    by = spec.route_by
    return any(when.schema for when in _whens(spec)) or (by is not None and by.kind == "schema_name")


def schema_names(records: DataFrame, spec: TopicTable, connections: Connections) -> SchemaNames:
    """Return the names of the records' schemas that routes go by, by the bytes that values begin with."""
    if not asks_for_schemas(spec):
        return _NONE
    names = names_in(records, spec.topic, fetch_of(spec, connections, "value", spec.format))
    if spec.route_by is not None and spec.route_by.kind == "schema_name":
        return names
    return {
        start: name for start, name in names.items() if name is None or any(when.means(name) for when in _whens(spec))
    }


def routed(records: DataFrame, spec: TopicTable, names: SchemaNames = _NONE) -> DataFrame:
    """Return records with the number of the table that takes each, lazily; once for each table that does."""
    given = {number: route.when for number, route in enumerate(spec.routes)}
    given = {OWN: spec.where, **given} if spec.where is not None else given
    of_values = {number: route.when for number, route in enumerate(spec.every_route) if number >= len(spec.routes)}
    for number, when in given.items():
        if when.sql is not None:
            _check(records, spec, when.sql, ".".join(spec.tables[number + 1].identifier))
    sources = list(dict.fromkeys(when.source for when in (*given.values(), *of_values.values())))
    # Each source is read once for all conditions.
    texts = {source: f"{ROUTE}_{number}" for number, source in enumerate(sources)}
    read = records.withColumns({texts[source]: _read(*source, names) for source in sources})

    def holds(whens: Mapping[int, When]) -> dict[int, Column]:
        return {number: _holds(F.col(texts[when.source]), when, names) for number, when in whens.items()}

    rest = _first(holds(of_values), F.lit(str(rest_of(spec))))
    if not spec.may_match_several:
        return read.withColumn(ROUTE, _first(holds(given), rest)).drop(*texts.values())
    return read.withColumn(ROUTES, _all(holds(given), rest)).drop(*texts.values()).withColumn(ROUTE, F.explode(ROUTES))


def rest_of(spec: TopicTable) -> int:
    """Return the number of records whose condition holds for no table: the topic's own, or `UNMATCHED`."""
    return OWN if spec.where is None else UNMATCHED


def _whens(spec: TopicTable) -> list[When]:
    return [*([spec.where] if spec.where else []), *(route.when for route in spec.every_route)]


def records_of(records: DataFrame, topic: TopicTable, table: TopicTable, connections: Connections) -> DataFrame:
    """Return the records of one of a topic's tables, lazily; all if the topic has no routes."""
    if not topic.has_routes:
        return records
    names = schema_names(records, topic, connections)
    return of_route(routed(records, topic, names), topic.tables.index(table) - 1)


def values_of(routed_records: DataFrame, topic: TopicTable, names: SchemaNames) -> DataFrame:
    """Return the values by which records may get tables, in a column ``value``: of those that no table takes, lazily.

    What is too long to be in a name is cut.
    """
    by = topic.route_by
    assert by is not None, "who asks has seen that it is there"
    value = F.substring(_read(*by.when("").source, names), 1, LONGEST_VALUE + 1).alias("value")
    return of_route(routed_records, rest_of(topic)).select(value).filter("value is not null")


def of_route(routed_records: DataFrame, number: int) -> DataFrame:
    """Return the records of a route, as Kafka gave them."""
    return routed_records.filter(F.col(ROUTE) == str(number)).drop(ROUTE, ROUTES)


def not_of_routes(routed_records: DataFrame, numbers: Collection[int]) -> DataFrame:
    """Return the records that none of some routes takes; each is there for each route that takes it."""
    texts = [str(number) for number in numbers]
    if ROUTES in routed_records.columns:
        return routed_records.filter(~F.arrays_overlap(ROUTES, F.array(*map(F.lit, texts))))
    return routed_records.filter(~F.col(ROUTE).isin(texts))


def counts_of(routed_records: DataFrame) -> tuple[int, dict[int, int]]:
    """Return how many records there are, and how many each route takes, in one pass."""
    first = F.col(ROUTES)[0] == F.col(ROUTE) if ROUTES in routed_records.columns else F.lit(True)
    found = routed_records.groupBy(ROUTE).agg(F.count(F.lit(1)).alias("taken"), F.count_if(first).alias("records"))
    rows = found.collect()
    return sum(row["records"] for row in rows), {int(row[ROUTE]): row["taken"] for row in rows}


def _first(holds: Mapping[int, Column], rest: Column) -> Column:
    # One expression without nesting: there may be hundreds of conditions.
    column = F.when(F.lit(False), rest)
    for number, each in holds.items():
        column = column.when(each, F.lit(str(number)))
    return column.otherwise(rest)


def _all(holds: Mapping[int, Column], rest: Column) -> Column:
    numbered = F.array_compact(F.array(*(F.when(each, F.lit(str(number))) for number, each in holds.items())))
    return F.when(F.size(numbered) > 0, numbered).otherwise(F.array(rest))


def _read(kind: str, name: str, names: SchemaNames) -> Column:
    """Return what a condition looks at: text, or of SQL whether it holds."""
    if kind == "sql":
        return F.expr(name).cast("boolean")
    if kind == "schema":
        return name_of(F.col("value"), names)
    if kind == "source_table":
        return _source_table(name)
    if kind == "header":
        named = F.filter("headers", lambda header: header["key"] == name)
        return F.try_element_at(named, F.lit(-1))["value"].cast("string")
    return text_of(name)


def _text() -> Column:
    return F.col("value").cast("string")


def _source_table(envelope: str) -> Column:
    """Return from which table a change is, with the schema or database before a dot; null if it doesn't tell."""
    told = _text()
    if envelope == "debezium":
        # With schemas: true, a converter wraps the change once more.
        told = F.coalesce(F.get_json_object(told, "$.source"), F.get_json_object(told, "$.payload.source"))
    names = ("schema", "db") if envelope == "debezium" else ("database",)
    within = F.coalesce(*(F.get_json_object(told, f"$.{each}") for each in names))
    return F.concat(within, F.lit("."), F.get_json_object(told, "$.table"))


def _holds(found: Column, when: When, names: SchemaNames) -> Column:
    if when.sql is not None:
        return found
    if when.schema:
        meant = sorted({name for name in names.values() if name is not None and when.means(name)})
        return found.isin(meant) if meant else F.lit(False)
    return found.isin(*when.values)


def _check(records: DataFrame, spec: TopicTable, sql: str, table: str) -> None:
    about = f"Topic {spec.topic}: where: of table {table}: {sql!r} is no condition on a record"
    remedy = f"Nothing was published. Correct where: sql:; the record's columns are {', '.join(records.columns)}."
    if unsafe := unsafe_condition(sql):
        raise ConditionError(f"{about}: {unsafe}.", remedy)
    try:
        # A filter takes nothing but a condition on single rows; Connect looks at it when the schema is asked.
        records.filter(F.expr(sql)).schema  # noqa: B018
    except AnalysisException as error:
        # What can't be parsed is told in the second line.
        told = next(filter(None, map(str.strip, str(error).splitlines())), "")
        reason = told.partition(" SQLSTATE")[0].rstrip(" ;.")
        raise ConditionError(f"{about}: {reason}.", remedy) from error


_MOST_VALUES = 1_000
_SHOWN = 3


@dataclass(frozen=True)
class NewValues:
    """What a commit's records have of values without a table.

    Args:
        admission: Which of them get one.
        records: How many records have one of the others, which the table without a condition takes, or none.
    """

    admission: Admission
    records: int

    def message(self, spec: TopicTable) -> str:
        """Return what becomes of the records whose values have no table; empty if there are none."""
        refused = self.admission.refused
        if not self.records:
            return ""
        shown = [f"{quoted(value, spec.samples, spec.mask)!r}: {why}" for value, why in refused.items()][:_SHOWN]
        why = "; ".join(shown if spec.samples else dict.fromkeys(refused.values()))
        more = f"; and {len(refused) - _SHOWN} more" if spec.samples and len(refused) > _SHOWN else ""
        takes = "no table takes them" if spec.where else f"table {'.'.join(spec.identifier)} takes them"
        return (
            f"Topic {spec.topic}: tables_by: {self.records} records have a value without a table: {takes} "
            f"({why}{more})."
        )


def with_known(context: Context, state: TableState | None) -> Context:
    """Return what a run works with, knowing the tables that values have."""
    if context.spec.route_by is None:
        return context
    return replace(context, spec=knowing(context.spec, state.table.properties if state else {}))


def new_values(context: Context, routed_records: DataFrame, names: SchemaNames) -> NewValues | None:
    """Return what a commit's records have of values without a table; None if they have none."""
    spec = context.spec
    if spec.route_by is None:
        return None
    left = values_of(routed_records, spec, names)
    counted = left.groupBy("value").agg(F.count(F.lit(1)).alias("records"))
    have = {value for value, _, _ in spec.route_by.known}
    rows = counted.orderBy(F.desc("records"), "value").limit(_MOST_VALUES + len(have)).collect()
    found = {row["value"]: row["records"] for row in rows if row["value"] not in have}
    if not found:
        return None
    admission = admitted(spec, list(found), lambda table: _is_free(context, table))
    if not admission.refused:
        return NewValues(admission, 0)
    taken = [value for value, _, _ in admission.known]
    return NewValues(admission, left.filter(~F.col("value").isin(taken)).count() if taken else left.count())


def new_tables_plan(state: TableState, todo: Plan) -> Plan:
    """Return the commit that records new tables among the own table's properties; it moves the head only."""
    starts = {r.partition: r.start for r in todo.ranges}
    return position_only(state.position or replace(todo.after, offsets={**todo.after.offsets, **starts}, last={}))


def _is_free(context: Context, table: TopicTable) -> bool:
    """Return whether the catalog has no table of others by the names of a table to be."""
    catalog = context.connections.catalog
    own = catalog.table(table.identifier)
    if own is not None:
        # The topic's own table may have been made again since, and has forgotten.
        position = state_of(table, own).position
        return position is not None and position.identity.topic == context.spec.topic
    return all(catalog.table(each) is None for each in table.identifiers)
