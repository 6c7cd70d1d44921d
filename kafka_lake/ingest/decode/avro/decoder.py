"""Avro schemas: which columns they have, and their text as tasks take it."""

from collections.abc import Mapping
from typing import Any

from pyspark.sql import types as T

from kafka_lake.errors import SchemaNotSupportedError
from kafka_lake.executors.avro.decoder import AvroDecoder
from kafka_lake.executors.avro.reader import UnsupportedTypeError
from kafka_lake.executors.avro.schema import SchemaReader
from kafka_lake.ingest.decode.described import spark_type
from kafka_lake.ingest.tasks import packed
from kafka_lake.kafka.registry import WriterSchema

REMEDY = "Take the topic with `format: bytes` and decode it in a transform, or let the writer change its schema."


def avro_type(schema: WriterSchema) -> T.DataType:
    """Return the type that values of a schema become, see `TYPES`.

    Args:
        schema: An Avro schema and those that it refers to.

    Returns:
        A StructType for a record, and for a union of several types; the type itself of any other root.

    Raises:
        SchemaNotSupportedError: If the schema is invalid, or has nothing that could be a column.
    """
    try:
        return spark_type(reader_of(schema).root().described)
    except UnsupportedTypeError as error:
        raise SchemaNotSupportedError(str(error), REMEDY) from None


def avro_work(schema: WriterSchema) -> Mapping[str, Any]:
    """Return what `value_decoder` makes a decoder of values of a schema of, but for the columns and the label."""
    return {"decoder": "avro", "packed": packed(AvroDecoder), "schema": inlined(schema)}


def inlined(schema: WriterSchema) -> str:
    """Return a schema's text with the types that it refers to written out where each is first used.

    Raises:
        SchemaNotSupportedError: If the schema is no JSON, or defines a type twice.
    """
    return reader_of(schema).inlined()


def reader_of(schema: WriterSchema) -> SchemaReader:
    """Return what reads a schema.

    Raises:
        SchemaNotSupportedError: If the schema is no JSON, or defines a type twice.
    """
    try:
        return SchemaReader(schema.label, schema.text, schema.references)
    except UnsupportedTypeError as error:
        raise SchemaNotSupportedError(str(error), REMEDY) from None
