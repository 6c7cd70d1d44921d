"""Names of assets, ops, pools and tags in Dagster."""

import hashlib
import re
from collections.abc import Iterable
from typing import Protocol

import dagster as dg

from kafka_lake.config.systems import of_cluster as of_cluster
from kafka_lake.spec.topic_table import TopicTable

TOPIC_TAG = "kafka_lake/topic"
"""Tag of a requested run: its topic, or its topics with their partitions; with the cluster's name."""

MEMBER_TAG = ".dagster/kafka_lake_topic_"
"""Prefix of the tags that select the runs of a topic. Dagster's pages don't show tags with this prefix."""

SHARED_TAG = ".dagster/kafka_lake_shared"
"""Tag of a requested run that several topics share: the cluster."""

YIELD_TAG = ".dagster/kafka_lake_yield"
"""Tag of a run that ends after its current commits: other topics wait for its place, or settings have changed."""

CONTINUOUS_ASSET_TAG = "kafka_lake/continuous"
"""Tag of the asset of a topic's table whose runs continue for hours."""

TABLE_TAG = "kafka_lake/table"
"""Tag of the asset of a topic's table: the cluster."""

MAINTENANCE_TAG = "kafka_lake/maintenance"
"""Tag of a run that maintains tables: their names, if the sensor requested it."""

# Of runs that continue: until when they do, and how many commits they have made. A catch-up run first reads all that
# was there when it began. The names are short: Dagster's page of all runs cuts tags off after some thirty letters.
CATCH_UP_TAG = "catch_up"
CONTINUOUS_TAG = "continuous"


class HasIdentifier(Protocol):
    """A topic's table or a derived table."""

    @property
    def identifier(self) -> tuple[str, str]:
        """Return namespace and name."""


_RENAMED: dict[dg.AssetKey, dg.AssetKey] = {}


def rename(default: dg.AssetKey, key: dg.AssetKey) -> None:
    """Set the key of an asset in this code location; components do so when definitions load."""
    if key == default:
        _RENAMED.pop(default, None)
    else:
        _RENAMED[default] = key


def topic_key(spec: TopicTable) -> dg.AssetKey:
    """Return the asset key of the topic."""
    key = default_topic_key(spec)
    return _RENAMED.get(key, key)


def default_topic_key(spec: TopicTable) -> dg.AssetKey:
    """Return the key of a topic's asset unless a component renames it."""
    return dg.AssetKey(["kafka", *spec.full_topic.split("/")])


def work_name(spec: TopicTable) -> str:
    """Return the name of a table's partitions and runs: the topic, or the table if it has several topics.

    A topic's full name never has two slashes.
    """
    return "/".join((*spec.identifier, "topics")) if spec.topics else spec.full_topic


def member_tag(name: str) -> str:
    """Return the tag, with the name as its value, of the runs of a topic, by `work_name`."""
    return MEMBER_TAG + hashlib.sha256(name.encode()).hexdigest()[:16]


def partition_key(spec: TopicTable, partition: int) -> str:
    """Return Dagster's key of a Kafka partition: its number, with the topic before it if the table has several topics.

    Dagster refuses three dots in a row, which a topic's name may have. It never has %.
    """
    return f"{spec.topic.replace('...', '%2E%2E%2E')}/{partition}" if spec.topics else str(partition)


def partitions_in(spec: TopicTable, keys: Iterable[str]) -> frozenset[int]:
    """Return the Kafka partitions of a topic among keys of Dagster.

    Keys of other topics are left out, and keys that a user has added and that aren't numbers.
    """
    topic = partition_key(spec, 0).removesuffix("0")
    numbers = [key.removeprefix(topic) for key in keys if key.startswith(topic)]
    return frozenset(int(number) for number in numbers if re.fullmatch("0|[1-9][0-9]*", number))


def table_key(spec: HasIdentifier) -> dg.AssetKey:
    """Return the asset key of the table."""
    return key_of(spec.identifier)


def op_name(spec: HasIdentifier, check: str = "") -> str:
    """Return the name of the op that fills the table, by which a run's config names it, or of the op of a check."""
    name = _joined_name(spec.identifier, "__")
    return f"{name}__{check}" if check else name


def maintenance_pool(spec: TopicTable, topic: TopicTable) -> str:
    """Return the pool of maintenance: for an upsert table the pool of the topic's runs, since both change rows."""
    return pool_name(topic) if spec.is_keyed else f"maintenance_{pool_name(spec)}"


def pool_name(spec: HasIdentifier) -> str:
    """Return the pool that allows one run of the table at a time."""
    return f"table_{_joined_name(spec.identifier, '_')}"


def _joined_name(table: tuple[str, str], separator: str) -> str:
    """Return a unique name for namespace and table: (shop, eu_orders) and (shop_eu, orders) have different names."""
    namespace, joined = table[0], separator.join(table)
    if f"{namespace}{separator}".index(separator) == len(namespace):
        # The first separator ends the namespace.
        return plain_name(joined)
    return f"{_plain(joined)}_{_short_hash('/'.join(table))}"


def key_of(table: tuple[str, str]) -> dg.AssetKey:
    """Return the asset key of a table."""
    key = default_key(table)
    return _RENAMED.get(key, key)


def default_key(table: tuple[str, str]) -> dg.AssetKey:
    """Return the key of a table's asset unless a component renames it."""
    # Dagster derives names from keys, and replaces only dashes and dots.
    return dg.AssetKey([plain_name(part, "-.") for part in table])


def plain_name(text: str, besides: str = "") -> str:
    """Return a valid name for ops, pools and groups: the text itself if it has only letters, digits and underscores.

    >>> plain_name("pizza__orders"), plain_name("größe.1"), plain_name("a-b.c", "-.")
    ('pizza__orders', 'gr__e_1_5a9e088a', 'a-b.c')
    """
    plain = _plain(text, besides)
    return text if plain == text else f"{plain}_{_short_hash(text)}"


def _plain(text: str, besides: str = "") -> str:
    return re.sub(rf"[^A-Za-z0-9_{re.escape(besides)}]", "_", text)


def _short_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]
