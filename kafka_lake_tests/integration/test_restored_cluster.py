"""A cluster that is restored whole from an older copy: its ids and leader epochs are those that tables know."""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import uuid4

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from kafka_lake.catalog.history import recorded_losses
from kafka_lake.catalog.positions import read_state
from kafka_lake.common.offsets import Loss
from kafka_lake.devstack.servers import EmbeddedBroker
from kafka_lake.errors import DataLossError
from kafka_lake.ingest.run import ingest, replay, reset
from kafka_lake.orchestration.resources import CatalogResource, KafkaResource, SparkResource
from kafka_lake.runtime.context import Connections, Observer
from kafka_lake.runtime.plan import ReplayRange
from kafka_lake.spec.topic_table import TopicTable
from kafka_lake_tests.conftest import Topic, View
from kafka_lake_tests.transactions import await_transactions

pytestmark = pytest.mark.integration

NewView = Callable[[TopicTable], View]


@dataclass
class Restored:
    """A broker that was restored from an older copy after its topics had been ingested, and their tables' settings."""

    broker: EmbeddedBroker
    connections: Callable[[], Connections]
    topics: dict[str, Topic]

    def spec(self, name: str) -> TopicTable:
        return self.topics[name].spec()


def transaction(broker: EmbeddedBroker, topic: Topic, ids: range) -> None:
    """Produce the records of a transaction, and wait for its marker, which takes an offset."""
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": topic.name, "log_level": 0})
    producer.init_transactions(30)
    producer.begin_transaction()
    for identifier in ids:
        producer.produce(topic.name, b'{"id": %d}' % identifier, partition=0)
    producer.commit_transaction(30)
    await_transactions(broker.bootstrap_servers, {topic.name: 1})


@pytest.fixture(scope="module")
def restored(
    tmp_path_factory: pytest.TempPathFactory, catalog_resource: CatalogResource, spark_resource: SparkResource
) -> Iterator[Restored]:
    """Give a broker whose topics had two partitions, or one, of which the copy lacks some records; more came since."""
    with EmbeddedBroker(tmp_path_factory.mktemp("restored"), heap="256m") as broker:
        kafka = KafkaResource(properties={"bootstrap.servers": broker.bootstrap_servers})
        address = {"bootstrap.servers": broker.bootstrap_servers, "log_level": 0}

        def connections() -> Connections:
            session = spark_resource.spark_session
            return Connections(kafka.cluster(), kafka.spark_options(), catalog_resource.open(), lambda: session)

        names = ("refused", "accepted", "transactions", "untouched", "shorter")
        topics = {
            name: Topic(
                f"restored-{name}", f"restored_{name}_{uuid4().hex[:6]}", AdminClient(address), Producer(address)
            )
            for name in names
        }
        found = Restored(broker, connections, topics)
        for name, topic in topics.items():
            topic.create(2 if name == "refused" else 1)
            if name == "transactions":
                transaction(broker, topic, range(4))
            else:
                topic.send_ids(range(8), topic.partitions())
        copy = _stopped_copy(broker)
        for name, topic in topics.items():
            if name == "transactions":
                transaction(broker, topic, range(100, 103))
            elif name != "untouched":
                topic.send_ids(range(100, 103))
            ingest(found.spec(name), connections(), "before")
        broker.stop()
        shutil.rmtree(broker.folder / "logs")
        shutil.copytree(copy, broker.folder / "logs")
        broker.start()
        for name, topic in topics.items():
            if name == "transactions":
                transaction(broker, topic, range(200, 208))
            else:
                topic.send_ids(range(200, 201 if name == "shorter" else 208))
        yield found


def _stopped_copy(broker: EmbeddedBroker) -> Path:
    broker.stop()
    copy = broker.folder / "copy"
    shutil.copytree(broker.folder / "logs", copy)
    broker.start()
    return copy


def test_restored_log_is_refused_until_losses_are_accepted(restored: Restored, view: NewView) -> None:
    spec = restored.spec("refused")
    see, before = view(spec), view(spec).fingerprint()
    with pytest.raises(DataLossError, match="partition 0 was replaced: its record at offset 6 is not the one") as error:
        ingest(spec, restored.connections(), "refused")
    assert "reset restored-refused --to earliest --partitions 0`" in error.value.remedy
    with pytest.raises(
        DataLossError, match="would replace rows of other records: partition 0 was replaced: its record at offset 6"
    ):
        replay(spec, restored.connections(), "replay", ReplayRange())
    assert see.fingerprint() == before
    ingest(spec, restored.connections(), "other-partition", partitions=[1])
    replay(spec, restored.connections(), "replay-of-other", ReplayRange(partitions=frozenset({1})))
    accepting = replace(spec, on_data_loss="continue")
    report = ingest(accepting, restored.connections(), "accepted")
    losses = [Loss(0, 6, 7, "replaced", spec.topic)]
    assert recorded_losses(see.table) == losses
    (found,) = [finding for finding in report.commits[0].findings if finding.check == "data_loss"]
    assert found.problems == (str(losses[0]),)
    assert see.ids() == [*range(8), *range(100, 103), *range(203, 208)]
    restored.topics["refused"].send_ids([300])
    ingest(spec, restored.connections(), "as-ever")
    assert 300 in see.ids()


def test_reset_accepts_a_restored_log(restored: Restored, view: NewView) -> None:
    spec, see = restored.spec("accepted"), view(restored.spec("accepted"))
    with pytest.raises(DataLossError, match="replaced"):
        ingest(spec, restored.connections(), "refused")
    assert len(reset(spec, restored.connections(), "agreed", "0:11").commits) == 1
    assert reset(spec, restored.connections(), "again", "0:11").commits == []
    ingest(spec, restored.connections(), "goes-on")
    assert see.ids() == [*range(8), *range(100, 103), *range(203, 208)]
    reset(spec, restored.connections(), "all", "earliest")
    ingest(spec, restored.connections(), "anew")
    assert see.ids() == [*range(8), *range(200, 208)]


@pytest.mark.exhaustive
def test_restored_log_of_transactions_is_refused(restored: Restored, view: NewView) -> None:
    spec = restored.spec("transactions")
    with pytest.raises(DataLossError, match="partition 0 was replaced: its record at offset 7 is not the one"):
        ingest(spec, restored.connections(), "refused")
    reset(spec, restored.connections(), "all", "earliest")
    ingest(spec, restored.connections(), "anew")
    assert view(spec).ids() == [*range(4), *range(200, 208)]


def test_restored_log_without_lost_records_goes_on(restored: Restored, view: NewView) -> None:
    spec = restored.spec("untouched")
    warned: list[str] = []
    ingest(spec, restored.connections(), "goes-on", observer=Observer(warn=warned.append))
    assert warned == []
    assert view(spec).ids() == [*range(8), *range(200, 208)]
    position = read_state(view(spec).table).position
    assert position is not None
    assert position.last[0].offset == 15
    assert "200" not in str(position.last)


def test_restored_log_that_is_shorter_is_refused(restored: Restored) -> None:
    with pytest.raises(DataLossError, match="partition 0 was truncated at 9, before the table's position 11"):
        ingest(restored.spec("shorter"), restored.connections(), "refused")
    with pytest.raises(DataLossError, match="partition 0 was truncated at 9, before the table's position 11"):
        replay(restored.spec("shorter"), restored.connections(), "replay", ReplayRange())
