"""Refusals: changes that can't be applied to a keyed table, or that its topic's settings say to stop at."""

import re
from collections.abc import Sequence
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from kafka_lake.common.offsets import Position
from kafka_lake.errors import ChangeRefusedError
from kafka_lake.ingest.keyed.fold import TOMBSTONE_ELSEWHERE
from kafka_lake.ingest.keyed.keys import DOES, OTHER_PARTITION, Keys, quoted
from kafka_lake.ingest.keyed.merge import NOT_THERE
from kafka_lake.ingest.keyed.truncates import Truncate
from kafka_lake.ingest.topic_table import TopicTable


def refuse_by_settings(spec: TopicTable, keys: Keys, told: DataFrame, figures: Any) -> None:
    """Stop at deletes, or at an emptied source, where the settings say so.

    Args:
        figures: How many ``deletes`` and ``truncates`` they have.

    Raises:
        ChangeRefusedError: If there are any of those.
    """
    for does, count, setting, settings in (
        ("delete", figures["deletes"], spec.deletes, "deletes: apply, soft or ignore"),
        ("truncate", figures["truncates"], spec.on_truncate, "on_truncate: apply or ignore"),
    ):
        if count and setting == "fail":
            place = F.col(quoted(keys.metadata))
            first = (
                told.filter(F.col(DOES) == does)
                .agg(F.min(F.struct(place["partition"], place["offset"])))
                .collect()[0][0]
            )
            raise ChangeRefusedError(
                f"Topic {spec.topic}: {count} records {'delete rows' if does == 'delete' else 'empty the table'}, the "
                f"first in partition {first[0]} at offset {first[1]}, and the settings say to fail.",
                f"main is as it was. To go on, set {settings}.",
            )


def refuse_several_partitions(spec: TopicTable, at: Truncate, position: Position) -> None:
    """Stop at a truncate if only offsets tell which changes are older, and the topic has several partitions.

    Args:
        position: What the batch goes up to, in every partition.

    Raises:
        ChangeRefusedError: If it has.
    """
    if len(position.offsets) > 1:
        raise ChangeRefusedError(
            f"Topic {spec.topic}: the record in partition {at.partition} at offset {at.offset} empties the table, and "
            f"the topic has {len(position.offsets)} partitions, whose offsets don't tell which changes are older.",
            "main is as it was. Let the source write to one partition, or set on_truncate: ignore and delete the rows "
            "with SQL.",
        )


def refuse_several_sources(spec: TopicTable, sources: Sequence[str], at: Truncate) -> None:
    """Stop before rows go that one of the source's tables lacks, if they may be those of another.

    Args:
        sources: The tables of the source that changes have been about.
        at: The truncate, or a row of the snapshot that has ended.

    Raises:
        ChangeRefusedError: If there are several.
    """
    if len(sources) > 1:
        what = "is of a snapshot that has ended" if at.is_read else "empties the source's table"
        raise ChangeRefusedError(
            f"Topic {spec.topic}: the record in partition {at.partition} at offset {at.offset} {what}, and the topic's "
            f"changes are about several tables of the source: {', '.join(sources)}. Whose rows shall go isn't known.",
            "main is as it was. Let each table of the source have a topic of its own, which is the default of "
            "Debezium and Canal; or set on_truncate: ignore and on_snapshot: merge. If it is one table that was "
            "renamed, a run with those settings forgets its old name.",
        )


def refusal_of(spec: TopicTable, error: Exception) -> ChangeRefusedError | None:
    """Return what an error of the MERGE's own means; None for any other."""
    text = str(error)
    if found := re.search(rf"{OTHER_PARTITION} (\d+) (\d+) (\d+)", text):
        return not_comparable(
            spec, f"in partition {found[1]} at offset {found[2]}; its row came from partition {found[3]}"
        )
    if found := re.search(rf"{TOMBSTONE_ELSEWHERE} (\d+) (\d+) (\d+)", text):
        return tombstone_elsewhere(spec, found[1], found[2], found[3])
    if found := re.search(rf"{NOT_THERE} (\d+) (\d+) ([^\n]*?)(?: SQLSTATE: \w+)?\s*(?:\n|$)", text):
        return value_not_told(spec, found[1], found[2], found[3])
    return None


def tombstone_elsewhere(spec: TopicTable, partition: object, offset: object, other: object) -> ChangeRefusedError:
    """Return the refusal of a delete without an order whose key has a row from another Kafka partition."""
    return ChangeRefusedError(
        f"Topic {spec.topic}: the record in partition {partition} at offset {offset} deletes a key and has no "
        f"value, so no order; the key's row came from partition {other}. Which is newer isn't known.",
        "main is as it was. Let a value tell deletes, with delete_when:; or read past the record with "
        "kafka-lake reset.",
    )


def value_not_told(spec: TopicTable, partition: object, offset: object, columns: str) -> ChangeRefusedError:
    """Return the refusal of a change that leaves values as they are which nothing has."""
    return ChangeRefusedError(
        f"Topic {spec.topic}: the change in partition {partition} at offset {offset} doesn't tell {columns}, which the "
        "source left unchanged, and there is no row of its key by then.",
        "main is as it was. Read the topic from its beginning, or let the source take a new snapshot.",
    )


def not_comparable(spec: TopicTable, where: str) -> ChangeRefusedError:
    """Return the refusal of changes of a key whose order nothing tells."""
    return ChangeRefusedError(
        f"Topic {spec.topic}: a key has changes from several Kafka partitions ({where}), whose offsets don't tell "
        "which is newer.",
        "main is as it was. Name the column that tells it with order_by:, for instance a time of change.",
    )
