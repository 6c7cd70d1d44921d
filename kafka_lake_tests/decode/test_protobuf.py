"""The prefix that names a message of a Protobuf schema, found by the real Spark."""

import io
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from kafka_lake.formats.schema_names import index_prefix
from kafka_lake.formats.task.framing import message_indexes
from kafka_lake.orchestration.resources import SparkResource

pytestmark = pytest.mark.integration


@pytest.fixture
def frame(spark_resource: SparkResource) -> Callable[..., DataFrame]:
    """Return a function that makes a frame of values, numbered."""

    def make(values: list[Any], partitions: int = 2) -> DataFrame:
        rows = spark_resource.spark_session.createDataFrame(list(enumerate(values)), "id int, value binary")
        return rows.repartition(partitions)

    return make


def collected(rows: DataFrame) -> list[dict[str, Any]]:
    # By Arrow: Python's own datetime of this machine's zone can't be late in the year 9999.
    found: list[dict[str, Any]] = rows.toArrow().to_pylist()
    return sorted(found, key=lambda row: int(row["id"]))


def test_the_prefix_is_cut_as_serializers_write_it(frame: Callable[..., DataFrame]) -> None:
    def framed(*indexes: int) -> bytes:
        buffer = io.BytesIO()
        ProtobufSerializer._encode_varints(buffer, list(indexes))
        return buffer.getvalue()

    header, payload = b"\x00\x00\x00\x00\x07", b"\x08\x01"
    good = [(0,), (1,), (0, 0), (1, 0), (63,), (63, 62, 61), tuple(range(20)), (0,) * 63]
    good += [(64,), (8_191, 0, 8_192), (2**31 - 1, 2), (100,) * 63]
    odd = [b"", b"\x02", b"\x04\x00", b"\x01\x00", b"\x02\x01", b"\x80\x01", b"\x02\x81\x01", b"\x02\x80"]
    odd += [b"\x02\x80\x80\x80\x80\x80\x01", b"\x04\x80\x01\x80"]
    bad = [*[header + item for item in odd], b"", b"\x00", None]
    rows = frame([*[header + framed(*item) + payload for item in good], header + framed(5), *bad])
    found = collected(rows.select("id", index_prefix(F.col("value"), 5).alias("prefix")))
    prefixes = [row["prefix"] for row in found]
    assert prefixes == [*[framed(*item) for item in good], framed(5), *[None] * len(bad)]
    assert [message_indexes(prefix)[0] for prefix in prefixes[: len(good)]] == good
