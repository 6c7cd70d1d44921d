"""Which part of a plan is read before a record that the engine may have no room for, and when a run stops at it."""

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from py4j.protocol import Py4JNetworkError
from pyspark.errors import PySparkException as SparkException

from kafka_lake.catalog.lake_catalog import LakeCatalog
from kafka_lake.common.offsets import OffsetRange, Position, TopicIdentity
from kafka_lake.error_classification import engine_died
from kafka_lake.errors import EngineUnavailableError, KafkaError, RecordTooLargeError
from kafka_lake.ingest.too_large import Large, TooLarge, forget, recorded_in
from kafka_lake.runtime.context import Observer
from kafka_lake.runtime.plan import Plan
from kafka_lake.spec.topic_table import TopicTable

ME = TopicIdentity("c", "t", "pizzas")
SPEC = TopicTable("pizzas", "pizza", "pizzas")
ROWS = pa.table({"id": pa.array([1], pa.int64())})
FOUND = Large(0, 5, 600 << 20)
DEAD = EngineUnavailableError("Spark Connect doesn't answer.", "Wait.")


def planned(*ranges: OffsetRange) -> Plan:
    return Plan(ranges, Position(ME, {r.partition: r.end for r in ranges}), 0)


PLAN = planned(OffsetRange(0, 2, 9), OffsetRange(1, 0, 4))


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def table(catalog: LakeCatalog) -> Any:
    catalog.ensure_namespace("pizza")
    catalog.pyiceberg.create_table(SPEC.identifier, ROWS.schema)
    return lambda: catalog.table(SPEC.identifier)


@pytest.fixture
def run(catalog: LakeCatalog, said: list[str]) -> Any:
    context: Any = SimpleNamespace(
        spec=SPEC, connections=SimpleNamespace(catalog=catalog), observer=Observer(warn=said.append)
    )
    return lambda found=FOUND: TooLarge(context, lambda _: found)


def test_suspect_is_tried_alone_and_refused_once_the_engine_dies_again(run: Any, table: Any, said: list[str]) -> None:
    first = run()
    assert first.cut(PLAN, table()) is PLAN
    first.failed(PLAN, DEAD)
    assert "the record at partition 0 offset 5 has 629,145,600 bytes" in said[0]
    others = first.cut(PLAN, table())
    assert (others.ranges, others.one_by_one) == ((OffsetRange(1, 0, 4),), False)
    assert others.after.offsets == {0: 2, 1: 4}
    before = first.cut(planned(OffsetRange(0, 2, 9)), table())
    assert (before.ranges, before.one_by_one) == ((OffsetRange(0, 2, 5),), True)
    alone = first.cut(planned(OffsetRange(0, 5, 9)), table())
    assert (alone.ranges, alone.one_by_one) == ((OffsetRange(0, 5, 6),), True)
    with pytest.raises(RecordTooLargeError, match="partition 0 offset 5") as error:
        first.failed(alone, DEAD)
    assert "kafka-lake reset pizzas --to 0:6`" in error.value.remedy
    # A later run reads all but the record, and then stops.
    later = run()
    assert later.cut(PLAN, table()).ranges == (OffsetRange(1, 0, 4),)
    assert later.cut(PLAN, table()).ranges == (OffsetRange(0, 2, 5),)
    with pytest.raises(RecordTooLargeError, match="partition 0 offset 5"):
        later.cut(planned(OffsetRange(0, 5, 9), OffsetRange(1, 4, 7)), table())
    assert later.cut(planned(OffsetRange(0, 6, 9)), table()).ranges == (OffsetRange(0, 6, 9),)


def test_suspect_that_is_read_alone_is_no_obstacle(run: Any, table: Any) -> None:
    first = run()
    first.failed(PLAN, DEAD)
    assert first.cut(planned(OffsetRange(0, 6, 9)), table()).ranges == (OffsetRange(0, 6, 9),)
    assert recorded_in(table(), ME) == ()


def test_engine_of_the_run_itself_has_died_of_the_record(run: Any, table: Any) -> None:
    with pytest.raises(RecordTooLargeError, match="partition 0 offset 5"):
        run().failed(PLAN, Py4JNetworkError("Answer from Java side is empty"))
    assert recorded_in(table(), ME) == (FOUND,)


@pytest.mark.parametrize("error", [KafkaError("brokers don't answer", ""), ValueError("no value")])
def test_no_record_is_looked_for_while_the_engine_lives(run: Any, table: Any, error: Exception) -> None:
    first = run()
    first.failed(PLAN, error)
    first.failed(None, DEAD)
    assert first.cut(PLAN, table()) is PLAN


@pytest.mark.parametrize(
    ("error", "died"),
    [
        (DEAD, True),
        (Py4JNetworkError(), True),
        (ConnectionResetError(), True),
        (SparkException("Job aborted: ExecutorLostFailure (executor 1 exited)"), True),
        (
            SparkException("[INVALID_HANDLE.SESSION_CHANGED] The existing Spark server driver instance has restarted."),
            True,
        ),
        (SparkException("java.lang.OutOfMemoryError: Java heap space"), True),
        (SparkException("Python worker exited unexpectedly (crashed)"), False),
        (MemoryError(), False),
        (KafkaError("brokers don't answer", ""), False),
    ],
)
def test_engine_that_died_is_told_by_its_error(error: Exception, died: bool) -> None:
    assert engine_died(error) is died


def test_engine_that_dies_of_no_large_record_is_tried_again(run: Any, table: Any, said: list[str]) -> None:
    first = run(None)
    first.failed(PLAN, DEAD)
    assert first.cut(PLAN, table()) is PLAN
    assert said == []


def test_records_of_several_partitions_and_topics_are_kept_until_a_reset(run: Any, table: Any) -> None:
    other = TopicIdentity("c", "u", "pizzas")
    for record, identity in ((FOUND, ME), (Large(3, 7, None), ME), (Large(0, 1, 2), other)):
        plan = Plan((OffsetRange(record.partition, 0, 9),), Position(identity, {}), 0)
        with pytest.raises(RecordTooLargeError):
            run(record).failed(plan, Py4JNetworkError())
    assert set(recorded_in(table(), ME)) == {FOUND, Large(3, 7, None)}
    forget(table(), ME)
    assert recorded_in(table(), ME) == ()
    assert recorded_in(table(), other) == (Large(0, 1, 2),)
    assert recorded_in(None, ME) == ()
