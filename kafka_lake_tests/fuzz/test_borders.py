"""Avro values at the borders of their types, into a real table: each is equal there, or in a dead letter."""

import io
import json
import math
import random
import struct
from collections.abc import Callable
from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pytest

from kafka_lake.ingest.run import ingest
from kafka_lake.runtime.context import Connections
from kafka_lake.spec.topic_table import TopicTable
from kafka_lake_tests.conftest import Topic, View
from kafka_lake_tests.fuzz.tables import columns_of, rows_of
from kafka_lake_tests.fuzz.test_end_to_end import produce

pytestmark = pytest.mark.integration

NewTopic = Callable[..., Topic]
NewConnections = Callable[..., Connections]
NewView = Callable[[TopicTable], View]

SEED, RECORDS = 20261122, 300
FIRST, LAST = -62_135_596_800_000_000, 253_402_300_799_999_999
MOST = "9" * 29 + "." + "9" * 9
DAYS = (-719_162, 2_932_896)
BORDERS: dict[str, tuple[Any, list[Any]]] = {
    "i": ("int", [0, 2**31 - 1, -(2**31)]),
    "l": ("long", [0, 2**53 + 1, 2**63 - 1, -(2**63)]),
    "f": ("float", [0.0, -0.0, 3.4028234663852886e38, math.inf, -math.inf, math.nan]),
    "d": ("double", [0.1, -0.0, 5e-324, 1.7976931348623157e308, math.inf, -math.inf, math.nan]),
    "s": ("string", ["", "\x00", "ü€🍕", "NaN", "x" * 9000]),
    "y": ("bytes", [b"", b"\x00\xff", b"\xed\xa0\x80"]),
    "day": ({"type": "int", "logicalType": "date"}, [0, *DAYS, DAYS[0] - 1, DAYS[1] + 1, 2**31 - 1, -(2**31)]),
    "ms": ({"type": "long", "logicalType": "timestamp-millis"},
           [0, -1, FIRST // 1000, LAST // 1000, FIRST // 1000 - 1, LAST // 1000 + 1, 2**63 - 1]),
    "us": ({"type": "long", "logicalType": "timestamp-micros"}, [0, -1, FIRST, LAST, FIRST - 1, LAST + 1, -(2**63)]),
    "local": ({"type": "long", "logicalType": "local-timestamp-micros"}, [0, FIRST, LAST, FIRST - 1, LAST + 1]),
    "ns": ({"type": "long", "logicalType": "timestamp-nanos"}, [0, 2**63 - 1, -(2**63)]),
    "dec": ({"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 9},
            [Decimal(0), Decimal(MOST), Decimal(f"-{MOST}")]),
    "e": ({"type": "enum", "name": "E", "symbols": ["A", "b_1"]}, ["A", "b_1"]),
    "m": ({"type": "map", "values": "long"}, [{}, {"": 1, "a.b": 2, "A": 3, "a": 4}]),
    "of": ({"type": "array", "items": ["null", "double"]}, [[], [None, 0.1, -0.0]]),
    "_file": ("long", [1]),
    "decoded": ("long", [2]),
    "error_class": ("string", ["x"]),
    "ID": ("long", [3]),
    "id": ("long", [4]),
}  # fmt: skip
"""By field: its Avro type, and values, those beyond the years 1 to 9999 among them."""


def beyond(name: str, value: Any) -> bool:
    """Return whether no table holds a value."""
    first, last = {"day": DAYS, "ms": (FIRST // 1000, LAST // 1000)}.get(name, (FIRST, LAST))
    return name in ("day", "ms", "us", "local") and value is not None and not first <= value <= last


def stored(name: str, value: Any) -> Any:
    """Return a value as the table is read."""
    if name == "day" and value is not None:
        return date(1970, 1, 1) + timedelta(value)
    if name == "ms" and value is not None:
        return value * 1000
    return sorted(value.items()) if name == "m" and value is not None else value


def same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return struct.pack("d", one) == struct.pack("d", other) or (math.isnan(one) and math.isnan(other))
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and bool(one == other)


@pytest.mark.exhaustive
def test_avro_values_are_equal_or_dead_letters(
    tmp_path: Path, new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    fields = [{"name": name, "type": ["null", kind]} for name, (kind, _) in BORDERS.items()]
    schema = {"type": "record", "name": "R", "fields": fields}
    file, parsed, r = tmp_path / "r.avsc", fastavro.parse_schema(schema), random.Random(SEED)
    file.write_text(json.dumps(schema))
    every = [(name, value) for name, (_, values) in BORDERS.items() for value in values]
    records = [dict([member]) for member in every]
    for _ in range(RECORDS):
        records.append({name: r.choice(BORDERS[name][1]) for name in r.sample(list(BORDERS), 3)})
    contents = []
    for record in records:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, parsed, record)
        contents.append(out.getvalue())
    topic = new_topic(2)
    sent = produce(topic, contents)
    by_content = dict(zip(contents, records, strict=True))
    spec = topic.spec(None, format="avro", schema_file=str(file))
    ingest(spec, connections(), "run-1")
    see = view(spec)
    rows = rows_of(see.table.scan().to_arrow())
    letters = {(row["partition"], row["offset"]) for row in see.dead_letters()}
    sources = {column.sources[0]: column.name for column in columns_of(see.table)}
    assert sorted([*rows, *letters]) == sorted(sent)
    for place, content in sent.items():
        record = by_content[content]
        assert (place in letters) == any(beyond(*member) for member in record.items()), record
        if place in rows:
            found = rows[place].values
            for name in BORDERS:
                held = found[sources[name]]
                held = sorted(held) if name == "m" and held else held
                assert same(held, stored(name, record.get(name))), (name, record, found)
