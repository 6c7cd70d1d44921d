"""What a cluster's topics hold and what their records seem to be, and the YAML that makes tables of them."""

import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from kafka_lake.common.offsets import Watermarks
from kafka_lake.common.text import printable
from kafka_lake.discovery.guess import Column, Guess, Schemas, guess
from kafka_lake.errors import ConfigurationError, KafkaLakeError
from kafka_lake.formats.ddl import check_ddl
from kafka_lake.kafka.cluster import KafkaCluster
from kafka_lake.kafka.records import Sample, Sampler
from kafka_lake.runtime.context import Connections
from kafka_lake.spec.topic_table import TopicTable, derived_table_name, full_topic

NAMESPACE = "lake"
_WIDTH = 100
_NO_GUESS = Guess(None, "")


@dataclass(frozen=True)
class Discovered:
    """A topic, and what its records seem to be.

    Args:
        tables: ``namespace.table`` of those that it has here already.
        partitions: How many Kafka partitions it has.
        offsets: Offsets from the log's start to its end, over all partitions. There may be fewer records: compaction,
            aborted transactions and transaction markers leave gaps.
        cleanup_policy: Kafka's ``cleanup.policy``; None if the brokers don't tell it.
        sampled: Records looked at, tombstones among them.
        tombstones: How many of those had no value.
        estimated_bytes: Mean size of those times ``offsets``: before compression, of one replica. None without any.
        value: What values seem to be.
        key: What keys seem to be.
        error: Why the topic could not be looked at; empty if it could.
        cluster: Name of its Kafka cluster; None if that has none.
    """

    topic: str
    tables: tuple[str, ...] = ()
    partitions: int = 0
    offsets: int = 0
    cleanup_policy: str | None = None
    sampled: int = 0
    tombstones: int = 0
    estimated_bytes: int | None = None
    value: Guess = _NO_GUESS
    key: Guess = _NO_GUESS
    error: str = ""
    cluster: str | None = None

    @property
    def full_topic(self) -> str:
        """Return the topic's name among those of all clusters."""
        return full_topic(self.cluster, self.topic)


def topics_of(cluster: KafkaCluster, internal: bool) -> tuple[list[str], int]:
    """Return the names of the cluster's topics, sorted, and how many are left out."""
    names = cluster.topics(internal=True)
    shown = [name for name in names if internal or not name.startswith("_")]
    return shown, len(names) - len(shown)


def discover(
    topics: Sequence[str],
    specs: Iterable[TopicTable],
    connections: Connections,
    count: int,
    on_topic: Callable[[str], None] = lambda _: None,
) -> list[Discovered]:
    """Look at topics: what the brokers tell of them, and their newest records."""
    tables: dict[str, tuple[str, ...]] = {}
    cluster = connections.cluster.name
    for spec in (each for each in specs if each.cluster == cluster):
        tables[spec.topic] = (*tables.get(spec.topic, ()), ".".join(spec.identifier))
    answers = connections.cluster.watermarks(topics)
    policies = connections.cluster.cleanup_policies(
        t for t, answer in answers.items() if isinstance(answer, Watermarks)
    )
    schemas = Schemas(connections.registry)
    found = []
    with Sampler(connections.cluster) as sampler:
        for topic, answer in answers.items():
            on_topic(topic)
            known = Discovered(topic, tables.get(topic, ()), cleanup_policy=policies.get(topic), cluster=cluster)
            try:
                if isinstance(answer, KafkaLakeError):
                    raise answer
                found.append(described(known, answer, sampler.newest(answer, count), schemas))
            except KafkaLakeError as error:
                found.append(replace(known, error=str(error)))
    return found


def described(known: Discovered, now: Watermarks, sample: Sample, schemas: Schemas) -> Discovered:
    """Return a topic with what a sample of it says."""
    offsets = sum(now.end[p] - now.low[p] for p in now.partitions)
    records = sample.records
    values = [record.value for record in records if record.value is not None]
    keys = [record.key for record in records if record.key is not None]
    value = guess(values, "value", schemas) if values else Guess(None, _nothing(offsets, sample))
    key = guess(keys, "key", schemas) if keys else Guess(None, "no record sampled has a key" if records else "")
    return replace(
        known,
        partitions=len(now.partitions),
        offsets=offsets,
        sampled=len(records),
        tombstones=len(records) - len(values),
        estimated_bytes=round(sum(r.size for r in records) / len(records) * offsets) if records else None,
        value=value,
        key=key,
    )


def _nothing(offsets: int, sample: Sample) -> str:
    """Return why there is no value to guess from."""
    if not offsets:
        return "the topic is empty"
    if not sample.complete:
        return "no value arrived in time"
    where = "its" if sample.offsets >= offsets else "the newest"
    return f"no value at {where} {sample.offsets:,} offsets: tombstones, aborted or compacted away"


@dataclass(frozen=True)
class Document:
    """A `defs.yaml` to be.

    Args:
        topic: The full name of the topic that it makes a table of.
        text: What will be in it.
    """

    topic: str
    table: str
    path: Path
    text: str


def documents(found: Sequence[Discovered], specs: Iterable[TopicTable], folder: Path) -> list[Document]:
    """Return the documents that make tables of topics."""
    owners = {".".join(each): spec.full_topic for spec in specs for table in spec.tables for each in table.identifiers}
    planned = []
    for each in found:
        table = derived_table_name(each.topic)
        name, path = f"{NAMESPACE}.{table}", folder / table / "defs.yaml"
        if each.error:
            raise ConfigurationError(f"Nothing was written: {each.error}")
        if each.tables:
            raise ConfigurationError(
                f"Nothing was written: topic {each.full_topic} has its table already, {', '.join(each.tables)}.",
                "Name topics that have none.",
            )
        if name in owners:
            raise ConfigurationError(
                f"Nothing was written: the table of topic {each.full_topic} would be {name}, which is that of topic "
                f"{owners[name]}.",
                "Write one of them by hand, with another name of its table:.",
            )
        if path.exists():
            raise ConfigurationError(
                f"Nothing was written: {path} is there already.", "Add to it by hand, or name another folder by --into."
            )
        owners[name] = each.full_topic
        planned.append(Document(each.full_topic, name, path, document(each)))
    return planned


def write(planned: Iterable[Document]) -> None:
    """Write documents; no file is ever overwritten."""
    for each in planned:
        try:
            each.path.parent.mkdir(parents=True, exist_ok=True)
            with each.path.open("x", encoding="utf-8") as file:
                file.write(each.text)
        except OSError as error:
            raise ConfigurationError(f"{each.path} can't be written: {error.strerror}.") from error


def document(found: Discovered) -> str:
    """Return the YAML of a topic: before it what was found, behind it as comments what else may be set."""
    attributes: dict[str, Any] = {"topic": found.topic}
    if found.cluster:
        attributes["cluster"] = found.cluster
    if found.value.format not in (None, "json"):
        attributes["format"] = str(found.value.format)
    parts = [
        _comment(_explanation(found)) + _dumped({"type": "kafka_lake.KafkaTopic"}),
        _dumped({"attributes": attributes}),
        *_times(found.value),
        *(_comment([what], "  ") + _dumped(settings, "  # ") for what, settings in _suggestions(found)),
    ]
    return "\n".join(parts)


def _explanation(found: Discovered) -> list[str]:
    value, key = found.value, found.key
    lines = [f"By `kafka-lake discover`: {value.evidence}."]
    if value.format is None:
        lines.append("So the format is not known. Without format: it is json.")
    lines += value.remarks
    if key.evidence:
        lines.append(f"Keys: {key.evidence}.")
    if value.columns and not (value.format == "json" and _declaration(value.columns)):
        lines += ["Columns:", *(f"  {column.ddl}" for column in value.columns)]
    return lines


def text_timestamps(value: Guess) -> list[str]:
    """Return the columns of which the setting ``infer_timestamps`` makes columns of times."""
    return [column.name for column in value.columns if column.time] if value.format == "json" else []


def _times(value: Guess) -> Iterator[str]:
    if times := text_timestamps(value):
        why = f"Text that was a time in every record sampled becomes a column of times: {', '.join(times)}."
        yield _comment([why], "  ") + _dumped({"format": {"type": "json", "infer_timestamps": True}}, "  ")


def _suggestions(found: Discovered) -> Iterator[tuple[str, dict[str, Any]]]:
    """Give what else may be set: in words, and as settings."""
    value, key = found.value, found.key
    if value.envelope:
        why = f"For the current rows of the source's table instead of their changes, as {value.envelope} writes them:"
        yield why, {"format": {"type": value.format, "envelope": value.envelope}, "table": {"write": "upsert"}}
        return
    if value.format == "json" and (declaration := _declaration(value.columns)):
        instead = ", infer_timestamps among them" if text_timestamps(value) else ""
        yield (
            f"For columns as declared, instead of inferred from the records{instead}:",
            {"table": {"columns": declaration}},
        )
    if key.format == "json" and (declaration := _declaration(key.columns)):
        yield "For a column of the keys:", {"key": {"format": "json", "schema": declaration}}
    elif key.format not in (None, "json", "bytes"):
        yield "For a column of the keys:", {"key": key.format}


def _declaration(columns: Sequence[Column]) -> str:
    """Return columns as the settings ``columns`` and ``key: schema`` take them; empty if it can't have such names."""
    declaration = ", ".join(replace(column, type=column.time or column.type).ddl for column in columns)
    try:
        return declaration if check_ddl(declaration) == [column.name for column in columns] else ""
    except ConfigurationError:
        return ""


def _comment(lines: Iterable[str], indent: str = "") -> str:
    wrapper = textwrap.TextWrapper(
        _WIDTH,
        initial_indent=f"{indent}# ",
        subsequent_indent=f"{indent}# ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    wrapped = (wrapper.fill(printable(line)) for line in lines)
    return "".join(f"{each}\n" for each in wrapped)


def _dumped(settings: dict[str, Any], indent: str = "") -> str:
    text = yaml.safe_dump(settings, sort_keys=False, width=_WIDTH - len(indent))
    return textwrap.indent(text, indent, lambda _: True)
