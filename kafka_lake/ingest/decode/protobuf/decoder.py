"""Protobuf records: which columns a message has, and how Python beside Spark fills them."""

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from kafka_lake import executors
from kafka_lake.executors.protobuf.decoder import arrow_type, decoder
from kafka_lake.executors.protobuf.values import ProtobufDecoder
from kafka_lake.ingest.decode.protobuf.schema import ProtobufMessage
from kafka_lake.ingest.tasks import packed
from kafka_lake.spark.compat.arrow_types import from_arrow_type
from kafka_lake.spark.compat.by_value import send_by_value

# Beside `kafka_lake.ingest.tasks`: what `decode_protobuf` sends is a function of columns, not a task.
send_by_value(executors)


def protobuf_type(message: ProtobufMessage) -> T.StructType:
    """Return a message's columns, all nullable; `TYPES` says which."""
    return T.StructType([_column(field) for field in arrow_type(message.files, message.name)])


def protobuf_work(message: ProtobufMessage) -> Mapping[str, Any]:
    """Return what `value_decoder` makes a decoder of bare messages of, but for the columns and the label."""
    return {"decoder": "protobuf", "packed": packed(ProtobufDecoder), "files": message.files, "name": message.name}


def decode_protobuf(payload: Column, message: ProtobufMessage) -> Column:
    """Return ``struct<decoded, error>``: the message, or in one sentence why there is none. Both are null for null.

    Runs in Python beside each executor, which needs the packages ``protobuf`` and ``pyarrow``, not this one. The
    column counts as nondeterministic so that Spark computes it once, however often parts of it are used: select it
    under a name, then use that.

    Args:
        payload: Bare messages, without a registry's prefix; null where a record is not of this schema.
        message: What they are.
    """
    columns = arrow_type(message.files, message.name)
    # Without the columns' comments: Spark would compare them with what comes back.
    kind = from_arrow_type(pa.struct([pa.field("decoded", columns), pa.field("error", pa.string())]))
    decode = F.arrow_udf(decoder(message.files, message.name), kind)
    return decode.asNondeterministic()(payload)


def _column(field: pa.Field) -> T.StructField:
    metadata = {key.decode(): text.decode() for key, text in (field.metadata or {}).items()}
    return T.StructField(field.name, _spark_type(field.type), metadata=metadata)


def _spark_type(kind: pa.DataType) -> T.DataType:
    if pa.types.is_struct(kind):
        return T.StructType([_column(field) for field in kind])
    if pa.types.is_list(kind):
        return T.ArrayType(_spark_type(kind.value_type))
    if pa.types.is_map(kind):
        return T.MapType(_spark_type(kind.key_type), _spark_type(kind.item_type))
    return from_arrow_type(kind)
