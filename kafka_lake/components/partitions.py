"""A topic's Kafka partitions as Dagster's dynamic partitions."""

from collections.abc import Callable, Iterable

import dagster as dg


def partitions_of(topic: str) -> dg.DynamicPartitionsDefinition:
    """Return the partitions definition of a topic, by its full name; its keys are Kafka partition numbers.

    A table of several topics has one for all, by `work_name`; `partition_key` says what its keys are.
    """
    return dg.DynamicPartitionsDefinition(name=f"kafka/{topic}")


def is_for_partitions(context: dg.AssetExecutionContext) -> bool:
    """Return whether a run was asked for one partition or a range of them; a run for none of them is for all."""
    return bool(context.has_partition_key or context.has_partition_key_range)


def missing_keys(known: Iterable[str], partitions: Iterable[int], key: Callable[[int], str] = str) -> list[str]:
    """Return the keys that Dagster lacks, in numeric order, in which it is to get them.

    Args:
        key: Returns the key of each.

    >>> missing_keys(["0", "2"], [10, 2, 1])
    ['1', '10']
    """
    have = set(known)
    return [key(partition) for partition in sorted(partitions) if key(partition) not in have]


def register_partitions(
    instance: dg.DagsterInstance, topic: str, partitions: Iterable[int], key: Callable[[int], str] = str
) -> list[str]:
    """Make a topic's partitions known to Dagster.

    Args:
        topic: The topic's full name, or the name of what it shares a table with.
        key: Returns the key of each.

    Returns:
        The keys that are new.
    """
    name = str(partitions_of(topic).name)
    if new := missing_keys(instance.get_dynamic_partitions(name), partitions, key):
        instance.add_dynamic_partitions(name, new)
    return new
