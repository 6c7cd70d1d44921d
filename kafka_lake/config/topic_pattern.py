"""Which topics of a cluster a pattern is about, and what their tables are called. Pure: names in, names out."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from kafka_lake.errors import ConfigurationError
from kafka_lake.spec.topic_table import derived_table_name

_NONE: Mapping[str, str] = MappingProxyType({})
_PLACE = re.compile(r"\{(?P<name>\w*)\}")


@dataclass(frozen=True)
class FoundTopic:
    """A topic that a pattern is about.

    Args:
        parts: What templates may have: ``topic``, and the groups of the expression that it matches, by name and number.
    """

    name: str
    parts: Mapping[str, str]


@dataclass(frozen=True)
class TopicPattern:
    """Topics, by regular expressions (Python's) that match whole names.

    Args:
        topics: A topic is meant if one of them matches its name.
    """

    topics: Sequence[str]
    exclude: Sequence[str] = ()

    def matching(self, names: Iterable[str]) -> list[FoundTopic]:
        """Return the topics among these that are meant, sorted; Kafka's own, with two underscores, never are.

        >>> [topic.name for topic in TopicPattern([r"shop[.].*"], [".*[.]old"]).matching(["shop.a", "a", "shop.a.old"])]
        ['shop.a']
        """
        found = []
        for name in sorted(set(names)):
            if name.startswith("__") or any(re.fullmatch(excluded, name) for excluded in self.exclude):
                continue
            match = next(filter(None, (re.fullmatch(topic, name) for topic in self.topics)), None)
            if match:
                numbered = {str(number): text or "" for number, text in enumerate(match.groups(), 1)}
                named = {key: text or "" for key, text in match.groupdict().items()}
                found.append(FoundTopic(name, {**numbered, **named, "topic": name}))
        return found


def compiled(setting: str, pattern: str) -> re.Pattern[str]:
    """Return a regular expression."""
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ConfigurationError(
            f"{setting}: {pattern!r} isn't a regular expression: {error}.",
            r"A topic's name is a valid pattern; \. is a dot, .* is any text.",
        ) from error


def check_template(setting: str, template: str, pattern: TopicPattern) -> None:
    """Make sure that each topic's name has the parts that a template names."""
    for text in pattern.topics:
        groups = re.compile(text)
        known = {"topic", *groups.groupindex, *map(str, range(1, groups.groups + 1))}
        if missing := [name for name in _PLACE.findall(template) if name not in known]:
            raise ConfigurationError(
                f"{setting}: {template!r} uses {{{missing[0]}}}, and the pattern {text!r} has only "
                f"{', '.join(f'{{{part}}}' for part in sorted(known))}.",
                r"Groups have numbers, or names as in (?P<name>.*).",
            )


def filled(template: str, topic: FoundTopic) -> str:
    """Return the name that a template gives for a topic, with the signs that the default name of a table has.

    >>> filled("{topic}", TopicPattern([".*"]).matching(["shop.Orders"])[0])
    'shop_orders'

    >>> filled("raw_{1}", TopicPattern(["shop[.](.*)"]).matching(["shop.orders-eu"])[0])
    'raw_orders_eu'
    """
    return derived_table_name(_PLACE.sub(lambda place: topic.parts[place["name"]], template))


def sentence(found: Mapping[str, Sequence[str]], tables: Mapping[str, str] = _NONE) -> str:
    """Return what to do about topics that a pattern means and that aren't known yet; empty if there are none.

    >>> sentence({"defs/shop/defs.yaml": ["shop.a", "shop.b"]})[:70]
    'defs/shop/defs.yaml: 2 new topics match and have no table yet: shop.a,'

    >>> sentence({"shop/defs.yaml": ["shop.a"]}, {"shop/defs.yaml": "lake.all"})[:67]
    "shop/defs.yaml: 1 new topic matches and isn't in lake.all yet: shop"
    """
    lines = []
    for document, names in found.items():
        if names:
            shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
            count = "1 new topic matches and" if len(names) == 1 else f"{len(names)} new topics match and"
            one, table = len(names) == 1, tables.get(document)
            lack = (
                ("has" if one else "have") + " no table" if table is None else f"{'is' if one else 'are'}n't in {table}"
            )
            lines.append(f"{document}: {count} {lack} yet: {shown}")
    return (
        f"{'; '.join(lines)}. Run `kafka-lake topics refresh` and reload the code location in Dagster." if lines else ""
    )
