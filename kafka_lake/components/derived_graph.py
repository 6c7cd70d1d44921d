"""Whether derived tables go with the tables that they are made from, as the documents of a project have them. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches

from kafka_lake.common.errors import ConfigurationError
from kafka_lake.components.rule_problems import derived_rule_problems
from kafka_lake.derive.derived_table import DerivedTable, Identifier
from kafka_lake.derive.problems import query_problems
from kafka_lake.ingest.routes.by_value import may_name
from kafka_lake.ingest.topic_table import TopicTable


@dataclass(frozen=True)
class Project:
    """The tables of a project.

    Args:
        topics: Tables of topics.
        derived: Derived tables.
    """

    topics: Sequence[TopicTable] = ()
    derived: Sequence[DerivedTable] = ()
    _known: dict[Identifier, str] = field(default_factory=dict, init=False, compare=False)

    def __post_init__(self) -> None:
        for topic in self.topics:
            for each in topic.identifiers:
                self._known[each] = f"a table beside {'.'.join(topic.identifier)}, and isn't a log of records"
            self._known[topic.identifier] = _why_not_a_log(topic)
        for table in self.derived:
            self._known[table.identifier] = _why_no_log(table)

    def why_not_incremental(self, identifier: Identifier) -> str | None:
        """Return why a table can't be read by what is new in it, empty if it can; None if it isn't known."""
        return self._known.get(identifier)

    @property
    def names(self) -> list[str]:
        """Return the names of all tables."""
        return sorted(".".join(each) for each in self._known)


def _why_not_a_log(topic: TopicTable) -> str:
    if topic.write == "upsert":
        return "a keyed table (write: upsert), whose rows change"
    if topic.topics:
        return "a table of several topics, which has no single order of records"
    return "" if topic.metadata_column else "a table without metadata_column, whose rows don't tell their records"


def _why_no_log(table: DerivedTable) -> str:
    if table.write != "append":
        return f"a derived table with write: {table.write}, whose rows change"
    return "" if len(table.sources) == 1 else "a derived table of several tables, which has no single order of records"


def check_derived(spec: DerivedTable, project: Project) -> None:
    """Make sure that a derived table's settings go together, and with the tables that it reads.

    Raises:
        ConfigurationError: If not, naming the setting and what to do.
    """
    for problem in (*query_problems(spec), *derived_rule_problems(spec.rules)):
        raise ConfigurationError(f"Table {spec.name}: {problem}")
    same = [each for each in project.derived if each.identifier == spec.identifier]
    of_topics = [each for each in project.topics if spec.identifier in each.identifiers]
    if len(same) > 1 or of_topics:
        other = f"topic {of_topics[0].full_topic}" if of_topics else "another derived table"
        raise ConfigurationError(f"Table {spec.name} would be {other}'s, too.", "Give it another table: or namespace:.")
    for each in project.topics:
        if each.route_by is not None and may_name(each.route_by, spec.identifier):
            raise ConfigurationError(
                f"Table {spec.name}: a value of topic {each.full_topic} could make that table, by route_by: table:.",
                "Give it another table: or namespace:.",
            )
    for identifier in spec.upstream.values():
        why, name = project.why_not_incremental(identifier), ".".join(identifier)
        if why is None:
            near = get_close_matches(name, project.names, 1)
            meant = f" Is it {near[0]}?" if near else f" Those here are: {', '.join(project.names) or 'none'}."
            raise ConfigurationError(
                f"Table {spec.name}: from: {name} is no table of this project.{meant}",
                "Tables of others can be read under join: only.",
            )
        if why and spec.is_incremental:
            raise ConfigurationError(
                f"Table {spec.name}: write: {spec.write} reads what is new in upstream tables, and {name} is {why}.",
                "Use write: replace, or put it under join: if its rows are looked up only. Changes of a keyed topic "
                "are in a table of the same topic with write: append.",
            )
    if cycle := cycle_of(spec.identifier, _edges(project.derived)):
        raise ConfigurationError(
            f"Table {spec.name} is made from itself: {' → '.join('.'.join(each) for each in cycle)}.",
            "Take one of them out of from: or join:.",
        )


def _edges(tables: Iterable[DerivedTable]) -> dict[Identifier, list[Identifier]]:
    return {each.identifier: [*each.upstream.values(), *each.joined.values()] for each in tables}


def cycle_of(start: Identifier, edges: Mapping[Identifier, Sequence[Identifier]]) -> list[Identifier]:
    """Return a way from a table to itself, both ends included; empty if there is none.

    >>> a, b = ("n", "a"), ("n", "b")
    >>> cycle_of(a, {a: [b], b: [a]}), cycle_of(a, {a: [b]})
    ([('n', 'a'), ('n', 'b'), ('n', 'a')], [])
    """
    ways, seen = [[start]], set()
    while ways:
        way = ways.pop()
        for each in edges.get(way[-1], ()):
            if each == start:
                return [*way, each]
            if each not in seen:
                seen.add(each)
                ways.append([*way, each])
    return []
