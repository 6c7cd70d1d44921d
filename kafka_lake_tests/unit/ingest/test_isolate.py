"""The search for the record that breaks its batch: how often it asks, what it leaves out, and what is no record's."""

from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg import exceptions as iceberg
from pyspark.errors import AnalysisException, PythonException

from kafka_lake import errors
from kafka_lake.common.offsets import OffsetRange, Position, TopicIdentity, Watermarks
from kafka_lake.error_classification import headline, is_transient, may_be_a_record, may_be_a_record_time
from kafka_lake.errors import EveryRecordFailsError
from kafka_lake.ingest.bad_record import Search
from kafka_lake.ingest.plan import plan
from kafka_lake.runtime.plan import Plan, can_be_parted, position_only
from kafka_lake_tests.unit.runtime.test_retry import connect, grpc_error, py4j
from kafka_lake_tests.unit.simulated.history import LETTERS, POISON, TABLE, Attempt
from kafka_lake_tests.unit.simulated.world import World, without_pauses

ME = TopicIdentity("c", "t", "pizzas")
TRACEBACK = """An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "transforms.py", line 7, in checked
    raise ValueError("no such shop")
ValueError: no such shop
"""


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    without_pauses(monkeypatch)
    return World()


def search(ends: dict[int, int], poison: set[tuple[int, int]]) -> Iterator[tuple[Plan, bool]]:
    """Give each attempt of a run and whether it worked, until the backlog is done."""
    position, found = Position(ME, dict.fromkeys(ends, 0)), Search()
    now = Watermarks(ME, dict.fromkeys(ends, 0), ends)
    while (todo := plan(position, now, {}, 1_000_000)) is not None:
        todo = found.next(todo)
        offsets = {(r.partition, o) for r in todo.ranges for o in range(r.start, r.end)}
        works = todo.undecodable is not None or not offsets & poison
        yield todo, works
        if works:
            found, position = found.done(todo, 0 if todo.undecodable else len(offsets)), todo.after
        else:
            found = found.failed(todo, "no")


@pytest.mark.slow
@given(
    st.dictionaries(st.integers(0, 2), st.integers(1, 300), min_size=1),
    st.sets(st.tuples(st.integers(0, 2), st.integers(0, 299)), max_size=6),
)
@settings(max_examples=200, deadline=None, derandomize=True, database=None)
def test_what_is_poisonous_is_set_apart_and_nothing_else(ends: dict[int, int], drawn: set[tuple[int, int]]) -> None:
    poison = {(p, o) for p, o in drawn if o < ends.get(p, 0)}
    done = [todo for todo, works in search(ends, poison) if works]
    apart = {(r.partition, o) for t in done if t.undecodable for r in t.ranges for o in range(r.start, r.end)}
    assert apart == poison
    read = [(r.partition, o) for todo in done for r in todo.ranges for o in range(r.start, r.end)]
    assert sorted(read) == [(p, o) for p in sorted(ends) for o in range(ends[p])]


@pytest.mark.slow
def test_one_record_among_a_million_is_found_in_some_forty_attempts() -> None:
    attempts = list(search({0: 1_000_000}, {(0, 700_001)}))
    assert len(attempts) <= 55
    assert [todo.ranges for todo, _ in attempts if todo.undecodable] == [(OffsetRange(0, 700_001, 700_002),)]


def test_a_replacement_is_parted_with_what_it_takes_away() -> None:
    ranges = (OffsetRange(0, 3, 9), OffsetRange(2, 0, 4))
    whole = Plan(ranges, Position(ME, {0: 20, 2: 20}), 7, "replace", ranges)
    half = Search().failed(whole, "no").next(whole)
    assert half.ranges == half.deletes == (OffsetRange(0, 3, 5), OffsetRange(2, 0, 3))
    assert (half.after, half.remaining) == (whole.after, 12)


def test_plans_that_read_nothing_are_not_parted() -> None:
    assert not can_be_parted(position_only(Position(ME, {0: 5})))
    assert not can_be_parted(Plan((), Position(ME, {0: 5}), 0, "dead_letter_replay"))


def test_records_that_fail_one_after_the_other_are_not_the_reason() -> None:
    with pytest.raises(EveryRecordFailsError, match="Topic pizzas: 10 records in a row failed one by one: no"):
        list(search({0: 500}, {(0, o) for o in range(500)}))


def test_a_real_run_sets_the_poisonous_apart(world: World) -> None:
    world.produce(0, [POISON if n in (0, 41, 42, 99) else "bad-0" if n == 7 else "good" for n in range(100)])
    assert world.run(Attempt()) is not None
    world.finish()
    assert world.violations == []
    assert sorted(record.offset for record in world.view(LETTERS).content()) == [0, 7, 41, 42, 99]
    assert len(world.view(TABLE).content()) == 96


@pytest.mark.parametrize(
    "error",
    [
        ValueError("x"),
        UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed"),
        RecursionError("x"),
        AnalysisException("[AMBIGUOUS_REFERENCE] Reference `a.b` is ambiguous"),
        PythonException(TRACEBACK),
        iceberg.ValidationError("two fields of one name"),
        py4j("org.apache.spark.SparkException: Lost task\nCaused by: java.lang.NullPointerException"),
        py4j("org.apache.spark.SparkException: Python worker exited unexpectedly\nCaused by: java.io.EOFException"),
        connect("org.apache.spark.SparkException", "[WRITING_JOB_ABORTED] Writing job aborted. SQLSTATE: 40000"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_a_record_may_have_done(error: Exception) -> None:
    assert may_be_a_record(error)


@pytest.mark.parametrize(
    "error",
    [
        AnalysisException("[UNRESOLVED_COLUMN] A column with name `observed` cannot be resolved."),
        errors.KafkaError("no answer"),
        errors.AuditFailedError("a gate"),
        errors.TableError("has rows"),
        ConnectionRefusedError(111, "refused"),
        OSError(28, "No space left on device"),
        MemoryError(),
        ImportError("no module"),
        iceberg.CommitFailedException("stale"),
        iceberg.ServerError("500"),
        grpc_error(grpc.StatusCode.UNAVAILABLE),
        py4j("org.apache.spark.SparkException: Lost task\nCaused by: java.lang.OutOfMemoryError: Java heap space"),
        py4j("org.apache.spark.SparkException: Lost task\nCaused by: java.io.IOException: No space left on device"),
        py4j("org.apache.spark.SparkException: Lost task\nCaused by: java.net.ConnectException: refused"),
        py4j("org.apache.spark.SparkException: Python didn't start\nCaused by: java.io.EOFException"),
        py4j("org.apache.spark.SparkException: Job aborted due to stage failure: ExecutorLostFailure (executor 1)"),
        py4j("java.util.concurrent.ExecutionException: org.apache.kafka.common.errors.TimeoutException: x"),
        py4j("org.apache.iceberg.exceptions.CommitFailedException: Cannot commit"),
        PythonException(TRACEBACK.replace("ValueError: no such shop", "ConnectionRefusedError: [Errno 111]")),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_no_record_has_done(error: Exception) -> None:
    assert not may_be_a_record(error)


@pytest.mark.parametrize("said", [py4j, lambda text: connect("org.apache.spark.SparkException", text)])
def test_a_time_that_overflows_may_be_a_record_s(said: Any) -> None:
    error = said("Job aborted due to stage failure: Task 0 in stage 3.0: java.lang.ArithmeticException: long overflow")
    assert may_be_a_record(error)
    assert may_be_a_record_time(error)
    assert not is_transient(error), "it fails each time"
    other = said("org.apache.spark.SparkArithmeticException: [ARITHMETIC_OVERFLOW] long overflow. SQLSTATE: 22003")
    assert not may_be_a_record_time(other)


def test_unreadable_records_are_read_by_the_client() -> None:
    whole = Plan((OffsetRange(0, 0, 1_000_000),), Position(ME, {0: 1_000_000}), 0)
    found = Search().unreadable(whole)
    first = found.next(whole)
    assert (first.by_client, first.ranges) == (True, (OffsetRange(0, 0, 20_000),))
    # Spark is asked again then, for more and more.
    later = found.done(first, 20_000).next(whole)
    assert (later.by_client, later.records_at_most) == (False, 160_000)


def test_a_bad_record_among_unreadable_ones_is_set_apart() -> None:
    two = Plan((OffsetRange(0, 0, 2),), Position(ME, {0: 2}), 0)
    found = Search().unreadable(two)
    for _ in range(3):
        found = found.failed(found.next(two), "no")
    alone = found.next(two)
    assert (alone.undecodable, alone.by_client, alone.ranges) == ("no", True, (OffsetRange(0, 0, 1),))
    assert not found.done(alone, 0).next(two).by_client


def test_what_a_python_worker_raised_is_the_first_line() -> None:
    assert headline(PythonException(TRACEBACK)) == "ValueError: no such shop"


SYSTEMS = [
    "pyspark.errors.exceptions.base.PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Worker: 3.10, driver: 3.11.",
    "pyarrow.lib.ArrowMemoryError: malloc of size 67108864 failed",
    "OSError: [Errno 5] Input/output error",
    "RuntimeError: can't start new thread",
    "requests.exceptions.ReadTimeout: HTTPSConnectionPool(host='api', port=443): Read timed out. (read timeout=5)",
    "requests.exceptions.HTTPError: 503 Server Error: Service Unavailable for url: https://api/x",
    "socket.gaierror: [Errno -2] Name or service not known",
    "http.client.RemoteDisconnected: Remote end closed connection without response",
    "psycopg2.OperationalError: server closed the connection unexpectedly",
]


@pytest.mark.parametrize("said", SYSTEMS)
def test_what_a_worker_says_of_its_machine_or_a_service_is_no_records_fault(said: str) -> None:
    assert not may_be_a_record(PythonException(TRACEBACK.replace("ValueError: no such shop", said)))


def test_a_record_that_fails_alone_is_tried_once_more_before_it_is_set_apart() -> None:
    one = Plan((OffsetRange(0, 5, 6),), Position(ME, {0: 6}), 0)
    first = Search().failed(one, "no")
    assert (first.found, first.next(one).undecodable) == (None, None)
    second = first.failed(one, "no")
    assert second.next(one).undecodable == "no"
    assert first.done(one, 1).failed(one, "no").found is None
