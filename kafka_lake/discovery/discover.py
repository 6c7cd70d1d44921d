"""Describes topics by their newest records, and writes YAML documents for them."""

import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from kafka_lake.common.offsets import Watermarks
from kafka_lake.common.text import printable
from kafka_lake.discovery.guess import Column, Guess, Schemas, guess
from kafka_lake.errors import ConfigurationError, KafkaLakeError
from kafka_lake.kafka.records import Sample, Sampler
from kafka_lake.runtime.context import Connections
from kafka_lake.spec.ddl import check_ddl
from kafka_lake.spec.topic_table import TopicTable, derived_table_name, full_topic

NAMESPACE = "lake"
_WIDTH = 100
_NO_GUESS = Guess(None, "")


@dataclass(frozen=True)
class Discovered:
    """A topic, and the guesses about its records.

    Args:
        tables: Its existing tables, as ``namespace.table``.
        offsets: Offsets from the log's start to its end, over all partitions; some may have no record.
        cleanup_policy: Kafka's ``cleanup.policy``; None if this client can't read it.
        sampled: Number of sampled records, with tombstones.
        tombstones: Number of sampled records without a value.
        estimated_bytes: Mean size of a sampled record times ``offsets``, uncompressed; None without a sample.
        error: Why the topic could not be read; empty if it could.
        cluster: Name of its Kafka cluster; None for the only cluster.
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


def discover(
    topics: Sequence[str],
    specs: Iterable[TopicTable],
    connections: Connections,
    count: int,
    on_topic: Callable[[str, int, int], None] = lambda *_: None,
) -> list[Discovered]:
    """Describe topics by their brokers and their newest records.

    Args:
        on_topic: Called with each topic, its number and their count.
    """
    tables: dict[str, tuple[str, ...]] = {}
    cluster = connections.cluster.name
    for spec in (spec for spec in specs if spec.cluster == cluster):
        tables[spec.topic] = (*tables.get(spec.topic, ()), ".".join(spec.identifier))
    answers = connections.cluster.watermarks(topics)
    policies = connections.cluster.cleanup_policies(
        t for t, answer in answers.items() if isinstance(answer, Watermarks)
    )
    schemas = Schemas(connections.registry)
    discovered = []
    with Sampler(connections.cluster) as sampler:
        for number, (topic, answer) in enumerate(answers.items()):
            on_topic(topic, number, len(answers))
            known = Discovered(topic, tables.get(topic, ()), cleanup_policy=policies.get(topic), cluster=cluster)
            try:
                if isinstance(answer, KafkaLakeError):
                    raise answer
                discovered.append(described(known, answer, sampler.newest(answer, count), schemas))
            except KafkaLakeError as error:
                discovered.append(replace(known, error=str(error)))
    return discovered


def described(known: Discovered, now: Watermarks, sample: Sample, schemas: Schemas) -> Discovered:
    """Return a topic with the guesses from a sample."""
    offsets = sum(now.end[p] - now.low[p] for p in now.partitions)
    records = sample.records
    values = [schemas.with_id(record.value, record.headers, "value") for record in records if record.value is not None]
    keys = [schemas.with_id(record.key, record.headers, "key") for record in records if record.key is not None]
    value = guess(values, "value", schemas) if values else Guess(None, _no_value(offsets, sample))
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


def _no_value(offsets: int, sample: Sample) -> str:
    """Return why the sample has no value."""
    if not offsets:
        return "the topic is empty"
    if not sample.complete:
        return "no value arrived in time"
    where = "its" if sample.offsets >= offsets else "the newest"
    return f"no value at {where} {sample.offsets:,} offsets: tombstones, aborted or compacted away"


@dataclass(frozen=True)
class Document:
    """A planned `defs.yaml`.

    Args:
        topic: The full name of its topic.
        text: The content of the file.
    """

    topic: str
    table: str
    path: Path
    text: str


def documents(found: Sequence[Discovered], specs: Iterable[TopicTable], folder: Path) -> list[Document]:
    """Return a document for each topic."""
    owners = {
        ".".join(identifier): spec.full_topic
        for spec in specs
        for table in spec.tables
        for identifier in table.identifiers
    }
    planned = []
    for topic in found:
        table = derived_table_name(topic.topic)
        name, path = f"{NAMESPACE}.{table}", folder / table / "defs.yaml"
        if topic.error:
            raise ConfigurationError(f"Nothing was written: {topic.error}")
        if topic.tables:
            raise ConfigurationError(
                f"Nothing was written: topic {topic.full_topic} already has the table {', '.join(topic.tables)}.",
                "Name topics that have none.",
            )
        if name in owners:
            raise ConfigurationError(
                f"Nothing was written: topics {topic.full_topic} and {owners[name]} would have the same table {name}.",
                "Write one of the documents by hand, with another table:.",
            )
        if path.exists():
            raise ConfigurationError(
                f"Nothing was written: {path} already exists.", "Edit it, or name another folder with --into."
            )
        owners[name] = topic.full_topic
        planned.append(Document(topic.full_topic, name, path, document(topic)))
    return planned


def write(texts: Mapping[Path, str]) -> None:
    """Write files. Existing ones are never overwritten."""
    for path, text in texts.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("x", encoding="utf-8") as file:
                file.write(text)
        except OSError as error:
            raise ConfigurationError(f"{path} can't be written: {error.strerror}.") from error


def document(found: Discovered) -> str:
    """Return the YAML of a topic, with comments about its records and about further settings."""
    attributes: dict[str, Any] = {"topic": found.topic}
    if found.cluster:
        attributes["cluster"] = found.cluster
    if found.value.format is not None and not found.value.is_json:
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
        lines.append("The format is unknown. Without format:, it is json.")
    lines += value.remarks
    if key.evidence:
        lines.append(f"Keys: {key.evidence}.")
    if value.columns and not (value.is_json and _declaration(value.columns)):
        lines += ["Columns:", *(f"  {column.ddl}" for column in value.columns)]
    return lines


def text_timestamps(value: Guess) -> list[str]:
    """Return the text columns that ``infer_timestamps`` makes timestamps."""
    return [column.name for column in value.columns if column.time] if value.is_json else []


def _times(value: Guess) -> Iterator[str]:
    if times := text_timestamps(value):
        why = f"Text that is a timestamp in every sampled record becomes a timestamp: {', '.join(times)}."
        yield _comment([why], "  ") + _dumped({"format": {"type": "json", "infer_timestamps": True}}, "  ")


def _suggestions(found: Discovered) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield further settings, each with its explanation."""
    value, key = found.value, found.key
    if value.envelope:
        why = f"To store the source table's current rows instead of {value.envelope}'s change events:"
        yield why, {"format": {"type": value.format, "envelope": value.envelope}, "table": {"write": "upsert"}}
        return
    if value.is_json and (declaration := _declaration(value.columns)):
        instead = ", without infer_timestamps" if text_timestamps(value) else ""
        yield (
            f"To declare the columns instead of inferring them{instead}:",
            {"table": {"columns": declaration}},
        )
    if key.is_json and (declaration := _declaration(key.columns)):
        yield "To store the keys in a column:", {"key": {"format": "json", "schema": declaration}}
    elif key.is_decoded and not key.is_json:
        yield "To store the keys in a column:", {"key": key.format}


def _declaration(columns: Sequence[Column]) -> str:
    """Return the DDL of columns; empty if DDL can't have their names."""
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
    return "".join(f"{line}\n" for line in wrapped)


def _dumped(settings: dict[str, Any], indent: str = "") -> str:
    text = yaml.safe_dump(settings, sort_keys=False, width=_WIDTH - len(indent))
    return textwrap.indent(text, indent, lambda _: True)
