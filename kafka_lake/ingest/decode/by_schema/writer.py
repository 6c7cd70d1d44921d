"""How values of one schema, Avro, Protobuf or JSON Schema, become fields."""

from dataclasses import dataclass
from typing import Any

from pyspark.sql import types as T

from kafka_lake.errors import SchemaNotSupportedError
from kafka_lake.executors.registered import message_indexes
from kafka_lake.ingest.decode.avro.decoder import avro_type, avro_work
from kafka_lake.ingest.decode.json.json_schema import json_schema_type
from kafka_lake.ingest.decode.protobuf.decoder import protobuf_type, protobuf_work
from kafka_lake.ingest.decode.protobuf.schema import message_of
from kafka_lake.ingest.decode.text import COLUMN
from kafka_lake.kafka.registry import WriterSchema

ROOT_MESSAGE = b"\x00"


@dataclass(frozen=True)
class Writer:
    """How values of one schema become fields.

    Args:
        fields: What its values have; a value that is no record has the one field ``value``.
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

    def work(self, columns: tuple[Any, ...], max_bytes: int | None = None) -> dict[str, Any]:
        """Return what `value_decoder` makes a decoder of; of JSON Schema there is none, its values are any JSON.

        Args:
            columns: Those of the rows, as `columns_of` gives them.
            max_bytes: Longer values are ``too_large``; None for no limit.
        """
        rest = {"columns": columns, "label": self.label, "max_bytes": max_bytes}
        if self.schema.kind == "PROTOBUF":
            return {**protobuf_work(self.message), **rest}
        return {**avro_work(self.schema), **rest}


def writer_of(schema: WriterSchema, prefix: bytes = ROOT_MESSAGE, message: str | None = None) -> Writer:
    """Return how values of a schema become fields.

    Args:
        prefix: For Protobuf, the bytes before the message that name it.
        message: For Protobuf, its name instead, for schemas from files.

    Raises:
        SchemaNotSupportedError: If no table can have its fields.
    """
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
