"""Avro values: `from_avro` in the JVM with the schema that they were written with, and what it lacks, in expressions.

`from_avro` is handed the schema in other words, never with other bytes: where a type is encoded like another one that
Spark reads better, it is declared as that; fields that take no bytes are left out. The value is read as the first field
of a record whose second is a number that is appended to each payload. A payload that is cut off, or goes on after its
value, doesn't have that number where it belongs, so that it can be told from one that is merely all null.
"""

import json

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.avro.functions import from_avro

from kafka_lake import executors
from kafka_lake.common.errors import SchemaNotSupportedError
from kafka_lake.executors.avro.recursion import rewriter
from kafka_lake.ingest.decode.avro.schema_reader import REMEDY, SchemaReader
from kafka_lake.ingest.decode.avro.value import Value, avro_field
from kafka_lake.kafka.schemas import WriterSchema
from kafka_lake.spark.compat.by_value import send_by_value

send_by_value(executors)
_OPTIONS = {"mode": "PERMISSIVE", "datetimeRebaseMode": "CORRECTED"}
_END = bytes.fromhex("f4a3db95f4f4e4f05c")
# The same as an Avro long. No end of a payload and beginning of this number make up this number.
_END_NUMBER = 3346396433918683386
_MANY_TYPES = 50


def avro_type(schema: WriterSchema) -> T.DataType:
    """Return the type that values of a schema become, see `TYPES`.

    Args:
        schema: An Avro schema and those that it refers to.

    Returns:
        A StructType for a record, and for a union of several types; the type itself of any other root.

    Raises:
        SchemaNotSupportedError: If the schema is invalid, or has nothing that could be a column.
    """
    return _value_of(schema)[0].type


def decode_avro(payload: Column, schema: WriterSchema, *, field: str | None = None) -> Column:
    """Return the column that decodes Avro's binary encoding, without any framing.

    Malformed are: bytes that end before the value does, or go on after it (a sign of another schema); text that isn't
    UTF-8; times and decimals beyond their type's range; dates and timestamps outside of the years 1 to 9999; lengths
    beyond `AVRO_LIMITS` of the JVM.

    A record is decoded once if this column stands by itself in a projection. In a branch of a `when`, Spark may decode
    it anew for each field: make the payload null there instead, and choose among the results.

    Args:
        payload: Binary; null gives null.
        schema: The schema that the bytes were written with.
        field: Puts the value into a struct with one field of this name, so that a value that is null by itself, which
            a union with null at the root allows, can be told from malformed bytes.

    Returns:
        `avro_type`, without the comments; null where the bytes are malformed.

    Raises:
        SchemaNotSupportedError: As `avro_type`.
    """
    value, reader = _value_of(schema)
    if reader.is_recursive:
        payload = F.arrow_udf(rewriter(inlined(schema)), T.BinaryType())(payload)
    framed = {
        "type": "record",
        "name": "framed",
        "fields": [avro_field("value", value.avro), avro_field("end", "long")],
    }
    decoded = from_avro(F.concat(payload, F.lit(bytearray(_END))), json.dumps(framed), _OPTIONS)

    def whole(frame: Column) -> Column:
        # Spark sees that what is named twice, and not in a branch alone, is the same, and decodes once.
        ends = [frame.isNotNull(), frame.getField("end").eqNullSafe(F.lit(_END_NUMBER))]
        return F.least(*ends, *value.conditions(frame.getField("value")))

    def built(frame: Column) -> Column:
        made = value.built(frame.getField("value"))
        return made if field is None else F.struct(made.alias(field))

    if value.loops or reader.count > _MANY_TYPES:
        # Each mention of `decoded` has a decoder of its own until Spark finds out that they are the same; and the
        # arguments of each function with a lambda are evaluated apart. Bound to a variable, there is one.
        good = F.filter(F.array(decoded), whole)
        if value.build is None and field is None:
            return F.get(good, F.lit(0)).getField("value")
        return F.get(F.transform(good, built), F.lit(0))
    return F.when(whole(decoded), built(decoded))


def inlined(schema: WriterSchema) -> str:
    """Return a schema's text with the types that it refers to written out where each is first used.

    Raises:
        SchemaNotSupportedError: If the schema is no JSON, or defines a type twice.
    """
    reader = SchemaReader(schema)
    return json.dumps(reader.inline(reader.text, "", set()))


def _value_of(schema: WriterSchema) -> tuple[Value, SchemaReader]:
    """Return how a schema's values are read, and what has read the schema."""
    try:
        reader = SchemaReader(schema)
        return reader.root(), reader
    except RecursionError:
        raise SchemaNotSupportedError(f"Avro: {schema.label} is nested too deeply.", REMEDY) from None
