"""Generated records through a real broker and real Spark into real tables, read back and with_errors by the oracle."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from kafka_lake.ingest.run import ingest
from kafka_lake.runtime.context import Connections
from kafka_lake.spec.topic_table import TopicTable
from kafka_lake_tests.conftest import Topic, View
from kafka_lake_tests.exhaustive import exhaustive
from kafka_lake_tests.fuzz.generate import CORPUS, payload, tame_payload
from kafka_lake_tests.fuzz.oracle import Letter, Reported, Row, empty, judge
from kafka_lake_tests.fuzz.tables import as_pyiceberg_reads, columns_of, rows_of
from kafka_lake_tests.written_by import by

pytestmark = pytest.mark.integration

NewTopic = Callable[..., Topic]
NewConnections = Callable[..., Connections]
NewView = Callable[[TopicTable], View]

SEED = 20261122
BATCHES = (20, 10)
STRUCT = "struct<a: bigint, b: string, c: struct<d: double>>"
DDL = (
    "bo boolean, i int, l bigint, f float, d double, de decimal(9,2), d0 decimal(38,0), t string, bi binary, da date, "
    f"ts timestamp, tn timestamp_ntz, li array<bigint>, lt array<string>, m map<string, double>, st {STRUCT}, "
    f"ls array<{STRUCT}>"
)
# Arrow's parser takes no record of a topic that has a float, binary or map column.
TAME_DDL = (
    "bo boolean, i int, l bigint, d double, t string, da date, ts timestamp, "
    f"tn timestamp_ntz, li array<bigint>, lt array<string>, st {STRUCT}, ls array<{STRUCT}>"
)

SHORT = ("inferred",)
TAME = "declared, tame"
TOPICS: dict[str, dict[str, Any]] = {
    "inferred": {"schema": None},
    "inferred, with times": {"schema": None, "infer_timestamps": True},
    "new columns": {"schema": None, "on_incompatible": "new_column"},
    "declared": {"schema": DDL},
    "declared, sorted": {"schema": DDL, "sort_by": ("l",)},
    TAME: {"schema": TAME_DDL},
}


def produce(topic: Topic, contents: Sequence[bytes]) -> dict[tuple[int, int], bytes]:
    """Send values to two partitions in turns; return them by partition and offset."""
    sent: dict[tuple[int, int], bytes] = {}

    def delivered(error: Any, message: Any) -> None:
        assert error is None, error
        sent[message.partition(), message.offset()] = message.value()

    for number, content in enumerate(contents):
        topic.producer.produce(topic.name, content, partition=number % 2, on_delivery=delivered)
    assert topic.producer.flush(20) == 0
    return sent


@pytest.mark.parametrize("name", [name if name in SHORT else exhaustive(name) for name in TOPICS])
def test_every_value_is_in_the_table_or_in_a_dead_letter(
    name: str, new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic, start, settings = new_topic(2), 0, TOPICS[name]
    make = tame_payload if name == TAME else payload
    spec = topic.spec(**settings)
    see, made = view(spec), connections()
    declared = settings["schema"] is not None
    # What is empty has no column before it has a type, and a declared schema says what matters.
    reported = Reported(lambda path, value: empty(value), lambda path: True, not declared, lambda path: True)
    before: set[tuple[int, int]] = set()
    for number, count in enumerate(BATCHES):
        contents = [make(SEED, index) for index in range(start, start + count)]
        sent = produce(topic, [*contents, *CORPUS.values()] if number else contents)
        ingest(spec, made, f"run-{number}")
        start += count
        rows = rows_of(made.spark().table(made.catalog.spark_name(spec.identifier)).toArrow())
        also = rows_of(see.table.scan().to_arrow())
        assert as_pyiceberg_reads({place: row.values for place, row in rows.items()}) == as_pyiceberg_reads(
            {place: row.values for place, row in also.items()}
        )
        letters = {(r["partition"], r["offset"]): Letter(r["error_class"]) for r in see.dead_letters()}
        # The corpus is misfits for the most part; with declared columns each dead letter is with_errors, too.
        assert len(rows) > (len(before) + len(sent)) // 3
        assert {letter.error_class for letter in letters.values()} <= {"not_json", "too_deep", "wrong_type"}
        assert sorted([*rows, *letters]) == sorted([*before, *sent])
        # By the columns of its own time: one that is younger than a record holds nothing of it.
        columns = columns_of(see.table)
        with_errors: dict[tuple[int, int], Row | Letter] = {**rows, **(letters if declared else {})}
        wrong = [
            f"{place}: {problem}"
            for place in sent.keys() & with_errors.keys()
            for problem in judge(sent[place], columns, with_errors[place], reported)
        ]
        assert wrong == []
        before |= sent.keys()


@pytest.mark.parametrize("name", [exhaustive(name) for name in ("declared", TAME)])
def test_rows_after_a_transform_are_those_of_the_topic(
    name: str, new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic, made = new_topic(2), connections()
    make = tame_payload if name == TAME else payload
    plain = topic.spec(**TOPICS[name])
    transformed = replace(plain, table=f"{plain.table}_transformed", **by(False))
    sent = 0
    for number, count in enumerate(BATCHES):
        contents = [make(SEED, sent + index) for index in range(count)]
        produce(topic, [*contents, *CORPUS.values()] if number else contents)
        sent += count
        for spec in (plain, transformed):
            ingest(spec, made, f"run-{number}")
    written, other = (rows_of(view(spec).table.scan().to_arrow()) for spec in (plain, transformed))
    assert len(written) > sent // 3
    assert written == other
    letters, others = (
        {(r["partition"], r["offset"], r["error_class"]) for r in view(spec).dead_letters()}
        for spec in (plain, transformed)
    )
    assert letters == others
