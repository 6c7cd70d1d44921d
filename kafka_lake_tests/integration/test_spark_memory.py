"""What Spark keeps for a while: until its block is left, and not longer."""

from collections.abc import Callable
from contextlib import ExitStack

import pytest
from pyspark.sql import functions as F

from kafka_lake.engine.frames import cached
from kafka_lake.runtime.context import Connections
from kafka_lake.writers.upsert.merge import run_merge
from kafka_lake_tests.conftest import keeps_frames

pytestmark = pytest.mark.integration


def test_a_frame_that_is_merged_is_kept_until_its_block_is_left(connections: Callable[[], Connections]) -> None:
    spark = connections().spark()
    with ExitStack() as held:
        rows = cached(spark.range(3).withColumn("lot", F.rand()), held)
        before = rows.collect()
        run_merge(spark, rows, {}, lambda view: f"SELECT * FROM {view}")
        assert (keeps_frames(spark), rows.collect()) == (True, before)
    assert not keeps_frames(spark)
