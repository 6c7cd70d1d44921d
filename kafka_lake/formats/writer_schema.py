"""How values of one schema, Avro, Protobuf or JSON Schema, become fields."""

from dataclasses import dataclass
from typing import Any

from pyspark.sql import types as T

from kafka_lake.engine.task_frames import packed
from kafka_lake.errors import SchemaNotSupportedError
from kafka_lake.formats.avro.task.decoder import AvroDecoder
from kafka_lake.formats.avro.task.schema import SchemaReader, UnsupportedTypeError
from kafka_lake.formats.columns import described_type
from kafka_lake.formats.decoder import COLUMN
from kafka_lake.formats.json_schema import json_schema_type
from kafka_lake.formats.protobuf.schema import ProtobufMessage, message_of
from kafka_lake.formats.protobuf.task.decoder import ProtobufDecoder
from kafka_lake.formats.protobuf.task.schema import arrow_type
from kafka_lake.formats.task.registered import message_indexes
from kafka_lake.kafka.registry import WriterSchema

REMEDY = "Take the topic with `format: bytes` and decode it in a transform, or let the writer change its schema."


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
        fields: What its values have; a value that isn't a record has the one field ``value``.
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
        described = message_of(schema, name=message) if message else message_of(schema, message_indexes(prefix)[0])
        return Writer(schema, protobuf_type(described), message=described, prefix=prefix)
    kind = avro_type(schema) if schema.kind == "AVRO" else json_schema_type(schema)
    if isinstance(kind, T.StructType):
        return Writer(schema, kind)
    if schema.kind == "JSON":
        raise SchemaNotSupportedError(
            f"{schema.label[0].upper()}{schema.label[1:]} describes {kind.simpleString()}, no object with known fields."
        )
    return Writer(schema, T.StructType([T.StructField(COLUMN, kind)]))
