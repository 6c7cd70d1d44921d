"""Values that were written by a schema: its id in a registry before each value, or one schema in a file."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from kafka_lake.catalog.positions import TableState, ancestors, summary_of
from kafka_lake.engine.interop import packed
from kafka_lake.errors import ConfigurationError, SchemaNotSupportedError, UnknownSchemaError
from kafka_lake.formats import base
from kafka_lake.formats.avro.task.decoder import AvroDecoder
from kafka_lake.formats.avro.task.schema import SchemaReader, UnsupportedTypeError
from kafka_lake.formats.columns import Target, columns_of, described_type
from kafka_lake.formats.decoder import COLUMN, Decoder, Learned, observed_in_tasks
from kafka_lake.formats.json.driver import Json
from kafka_lake.formats.json_schema import json_schema_type
from kafka_lake.formats.protobuf.schema import ProtobufMessage, imports_of, message_of
from kafka_lake.formats.protobuf.task.decoder import ProtobufDecoder
from kafka_lake.formats.protobuf.task.schema import arrow_type
from kafka_lake.formats.task.columns import Rules
from kafka_lake.formats.task.decoded import Observed
from kafka_lake.formats.task.framing import SchemaId, framed, framing_of, prefixed
from kafka_lake.formats.task.registered import (
    APICURIO_PROTOBUF,
    Key,
    RegisteredDecoder,
    by_age,
    key_of,
    name_of,
    no_schema,
)
from kafka_lake.kafka.registry import SchemaType, WriterSchema

REMEDY = "Use `format: bytes` and decode the values in a transform, or change the producer's schema."


def avro_type(schema: WriterSchema) -> T.DataType:
    """Return the type that values of a schema become, see docs/formats.md."""
    try:
        return described_type(reader_of(schema).root().described)
    except UnsupportedTypeError as error:
        raise SchemaNotSupportedError(str(error), REMEDY) from None


def inlined(schema: WriterSchema) -> str:
    """Return a schema's text with the types that it refers to written out where each is first used."""
    return reader_of(schema).inlined()


def reader_of(schema: WriterSchema) -> SchemaReader:
    """Return what reads a schema."""
    try:
        return SchemaReader(schema.label, schema.text, schema.references)
    except UnsupportedTypeError as error:
        raise SchemaNotSupportedError(str(error), REMEDY) from None


def protobuf_type(message: ProtobufMessage) -> T.StructType:
    """Return a message's columns, all nullable; docs/formats.md says which."""
    kind = described_type(arrow_type(message.files, message.name))
    assert isinstance(kind, T.StructType), "a message's fields are columns"
    return kind


ROOT_MESSAGE = b"\x00"


@dataclass(frozen=True)
class Writer:
    """How values of one schema become fields.

    Args:
        message: Which message of a Protobuf schema, as `message_of` gave it.
        prefix: The bytes that name that message, between schema id and message.
    """

    schema: WriterSchema
    fields: T.StructType
    message: Any = None
    prefix: bytes = b""

    @property
    def label(self) -> str:
        """Return what messages call it."""
        named = f" message {self.message.name}" if self.message is not None and self.prefix != ROOT_MESSAGE else ""
        return f"{self.schema.label}{named}"

    def for_tasks(self, columns: tuple[Any, ...], max_bytes: int | None = None) -> dict[str, Any]:
        """Return the data of the tasks' decoder of Avro or Protobuf."""
        rest = {"columns": columns, "label": self.label, "max_bytes": max_bytes}
        if self.schema.kind == "PROTOBUF":
            message = self.message
            return {"decoder": packed(ProtobufDecoder), "files": message.files, "name": message.name, **rest}
        return {"decoder": packed(AvroDecoder), "schema": inlined(self.schema), **rest}


def writer_of(schema: WriterSchema, prefix: bytes = ROOT_MESSAGE, message: str | None = None) -> Writer:
    """Return how values of a schema become fields."""
    if schema.kind == "PROTOBUF":
        if (message_at := framing_of(schema.id or 0).message) is None:
            raise SchemaNotSupportedError(
                f"{schema.label} is Protobuf in a format of Apicurio.", f"{APICURIO_PROTOBUF}."
            )
        described = message_of(schema, message_at(prefix)[0], message)
        return Writer(schema, protobuf_type(described), message=described, prefix=prefix)
    kind = avro_type(schema) if schema.kind == "AVRO" else json_schema_type(schema)
    if isinstance(kind, T.StructType):
        return Writer(schema, kind)
    if schema.kind == "JSON":
        raise SchemaNotSupportedError(
            f"{schema.label[0].upper()}{schema.label[1:]} describes {kind.simpleString()}, not an object with known "
            f"fields."
        )
    return Writer(schema, T.StructType([T.StructField(COLUMN, kind)]))


SCHEMA_IDS = "kafka-lake.schema-ids"
KEY_SCHEMA_IDS = "kafka-lake.key-schema-ids"
SCHEMA_TYPES: Mapping[str, SchemaType] = MappingProxyType(
    {"avro": "AVRO", "protobuf": "PROTOBUF", "json_schema": "JSON"}
)

Part = Literal["value", "key"]


@dataclass(frozen=True)
class Registered(Decoder):
    """Decodes values with a schema id, as the serializers of schema registries write them.

    Args:
        format: ``avro``, ``protobuf``, ``json_schema``, or ``confluent``: the ids decide.
        fetch: Returns the schema of an id; raises `UnknownSchemaError` if there is none, and other errors if the
            registry doesn't answer.
        registry_kind: The kind of the registry: it decides which headers have ids.
        writers: The known schemas, by id and message prefix (empty except for Protobuf).
        refused: Schemas whose values can't be decoded → reason; with a prefix if only one message can't.
        protobuf: Ids of Protobuf schemas; their writers are known for messages that values have named.
        part: The part of the record that is decoded.
    """

    format: str
    fetch: Callable[[SchemaId], WriterSchema]
    registry_kind: str
    writers: Mapping[Key, Writer] = field(default_factory=lambda: MappingProxyType({}))
    refused: Mapping[Key, str] = field(default_factory=lambda: MappingProxyType({}))
    protobuf: frozenset[SchemaId] = frozenset()
    part: Part = "value"
    rules: Rules = field(default_factory=Rules)
    json: Json = field(default_factory=Json)

    def fields_of_schema(self) -> Mapping[SchemaId, tuple[str, ...]]:
        """Return the names of the fields by the id of a schema in the registry."""
        return {id_: tuple(writer.fields.fieldNames()) for (id_, _), writer in self.writers.items()}

    def framed(self, value: bytes, headers: Any) -> tuple[SchemaId | None, bytes]:
        """Return the schema id and the content of a record's value or key; raises ValueError if it is damaged."""
        return framed(prefixed(value, headers, self.part, self.registry_kind)) or (None, b"")

    def fields_of(self, value: bytes, headers: Any) -> tuple[str, ...]:
        """Return the names of a value's fields by the id of its schema; empty if the schema isn't known."""
        try:
            id_, _ = self.framed(value, headers)
        except (ValueError, OverflowError):
            return ()
        return self.fields_of_schema().get(id_, ()) if id_ is not None else ()

    def unreadable_schemas(self) -> Sequence[str]:
        """Return why schemas of the records can't be read."""
        return list(dict.fromkeys(self.refused.values()))

    def incoming(self) -> Sequence[tuple[str, T.StructType]]:
        """Return the known schemas, the oldest first, and the fields that JSON values have beyond them."""
        known = [(writer.label, writer.fields) for _, writer in self.writers.items()]
        return [*known, *self.json.incoming()]

    def for_tasks(self, target: Target, max_record_bytes: int | None) -> Mapping[str, Any]:
        """Return the data of the tasks' decoder."""
        columns = columns_of(target.columns, target)
        decoders: list[Mapping[str, Any]] = []
        schemas: dict[Key, int] = {}
        for key, writer in self.writers.items():
            if writer.schema.kind != "JSON":
                schemas[key] = len(decoders)
                decoders.append(writer.for_tasks(columns))
        if self._json_keys():
            schemas |= dict.fromkeys(self._json_keys(), len(decoders))
            decoders.append(self.json.for_tasks(target, None))
        return self._work(columns, decoders, schemas, refused=self.refused, max_record_bytes=max_record_bytes)

    def learn(self, seen: Observed, records: DataFrame | None, target: Target) -> Learned | None:
        """Return a decoder that knows the schemas of new ids, and the fields of JSON values beyond their schemas."""
        wiser = self._knowing(seen, records)
        if set(wiser.writers) != set(self.writers) or wiser._explains_more(self):
            return Learned(wiser, again=True)
        if learned := _beyond_schema(wiser.json, replace(seen, schemas={}, key=None), records, target=target):
            wiser = replace(wiser, json=learned)
        return None if wiser is self else Learned(wiser, again=False)

    def inspect(self, records: DataFrame) -> "Registered":
        """Return a decoder that knows the schemas of all ids in the records, by a pass of its own."""
        return self._knowing(self.looked(records), records)

    def looked(self, records: DataFrame) -> Observed:
        """Count the records of each schema without decoding them."""
        known = dict.fromkeys([*self.writers, *self.refused], "")
        values = records.withColumn("value", F.col(self.part))
        return observed_in_tasks(
            values, self._work((), (), {}, refused=known, max_record_bytes=None), self.rules.max_columns
        )

    def _knowing(self, seen: Observed, records: DataFrame | None) -> "Registered":
        """Return a decoder that knows the schemas and the Protobuf messages that a pass has counted."""
        strange = self._strange(seen)
        if not strange:
            return self
        wiser = self.known([id_ for id_, prefix in strange if not prefix], [key for key in strange if key[1]])
        if wiser.protobuf != self.protobuf and records is not None:
            # Until now it wasn't known that message indexes follow these ids.
            strange = wiser._strange(wiser.looked(records))
            wiser = wiser.known([], [key for key in strange if key[1]])
        return wiser

    def _explains_more(self, before: "Registered") -> bool:
        """Return whether the registry has ids that can't be used: tasks reported them as missing.

        Message indexes don't count: corrupt values have any number of them.
        """
        new = self.refused.keys() - before.refused.keys()
        return any(self.refused[key] != no_schema(key[0]) for key in new if not key[1])

    def _strange(self, seen: Observed) -> list[Key]:
        keys = map(key_of, seen.schemas)
        known = {*self.writers, *self.refused, *((id_, b"") for id_ in self.protobuf)}
        return sorted({key for key in keys if key not in known and (key[0], b"") not in self.refused}, key=by_age)

    def _work(
        self,
        columns: tuple[Any, ...],
        decoders: Sequence[Mapping[str, Any]],
        schemas: Mapping[Key, int],
        refused: Mapping[Key, str],
        max_record_bytes: int | None,
    ) -> Mapping[str, Any]:
        return {
            "decoder": packed(RegisteredDecoder),
            "columns": columns,
            "decoders": list(decoders),
            "schemas": dict(schemas),
            "refused": dict(refused),
            "protobuf": sorted(self.protobuf, key=str),
            "registry_kind": self.registry_kind,
            "part": self.part,
            "max_bytes": max_record_bytes,
        }

    def known(self, ids: Sequence[SchemaId], messages: Sequence[Key] = ()) -> "Registered":
        """Return a decoder that also knows these schemas."""
        writers, refused, protobuf = dict(self.writers), dict(self.refused), set(self.protobuf)
        expected = SCHEMA_TYPES.get(self.format)
        for key in [*((id_, b"") for id_ in ids), *messages]:
            id_, prefix = key
            try:
                schema = self.fetch(id_)
                if expected and schema.kind != expected:
                    refused[key] = f"{schema.label} is {schema.kind}, the topic's format is {self.format}"
                    continue
                if schema.kind == "PROTOBUF":
                    protobuf.add(id_)
                # A schema may have several messages; values name theirs.
                if schema.kind != "PROTOBUF" or prefix or framing_of(id_).message is None:
                    writers[key] = writer_of(schema, prefix)
            except UnknownSchemaError:
                refused[key] = no_schema(id_)
            except SchemaNotSupportedError as error:
                refused[key] = str(error)
        writers = dict(sorted(writers.items(), key=lambda item: by_age(item[0])))
        return replace(self, writers=writers, refused=refused, protobuf=frozenset(protobuf))

    def snapshot_properties(self) -> Mapping[str, str]:
        """Return the ids of the known schemas."""
        return {MARKS[self.part]: ",".join(map(name_of, self.writers))} if self.writers else {}

    def remembering(self, mark: str) -> "Registered":
        """Return a decoder that knows the schemas of a snapshot property."""
        keys = [key_of(name) for name in mark.split(",") if name]
        return self.known([id_ for id_, prefix in keys if not prefix], [key for key in keys if key[1]])

    def schema_counts(self, seen: Observed) -> Mapping[str, int]:
        """Return the number of values of each schema that has any."""
        counted = {key_of(name): count for name, count in seen.schemas.items()}
        return {self.writers[key].label: counted[key] for key in self.writers if key in counted}

    def not_stored(self) -> Mapping[str, str]:
        """Return what the JSON values of the last pass had that no column has."""
        return self.json.not_stored()

    def _json_keys(self) -> list[Key]:
        return [key for key, writer in self.writers.items() if writer.schema.kind == "JSON"]


MARKS: Mapping[Part, str] = MappingProxyType({"value": SCHEMA_IDS, "key": KEY_SCHEMA_IDS})


@dataclass(frozen=True)
class FromFile(Decoder):
    """Decodes values of one schema, which is in a file."""

    writer: Writer
    json: Json = field(default_factory=Json)

    def incoming(self) -> Sequence[tuple[str, T.StructType]]:
        """Return the schema, and the fields that JSON values have beyond it."""
        return [(self.writer.label, self.writer.fields), *self.json.incoming()]

    def for_tasks(self, target: Target, max_record_bytes: int | None) -> Mapping[str, Any]:
        """Return the data of the tasks' decoder."""
        if self.writer.schema.kind == "JSON":
            return self.json.for_tasks(target, max_record_bytes)
        return self.writer.for_tasks(columns_of(target.columns, target), max_record_bytes)

    def learn(self, seen: Observed, records: DataFrame | None, target: Target) -> Learned | None:
        """Return a decoder that knows what JSON records have beside the schema's fields."""
        learned = _beyond_schema(self.json, seen, records, target=target)
        return None if learned is None else Learned(replace(self, json=learned), again=False)

    def not_stored(self) -> Mapping[str, str]:
        """Return what the JSON records of the last pass had that no column has."""
        return self.json.not_stored()


def decoder(part: base.Part) -> Decoder:
    """Return the decoder of a part of a topic's records: by the ids of its schemas, or by the schema in a file."""
    # Times are as the schema says, not as settings for JSON without one do.
    rules = Rules(max_columns=part.spec.max_columns, unwanted=part.excluded)
    json = Json(rules=rules, observes=part.name == "value")
    if part.schema_file is not None:
        schema = _schema_in(Path(part.schema_file), SCHEMA_TYPES[part.format.name], part.spec.topic)
        return FromFile(writer_of(schema, message=part.spec.message), json)
    registered = Registered(
        part.format.name, part.fetch_schema(), part.registry_kind, part=part.name, rules=json.rules, json=json
    )
    return registered.remembering(remembered(part.state, part.name))


def remembered(state: TableState | None, part: Part) -> str:
    """Return what `Registered.snapshot_properties` wrote for a part in the newest snapshot that has it."""
    if state is None or state.head is None:
        return ""
    summaries = (summary_of(snapshot) for snapshot in ancestors(state.table, state.head))
    return next((summary[MARKS[part]] for summary in summaries if MARKS[part] in summary), "")


def _beyond_schema(json: Json, seen: Observed, records: DataFrame | None, target: Target) -> Json | None:
    """Return what is known of JSON values with what a pass has shown; None if nothing is new."""
    # The schema alone says the types of its own fields.
    learned = json.learn(replace(seen, type_errors=None), records, target)
    return None if learned is None or not isinstance(learned.decoder, Json) else learned.decoder


def _schema_in(file: Path, kind: SchemaType, topic: str) -> WriterSchema:
    try:
        text = file.read_text(encoding="utf-8")
        return WriterSchema(kind, text, _imported_by(text, file) if kind == "PROTOBUF" else {})
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(
            f"Topic {topic}: schema file {file} can't be read: {error}.", "Correct format: schema: in the topic's YAML."
        ) from error


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
