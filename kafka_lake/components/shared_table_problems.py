"""The setting ``topics:``, several topics in one table: what can't be meant, or can't be together with it."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, get_args

from kafka_lake.common.errors import ConfigurationError
from kafka_lake.components.topic_pattern import compiled
from kafka_lake.ingest.topic_table import InDocuments, TopicName

_NOT_YET = ("routes", "route_by", "continuous")


def topics_problems(settings: Any) -> Iterator[str]:
    """Give what is wrong with the topics of a document, and with its other settings if it has several topics.

    Args:
        settings: Those of a document.
    """
    topics: Sequence[str] | str = settings.topics
    if settings.exclude and not isinstance(topics, str):
        yield r"exclude: is for a pattern, as in topics: 'shop\..*'. Leave it out, or write topics: as one text."
    if not topics:
        if settings.topic is None:
            yield (
                "topic: is missing, or null without quotes. Name the Kafka topic; or several that fill one table, as "
                "topics: [a, b]."
            )
        return
    if settings.topic is not None:
        yield f"topic: {settings.topic} can't stand beside topics:. Write it into that list, or leave one of them out."
    yield from _pattern_problems(topics, settings.exclude) if isinstance(topics, str) else _names_problems(topics)
    if settings.table is None:
        yield "table: is missing. Name the table that the topics fill."
    if settings.metadata_column is None:
        yield "metadata_column: topics: needs it, since it tells which topic a row came from. Leave it out."
    if settings.write != "append":
        yield (
            f"write: {settings.write} can't be combined with topics: yet, since the offsets of two topics don't tell "
            "which change of a key is the newer one. Give each topic a table of its own."
        )
    if settings.compatibility != "none":
        yield "compatibility: can't be combined with topics: yet, since each topic has schema versions of its own."
    for name in _NOT_YET:
        if getattr(settings, name):
            yield f"{name}: can't be combined with topics: yet. Leave it out, or give each topic a table of its own."


def _names_problems(topics: Sequence[str]) -> Iterator[str]:
    if twice := [topic for topic, count in Counter(topics).items() if count > 1]:
        yield f"topics: has {twice[0]} twice. Leave one of them out."
    (allowed,) = (each.pattern for each in get_args(TopicName) if isinstance(each, InDocuments))
    if wrong := [topic for topic in topics if not re.fullmatch(allowed, topic)]:
        yield (
            f"topics: {wrong[0]!r} can't be the name of a topic. A list has whole names. A pattern is one text, as in "
            r"topics: 'shop\..*'."
        )


def _pattern_problems(pattern: str, exclude: Sequence[str]) -> Iterator[str]:
    try:
        compiled("topics", pattern)
        for each in exclude:
            compiled("exclude", each)
    except ConfigurationError as error:
        yield str(error)
