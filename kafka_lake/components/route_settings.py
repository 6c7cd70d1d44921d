"""The settings ``routes:`` and ``otherwise:`` of a topic: what YAML has, as routes with their tables' settings."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from kafka_lake.common.errors import ConfigurationError
from kafka_lake.ingest.route import When
from kafka_lake.ingest.topic_table import Route, TopicTable, pydantic_fields

OF_RECORDS = (
    "namespace",
    "metadata_column",
    "format",
    "key_format",
    "key_column",
    "key_schema",
    "key_schema_file",
    "dead_letters",
    "max_dead_letters",
    "rules_fail_above",
    "max_record_bytes",
    "samples",
    "mask",
    "evolution",
    "max_columns",
    "arrow",
    "timestamp_unit",
    "timestamp_precision",
    "maintenance",
)
"""Settings of the topic that count for the tables of its routes, too, unless a route has its own."""

OF_TOPIC = (
    "topic",
    "cluster",
    "start",
    "max_records_per_commit",
    "max_bytes_per_commit",
    "consumer_group",
    "on_data_loss",
    "max_age",
    "routes",
    "otherwise",
)
"""Settings that a topic has once, whatever its tables are."""

NOT_YET = ("history", "track", "snapshot", "max_removed")
"""Settings that a topic with routes, and their tables, can't have yet."""

_KINDS = ("field", "header", "sql")
_NOT_IN_FIELDS = "'[]*"
_Document = Callable[[Mapping[str, Any]], TopicTable]


def routes_of(given: Sequence[Mapping[str, Any]], topic: Mapping[str, Any], document: _Document) -> tuple[Route, ...]:
    """Return the routes of a topic.

    Args:
        given: Each route, as YAML has it.
        topic: The topic's settings of `OF_RECORDS`, as YAML has them, and its name and cluster.
        document: Returns what a document of these settings says of a table.

    Raises:
        ConfigurationError: If a route can't be, with its number and table.
    """
    routes = []
    for number, each in enumerate(given, 1):
        where = f"routes: number {number} ({each.get('table') or 'without a table'})"
        for problem in _problems(each):
            raise ConfigurationError(f"Topic {topic['topic']}: {where}: {problem}")
        own = {name: value for name, value in each.items() if name != "when"}
        try:
            routes.append(Route(when_of(each["when"]), document({**topic, **own})))
        except (ConfigurationError, ValueError) as error:
            raise ConfigurationError(f"Topic {topic['topic']}: {where}: {_said(error)}") from error
    return tuple(routes)


def _said(error: Exception) -> str:
    if isinstance(error, ConfigurationError):
        return str(error)
    if not isinstance(error, ValidationError):
        return str(error)
    told: dict[str, str] = {}
    for each in error.errors(include_url=False):
        # A value that fits no member of a union is refused once for each; the first tells enough.
        told.setdefault(str(each["loc"][0]) if each["loc"] else "", each["msg"].removeprefix("Value error, "))
    return "; ".join(f"{setting}: {text}" if setting else text for setting, text in told.items())


def _problems(route: Mapping[str, Any]) -> Iterator[str]:
    if not isinstance(route.get("when"), Mapping):
        yield "when: is missing. Write for example when: {field: type, equals: order}."
    if not route.get("table"):
        yield "table: is missing. Name the table of these records."
    if isinstance(given := route.get("maintenance"), Mapping) and given.get("keep_rows"):
        yield "maintenance: keep_rows: can't be combined with routes yet."
    known = {*("schema", "except"), *pydantic_fields(TopicTable), "when"} - {"except_columns"}
    for name in route:
        if name in OF_TOPIC:
            yield f"{name}: is the topic's. Leave it out of the route."
        if name in NOT_YET:
            yield f"{name}: can't be combined with routes yet."
        if name not in known:
            yield f"{name}: there is no such setting of a route."


def when_of(given: Mapping[str, Any]) -> When:
    """Return a condition, as YAML has it.

    Raises:
        ConfigurationError: If it is none.

    >>> when_of({"field": "type", "in": ["click", "7"]})
    When(field='type', header=None, sql=None, values=('click', '7'))
    """
    kinds = [kind for kind in _KINDS if given.get(kind) is not None]
    if unknown := [name for name in given if name not in (*_KINDS, "equals", "in")]:
        raise ConfigurationError(f"when: there is no {unknown[0]}. Write field:, header: or sql:.")
    if len(kinds) != 1:
        raise ConfigurationError(f"when: has {' and '.join(kinds) or 'none'} of field:, header: and sql:. Write one.")
    (kind,) = kinds
    name = _text(given[kind])
    if not name.strip():
        raise ConfigurationError(f"when: {kind}: is empty.")
    if kind == "sql":
        if "equals" in given or "in" in given:
            raise ConfigurationError("when: sql: is a whole condition. Leave out equals: and in:.")
        return When(sql=name)
    if ("equals" in given) == ("in" in given):
        raise ConfigurationError(f"when: {kind}: needs equals: with a value or in: with a list. Write one of them.")
    values = given["in"] if "in" in given else [given["equals"]]
    if not isinstance(values, list) or not values:
        raise ConfigurationError("when: in: is no list of values.")
    if kind == "field" and name.startswith("$"):
        raise ConfigurationError(f"when: field: {name!r} is a path. Write it without $, as in source.table.")
    if kind == "field" and (not all(name.split(".")) or set(_NOT_IN_FIELDS) & set(name)):
        raise ConfigurationError(f"when: field: {name!r} is no name of a field. Use sql: for such names.")
    return When(**{kind: name}, values=tuple(map(_text, values)))


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        # NO is Norway, too.
        word = str(value).lower()
        raise ConfigurationError(
            f"when: YAML reads a value as {word} (also yes, no, on, off). Write the text in quotes."
        )
    if isinstance(value, int | float):
        # 007 is 7 to YAML, 1.10 is 1.1, and 12:30 is 750.
        raise ConfigurationError(f"when: YAML reads a value as the number {value}. Write the text in quotes.")
    raise ConfigurationError(f"when: {value!r} is no text. Use sql: for what is missing, null or nested.")


def route_problems(spec: TopicTable) -> Iterator[str]:
    """Give what of a topic's routes can't be, or can't be together."""
    if not spec.routes:
        if spec.otherwise != "table":
            yield f"otherwise: {spec.otherwise} has no effect without routes:. Leave it out."
        return
    if spec.history or spec.snapshot != "upsert":
        yield f"{'history' if spec.history else 'snapshot'}: can't be combined with routes yet."
    if spec.otherwise == "dead_letter" and spec.dead_letters == "skip":
        yield "otherwise: dead_letter with dead_letters: skip loses the records' values. Write otherwise: ignore."
    for each in spec.tables:
        if each.metadata_column is None:
            yield f"metadata_column: table {each.table} needs it, since rows of a topic with routes name their records."
    if spec.format not in ("json", "variant") and any(route.when.field for route in spec.routes):
        yield f"routes: when: field: is for JSON, and format is {spec.format}. Use header: or sql:."
    yield from _shared(spec)
    yield from _unreachable(spec.routes)


def _shared(spec: TopicTable) -> Iterator[str]:
    owners: dict[tuple[str, ...], int] = {}
    for number, each in enumerate(spec.tables):
        # Some catalogs know no upper case.
        for name in dict.fromkeys(tuple(part.lower() for part in identifier) for identifier in each.identifiers):
            first = owners.setdefault(name, number)
            if first != number:
                other = spec.tables[first].table
                both = f"{other} and {each.table}" if other != each.table else f"{each.table} twice"
                yield (
                    f"routes: table {'.'.join(name)} would be that of {both}. Give each route a table of its own; "
                    "several values of a field are one route, with in:."
                )


def _unreachable(routes: Sequence[Route]) -> Iterator[str]:
    taken: dict[tuple[tuple[str, str], str], str] = {}
    for route in routes:
        for value in route.when.values or ("",):
            first = taken.setdefault((route.when.source, value), route.to.table)
            if first != route.to.table:
                what = f"{route.when.source[1]} {value!r}" if value else "a record"
                yield (
                    f"routes: table {route.to.table} would never get {what}, since table "
                    f"{first} comes first and takes it. Leave it out of one of them."
                )
