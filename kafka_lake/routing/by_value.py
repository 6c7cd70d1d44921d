"""Tables of values (`tables_by`): which values have one, and which new values may get one.

A property of the topic's own table records each value's table. It is set by a commit, so a concurrent run that doesn't
know the value can't publish, and each record goes to one table.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kafka_lake.errors import ConfigurationError
from kafka_lake.schema.names import Names
from kafka_lake.spec.topic_table import LONGEST_VALUE, RouteBy, TopicTable, derived_table_name

if TYPE_CHECKING:
    from kafka_lake.catalog.lake_catalog import LakeCatalog

PREFIX = "kafka-lake.route."
"""Prefix of the properties, before the table's name; the property has the value and its source."""

_PLACES = re.compile(r"\{(\w*)\}")
_PARTS = ("value", "parent", "name")


@dataclass(frozen=True)
class Admission:
    """The new values of a commit that get tables.

    Args:
        known: All values with a table: value, namespace, table.
        new: The values among them that are new.
        refused: The reason for each value that gets no table.
    """

    known: tuple[tuple[str, str, str], ...]
    new: tuple[tuple[str, str, str], ...]
    refused: Mapping[str, str]


def knowing(spec: TopicTable, properties: Mapping[str, str]) -> TopicTable:
    """Return a topic's settings with the tables of values that the own table's properties record."""
    if spec.route_by is None:
        return spec
    return replace(spec, route_by=replace(spec.route_by, known=tuple(known_in(spec.route_by, properties))))


def find_topic(topics: Sequence[TopicTable], name: str) -> TopicTable:
    """Return the settings of the topic of a name, else of one that has a table or whose values may have it.

    Args:
        name: As `find_table` takes it.

    Raises:
        ConfigurationError: If there is none, or several.
    """
    namespace, _, table = name.partition(".")
    found = (
        [topic for topic in topics if name in (topic.topic, topic.full_topic)]
        or list({topic.identifier: topic for topic in topics if _named(topic, name)}.values())
        or [topic for topic in topics if topic.route_by and table and may_name(topic.route_by, (namespace, table))]
    )
    if not found:
        known = ", ".join(sorted({".".join(table.identifier) for topic in topics for table in topic.tables})) or "none"
        raise ConfigurationError(
            f"No topic has a table {name} in this project; the tables are: {known}.",
            "Name one of them, or add a YAML document of type kafka_lake.KafkaTopic to defs/.",
        )
    tables = _named(found[0], name)
    if len(found) > 1 or len(tables) > 1:
        names = (topic.full_topic for topic in found) if len(found) > 1 else (".".join(t.identifier) for t in tables)
        raise ConfigurationError(
            f"{name} is the name of several {'topics, or of a table of several' if len(found) > 1 else 'tables'}.",
            f"Name one of them: {' or '.join(sorted(names))}.",
        )
    return found[0]


def find_table(topic: TopicTable, name: str, catalog: "LakeCatalog") -> TopicTable:
    """Return the settings of a topic's table.

    Args:
        name: The table's name, with or without the namespace, or the topic's for its own table.

    Raises:
        ConfigurationError: If no value has the table yet.
    """
    if topic.route_by is not None and (own := catalog.table(topic.identifier)) is not None:
        topic = knowing(topic, own.properties)
    if not (found := _named(topic, name)):
        raise ConfigurationError(
            f"Topic {topic.full_topic}: no value has a table {name} yet.", "`kafka-lake topics list` lists the tables."
        )
    return found[0]


def _named(topic: TopicTable, name: str) -> list[TopicTable]:
    """Return the tables of a topic that a name means."""
    if name in (topic.topic, topic.full_topic):
        return [topic]
    return [table for table in topic.tables if name in (table.table, ".".join(table.identifier))]


def known_in(by: RouteBy, properties: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Yield the recorded values of the current field or header, as in `RouteBy.known`."""
    for name in sorted(properties):
        if not name.startswith(PREFIX):
            continue
        route = json.loads(properties[name])
        if route.get("by") == by.source:
            yield route["value"], route["namespace"], route["table"]


def as_properties(by: RouteBy, new: Iterable[tuple[str, str, str]], begins: Mapping[int, int]) -> dict[str, str]:
    """Return the properties that record new tables."""
    since = {str(partition): offset for partition, offset in sorted(begins.items())}
    return {
        f"{PREFIX}{namespace}.{table}": json.dumps(
            {"by": by.source, "value": value, "namespace": namespace, "table": table, "begins": since},
            ensure_ascii=False,
        )
        for value, namespace, table in new
    }


def begins_in(properties: Mapping[str, str], identifier: tuple[str, str]) -> dict[int, int]:
    """Return the start offsets of a value's table; empty for any other table."""
    route = json.loads(properties.get(PREFIX + ".".join(identifier), "{}"))
    return {int(partition): offset for partition, offset in route.get("begins", {}).items()}


def admitted(spec: TopicTable, values: Sequence[str], is_free: Callable[[TopicTable], bool]) -> Admission:
    """Return which values get a table."""
    by = spec.route_by
    assert by is not None, "the caller has checked it"
    taken: dict[str, Names] = {}
    for table_spec in spec.tables:
        _take(taken, table_spec)
    known, new, refused = list(by.known), list[tuple[str, str, str]](), dict[str, str]()
    have = {value for value, _, _ in known}
    for value in dict.fromkeys(values):
        if value in have:
            continue
        try:
            namespace, table = place_of(by, value)
        except ValueError as error:
            refused[value] = str(error)
            continue
        to = by.table_of(namespace, table)
        name = f"{namespace}.{table}"
        if len(known) >= by.max_tables:
            refused[value] = f"max_tables is {by.max_tables}"
        elif any(name_.lower() in taken.get(namespace_.lower(), ()) for namespace_, name_ in to.identifiers):
            refused[value] = f"table {name}, or its dead-letter table, would belong to another route or value"
        elif not is_free(to):
            refused[value] = f"the catalog has a table {name}, or one beside it, that is not this topic's"
        else:
            known.append((value, namespace, table))
            new.append((value, namespace, table))
            _take(taken, to)
    return Admission(tuple(known), tuple(new), refused)


def _take(taken: dict[str, Names], table: TopicTable) -> None:
    for namespace, name in table.identifiers:
        taken.setdefault(namespace.lower(), Names()).add(name)


def place_of(by: RouteBy, value: str) -> tuple[str, str]:
    """Return namespace and name of a value's table."""
    if len(value) > LONGEST_VALUE:
        raise ValueError(f"it has more than {LONGEST_VALUE} characters")
    if by.is_by_schema and "*" in value:
        raise ValueError("it contains *, which is a wildcard")
    table = _filled(by.table, value)
    if len(table) > LONGEST_VALUE:
        raise ValueError(f"the table's name would have more than {LONGEST_VALUE} characters")
    return by.namespace, table


def _filled(template: str, value: str) -> str:
    """Return the name of a template, with the characters of a default table name.

    Two underscores separate the endings of side tables, so a value's become one.
    """
    parent, _, name = value.rpartition(".")
    parts = dict(zip(_PARTS, (value, parent, name), strict=True))

    def part(place: re.Match[str]) -> str:
        plain = re.sub(r"[^a-z0-9]+", "_", parts[place[1]].lower()).strip("_")
        if not plain:
            raise ValueError(f"it has no character for {{{place[1]}}} that a name allows")
        return plain

    return derived_table_name(_PLACES.sub(part, template))


def template_problems(setting: str, template: str) -> Iterator[str]:
    """Yield the problems of a template with ``{value}``, or parts of it."""
    places = _PLACES.findall(template)
    if unknown := [place for place in places if place not in _PARTS]:
        there = ", ".join(f"{{{part}}}" for part in _PARTS)
        yield f"{setting}: {template!r} uses {{{unknown[0]}}}. Available: {there}."
    if not places:
        yield f"{setting}: {template!r} gives all values the same table. Write for example {template}_{{value}}."


def may_name(by: RouteBy, identifier: tuple[str, str]) -> bool:
    """Return whether a value could make a table of that name, or one beside it.

    >>> by = RouteBy("field", "type", TopicTable("t"), table="shop_{value}", namespace="lake")
    >>> [may_name(by, name) for name in (("lake", "shop_a"), ("lake", "a"), ("web", "shop_a"))]
    [True, False, False]
    """
    namespace, table = (part.lower() for part in identifier)
    pattern = ".+".join(re.escape(part) for part in _PLACES.split(by.table.lower())[::2])
    return namespace == by.namespace.lower() and re.fullmatch(pattern, table) is not None


def may_meet(one: RouteBy, other: RouteBy) -> bool:
    """Return whether values could make tables of the same name by two templates."""
    begins = [_PLACES.split(route.table.lower())[0] for route in (one, other)]
    ends = [_PLACES.split(route.table.lower())[-1][::-1] for route in (one, other)]
    return one.namespace.lower() == other.namespace.lower() and _starts(*begins) and _starts(*ends)


def _starts(one: str, other: str) -> bool:
    return one.startswith(other) or other.startswith(one)
