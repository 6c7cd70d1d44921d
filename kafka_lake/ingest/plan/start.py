"""Where a table begins that has no position yet, and what a person means by an offset."""

import re
from datetime import UTC, datetime

from kafka_lake.common.offsets import Watermarks
from kafka_lake.errors import ConfigurationError
from kafka_lake.ingest.topic_table import TopicTable
from kafka_lake.kafka.cluster import KafkaCluster

_BY_PARTITION = re.compile(r"\d+:\d+(,\d+:\d+)*")


def start_offsets(spec: TopicTable, cluster: KafkaCluster, now: Watermarks) -> dict[int, int]:
    """Return where each partition begins for a table that has no position yet.

    Args:
        cluster: Asked only for a start by time.

    Raises:
        KafkaError: If the brokers don't answer.
    """
    if spec.start == "earliest":
        return dict(now.low)
    if spec.start == "latest":
        return dict(now.end)
    found = cluster.offsets_at(spec.topic, now.partitions, start_timestamp_ms(spec.start))
    return {
        p: now.end[p] if (at := found.get(p)) is None else min(max(at, now.low[p]), now.end[p]) for p in now.partitions
    }


def start_timestamp_ms(text: str, setting: str = "start") -> int:
    """Return an ISO 8601 time as milliseconds since the epoch; without a zone it is UTC.

    Raises:
        ConfigurationError: If the text is no such time.

    >>> start_timestamp_ms("2026-01-01T00:00:00")
    1767225600000
    """
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise ConfigurationError(
            f"{setting}: {text!r} is neither earliest, latest nor an ISO 8601 time.",
            "Write for example 2026-01-31T00:00:00Z.",
        ) from error
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def is_time(text: str) -> bool:
    """Return whether `offsets_of` would take a text for a time.

    >>> is_time("2026-01-31T00:00:00Z"), is_time("0:17,1:4"), is_time("17")
    (True, False, False)
    """
    return not (text in ("earliest", "latest") or text.isdecimal() or _BY_PARTITION.fullmatch(text))


def offsets_of(text: str, topic: str, cluster: KafkaCluster, now: Watermarks) -> dict[int, int]:
    """Return the offset per partition that a person means by ``--from`` or ``--to``.

    Args:
        text: ``earliest``, ``latest``, an offset, an ISO 8601 time, or offsets by partition as in ``0:17,1:4``.

    Returns:
        Offsets, for the named partitions only in the last form. A time beyond the last record is the end.

    Raises:
        ConfigurationError: If the text is none of these.
        KafkaError: If the brokers don't answer.
    """
    if text in ("earliest", "latest"):
        return dict(now.low if text == "earliest" else now.end)
    if text.isdecimal():
        return dict.fromkeys(now.partitions, int(text))
    if _BY_PARTITION.fullmatch(text):
        return {int(p): int(o) for p, o in (pair.split(":") for pair in text.split(","))}
    moment = start_timestamp_ms(text, "--from or --to")
    found = cluster.offsets_at(topic, now.partitions, moment)
    return {p: now.end[p] if found.get(p) is None else int(found[p] or 0) for p in now.partitions}
