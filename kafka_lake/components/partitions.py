"""A topic's Kafka partitions as Dagster's dynamic partitions."""

from collections.abc import Iterable

import dagster as dg


def partitions_of(topic: str) -> dg.DynamicPartitionsDefinition:
    """Return the partitions definition of a topic, by its full name; its keys are Kafka partition numbers."""
    return dg.DynamicPartitionsDefinition(name=f"kafka/{topic}")


def missing_keys(known: Iterable[str], partitions: Iterable[int]) -> list[str]:
    """Return the keys that Dagster lacks, in numeric order, in which it is to get them.

    >>> missing_keys(["0", "2"], [10, 2, 1])
    ['1', '10']
    """
    have = set(known)
    return [str(partition) for partition in sorted(partitions) if str(partition) not in have]


def register_partitions(instance: dg.DagsterInstance, topic: str, partitions: Iterable[int]) -> list[str]:
    """Make a topic's partitions known to Dagster.

    Args:
        instance: Dagster's.
        topic: The topic's full name.
        partitions: Its Kafka partitions.

    Returns:
        The keys that are new.
    """
    name = str(partitions_of(topic).name)
    if new := missing_keys(instance.get_dynamic_partitions(name), partitions):
        instance.add_dynamic_partitions(name, new)
    return new
