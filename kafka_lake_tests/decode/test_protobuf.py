"""Protobuf decoded by the real Spark: random messages of a wide schema, several schemas in a frame, the prefix."""

import io
import random
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from kafka_lake.components.resources.spark import SparkResource
from kafka_lake.executors.registered import message_indexes
from kafka_lake.ingest.decode.protobuf.decoder import decode_protobuf, protobuf_type
from kafka_lake.ingest.decode.protobuf.indexes import index_prefix
from kafka_lake.ingest.decode.protobuf.schema import ProtobufMessage, message_of
from kafka_lake.kafka.schemas import WriterSchema

pytestmark = pytest.mark.integration

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Sample = tuple[Any, dict[str, Any]]
"""What to set a field to, and what its columns hold then, by the suffix of their names."""


def one_of(*values: Any) -> Callable[[random.Random], Sample]:
    return lambda rng: (value := rng.choice(values), {"": value})


def whole(low: int, high: int) -> Callable[[random.Random], Sample]:
    return lambda rng: (value := rng.choice([low, high, 0, 1, rng.randint(low, high)]), {"": value})


def color(rng: random.Random) -> Sample:
    number = rng.choice([0, 1, 2, 77, -3])
    return number, {"": {0: "RED", 1: "BLUE", 2: "GREEN"}.get(number, str(number))}


def timestamp(rng: random.Random) -> Sample:
    seconds = rng.choice([-62_135_596_800, 253_402_300_799, rng.randint(-(10**10), 10**10)])
    nanos = rng.choice([0, 999_999_999, 1_000, rng.randrange(10**9)])
    at = EPOCH + timedelta(seconds=seconds, microseconds=nanos // 1000)
    return {"seconds": seconds, "nanos": nanos}, {"": at, "__nanos": nanos % 1000}


def duration(rng: random.Random) -> Sample:
    seconds, nanos = rng.randint(0, 315_576_000_000), rng.randrange(10**9)
    sign = rng.choice([1, -1])
    return {"seconds": sign * seconds, "nanos": sign * nanos}, {"": sign * Decimal(f"{seconds}.{nanos:09}")}


def line(rng: random.Random) -> Sample:
    at, columns = timestamp(rng)
    sku, count = rng.choice(["", "ü", "x" * 100]), rng.randint(-5, 5)
    return {"sku": sku, "count": count, "at": at}, {
        "": {"sku": sku, "count": count, "at": columns[""], "at__nanos": columns["__nanos"], "none": None}
    }


def wrapped(sample: Callable[[random.Random], Sample]) -> Callable[[random.Random], Sample]:
    def draw(rng: random.Random) -> Sample:
        value, columns = sample(rng)
        return {"value": value}, columns

    return draw


FLOATS = one_of(0.0, -0.0, 1.5, -(2.0**-149), float("inf"), -3.4028234663852886e38)
DOUBLES = one_of(0.0, 5e-324, -1.7976931348623157e308, 0.1, float("-inf"))
TEXTS = one_of("", "a", "ünï𝄞", "\0", "x" * 1000)
BYTES = one_of(b"", b"\x00\xff", b"y" * 1000)
KINDS: dict[str, tuple[Callable[[random.Random], Sample], Any]] = {
    **{name: (whole(-(2**31), 2**31 - 1), 0) for name in ("int32", "sint32", "sfixed32")},
    **{name: (whole(-(2**63), 2**63 - 1), 0) for name in ("int64", "sint64", "sfixed64")},
    **{name: (whole(0, 2**32 - 1), 0) for name in ("uint32", "fixed32")},
    **{name: (whole(0, 2**64 - 1), 0) for name in ("uint64", "fixed64")},
    "bool": (one_of(True, False), False),
    "float": (FLOATS, 0.0),
    "double": (DOUBLES, 0.0),
    "string": (TEXTS, ""),
    "bytes": (BYTES, b""),
    "Color": (color, "RED"),
    "Line": (line, None),
    "Line.Nothing": (lambda rng: ({}, {"": {"_set": True}}), None),
    "google.protobuf.Timestamp": (timestamp, None),
    "google.protobuf.Duration": (duration, None),
    "google.protobuf.StringValue": (wrapped(TEXTS), None),
    "google.protobuf.UInt64Value": (wrapped(whole(0, 2**64 - 1)), None),
    "google.protobuf.DoubleValue": (wrapped(DOUBLES), None),
}
"""How to draw a value of a type, and what the column of an unset proto3 field of it holds."""


def schema_text() -> str:
    fields = []
    for kind in KINDS:
        name, first = kind.replace(".", "_"), 6 * len(fields) // 5 + 1
        optional = "" if "." in kind else "optional "
        fields += [
            f"{kind} one_{name} = {first};",
            f"{optional}{kind} maybe_{name} = {first + 1};",
            f"repeated {kind} list_{name} = {first + 2};",
            f"map<string, {kind}> map_{name} = {first + 3};",
            f"oneof either_{name} {{ {kind} left_{name} = {first + 4}; {kind} right_{name} = {first + 5}; }}",
        ]
    return f"""
syntax = "proto3";
package wide;
import "google/protobuf/timestamp.proto";
import "google/protobuf/duration.proto";
import "google/protobuf/wrappers.proto";
message Wide {{ {" ".join(fields)} }}
message Line {{
  message Nothing {{}}
  string sku = 1; int32 count = 2; google.protobuf.Timestamp at = 3; Nothing none = 4;
}}
enum Color {{ RED = 0; BLUE = 1; GREEN = 2; }}
"""


def random_record(rng: random.Random) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what to set a message to, and the row that it shall become."""
    values: dict[str, Any] = {}
    row: dict[str, Any] = {}
    for kind, (sample, default) in KINDS.items():
        name, suffixes = kind.replace(".", "_"), sample(rng)[1].keys()
        taken = rng.choice(["left", "right", ""])
        for field, is_set, unset in [
            ("one", rng.random() < 0.7, default),
            ("maybe", rng.random() < 0.5, None),
            ("left", taken == "left", None),
            ("right", taken == "right", None),
        ]:
            columns = dict.fromkeys(suffixes, unset)
            if is_set:
                values[f"{field}_{name}"], columns = sample(rng)
            row |= {f"{field}_{name}{suffix}": value for suffix, value in columns.items()}
        several = [sample(rng) for _ in range(rng.choice([0, 1, 3]))]
        values[f"list_{name}"] = [value for value, _ in several]
        values[f"map_{name}"] = {f"k{n}": value for n, (value, _) in enumerate(several)}
        for suffix in suffixes:
            row[f"list_{name}{suffix}"] = [columns[suffix] for _, columns in several]
            row[f"map_{name}{suffix}"] = {f"k{n}": columns[suffix] for n, (_, columns) in enumerate(several)}
    return values, row


def writer(described: ProtobufMessage) -> Any:
    pool = DescriptorPool()
    for file in FileDescriptorSet.FromString(described.files).file:
        pool.AddSerializedFile(file.SerializeToString())
    return GetMessageClass(pool.FindMessageTypeByName(described.name))


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


def test_random_messages_become_the_documented_values(frame: Callable[..., DataFrame]) -> None:
    described = message_of(WriterSchema("PROTOBUF", schema_text()))
    rng = random.Random(20_260_102)
    records = [random_record(rng) for _ in range(150)]
    make = writer(described)
    payloads: list[bytes | None] = [make(**values).SerializeToString() for values, _ in records]
    rows = frame([*payloads, None, b"\xff\xff"]).select("id", decode_protobuf(F.col("value"), described).alias("got"))
    kind = T.StructType([T.StructField("decoded", protobuf_type(described)), T.StructField("error", T.StringType())])
    assert rows.schema["got"].dataType.simpleString() == kind.simpleString()
    *found, null, broken = [row["got"] for row in collected(rows)]
    assert null == {"decoded": None, "error": None}
    assert broken == {"decoded": None, "error": "The bytes do not parse as wide.Wide."}
    assert len(found) == len(records)
    for got, (_, expected) in zip(found, records, strict=True):
        assert got["error"] is None
        row: Mapping[str, Any] = {
            name: dict(value) if name.startswith("map_") else value for name, value in got["decoded"].items()
        }
        assert row == expected
        assert [str(row["one_float"]), str(row["one_double"])] == [
            str(expected["one_float"]), str(expected["one_double"])
        ]  # fmt: skip


ORDER = """
syntax = "proto3";
import "google/protobuf/timestamp.proto";
message Order { int64 id = 1; google.protobuf.Timestamp at = 2; message Line { string sku = 1; } }
message Shop { string name = 1; message Opened { bool really = 1; } }
"""


def test_many_records_of_several_schemas_in_one_frame(frame: Callable[..., DataFrame]) -> None:
    schema = WriterSchema("PROTOBUF", ORDER)
    order, shop = message_of(schema), message_of(schema, (1,))
    make_order, make_shop = writer(order), writer(shop)
    bad = make_order(at={"nanos": -1}).SerializeToString()

    def value(n: int) -> bytes | None:
        if n % 1000 == 0:
            return bad
        return (make_shop(name=f"shop {n}") if n % 3 else make_order(id=n, at={"seconds": n})).SerializeToString()

    count = 25_000
    values = F.col("value")
    rows = frame([value(n) for n in range(count)])
    is_shop = (F.col("id") % 3 != 0) & (F.col("id") % 1000 != 0)
    rows = rows.withColumn("order", decode_protobuf(F.when(~is_shop, values), order))
    rows = rows.withColumn("shop", decode_protobuf(F.when(is_shop, values), shop))
    found = collected(rows.select("id", "order.decoded", "shop.decoded.name", "order.error"))
    assert len(found) == count
    for n, row in enumerate(found):
        if n % 1000 == 0:
            expected = [None, None, "Field at is no time, its nanoseconds are -1."]
        else:
            order_row = {"id": n, "at": EPOCH + timedelta(seconds=n), "at__nanos": 0}
            expected = [None, f"shop {n}", None] if n % 3 else [order_row, None, None]
        assert list(row.values())[1:] == expected


def test_a_message_is_parsed_once(frame: Callable[..., DataFrame]) -> None:
    order = message_of(WriterSchema("PROTOBUF", ORDER))
    rows = frame([b""]).withColumn("got", decode_protobuf(F.col("value"), order))
    is_good = F.col("got.decoded").isNotNull() & F.col("got.error").isNull()
    good = rows.filter(is_good).select("got.decoded.*", "got.error")
    plan = str(good._jdf.queryExecution().executedPlan().toString())
    assert plan.count("ArrowEvalPython [") == 1, plan


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
    bad = [*[header + each for each in odd], b"", b"\x00", None]
    rows = frame([*[header + framed(*each) + payload for each in good], header + framed(5), *bad])
    found = collected(rows.select("id", index_prefix(F.col("value")).alias("prefix")))
    prefixes = [row["prefix"] for row in found]
    assert prefixes == [*[framed(*each) for each in good], framed(5), *[None] * len(bad)]
    assert [message_indexes(prefix)[0] for prefix in prefixes[: len(good)]] == good

    shop = message_of(WriterSchema("PROTOBUF", ORDER), message_indexes(framed(1))[0])
    value = header + framed(1) + writer(shop)(name="x").SerializeToString()
    bare = F.substring(F.col("value"), F.lit(6) + F.octet_length(index_prefix(F.col("value"))), F.lit(2**31 - 1))
    (row,) = collected(frame([value]).select("id", decode_protobuf(bare, shop).alias("got")))
    assert row["got"] == {"decoded": {"name": "x"}, "error": None}
