"""A record that makes its batch fail for no known reason is found and becomes a dead letter; the others are rows."""

from collections.abc import Callable

import pytest
from pyspark.errors import AnalysisException

from kafka_lake.errors import EveryRecordFailsError
from kafka_lake.ingest.run import ingest, replay, replay_dead_letters
from kafka_lake.runtime.context import Connections, Observer
from kafka_lake.runtime.plan import ReplayRange
from kafka_lake.spec.topic_table import TopicTable
from kafka_lake_tests.conftest import Topic, View

pytestmark = pytest.mark.integration

NewTopic = Callable[..., Topic]
NewConnections = Callable[..., Connections]
NewView = Callable[[TopicTable], View]

TRANSFORMS = "kafka_lake_tests.integration.transforms"


def fast(topic: Topic, ids: range, partitions: int) -> None:
    for identifier in ids:
        topic.producer.produce(topic.name, b'{"id": %d}' % identifier, partition=identifier % partitions)
    assert topic.producer.flush(20) == 0


@pytest.mark.exhaustive
def test_one_poisonous_record_of_thousand_is_a_dead_letter(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic, said = new_topic(2), list[str]()
    fast(topic, range(1000), 2)
    spec = topic.spec(transform=f"{TRANSFORMS}:raises_at_seven_hundred")
    report = ingest(spec, connections(), "run-1", observer=Observer(warn=said.append))
    see = view(spec)
    assert see.ids() == [number for number in range(1000) if number != 700]
    (letter,) = see.dead_letters()
    assert (letter["partition"], letter["offset"], letter["value"]) == (0, 350, b'{"id": 700}')
    assert letter["error_class"] == "undecodable"
    assert letter["error_message"] == "ValueError: seven hundred is more than anybody can bear"
    assert {c.name: c.count for c in report.classes()} == {"undecodable": 1}
    assert "partition 0 offset 350 makes its batch fail: ValueError: seven hundred" in said[-1]
    assert see.position() == {0: 500, 1: 500}
    see.assert_no_branches()
    # A transform that has been mended takes the letter.
    done = replay_dead_letters(topic.spec(), connections(), "run-2")
    assert (done.moved, done.remaining) == (1, 0)
    assert see.ids() == list(range(1000))


def test_a_poisonous_first_record_of_a_topic_blocks_nothing(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic()
    fast(topic, range(700, 701), 1)
    spec = topic.spec(transform=f"{TRANSFORMS}:raises_at_seven_hundred")
    ingest(spec, connections(), "run-1")
    assert [r["error_class"] for r in view(spec).dead_letters()] == ["undecodable"]
    fast(topic, range(3), 1)
    ingest(spec, connections(), "run-2")
    assert view(spec).ids() == [0, 1, 2]


@pytest.mark.exhaustive
def test_a_replay_isolates_too(new_topic: NewTopic, connections: NewConnections, view: NewView) -> None:
    topic = new_topic()
    fast(topic, range(690, 710), 1)
    ingest(topic.spec(), connections(), "run-1")
    spec = topic.spec(transform=f"{TRANSFORMS}:raises_at_seven_hundred")
    replay(spec, connections(), "run-2", ReplayRange())
    assert view(spec).ids() == [number for number in range(690, 710) if number != 700]
    assert [r["offset"] for r in view(spec).dead_letters()] == [10]
    assert view(spec).position() == {0: 20}


@pytest.mark.exhaustive
def test_an_error_that_every_record_raises_is_not_the_records(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic()
    fast(topic, range(40), 1)
    spec = topic.spec(transform=f"{TRANSFORMS}:raises_always")
    with pytest.raises(EveryRecordFailsError, match="10 records in a row failed one by one: ValueError: no 10 today"):
        ingest(spec, connections(), "run-1", observer=Observer(warn=print))
    assert len(view(spec).dead_letters()) == 10
    assert view(spec).rows() == []


def test_system_failure_is_never_a_dead_letter(new_topic: NewTopic, connections: NewConnections, view: NewView) -> None:
    topic = new_topic()
    fast(topic, range(40), 1)
    spec = topic.spec(transform=f"{TRANSFORMS}:cannot_connect")
    with pytest.raises(Exception, match="nobody answers"):
        ingest(spec, connections(), "run-1", observer=Observer(warn=print))
    # A first run that fails takes its tables with it.
    assert connections().catalog.table(spec.identifier) is None
    assert connections().catalog.table(spec.dead_letter_table) is None


def test_transform_of_missing_column_stops_the_run(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic()
    fast(topic, range(3), 1)
    spec = topic.spec("other bigint", transform=f"{TRANSFORMS}:with_tenfold")
    with pytest.raises(AnalysisException, match="`id` cannot be resolved"):
        ingest(spec, connections(), "run-1")
    assert view(spec).dead_letters() == []
