"""Which decoder a topic's settings ask for, knowing what the table remembers of its schemas."""

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

from pyspark.sql import types as T

from kafka_lake.catalog.positions import TableState, ancestors, summary_of
from kafka_lake.cdc.avro import envelopes_and_keys
from kafka_lake.cdc.changes import Changes
from kafka_lake.errors import ConfigurationError
from kafka_lake.formats.columns import Target
from kafka_lake.formats.decoder import Decoder, Plain
from kafka_lake.formats.json.driver import Json
from kafka_lake.formats.key import Keyed
from kafka_lake.formats.key_columns import key_columns
from kafka_lake.formats.protobuf.schema import imports_of
from kafka_lake.formats.registered import MARKS, SCHEMA_TYPES, FromFile, Part, Registered
from kafka_lake.formats.task.columns import Rules
from kafka_lake.formats.writer_schema import writer_of
from kafka_lake.kafka.registry import WriterSchema
from kafka_lake.runtime.context import Connections
from kafka_lake.spec.topic_table import Format, TopicTable


def decoder_of(spec: TopicTable, connections: Connections, state: TableState | None) -> Decoder:
    """Return the decoder of a topic's records."""
    keys: Registered | None = None
    if spec.envelope == "debezium" and spec.format == "avro":
        envelopes, keys = envelopes_and_keys(fetch_of(spec, connections, "value", spec.format))
        rows: Decoder = envelopes.remembering(_remembered(state, MARKS["value"]))
        keys = keys.remembering(_remembered(state, MARKS["key"]))
    else:
        rows = _one(spec, connections, state=state, part="value", format_=spec.format, file=spec.schema_file)
    if spec.key_format is not None:
        key = _one(spec, connections, state=state, part="key", format_=spec.key_format, file=spec.key_schema_file)
        rows = Keyed(rows, key, spec.key_column, of_tombstones=spec.is_keyed)
    if not spec.is_keyed:
        return rows
    columns = key_columns(spec, state.table if state else None)
    of_record = spec.envelope != "none" and not spec.key
    looks = spec.envelope != "none" or bool(spec.format == "json" and columns and columns != (spec.key_column,))
    return Changes(
        rows=rows,
        keys=keys,
        envelope=spec.envelope,
        key=columns,
        order_by=spec.order_by,
        of_record=of_record,
        looks=looks,
        placeholder=spec.unavailable_value_placeholder,
        max_columns=spec.max_columns,
        left_out=None if spec.evolution == "ignore_new" else spec.except_columns,
    )


def _one(
    spec: TopicTable, connections: Connections, state: TableState | None, part: Part, format_: Format, file: str | None
) -> Decoder:
    if format_ in ("string", "bytes"):
        return Plain(format_)
    if format_ == "json":
        ddl = spec.schema if part == "value" else spec.key_schema
        if ddl is not None:
            # Spark parses what it alone understands.
            connections.spark()
        declared = None if ddl is None else Target(_parsed(ddl), {}, _renamed(spec), any_case=True)
        return Json(
            declared=declared,
            infer_timestamps=spec.infer_timestamps,
            rules=rules_of(spec),
            watches=part == "value",
        )
    # Times are as the schema says, not as settings for JSON without one do.
    rules = Rules(max_columns=spec.max_columns)
    if file is not None:
        writer = writer_of(_schema_in(spec, format_, Path(file)), message=spec.message)
        return FromFile(writer, rules, watches=part == "value")
    decoder = Registered(format_, fetch_of(spec, connections, part, format_), part=part, rules=rules)
    return decoder.remembering(_remembered(state, MARKS[part]))


def fetch_of(spec: TopicTable, connections: Connections, part: Part, format_: Format) -> Callable[[int], WriterSchema]:
    """Return what gives the schema of an id, for a part of a topic's records."""
    if connections.registry is None:
        raise ConfigurationError(
            f"Topic {spec.topic}: format {format_} of its {part}s needs a schema registry, and none is configured.",
            "Set KAFKA_LAKE_SCHEMA_REGISTRY_URL, or give the schema in a file with format: schema:.",
        )
    # A producer whose values' subject is in a context writes its keys' ids of that context too.
    return partial(connections.registry.by_id, subject=spec.value_subject)


def rules_of(spec: TopicTable) -> Rules:
    """Return how JSON values are read, by the topic's settings."""
    return Rules(timestamp_unit=spec.timestamp_unit, max_columns=spec.max_columns)


@cache
def _parsed(ddl: str) -> T.StructType:
    kind: T.StructType = T.DataType.fromDDL(ddl)
    return kind


def _renamed(spec: TopicTable) -> dict[str, tuple[str, ...]]:
    also: dict[str, tuple[str, ...]] = {}
    for old, new in spec.renames.items():
        parent, dot, name = old.rpartition(".")
        path = f"{parent}{dot}{new}"
        also[path] = (*also.get(path, ()), name)
    return also


def _remembered(state: TableState | None, mark: str) -> str:
    if state is None or state.head is None:
        return ""
    summaries = (summary_of(snapshot) for snapshot in ancestors(state.table, state.head))
    return next((summary[mark] for summary in summaries if mark in summary), "")


def _schema_in(spec: TopicTable, format_: Format, file: Path) -> WriterSchema:
    if format_ not in SCHEMA_TYPES:
        raise ConfigurationError(
            f"Topic {spec.topic}: a schema file is for formats {', '.join(SCHEMA_TYPES)}, not {format_}.",
            "Leave it out.",
        )
    try:
        text = file.read_text(encoding="utf-8")
        others = _imported_by(text, file) if format_ == "protobuf" else {}
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(
            f"Topic {spec.topic}: schema file {file} can't be read: {error}.",
            "Mend format: schema: in the topic's YAML.",
        ) from error
    return WriterSchema(SCHEMA_TYPES[format_], text, others)


def _imported_by(text: str, file: Path) -> dict[str, str]:
    """Return the files that a .proto imports, and what those import, by the names that they are imported by.

    A name counts from the file's folder, or from one that this is in: protoc is called in any of them.
    """
    found: dict[str, str] = {}
    rest = imports_of(text)
    folders = [file.absolute().parent, *file.absolute().parent.parents]
    while rest:
        name = rest.pop()
        path = next((path for folder in folders if (path := folder / name).is_file()), None)
        if name not in found and path is not None:
            found[name] = path.read_text(encoding="utf-8")
            rest += imports_of(found[name])
    return found
