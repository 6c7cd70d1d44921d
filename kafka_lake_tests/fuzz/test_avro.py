"""Avro's decoder beside an oracle that reads value by value as Java does: good bytes, damaged ones, any bytes."""

import json
import random
from typing import Any

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from kafka_lake.formats.avro.task.decoder import read
from kafka_lake.formats.avro.task.schema import SchemaReader
from kafka_lake.orchestration.resources import SparkResource
from kafka_lake_tests.exhaustive import exhaustive
from kafka_lake_tests.fuzz.avro_oracle import JavaReader, MalformedError
from kafka_lake_tests.fuzz.avro_values import Maker, encode, neat

SIZES = (30, 70)


def damaged(rnd: random.Random, payload: bytes) -> bytes:
    """Return bytes like those, but for a few."""
    changed = bytearray(payload)
    for _ in range(rnd.choice((1, 1, 1, 2, 5))):
        at = rnd.randrange(len(changed) + 1)
        match rnd.randrange(6):
            case 0:
                del changed[at : at + rnd.choice((1, 1, 4))]
            case 1:
                changed[at:at] = rnd.randbytes(rnd.choice((1, 1, 4)))
            case 2:
                del changed[at:]
            case 3:
                # A number that has more bytes than it needs, or bits that are lost.
                changed[at:at] = bytes([rnd.choice((0x80, 0xFF))]) * rnd.choice((1, 4, 9))
            case _:
                if at < len(changed):
                    changed[at] ^= 1 << rnd.randrange(8) if rnd.random() < 0.5 else rnd.randrange(256)
    return bytes(changed)


def wanted(schema: Any, payloads: list[bytes]) -> list[Any]:
    reader, found = JavaReader(schema), []
    for payload in payloads:
        try:
            found.append(neat(reader.value(payload)))
        except MalformedError:
            found.append(None)
    return found


def decoded(schema: Any, payloads: list[bytes]) -> list[Any]:
    reader = SchemaReader("the schema", json.dumps(schema)).root()
    found, good = read(reader, pa.array(payloads, pa.binary()))
    well = found.filter(pa.array(good))
    well.validate(full=True)
    rows = iter(well.to_pylist(maps_as_pydicts="strict"))
    return [neat(next(rows)) if is_good else None for is_good in good]


def fuzz(seed: int, records: int) -> tuple[int, int]:
    """Return how many records were good and how many malformed; every one of them is as the oracle says."""
    maker = Maker(seed, SIZES if seed % 3 == 0 else ())
    schema = maker.record(seed % 4)
    good = encode(schema, *(maker.value(schema) for _ in range(max(1, records // 20))))
    payloads = [*good, *(damaged(maker.rnd, maker.rnd.choice(good)) for _ in range(records - len(good)))]
    maker.rnd.shuffle(payloads)
    asked, found = wanted(schema, payloads), decoded(schema, payloads)
    for payload, ask, find in zip(payloads, asked, found, strict=True):
        assert find == ask, f"seed {seed}, {json.dumps(schema)}, {payload.hex()}"
    assert all(value is not None for value in wanted(schema, good))
    malformed = asked.count(None)
    return len(asked) - malformed, malformed


@pytest.mark.parametrize("seed", range(20))
def test_damaged_avro_decodes_as_in_java(seed: int) -> None:
    good, _ = fuzz(seed, 200)
    assert good >= 10


@pytest.mark.parametrize("first", [exhaustive(first) for first in range(1000, 1200, 20)])
def test_more_damaged_avro_decodes_as_in_java(first: int) -> None:
    counts = [fuzz(seed, 500) for seed in range(first, first + 20)]
    assert sum(map(sum, counts)) == 10_000
    assert min(sum(totals) for totals in zip(*counts, strict=True)) > 1000


def without_logical_types(node: Any) -> Any:
    if isinstance(node, list):
        return [without_logical_types(branch) for branch in node]
    if not isinstance(node, dict):
        return node
    return {key: without_logical_types(value) for key, value in node.items() if key != "logicalType"}


def written_again(jvm: Any, schema: Any, payloads: list[bytes]) -> list[bytes | None]:
    """Return what Java's own reader reads, as its writer writes it; None for what it refuses."""
    parsed = jvm.org.apache.avro.Schema.Parser().parse(json.dumps(schema))
    reader, writer = (
        getattr(jvm.org.apache.avro.generic, f"GenericDatum{class_name}")(parsed) for class_name in ("Reader", "Writer")
    )
    found: list[bytes | None] = []
    for payload in payloads:
        decoder = jvm.org.apache.avro.io.DecoderFactory.get().binaryDecoder(bytearray(payload), None)
        out = jvm.java.io.ByteArrayOutputStream()
        encoder = jvm.org.apache.avro.io.EncoderFactory.get().directBinaryEncoder(out, None)
        try:
            writer.write(reader.read(None, decoder), encoder)
            found.append(bytes(out.toByteArray()) if decoder.isEnd() else None)
        except (Py4JJavaError, PySparkException):
            found.append(None)
    return found


@pytest.mark.integration
@pytest.mark.exhaustive
def test_the_oracle_reads_as_java_reads(spark_resource: SparkResource) -> None:
    jvm: Any = spark_resource.spark_session._jvm
    for what in ("bytes", "string", "collectionItems"):
        # It makes room for what a length claims before it reads.
        jvm.java.lang.System.setProperty(f"org.apache.avro.limits.{what}.maxLength", "1000000")
    read_by_both = 0
    for seed in range(15):
        maker = Maker(seed)
        logical = maker.record(seed % 4)
        good = encode(logical, *(maker.value(logical) for _ in range(10)))
        schema = without_logical_types(logical)
        payloads = [*good, *(damaged(maker.rnd, maker.rnd.choice(good)) for _ in range(150))]
        # Text that isn't UTF-8 is none of Java's concern: values stay as they are, keys of maps get U+FFFD.
        again = written_again(jvm, schema, payloads)
        asked = wanted(schema, payloads)
        for payload, by_java, value in zip(payloads, again, asked, strict=True):
            if value is None and by_java is not None and "\ufffd".encode() in by_java:
                continue
            expected = None if by_java is None else wanted(schema, [by_java])[0]
            assert value == expected, f"seed {seed}, {json.dumps(schema)}, {payload.hex()}"
        read_by_both += len(asked) - asked.count(None)
    assert read_by_both > 300
