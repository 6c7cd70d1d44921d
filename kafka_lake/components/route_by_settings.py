"""The setting ``route_by:`` of a topic: what YAML has, as tables by value with their settings."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, get_args

from kafka_lake.common.errors import ConfigurationError
from kafka_lake.components.route_settings import (
    Document,
    is_field,
    maintenance_problems_of,
    said,
    unknown_settings,
    with_own,
)
from kafka_lake.ingest.route import RouteByKind
from kafka_lake.ingest.routes.by_value import template_problems
from kafka_lake.ingest.topic_table import TABLE_NAME, RouteBy

_ROUTE_BY_KINDS: tuple[RouteByKind, ...] = get_args(RouteByKind)
_OF_ROUTE_BY = (*_ROUTE_BY_KINDS, "table", "namespace", "namespaces", "max_tables")


def route_by_of(given: Mapping[str, Any], topic: Mapping[str, Any], namespace: str, document: Document) -> RouteBy:
    """Return what ``route_by:`` of a topic says.

    Args:
        given: It, as YAML has it.
        topic: As `routes_of` takes it.
        namespace: The topic's.
        document: Returns what a document of these settings says of a table.

    Raises:
        ConfigurationError: If that can't be.
    """
    for problem in _route_by_problems(given):
        raise ConfigurationError(f"Topic {topic['topic']}: route_by: {problem}")
    settings = with_own(topic, {name: value for name, value in given.items() if name not in _OF_ROUTE_BY})
    to = {**settings, "table": "any_value"}
    to.pop("namespace", None)
    (kind,) = (each for each in _ROUTE_BY_KINDS if given.get(each) is not None)
    try:
        table = document(to)
        name = table.envelope if kind == "source_table" and table.envelope != "none" else "debezium"
        return RouteBy(
            kind=kind,
            name={"schema_name": "", "source_table": name}.get(kind, str(given[kind])),
            to=table,
            table=str(given.get("table", "{value}")),
            namespace=str(given.get("namespace", namespace)),
            namespaces=tuple(map(str, given.get("namespaces", ()))),
            max_tables=given.get("max_tables", 50),
        )
    except (ConfigurationError, ValueError) as error:
        raise ConfigurationError(f"Topic {topic['topic']}: route_by: {said(error)}") from error


def _route_by_problems(given: Mapping[str, Any]) -> Iterator[str]:
    kinds = [kind for kind in _ROUTE_BY_KINDS if given.get(kind) is not None]
    if len(kinds) != 1:
        yield f"has {' and '.join(kinds) or 'none'} of {', '.join(_ROUTE_BY_KINDS)}. Write one, as in field: type."
        return
    (kind,) = kinds
    if kind in ("schema_name", "source_table") and given[kind] is not True:
        yield f"{kind}: {given[kind]!r} isn't true. Write {kind}: true."
    if kind in ("field", "header") and (not isinstance(given[kind], str) or not given[kind]):
        yield f"{kind}: {given[kind]!r} is no name."
    elif kind == "field" and not is_field(given[kind]):
        yield f"field: {given[kind]!r} is no name of a field."
    for setting in ("table", "namespace"):
        if setting in given:
            yield from template_problems(setting, str(given[setting]), needs_one=setting == "table")
    namespaces = given.get("namespaces", [])
    if not isinstance(namespaces, list) or not all(
        isinstance(each, str) and re.match(TABLE_NAME, each) for each in namespaces
    ):
        yield f"namespaces: {namespaces!r} is no list of namespaces."
    yield from maintenance_problems_of(given, "route_by")
    is_template = "{" in str(given.get("namespace", ""))
    if is_template and not namespaces:
        yield "namespace: is a template, so that values choose it. Say with namespaces: which ones they may choose."
    if namespaces and not is_template:
        yield "namespaces: has no effect without a template in namespace:, as {parent}. Leave it out."
    yield from unknown_settings({name: value for name, value in given.items() if name not in _OF_ROUTE_BY})
