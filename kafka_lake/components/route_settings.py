"""The setting ``routes:`` of a topic: what YAML has, as routes with their tables' settings."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from kafka_lake.common.errors import ConfigurationError
from kafka_lake.components.rule_errors import rule_error
from kafka_lake.ingest.route import When
from kafka_lake.ingest.topic_table import REGISTERED, Route, TopicTable, pydantic_fields
from kafka_lake.lake.maintenance.order_settings import order_problem
from kafka_lake.lake.maintenance.settings import Maintenance

OF_RECORDS = (
    "namespace",
    "metadata_column",
    "format",
    "schema_file",
    "message",
    "subject",
    "key_format",
    "key_column",
    "key_schema",
    "key_schema_file",
    "dead_letters",
    "dead_letter_asset",
    "max_dead_letters",
    "rules_fail_above",
    "max_record_bytes",
    "samples",
    "sample_rows",
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
    "where",
    "unmatched",
    "route_by",
    "match",
)
"""Settings that a topic has once, whatever its tables are."""

NOT_YET = ("snapshot", "max_removed")
"""Settings that a topic with routes, and their tables, can't have yet."""

_KINDS = ("field", "header", "schema", "sql")
_NOT_IN_FIELDS = "'[]*"
Document = Callable[[Mapping[str, Any]], TopicTable]


def routes_of(given: Sequence[Mapping[str, Any]], topic: Mapping[str, Any], document: Document) -> tuple[Route, ...]:
    """Return the routes of a topic.

    Args:
        given: Each route, as YAML has it.
        topic: The topic's settings of `OF_RECORDS`, as YAML has them, its name and cluster.
        document: Returns what a document of these settings says of a table.

    Raises:
        ConfigurationError: If a route can't be, with its number and table.
    """
    routes = []
    for number, each in enumerate(given, 1):
        where = f"routes: number {number} ({each.get('table') or 'without a table'})"
        for problem in _problems(each):
            raise ConfigurationError(f"Topic {topic['topic']}: {where}: {problem}")
        settings = with_own(topic, {name: value for name, value in each.items() if name != "when"})
        try:
            routes.append(Route(when_of(each["when"]), document(settings)))
        except (ConfigurationError, ValueError) as error:
            raise ConfigurationError(f"Topic {topic['topic']}: {where}: {said(error)}") from error
    return tuple(routes)


def with_own(topic: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a table: those of the topic's records, and its own.

    A table with a format of its own has no use for the topic's schema file, nor for the message that is chosen in it.

    Args:
        topic: As `routes_of` takes it.
        own: Of the table.
    """
    less = {"schema_file", "message"} if "format" in own else {"message"} if "schema_file" in own else set[str]()
    return {**{name: value for name, value in topic.items() if name not in less}, **own}


def said(error: Exception) -> str:
    """Return what an error says of settings, without where Pydantic looked."""
    if isinstance(error, ConfigurationError):
        return str(error)
    if not isinstance(error, ValidationError):
        return str(error)
    told: dict[str, str] = {}
    for each in error.errors(include_url=False):
        # A value that fits no member of a union is refused once for each; the first tells enough.
        text = each["msg"].removeprefix("Value error, ")
        if of_rule := rule_error(each["loc"], each["type"], text):
            setting, _, text = of_rule.partition(": ")
            told.setdefault(setting, text)
        told.setdefault(str(each["loc"][0]) if each["loc"] else "", text)
    return "; ".join(f"{setting}: {text}" if setting else text for setting, text in told.items())


def _problems(route: Mapping[str, Any]) -> Iterator[str]:
    if not isinstance(route.get("when"), Mapping):
        yield "when: is missing. Write for example when: {field: type, equals: order}."
    if not route.get("table"):
        yield "table: is missing. Name the table of these records."
    yield from maintenance_problems_of(route, "routes")
    yield from unknown_settings({name: value for name, value in route.items() if name != "when"})


def maintenance_problems_of(given: Mapping[str, Any], setting: str) -> Iterator[str]:
    """Give what `maintenance:` asks for and the tables of routes can't have.

    Args:
        given: The settings of the tables.
        setting: Where they are: ``routes`` or ``route_by``.
    """
    if not isinstance(policy := given.get("maintenance"), Mapping):
        return
    if policy.get("keep_rows"):
        yield f"maintenance: keep_rows: can't be combined with {setting} yet."
    lists = {name: each for name, each in policy.items() if name.startswith("compact_") and isinstance(each, list)}
    order: dict[str, Any] = {name: tuple(map(str, each)) for name, each in lists.items()}
    if policy.get("compact_every", "") is None:
        order["compact_every"] = None
    if problem := order_problem(Maintenance(**order)):
        yield problem


def unknown_settings(route: Mapping[str, Any]) -> Iterator[str]:
    """Give the settings that the table of a route can't have."""
    known = {*("schema", "except"), *pydantic_fields(TopicTable)} - {"except_columns"}
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

    >>> print(when_of({"field": "type", "in": ["click", "7"]}))
    with field type 'click' or '7'
    """
    kinds = [kind for kind in _KINDS if given.get(kind) is not None]
    if unknown := [name for name in given if name not in (*_KINDS, "equals", "in")]:
        raise ConfigurationError(f"when: there is no {unknown[0]}. Write field:, header:, schema: or sql:.")
    if len(kinds) != 1:
        raise ConfigurationError(
            f"when: has {' and '.join(kinds) or 'none'} of field:, header:, schema: and sql:. Write one."
        )
    (kind,) = kinds
    if kind in ("sql", "schema") and ("equals" in given or "in" in given):
        raise ConfigurationError(f"when: {kind}: is a whole condition. Leave out equals: and in:.")
    if kind == "schema":
        return When(schema=_names(given[kind]))
    name = _text(given[kind])
    if not name.strip():
        raise ConfigurationError(f"when: {kind}: is empty.")
    if kind == "sql":
        return When(sql=name)
    if ("equals" in given) == ("in" in given):
        raise ConfigurationError(f"when: {kind}: needs equals: with a value or in: with a list. Write one of them.")
    values = given["in"] if "in" in given else [given["equals"]]
    if not isinstance(values, list) or not values:
        raise ConfigurationError("when: in: is no list of values.")
    if kind == "field" and name.startswith("$"):
        raise ConfigurationError(f"when: field: {name!r} is a path. Write it without $, as in source.table.")
    if kind == "field" and not is_field(name):
        raise ConfigurationError(f"when: field: {name!r} is no name of a field. Use sql: for such names.")
    texts = tuple(map(_text, values))
    return When(field=name, values=texts) if kind == "field" else When(header=name, values=texts)


def is_field(name: str) -> bool:
    """Return whether a text names a field, with dots before those of objects."""
    return all(name.split(".")) and not set(_NOT_IN_FIELDS) & set(name)


def _names(given: object) -> tuple[str, ...]:
    names = given if isinstance(given, list) else [given]
    if not names or not all(isinstance(name, str) and name for name in names):
        raise ConfigurationError(f"when: schema: {given!r} is neither a name nor a list of names, as in shop.Order.")
    return tuple(names)


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
    if not spec.has_routes:
        return
    if spec.snapshot != "upsert":
        yield "snapshot: can't be combined with routes yet."
    by = spec.route_by
    others = [*(route.to for route in spec.routes), *([by.table_of("", "made by route_by")] if by else [])]
    for each in (spec, *others):
        if each.metadata_column is None:
            yield f"metadata_column: table {each.table} needs it, since rows of a topic with routes name their records."
    if spec.format not in ("json", "variant") and any(route.when.field for route in spec.routes):
        yield f"routes: when: field: is for JSON, and format is {spec.format}. Use header: or sql:."
    if by is not None and by.kind in ("field", "source_table") and spec.format not in ("json", "variant"):
        yield f"route_by: {by.kind}: is for JSON, and format is {spec.format}. Use header: or schema_name:."
    if any(route.when.schema for route in spec.routes) or (by is not None and by.kind == "schema_name"):
        if spec.format not in REGISTERED:
            yield f"routes: schema: is for formats {', '.join(REGISTERED)}, and format is {spec.format}."
        elif spec.schema_file is not None:
            yield "routes: schema: is by a registry's schema ids, and schema_file says that values have none."
    yield from _shared(spec)
    if spec.match == "first":
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
    for number, route in enumerate(routes):
        for name in route.when.schema:
            # A pattern that takes a pattern as if it were a name takes all that this takes.
            first = next((each.to.table for each in routes[:number] if each.when.means(name)), None)
            if first is not None:
                yield (
                    f"routes: table {route.to.table} would never get schema {name!r}, since table {first} comes first "
                    "and takes it. Leave it out of one of them, or change their order."
                )
        for value in () if route.when.schema else route.when.values or ("",):
            first = taken.setdefault((route.when.source, value), route.to.table)
            if first != route.to.table:
                what = f"{route.when.source[1]} {value!r}" if value else "a record"
                yield (
                    f"routes: table {route.to.table} would never get {what}, since table "
                    f"{first} comes first and takes it. Leave it out of one of them."
                )
