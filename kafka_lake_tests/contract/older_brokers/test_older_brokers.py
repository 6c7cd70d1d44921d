"""A whole ingest from brokers of earlier versions, and what is told of a topic that isn't the same any more."""

import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from kafka_lake.catalog.positions import read_state
from kafka_lake.errors import DataLossError, TopicReplacedError
from kafka_lake.ingest.run import ingest
from kafka_lake.orchestration.resources import KafkaResource
from kafka_lake.runtime.context import Connections
from kafka_lake.spec.topic_table import TopicTable
from kafka_lake_tests.conftest import Topic, View
from kafka_lake_tests.contract.older_brokers.brokers import Kafka28, Kafka39
from kafka_lake_tests.transactions import await_transactions

pytestmark = [pytest.mark.integration, pytest.mark.contract, pytest.mark.timeout(900)]

NewView = Callable[[TopicTable], View]


@pytest.fixture(scope="module", params=[Kafka39, Kafka28])
def older(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka39 | Kafka28]:
    with request.param(tmp_path_factory.mktemp(request.param.__name__)) as running:
        yield running


@pytest.fixture
def topic(older: Kafka39 | Kafka28) -> Topic:
    address = {"bootstrap.servers": older.bootstrap_servers, "log_level": 0}
    name = f"orders_{uuid.uuid4().hex[:6]}"
    topic = Topic(name.replace("_", "-"), name, AdminClient(address), Producer({**address, "linger.ms": 0}))
    topic.create(2)
    return topic


@pytest.fixture
def fresh(older: Kafka39 | Kafka28, connections: Callable[..., Connections]) -> Callable[[], Connections]:
    kafka = KafkaResource(properties={"bootstrap.servers": older.bootstrap_servers})
    return lambda: replace(connections(), cluster=kafka.cluster(), kafka_options=kafka.spark_options())


def send_in_transaction(older: Kafka39 | Kafka28, topic: Topic, ids: list[int], commit: bool) -> None:
    producer = Producer({"bootstrap.servers": older.bootstrap_servers, "transactional.id": uuid.uuid4().hex})
    producer.init_transactions(60)
    producer.begin_transaction()
    for identifier in ids:
        producer.produce(topic.name, b'{"id": %d}' % identifier, partition=0)
    producer.flush(30)
    producer.commit_transaction(60) if commit else producer.abort_transaction(60)
    await_transactions(older.bootstrap_servers, {topic.name: topic.partitions()})


def test_old_broker_delivers_committed_records_once(
    older: Kafka39 | Kafka28, topic: Topic, fresh: Callable[[], Connections], view: NewView
) -> None:
    spec = topic.spec()
    topic.send_ids(range(10), 2)
    ingest(spec, fresh(), "run-1")
    view(spec).assert_exactly_once(topic.ledger)
    send_in_transaction(older, topic, [100, 101], commit=True)
    send_in_transaction(older, topic, [666], commit=False)
    topic.send_ids(range(10, 14), 2)
    ingest(spec, fresh(), "run-2")
    assert view(spec).ids() == [*range(14), 100, 101]
    assert not view(spec).dead_letters()
    position = read_state(view(spec).table).position
    assert position is not None
    assert position.identity.cluster_id
    assert position.identity.topic_id, "these brokers tell who a topic is"
    assert position.epochs.keys() == {0, 1}, "and each leader's epoch"


def created(topic: Topic) -> bool:
    """Create a topic, unless ZooKeeper still has the one that has just been deleted."""
    try:
        topic.create(2)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise
        return False
    return True


def test_a_topic_that_was_recreated_is_refused(topic: Topic, fresh: Callable[[], Connections], view: NewView) -> None:
    spec = topic.spec()
    topic.send_ids(range(4), 2)
    ingest(spec, fresh(), "run-1")
    before = view(spec).fingerprint()
    topic.delete()
    topic.wait_for(lambda: created(topic))
    topic.send_ids(range(50, 60), 2)
    with pytest.raises(TopicReplacedError, match="its topic id differs"):
        ingest(spec, fresh(), "run-2")
    assert view(spec).fingerprint() == before


def test_records_that_kafka_lost_stop_the_run_and_are_named(
    topic: Topic, fresh: Callable[[], Connections], view: NewView
) -> None:
    spec = topic.spec()
    topic.send_ids([0, 1])
    ingest(spec, fresh(), "run-1")
    topic.send_ids([2, 3, 4])
    cut = TopicPartition(topic.name, 0, 4)
    topic.admin.delete_records([cut])[cut].result(30)
    with pytest.raises(DataLossError, match="partition 0 lost offsets 2 to 3 to retention"):
        ingest(spec, fresh(), "run-2")
    ingest(replace(spec, on_data_loss="continue"), fresh(), "run-3")
    assert view(spec).ids() == [0, 1, 4]
