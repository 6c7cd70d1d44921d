"""Protobuf is read as Google's parser reads it: random schemas, whole messages and damaged ones."""

import random
from collections import Counter

import pyarrow as pa
import pytest

from kafka_lake.formats.protobuf.task.decoder import MessageReader
from kafka_lake_tests.exhaustive import exhaustive
from kafka_lake_tests.fuzz.adapter import instants
from kafka_lake_tests.fuzz.protobuf_messages import damaged, fill, message_class, schema
from kafka_lake_tests.fuzz.protobuf_oracle import Oracle, comparable

SEED, BATCH = 20261127, 250


@pytest.mark.parametrize("schemas", [10, exhaustive(400)])
def test_messages_are_read_as_googles_parser_reads_them(schemas: int) -> None:
    seen = Counter[str]()
    for number in range(schemas):
        r = random.Random(f"{SEED}/{number}")
        described = schema(r)
        make = message_class(described)
        reader, oracle = MessageReader(described.files, described.name), Oracle(described.files, described.name)
        whole = []
        for _ in range(BATCH):
            made = make()
            fill(r, made)
            whole.append(made.SerializePartialToString())
        broken = [damaged(r, content, r.choice(whole)) for content in whole]
        for kind, payloads in (("whole", whole), ("broken", broken)):
            array = pa.array(payloads, pa.binary())
            rows, places, errors = reader.read(array)
            rows.validate(full=True)
            found = dict(zip(places.tolist(), instants(rows).to_pylist(), strict=True))
            for place, content in enumerate(payloads):
                wanted = oracle.row(content)
                assert comparable(found.get(place)) == comparable(wanted), (number, content, errors.get(place))
                assert (place in errors) == (wanted is None), (number, content)
                if kind == "broken":
                    alone, _, failed = reader.read(array[place : place + 1])
                    assert failed.get(0) == errors.get(place), (number, content)
                    assert comparable(instants(alone).to_pylist()) == comparable(
                        [found[place]] if place in found else []
                    )
            seen[f"{kind} rows"] += len(found)
            seen[f"{kind} errors"] += len(errors)
    assert min(seen["whole rows"], seen["broken rows"], seen["broken errors"]) > schemas * BATCH // 10
