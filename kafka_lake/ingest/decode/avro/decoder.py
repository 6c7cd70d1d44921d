"""Avro schemas: which columns they have, and their text as tasks take it."""

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from kafka_lake import executors
from kafka_lake.common.errors import SchemaNotSupportedError
from kafka_lake.executors.avro.decoder import decoder, row_type
from kafka_lake.executors.avro.reader import UnsupportedTypeError
from kafka_lake.executors.avro.schema import SchemaReader
from kafka_lake.ingest.decode.described import spark_type
from kafka_lake.kafka.schemas import WriterSchema
from kafka_lake.spark.compat.by_value import send_by_value

send_by_value(executors)
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
    return spark_type(_reader(schema)[1])


def decode_avro(payload: Column, schema: WriterSchema) -> Column:
    """Return the column that decodes Avro's binary encoding, without any framing: a struct, null where malformed.

    The column counts as nondeterministic so that Spark computes it once, however often parts of it are used: select it
    under a name, then use that.

    Args:
        payload: Binary; null gives null.
        schema: The schema that the bytes were written with.

    Raises:
        SchemaNotSupportedError: As `avro_type`.
    """
    kind = row_type(_reader(schema)[0])
    return F.arrow_udf(decoder(inlined(schema)), spark_type(kind)).asNondeterministic()(payload)


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


def _reader(schema: WriterSchema) -> tuple[pa.DataType, pa.DataType]:
    """Return the type of a schema's values, and the same with docs."""
    try:
        root = reader_of(schema).root()
    except UnsupportedTypeError as error:
        raise SchemaNotSupportedError(str(error), REMEDY) from None
    return root.type, root.described
