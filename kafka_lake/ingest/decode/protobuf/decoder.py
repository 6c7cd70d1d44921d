"""Protobuf messages: which columns they have, and what decodes them in tasks."""

from collections.abc import Mapping
from typing import Any

from pyspark.sql import types as T

from kafka_lake.executors.protobuf.decoder import ProtobufDecoder
from kafka_lake.executors.protobuf.reader import arrow_type
from kafka_lake.ingest.decode.described import spark_type
from kafka_lake.ingest.decode.protobuf.schema import ProtobufMessage
from kafka_lake.ingest.tasks import packed


def protobuf_type(message: ProtobufMessage) -> T.StructType:
    """Return a message's columns, all nullable; `TYPES` says which."""
    kind = spark_type(arrow_type(message.files, message.name))
    assert isinstance(kind, T.StructType), "a message's fields are columns"
    return kind


def protobuf_work(message: ProtobufMessage) -> Mapping[str, Any]:
    """Return what `value_decoder` makes a decoder of bare messages of, without the columns and the label."""
    return {"decoder": "protobuf", "packed": packed(ProtobufDecoder), "files": message.files, "name": message.name}
