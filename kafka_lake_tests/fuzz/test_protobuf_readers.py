"""Protobuf read by ptars is what Google's parser reads: random schemas, whole messages and damaged ones."""

import random
import struct
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest

from kafka_lake.executors.protobuf.reader import MessageReader
from kafka_lake_tests.fuzz.adapter import instants
from kafka_lake_tests.fuzz.protobuf_messages import damaged, fill, message_class, schema
from kafka_lake_tests.lanes import exhaustive

SEED, BATCH = 20261127, 250


def comparable(value: Any) -> Any:
    """Return a value in which floats are their bits, -0.0 and NaN among them, and maps are in order."""
    if isinstance(value, float):
        return "nan" if value != value else struct.pack("d", value)
    if isinstance(value, dict):
        return {name: comparable(each) for name, each in value.items()}
    if isinstance(value, list):
        entries = bool(value) and isinstance(value[0], tuple)
        return [comparable(each) for each in (sorted(value, key=lambda each: each[0]) if entries else value)]
    return tuple(map(comparable, value)) if isinstance(value, tuple) else value


@pytest.mark.parametrize("schemas", [10, exhaustive(400)])
def test_ptars_and_the_protobuf_package_read_alike(schemas: int) -> None:
    seen = Counter[str]()
    for number in range(schemas):
        r = random.Random(f"{SEED}/{number}")
        described = schema(r)
        make = message_class(described)
        quick, strict = (MessageReader(described.files, described.name, quick) for quick in (True, False))
        whole = []
        for _ in range(BATCH):
            made = make()
            fill(r, made)
            whole.append(made.SerializePartialToString())
        broken = [damaged(r, content, r.choice(whole)) for content in whole]
        for kind, payloads in (("whole", whole), ("broken", broken)):
            array = pa.array(payloads, pa.binary())
            wanted, at, said = strict.read(array)
            rows = dict(zip(at.tolist(), instants(wanted).to_pylist(), strict=True))
            made, places, errors = quick.read(array)
            made.validate(full=True)
            assert made.type == wanted.type
            assert (places.tolist(), errors) == (at.tolist(), said), number
            found = dict(zip(places.tolist(), instants(made).to_pylist(), strict=True))
            assert {place: comparable(row) for place, row in found.items()} == {
                place: comparable(row) for place, row in rows.items()
            }, number
            # Alone: a batch with a message that ptars can't read is left to the protobuf package for the most part.
            for place, content in enumerate(payloads if kind == "broken" else []):
                made, _, errors = quick.read(array[place : place + 1])
                alone = instants(made).to_pylist()
                assert errors.get(0) == said.get(place), (number, content)
                assert comparable(alone) == comparable([rows[place]] if place in rows else []), (number, content)
            seen[f"{kind} rows"] += len(rows)
            seen[f"{kind} errors"] += len(said)
    assert min(seen["whole rows"], seen["broken rows"], seen["broken errors"]) > schemas * BATCH // 10
