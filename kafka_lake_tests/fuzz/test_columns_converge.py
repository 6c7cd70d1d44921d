"""Whatever records look like, their columns stay the same after a few passes: else a run would never end."""

import json
from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
import pytest
from pyspark.sql import types as T

from kafka_lake.formats.columns import Target, iceberg_columns, spark_columns
from kafka_lake.formats.json.driver import Json
from kafka_lake.formats.task.batches import loaded
from kafka_lake.formats.task.columns import Rules
from kafka_lake.formats.task.decoders import unpack_decoder
from kafka_lake.schema.evolution.evolve import evolve
from kafka_lake.schema.evolution.model import Incoming, OnIncompatible, Policy
from kafka_lake_tests.exhaustive import exhaustive
from kafka_lake_tests.fuzz.generate import CORPUS, payload

NOTHING = Target(T.StructType([]))
BATCHES, RECORDS = 6, 120


def learned(decoder: Json, contents: Sequence[bytes], target: Target) -> Json | None:
    seen = unpack_decoder(decoder.for_tasks(target, None)).decode(pa.array(contents, pa.binary())).seen
    if not seen:
        return None
    reported = loaded([json.dumps({"at": [0, 0], **seen.data()})], Rules().max_columns)
    return decoder.with_observed(reported, target)


@pytest.mark.parametrize("seed", [0, *(exhaustive(seed) for seed in range(1, 6))])
@pytest.mark.parametrize("times", [exhaustive(False), True])
@pytest.mark.parametrize("on_incompatible", ["dead_letter", exhaustive("new_column")])
def test_columns_converge(on_incompatible: OnIncompatible, times: bool, seed: int) -> None:
    current, sources, target = None, dict[str, str](), NOTHING
    for batch in range(BATCHES):
        contents = [payload(seed, batch * RECORDS + index) for index in range(RECORDS)]
        contents += CORPUS.values() if batch == 1 else []
        # A run knows what the table says, and nothing else.
        decoder, passes = Json(infer_timestamps=times), 0
        if current is None:
            decoder = replace(learned(decoder, contents, NOTHING) or decoder, left_out=())
        while True:
            incoming = [Incoming(label, iceberg_columns(fields)) for label, fields in decoder.incoming()]
            done = evolve(current, sources, incoming, Policy(on_incompatible=on_incompatible), ["_kafka"])
            before, target = target, Target(spark_columns(done.columns), done.sources, done.also)
            current, sources = done.columns, dict(done.sources)
            if passes and target == before:
                break
            wiser = learned(decoder, contents, target)
            if wiser is None:
                break
            decoder, passes = wiser, passes + 1
            assert passes < 5, done.changes
