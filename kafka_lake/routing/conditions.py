"""The routing of records to tables as Spark columns, and the new values that get tables."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from kafka_lake.catalog.positions import TableState, state_of
from kafka_lake.cdc.changes import source_table
from kafka_lake.errors import ConditionError
from kafka_lake.formats.base import Part
from kafka_lake.formats.redaction import quoted
from kafka_lake.formats.schema_names import HEAD, UNSUPPORTED, SchemaNames, names_in
from kafka_lake.routing.by_value import Admission, admitted, knowing
from kafka_lake.runtime.context import Connections, Context
from kafka_lake.runtime.plan import Plan, position_only
from kafka_lake.spec.sql_text import unsafe_condition
from kafka_lake.spec.topic_table import LONGEST_VALUE, TopicTable, When

_SPACE = r"[ \t\r\n]*+"
# No escapes, control characters or replacement characters.
_CHARACTER = r"[ !#-\[\]-\uFFFC]"
_NUMBER = r"-?(?:0|[1-9][0-9]{0,99}+)(?:\.[0-9]{1,99}+)?(?:[eE][-+]?[0-9]{1,3}+)?"
_VALUE = rf'(?:"{_CHARACTER}*+"|{_NUMBER}|true|false|null)'
# Behind so many fields, the pattern costs as much as the parser.
_FIELDS_BEFORE = 8


def text_of(field: str) -> Column:
    """Return the text of a field of ``value``, as `get_json_object` does.

    A pattern is tried first, since `get_json_object` creates a parser and a writer for each record.
    """
    value = F.col("value").cast("string")
    parsed = F.get_json_object(value, path_of(field))
    if (pattern := pattern_of(field)) is None:
        return parsed
    return F.coalesce(F.get(F.regexp_extract_all(value, F.lit(pattern), F.lit(1)), F.lit(0)), parsed)


def pattern_of(field: str) -> str | None:
    """Return a pattern for the text of a field near the start of a JSON object; None if the name doesn't allow one.

    Before the field there may be a few other fields with scalar values. A match is unambiguous: if the value is JSON,
    the first field of that name has this text.
    """
    if "." in field or not re.fullmatch(_CHARACTER + "{1,200}", field):
        return None
    # Java's patterns accept the escapes of Python's re.escape.
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
"""The column with the number of a route, `OWN` or `UNMATCHED`.

It is text, since Spark compiles code anew for each different number.
"""
ROUTES = "_routes"
"""The column with the numbers of all tables of a record, which is repeated for each."""
OWN = -1
"""The number of the topic's own table."""
UNMATCHED = -2
"""The number of records without a table."""


_NONE = SchemaNames({}, "")
_SCHEMA = ("schema", "")


def asks_for_schemas(spec: TopicTable) -> bool:
    """Return whether a condition is on the schema's name, so that `schema_names` are needed."""
    by = spec.route_by
    return any(when.schema for when in _whens(spec)) or (by is not None and by.is_by_schema)


def schema_names(records: DataFrame, spec: TopicTable, connections: Connections) -> SchemaNames:
    """Return the schema names for the conditions."""
    if not asks_for_schemas(spec):
        return _NONE
    names = names_in(records, Part(spec, "value", registry=connections.registry))
    if spec.route_by is not None and spec.route_by.is_by_schema:
        return names
    whens = _whens(spec)
    wanted = {
        start: name
        for start, name in names.by_start.items()
        if name == UNSUPPORTED or any(when.means(name) for when in whens)
    }
    return replace(names, by_start=wanted)


def routed(records: DataFrame, spec: TopicTable, names: SchemaNames = _NONE) -> DataFrame:
    """Return records with the number of their table, once for each table, lazily."""
    given = {number: route.when for number, route in enumerate(spec.routes)}
    given = {OWN: spec.where, **given} if spec.where is not None else given
    of_values = {number: route.when for number, route in enumerate(spec.every_route) if number >= len(spec.routes)}
    for number, when in given.items():
        if when.sql is not None:
            _check(records, spec, when.sql, ".".join(spec.tables[number + 1].identifier))
    by_schema = asks_for_schemas(spec)
    sources = [when.source for when in (*given.values(), *of_values.values())] + [_SCHEMA] * by_schema
    # Read each source once for all conditions.
    texts = {source: f"{ROUTE}_{number}" for number, source in enumerate(dict.fromkeys(sources))}
    read = names.with_heads(records).withColumns({text: _read(*source, names) for source, text in texts.items()})

    def holds(whens: Mapping[int, When]) -> dict[int, Column]:
        return {number: _holds(F.col(texts[when.source]), when, names) for number, when in whens.items()}

    rest = F.lit(str(rest_of(spec)))
    if by_schema and spec.unmatched != "fail":
        # Its decoder makes a dead letter with the reason: a table may be meant to take the record.
        rest = F.when(F.col(texts[_SCHEMA]) == UNSUPPORTED, F.lit(str(OWN))).otherwise(rest)
    rest, helpers = _first(holds(of_values), rest), [HEAD, *texts.values()]
    if not spec.may_match_several:
        return read.withColumn(ROUTE, _first(holds(given), rest)).drop(*helpers)
    return read.withColumn(ROUTES, _all(holds(given), rest)).drop(*helpers).withColumn(ROUTE, F.explode(ROUTES))


def rest_of(spec: TopicTable) -> int:
    """Return the number of records that match no condition: `OWN` or `UNMATCHED`."""
    return OWN if spec.where is None else UNMATCHED


def _whens(spec: TopicTable) -> list[When]:
    return [*([spec.where] if spec.where else []), *(route.when for route in spec.every_route)]


def records_of(records: DataFrame, topic: TopicTable, table: TopicTable, connections: Connections) -> DataFrame:
    """Return the records of one of a topic's tables, lazily; all records of a topic with one table."""
    if not topic.has_routes:
        return records
    names = schema_names(records, topic, connections)
    return of_route(routed(records, topic, names), topic.tables.index(table) - 1)


def values_of(routed_records: DataFrame, topic: TopicTable, names: SchemaNames) -> DataFrame:
    """Return the values of records without a table, in a column ``value``, lazily.

    Values that are too long for a name are cut.
    """
    by = topic.route_by
    assert by is not None, "the caller has checked it"
    text = _read(*by.when("").source, names)
    value = F.substring(F.nullif(text, F.lit(UNSUPPORTED)) if by.is_by_schema else text, 1, LONGEST_VALUE + 1)
    records = names.with_heads(of_route(routed_records, rest_of(topic)))
    return records.select(value.alias("value")).filter("value is not null")


def of_route(routed_records: DataFrame, number: int) -> DataFrame:
    """Return the records of a table, without the routing columns."""
    return routed_records.filter(F.col(ROUTE) == str(number)).drop(ROUTE, ROUTES)


def not_of_routes(routed_records: DataFrame, numbers: Collection[int]) -> DataFrame:
    """Return the records that none of some tables takes, once for each table that does."""
    texts = [str(number) for number in numbers]
    if ROUTES in routed_records.columns:
        return routed_records.filter(~F.arrays_overlap(ROUTES, F.array(*map(F.lit, texts))))
    return routed_records.filter(~F.col(ROUTE).isin(texts))


def counts_of(routed_records: DataFrame) -> tuple[int, dict[int, int]]:
    """Return the number of records, and the number of each table's records, in one pass."""
    first = F.col(ROUTES)[0] == F.col(ROUTE) if ROUTES in routed_records.columns else F.lit(True)
    found = routed_records.groupBy(ROUTE).agg(F.count(F.lit(1)).alias("taken"), F.count_if(first).alias("records"))
    rows = found.collect()
    return sum(row["records"] for row in rows), {int(row[ROUTE]): row["taken"] for row in rows}


def _first(holds: Mapping[int, Column], rest: Column) -> Column:
    # One flat expression: there may be hundreds of conditions.
    column = F.when(F.lit(False), rest)
    for number, condition in holds.items():
        column = column.when(condition, F.lit(str(number)))
    return column.otherwise(rest)


def _all(holds: Mapping[int, Column], rest: Column) -> Column:
    numbered = F.array_compact(F.array(*(F.when(condition, F.lit(str(number))) for number, condition in holds.items())))
    return F.when(F.size(numbered) > 0, numbered).otherwise(F.array(rest))


def _read(kind: str, name: str, names: SchemaNames) -> Column:
    """Return the text that a condition compares, or the boolean of an SQL condition."""
    if kind == "sql":
        return F.expr(name).cast("boolean")
    if kind == "schema":
        return names.column()
    if kind == "source_table":
        return source_table(_text(), envelope=name)
    if kind == "header":
        named = F.filter("headers", lambda header: header["key"] == name)
        return F.try_element_at(named, F.lit(-1))["value"].cast("string")
    return text_of(name)


def _text() -> Column:
    return F.col("value").cast("string")


def _holds(compared: Column, when: When, names: SchemaNames) -> Column:
    if when.sql is not None:
        return compared
    if when.schema:
        matching = sorted({name for name in names.by_start.values() if name != UNSUPPORTED and when.means(name)})
        return compared.isin(matching) if matching else F.lit(False)
    return compared.isin(*when.values)


def _check(records: DataFrame, spec: TopicTable, sql: str, table: str) -> None:
    about = f"Topic {spec.topic}: where: of table {table}: {sql!r} isn't a condition on a record"
    remedy = f"Nothing was published. Correct where: sql:; the record's columns are {', '.join(records.columns)}."
    if unsafe := unsafe_condition(sql):
        raise ConditionError(f"{about}: {unsafe}.", remedy)
    try:
        # A filter accepts only conditions on single rows; Connect analyses it when its schema is requested.
        records.filter(F.expr(sql)).schema  # noqa: B018
    except AnalysisException as error:
        first_line = next(filter(None, map(str.strip, str(error).splitlines())), "")
        reason = first_line.partition(" SQLSTATE")[0].rstrip(" ;.")
        raise ConditionError(f"{about}: {reason}.", remedy) from error


_MOST_VALUES = 1_000
_SHOWN = 3


@dataclass(frozen=True)
class NewValues:
    """Values of a commit's records that have no table yet.

    Args:
        records: The number of records whose value gets none.
    """

    admission: Admission
    records: int

    def message(self, spec: TopicTable) -> str:
        """Return a warning about records whose value gets no table; empty if there are none."""
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
    """Return the context with the tables of values that a table's properties record."""
    if context.spec.route_by is None:
        return context
    return replace(context, spec=knowing(context.spec, state.table.properties if state else {}))


def new_values(context: Context, routed_records: DataFrame, names: SchemaNames) -> NewValues | None:
    """Return the values of a commit's records that have no table yet; None if there are none."""
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
    """Return whether the catalog has no foreign table with the names of a new table."""
    catalog = context.connections.catalog
    own = catalog.table(table.identifier)
    if own is not None:
        # The own table may have been recreated, without its properties.
        position = state_of(table, own).position
        return position is not None and position.identity.topic == context.spec.topic
    return all(catalog.table(identifier) is None for identifier in table.identifiers)
