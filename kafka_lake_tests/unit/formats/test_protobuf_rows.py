"""Protobuf messages of all types at once become the documented values."""

import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from kafka_lake.formats.protobuf.schema import ProtobufMessage, message_of
from kafka_lake.formats.protobuf.task.decoder import MessageReader
from kafka_lake.kafka.registry import WriterSchema

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


def test_random_messages_become_the_documented_values() -> None:
    described = message_of(WriterSchema("PROTOBUF", schema_text()))
    rng = random.Random(20_260_102)
    records = [random_record(rng) for _ in range(150)]
    make = writer(described)
    payloads = [make(**values).SerializeToString() for values, _ in records]
    rows, places, errors = MessageReader(described.files, described.name).read(
        pa.array([*payloads, b"\xff\xff"], pa.binary())
    )
    assert places.tolist() == list(range(len(records)))
    assert errors == {len(records): "The bytes do not parse as wide.Wide."}
    for got, (_, expected) in zip(rows.to_pylist(), records, strict=True):
        row = {name: dict(value) if name.startswith("map_") else value for name, value in got.items()}
        assert row == expected
        assert [str(row["one_float"]), str(row["one_double"])] == [
            str(expected["one_float"]), str(expected["one_double"])
        ]  # fmt: skip
