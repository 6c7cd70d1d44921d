"""A broker that loses its last writes, and goes on: offsets that the table has read mean other records since."""

import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from kafka_lake.catalog.positions import LOSSES, head_of, read_state, summary_of
from kafka_lake.common.offsets import Loss, Position, Watermarks, losses_from_json
from kafka_lake.devstack.servers import EmbeddedBroker
from kafka_lake.errors import DataLossError
from kafka_lake.ingest.run import ingest, reset
from kafka_lake.kafka.cluster import KafkaCluster
from kafka_lake.orchestration.resources import KafkaResource
from kafka_lake.runtime.context import Connections
from kafka_lake.spec.topic_table import TopicTable
from kafka_lake_tests.chaos.brokers import Brokers
from kafka_lake_tests.conftest import Topic, View

pytestmark = pytest.mark.integration

NewView = Callable[[TopicTable], View]


class Forgetful:
    """A broker of its own, with a topic; both as they were can be brought back as a power cut would."""

    def __init__(self, broker: EmbeddedBroker, topic: Topic, connections: Callable[[], Connections]) -> None:
        self.broker, self.topic, self.connections = broker, topic, connections
        self._log = broker.folder / "logs" / f"{topic.name}-0"
        self._kept = broker.folder / f"kept-{topic.name}"

    def remember(self) -> None:
        """Take what the broker has by now for what has reached the disk."""
        shutil.copytree(self._log, self._kept)

    def lose(self) -> None:
        """Cut the power: what came since is lost, and the broker starts again with what it has."""
        self.broker.kill()
        shutil.rmtree(self._log)
        shutil.copytree(self._kept, self._log)
        self.broker.start()


@pytest.fixture(scope="module")
def own_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(tmp_path_factory.mktemp("forgetful"), heap="256m") as running:
        yield running


@pytest.fixture
def forgetful(
    own_broker: EmbeddedBroker, connections: Callable[[], Connections], request: pytest.FixtureRequest
) -> Forgetful:
    address = {"bootstrap.servers": own_broker.bootstrap_servers, "log_level": 0}
    name = request.node.name.removeprefix("test_")[:60]
    topic = Topic(name.replace("_", "-"), name, AdminClient(address), Producer({**address, "linger.ms": 0}))
    topic.create()
    kafka = KafkaResource(properties={"bootstrap.servers": own_broker.bootstrap_servers})

    def fresh() -> Connections:
        return replace(connections(), cluster=kafka.cluster(), kafka_options=kafka.spark_options())

    return Forgetful(own_broker, topic, fresh)


def cut_at_three_and_grown_to_eight(
    forgetful: Forgetful,
    spec: TopicTable,
    lost: Sequence[Any] = ({"id": 3}, {"id": 4}),
    instead: Sequence[Any] = tuple({"id": number} for number in range(100, 105)),
) -> list[Any]:
    """Fill the tables with five records, of which the broker loses two and gets five others instead."""
    forgetful.topic.send_ids(range(3))
    forgetful.remember()
    for value in lost:
        forgetful.topic.send(value)
    ingest(spec, forgetful.connections(), "before")
    forgetful.lose()
    return [forgetful.topic.send(value) for value in instead]


def test_records_behind_a_cut_are_not_missed_in_silence(forgetful: Forgetful, view: NewView) -> None:
    spec = forgetful.topic.spec()
    later = cut_at_three_and_grown_to_eight(forgetful, spec)
    assert later[-1].place == (0, 7)
    with pytest.raises(DataLossError, match="partition 0 was truncated at 3, before the table's position 5"):
        ingest(spec, forgetful.connections(), "refused")
    assert view(spec).ids() == [0, 1, 2, 3, 4]
    ingest(replace(spec, on_data_loss="continue"), forgetful.connections(), "goes-on")
    assert view(spec).ids() == [0, 1, 2, 3, 4, *range(100, 105)]
    table = view(spec).table
    head = table.metadata.snapshot_by_id(head_of(table) or 0)
    assert head is not None
    assert losses_from_json(summary_of(head)[LOSSES]) == [Loss(0, 3, 5, "truncated", spec.topic)]
    forgetful.topic.send({"id": 105})
    ingest(spec, forgetful.connections(), "as-ever")
    assert view(spec).ids() == [0, 1, 2, 3, 4, *range(100, 106)]


@pytest.mark.exhaustive
def test_reset_to_same_offset_accepts_a_truncated_log(forgetful: Forgetful, view: NewView) -> None:
    spec = forgetful.topic.spec()
    cut_at_three_and_grown_to_eight(forgetful, spec)
    with pytest.raises(DataLossError):
        ingest(spec, forgetful.connections(), "refused")
    assert len(reset(spec, forgetful.connections(), "agreed", "0:5").commits) == 1
    ingest(spec, forgetful.connections(), "goes-on")
    assert view(spec).ids() == [0, 1, 2, 3, 4, 102, 103, 104]


@pytest.mark.exhaustive
def test_log_regrown_to_just_before_position_is_refused(forgetful: Forgetful, view: NewView) -> None:
    """What came at once after the cut is there, though the log ends before the position."""
    spec = forgetful.topic.spec(on_data_loss="continue")
    forgetful.topic.send_ids(range(3))
    forgetful.remember()
    forgetful.topic.send_ids([3, 4, 5])
    ingest(spec, forgetful.connections(), "before")
    forgetful.lose()
    forgetful.topic.send_ids([100, 101])
    ingest(spec, forgetful.connections(), "goes-on")
    assert view(spec).ids() == [0, 1, 2, 3, 4, 5, 100, 101]


@pytest.mark.exhaustive
def test_another_leader_with_the_same_log_is_nothing_to_stop_at(forgetful: Forgetful, view: NewView) -> None:
    spec = forgetful.topic.spec()
    forgetful.topic.send_ids(range(3))
    ingest(spec, forgetful.connections(), "before")
    first = read_state(view(spec).table).position
    forgetful.broker.kill()
    forgetful.broker.start()
    forgetful.topic.send_ids([3])
    ingest(spec, forgetful.connections(), "after")
    assert view(spec).ids() == [0, 1, 2, 3]
    last = read_state(view(spec).table).position
    assert first is not None
    assert last is not None
    assert last.epochs[0] > first.epochs[0]


@pytest.mark.exhaustive
def test_unclean_election_of_three_brokers_is_noticed(tmp_path: Path) -> None:
    with Brokers(tmp_path / "brokers", 3) as brokers:
        admin = brokers.admin()
        lossy = {"unclean.leader.election.enable": "true", "min.insync.replicas": "1"}
        admin.create_topics([NewTopic("orders", 1, replica_assignment=[[1, 2]], config=lossy)])["orders"].result(30)

        def replicas() -> tuple[int, list[int]]:
            try:
                found = brokers.admin().list_topics("orders", timeout=5).topics["orders"].partitions[0]
            except (KafkaException, KeyError):
                # A broker that doesn't answer, or doesn't know the new topic yet.
                return -1, []
            return found.leader, sorted(found.isrs)

        def send(count: int) -> None:
            producer = Producer({"bootstrap.servers": brokers.bootstrap_servers, "log_level": 0})
            for _ in range(count):
                producer.produce("orders", b"a pizza", partition=0)
            assert producer.flush(30) == 0

        def reported() -> Watermarks:
            return KafkaCluster({"bootstrap.servers": brokers.bootstrap_servers}).watermarks_of("orders")

        Topic.wait_for(lambda: replicas() == (1, [1, 2]), 30)
        send(5)
        # A replica that doesn't know what was committed can't tell where it ends, once it leads.
        checkpoint = tmp_path / "brokers" / "node-2" / "logs" / "replication-offset-checkpoint"
        Topic.wait_for(lambda: "orders 0 5" in checkpoint.read_text().splitlines(), 30)
        brokers.kill(2)
        Topic.wait_for(lambda: replicas() == (1, [1]), 30)
        send(3)
        before = reported()
        assert before.end == {0: 8}
        brokers.kill(1)
        brokers.begin(2)
        Topic.wait_for(lambda: replicas() == (2, [2]), 60)
        send(6)
        now = reported()
        assert now.end == {0: 11}
        assert now.epochs[0] > before.epochs[0]
        cluster = KafkaCluster({"bootstrap.servers": brokers.bootstrap_servers})
        assert cluster.cut_off(Position(before.identity, before.end, before.epochs), [0]) == {0: 5}
        assert cluster.cut_off(Position(before.identity, {0: 5}, before.epochs), [0]) == {}


OLD_JUNK = (b"old junk 3", b"old junk 4")


@pytest.mark.exhaustive
def test_dead_letters_of_records_behind_a_cut_are_added(forgetful: Forgetful, view: NewView) -> None:
    spec = forgetful.topic.spec(on_data_loss="continue")
    cut_at_three_and_grown_to_eight(forgetful, spec, OLD_JUNK, [b"NEW junk %d" % n for n in range(3, 8)])
    ingest(spec, forgetful.connections(), "goes-on")
    values = sorted(bytes(r["value"]) for r in view(spec).dead_letters())
    assert {b"NEW junk 3", b"NEW junk 4"} <= set(values)
    assert set(OLD_JUNK) <= set(values)


@pytest.mark.exhaustive
def test_dead_letters_from_behind_a_cut_stay(forgetful: Forgetful, view: NewView) -> None:
    spec = forgetful.topic.spec(on_data_loss="continue")
    cut_at_three_and_grown_to_eight(forgetful, spec, OLD_JUNK, [{"id": number} for number in range(103, 108)])
    ingest(spec, forgetful.connections(), "goes-on")
    forgetful.topic.send_ids([108])
    ingest(spec, forgetful.connections(), "next")
    values = sorted(bytes(r["value"]) for r in view(spec).dead_letters())
    assert view(spec).ids() == [0, 1, 2, *range(103, 109)]
    assert values == list(OLD_JUNK)
