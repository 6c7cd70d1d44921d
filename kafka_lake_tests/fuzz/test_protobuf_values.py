"""Protobuf messages of generated values, whole and damaged: each is a row that says the same, or an error.

The second opinion is Google's own parser, asked field by field.
"""

import os
import random
from collections import Counter
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from kafka_lake.formats.protobuf.schema import message_of
from kafka_lake.formats.protobuf.task.decoder import MessageReader
from kafka_lake.kafka.registry import WriterSchema
from kafka_lake_tests.fuzz.adapter import instants
from kafka_lake_tests.fuzz.protobuf_oracle import comparable

INPUTS, BATCH, SEED = int(os.environ.get("FUZZ_INPUTS", "3000")), 200, 20261122
SCHEMA = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
import "google/protobuf/duration.proto";
import "google/protobuf/wrappers.proto";
enum Color { RED = 0; BLUE = 1; }
message Line { string sku = 1; int32 count = 2; optional double price = 3; }
message Order {
  int32 i = 1; sint64 l = 2; uint32 u = 3; uint64 ul = 4; fixed64 x = 5; bool b = 6; float f = 7; double d = 8;
  string s = 9; bytes y = 10; Color c = 11; Line line = 12; repeated Line lines = 13; repeated sint32 many = 14;
  map<string, int64> m = 15; map<int32, Line> by_number = 16; optional int64 maybe = 17;
  oneof one { string text = 18; int64 number = 19; }
  google.protobuf.Timestamp at = 20; google.protobuf.Duration took = 21; google.protobuf.Int64Value w = 22;
}
"""
INTS = [0, 1, -1, 127, 128, 2**31 - 1, -(2**31)]
LONGS = [*INTS, 2**53 + 1, 2**63 - 1, -(2**63)]
SECONDS = [0, 1, -62_135_596_800, 253_402_300_799, -62_135_596_801, 253_402_300_800, 2**63 - 1, -(2**63)]
NANOS = [0, 1, 999, 1000, 123_456_789, 999_999_999, 10**9, -1]
DOUBLES = [0.0, -0.0, 0.1, 5e-324, 1.7976931348623157e308, float("inf"), float("-inf"), float("nan")]
TEXTS = ["", "a", "ü€🍕", "\x00", "x" * 300]


@pytest.fixture(scope="module")
def described() -> Any:
    return message_of(WriterSchema("PROTOBUF", SCHEMA, {}, id=7), name="Order")


@pytest.fixture(scope="module")
def reference(described: Any) -> Any:
    pool = DescriptorPool()
    for file in FileDescriptorSet.FromString(described.files).file:
        pool.AddSerializedFile(file.SerializeToString())
    return GetMessageClass(pool.FindMessageTypeByName(described.name))


def line(r: random.Random) -> dict[str, Any]:
    found = {"sku": r.choice(TEXTS), "count": r.choice(INTS)}
    return found if r.random() < 0.5 else {**found, "price": r.choice(DOUBLES)}


def payload(seed: int, index: int, reference: Any) -> bytes:
    r = random.Random(f"{seed}/{index}")
    values: dict[str, Any] = {
        "i": r.choice(INTS), "l": r.choice(LONGS), "u": r.choice([0, 2**32 - 1]), "ul": r.choice([0, 2**64 - 1]),
        "x": r.choice([0, 2**64 - 1]), "b": r.random() < 0.5, "f": r.choice([0.1, 3.4028234663852886e38, *DOUBLES[5:]]),
        "d": r.choice(DOUBLES), "s": r.choice(TEXTS), "y": r.randbytes(r.randint(0, 5)), "c": r.choice([0, 1, 7, -1]),
        "line": line(r), "lines": [line(r) for _ in range(r.randint(0, 3))],
        "many": r.choices(INTS, k=r.randint(0, 4)), "m": {r.choice(TEXTS): r.choice(LONGS) for _ in range(2)},
        "by_number": {r.choice(INTS): line(r) for _ in range(2)}, "maybe": r.choice(LONGS),
        "at": {"seconds": r.choice(SECONDS), "nanos": r.choice(NANOS)},
        "took": {"seconds": r.choice(SECONDS[:2]), "nanos": r.choice(NANOS)}, "w": {"value": r.choice(LONGS)},
        r.choice(["text", "number"]): None,
    }  # fmt: skip
    for name, drawn in (("text", TEXTS), ("number", LONGS)):
        if name in values:
            values[name] = r.choice(drawn)
    chosen = {name: values[name] for name in r.sample(list(values), r.randint(0, 6))}
    content = bytearray(reference(**chosen).SerializeToString())
    damage = r.random()
    if content and damage < 0.15:
        content = content[: r.randrange(len(content))]
    elif content and damage < 0.4:
        content[r.randrange(len(content))] ^= 1 << r.randrange(8)
    elif damage < 0.45:
        content += r.randbytes(5)
    return bytes(content)


def expected(message: Any) -> dict[str, Any] | None:
    """Return the row that a message is; None if a part of it is no value of its column."""
    row: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        held, name = getattr(message, field.name), field.name
        kind = field.message_type.full_name if field.message_type else ""
        if field.has_presence and not message.HasField(name):
            row[name] = None
            if kind == "google.protobuf.Timestamp":
                row["at__nanos"] = None
        elif kind == "google.protobuf.Timestamp":
            if not (-62_135_596_800 <= held.seconds <= 253_402_300_799 and 0 <= held.nanos < 10**9):
                return None
            row[name], row["at__nanos"] = held.seconds * 10**6 + held.nanos // 1000, held.nanos % 1000
        elif kind == "google.protobuf.Duration":
            if abs(held.nanos) >= 10**9 or held.seconds * held.nanos < 0 or abs(held.seconds) > 315_576_000_000:
                return None
            row[name] = (Decimal(held.seconds) * 10**9 + held.nanos).scaleb(-9)
        elif kind == "google.protobuf.Int64Value":
            row[name] = held.value
        elif name == "c":
            row[name] = {0: "RED", 1: "BLUE"}.get(held, str(held))
        elif name == "m":
            row[name] = sorted(held.items())
        elif name == "by_number":
            row[name] = [(key, expected(held[key])) for key in sorted(held)]
        elif name == "lines":
            row[name] = [expected(item) for item in held]
        elif name == "many":
            row[name] = list(held)
        else:
            row[name] = expected(held) if kind else held
    return row


def test_every_protobuf_value_is_in_row_or_message_fails(described: Any, reference: Any) -> None:
    reader, seen = MessageReader(described.files, described.name), Counter[str]()
    for start in range(0, INPUTS, BATCH):
        payloads = [payload(SEED, index, reference) for index in range(start, start + BATCH)]
        rows, places, errors = reader.read(pa.array(payloads, pa.binary()))
        made = dict(zip(places.tolist(), instants(rows).to_pylist(), strict=True))
        for number, content in enumerate(payloads):
            try:
                wanted = expected(reference.FromString(content))
            except DecodeError:
                wanted = None
            assert (number in made) == (wanted is not None), (content, errors.get(number))
            assert (number in errors) == (wanted is None), content
            assert comparable(made.get(number)) == comparable(wanted), content
            seen["errors" if wanted is None else "rows"] += 1
    assert min(seen["rows"], seen["errors"]) > INPUTS // 20
