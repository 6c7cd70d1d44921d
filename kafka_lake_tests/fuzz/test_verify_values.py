"""`verify` compares what decoders made of generated values with independent decodings: nothing differs but damage."""

import json
import random
from collections.abc import Mapping, Sequence
from datetime import date, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg import types as I

from kafka_lake.formats.avro.task.decoder import read
from kafka_lake.formats.avro.task.schema import SchemaReader
from kafka_lake.formats.columns import described_type, iceberg_columns
from kafka_lake.formats.protobuf.schema import message_of
from kafka_lake.formats.protobuf.task.decoder import MessageReader
from kafka_lake.formats.registered import writer_of
from kafka_lake.formats.task.columns import Rules
from kafka_lake.kafka.registry import WriterSchema
from kafka_lake.spec.topic_table import TopicTable
from kafka_lake.verify.values import decode_json, differences, fields_of, reader_of_schema
from kafka_lake_tests.fuzz.adapter import decoder_of
from kafka_lake_tests.fuzz.avro_values import Maker, encode
from kafka_lake_tests.fuzz.generate import payload
from kafka_lake_tests.fuzz.json_fuzz import DECLARED, VERSIONED
from kafka_lake_tests.fuzz.oracle import Column
from kafka_lake_tests.fuzz.test_protobuf_values import (
    SCHEMA,
    described,  # noqa: F401
    reference,  # noqa: F401
)
from kafka_lake_tests.fuzz.test_protobuf_values import payload as message

_TYPES: dict[str, Any] = {
    "boolean": I.BooleanType(), "int": I.IntegerType(), "long": I.LongType(), "float": I.FloatType(),
    "double": I.DoubleType(), "string": I.StringType(), "binary": I.BinaryType(), "date": I.DateType(),
    "timestamp": I.TimestamptzType(), "timestamp_ntz": I.TimestampType(),
}  # fmt: skip


def of_oracle(columns: Sequence[Column]) -> list[I.NestedField]:
    def kind(of: Any) -> Any:
        if isinstance(of, str):
            return _TYPES[of]
        if of[0] == "struct":
            return I.StructType(*of_oracle(of[1]))
        if of[0] == "decimal":
            return I.DecimalType(of[1], of[2])
        if of[0] == "list":
            return I.ListType(1, kind(of[1]), False)
        return I.MapType(1, I.StringType(), 2, kind(of[1]), False)

    return [I.NestedField(number, column.name, kind(column.kind), False) for number, column in enumerate(columns, 1)]


def damaged(value: Any, rnd: random.Random) -> Any:
    """Return a value that differs in one place; the value itself if it has no place for that."""
    if isinstance(value, dict | list) and value:
        places = list(value) if isinstance(value, dict) else list(range(len(value)))
        place, copy = rnd.choice(places), value.copy()
        copy[place] = damaged(value[place], rnd)
        return copy
    if isinstance(value, tuple):
        return value[0], damaged(value[1], rnd)
    if isinstance(value, bool):
        return not value
    if isinstance(value, date):
        return value + timedelta(days=1 if value.year < 9000 else -1)
    if isinstance(value, bytes | str):
        return value * 2 if value else value
    return value + 1 if isinstance(value, int | Decimal) else value


def assert_compares(
    payloads: Sequence[bytes], rows: Sequence[Any], reader: Any, fields: Mapping[str, Any], spec: TopicTable
) -> None:
    rnd, tried, found = random.Random(1), 0, 0
    for content, row in zip(payloads, rows, strict=True):
        if row is None:
            continue
        value = reader(content)
        assert list(differences(value, row, fields, spec)) == [], (content, row)
        worse = damaged(row, rnd)
        if repr(worse) != repr(row):
            tried += 1
            found += bool(list(differences(value, worse, fields, spec)))
    assert tried == 0 or found >= 0.95 * tried


@pytest.mark.parametrize("name", ["declared", "versioned"])
def test_json_rows_equal_an_independent_decoding(name: str) -> None:
    columns = {"declared": DECLARED, "versioned": VERSIONED}[name]
    contents = [payload(7, index) for index in range(1500)]
    rows = decoder_of(columns, Rules(infer=True), True).decode(pa.array(contents, pa.binary())).rows.to_pylist()
    sources = {column.name: column.sources[0] for column in columns}
    fields = fields_of(of_oracle(columns), sources, {})
    assert_compares(contents, rows, decode_json, fields, TopicTable("t"))


@pytest.mark.parametrize("seed", range(20))
def test_avro_rows_equal_an_independent_decoding(seed: int) -> None:
    maker = Maker(seed)
    schema = maker.record(seed % 4)
    payloads = encode(schema, *(maker.value(schema) for _ in range(50)))
    made, good = read(SchemaReader("the schema", json.dumps(schema)).root(), pa.array(payloads, pa.binary()))
    rows = iter(made.filter(pa.array(good)).to_pylist())
    reader = reader_of_schema(writer_of(WriterSchema("AVRO", json.dumps(schema))))
    fields = fields_of(iceberg_columns(described_type(made.type)).fields, {}, {})
    assert_compares(payloads, [next(rows) if is_good else None for is_good in good], reader, fields, TopicTable("t"))


def test_protobuf_rows_equal_an_independent_decoding(reference: Any) -> None:  # noqa: F811
    schema = WriterSchema("PROTOBUF", SCHEMA, {}, id=7)
    order = message_of(schema, name="Order")
    payloads = [message(7, index, reference) for index in range(1000)]
    made, places, _ = MessageReader(order.files, order.name).read(pa.array(payloads, pa.binary()))
    rows = dict(zip(places.tolist(), made.to_pylist(), strict=True))
    reader = reader_of_schema(writer_of(schema, message="Order"))
    fields = fields_of(iceberg_columns(described_type(made.type)).fields, {}, {})
    contents = [rows.get(number) for number in range(len(payloads))]
    assert_compares(payloads, contents, reader, fields, TopicTable("t", format="protobuf"))
