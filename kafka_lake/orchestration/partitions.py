"""A topic's Kafka partitions as Dagster's dynamic partitions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

import dagster as dg

from kafka_lake.common.offsets import Watermarks
from kafka_lake.orchestration.keys import partition_key, work_name
from kafka_lake.orchestration.runs import dagster_at_hand
from kafka_lake.spec.topic_table import TopicTable

if TYPE_CHECKING:
    from kafka_lake.kafka.cluster import KafkaCluster


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

    >>> missing_keys(["0", "2"], [10, 2, 1])
    ['1', '10']
    """
    have = set(known)
    return [key(partition) for partition in sorted(partitions) if key(partition) not in have]


def register_partitions(
    instance: dg.DagsterInstance, topic: str, partitions: Iterable[int], key: Callable[[int], str] = str
) -> list[str]:
    """Make a topic's partitions known to Dagster."""
    name = str(partitions_of(topic).name)
    if new := missing_keys(instance.get_dynamic_partitions(name), partitions, key):
        instance.add_dynamic_partitions(name, new)
    return new


def register_topics(specs: Iterable[TopicTable], cluster: KafkaCluster, tell_user: Callable[[str], None]) -> None:
    """Register the partitions that topics have now; topics that can't be asked are left out."""
    by_topic = {spec.topic: spec for spec in specs}
    try:
        answers = cluster.watermarks(by_topic)
        with dagster_at_hand() as instance:
            for topic, answer in answers.items():
                if isinstance(answer, Watermarks):
                    spec = by_topic[topic]
                    key = partial(partition_key, spec)
                    register_partitions(instance, work_name(spec), answer.partitions, key)
    except Exception as error:
        # Whatever Dagster's storage may be, and whatever it may lack.
        tell_user(f"Dagster doesn't know the topics' partitions yet; its sensor registers them when it runs. {error}")
