"""A value that compresses to next to nothing, and expands to more than the engine's memory."""

from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer

from kafka_lake.catalog.history import recorded_losses
from kafka_lake.devstack.servers import EmbeddedBroker
from kafka_lake.engine.jars import spark_jars
from kafka_lake.engine.server import ConnectMemory, ConnectServer
from kafka_lake.engine.settings import local_conf
from kafka_lake.errors import RecordTooLargeError
from kafka_lake.ingest.run import ingest, reset
from kafka_lake.orchestration.resources import CatalogResource, KafkaResource, SparkResource
from kafka_lake.runtime.context import Connections, RetryPolicy
from kafka_lake.spec.topic_table import TopicTable
from kafka_lake_tests.conftest import Topic, View
from kafka_lake_tests.supervised import supervised

pytestmark = [pytest.mark.e2e, pytest.mark.exhaustive, pytest.mark.timeout(600)]

SIZE = 300 * 1024 * 1024


def test_record_larger_than_the_engine_stops_its_partition_alone(
    broker: EmbeddedBroker,
    catalog_resource: CatalogResource,
    kafka_resource: KafkaResource,
    new_topic: Callable[..., Topic],
    view: Callable[[TopicTable], View],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic, deaths = new_topic(2), list[str]()
    topic.send_ids(range(10), 2)
    producer = Producer(
        {"bootstrap.servers": broker.bootstrap_servers, "message.max.bytes": 2 * SIZE, "compression.type": "gzip"}
    )
    producer.produce(topic.name, bytes(SIZE), partition=0)
    assert producer.flush(120) == 0
    topic.send({"id": 10}, 0)
    spec, see = topic.spec(), view(topic.spec())
    conf = local_conf(catalog_resource.open().for_spark(), "local[2]", spark_jars(), {})
    server = ConnectServer(tmp_path, conf=conf, memory=ConnectMemory("512m"))
    with supervised(server, deaths.append) as connect:
        monkeypatch.setenv("SPARK_REMOTE", connect.remote)
        # PySpark sets it with the first session; here it is taken back.
        monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")
        spark = SparkResource(spark_config={}, catalog=catalog_resource)
        connections = Connections(
            kafka_resource.cluster(),
            kafka_resource.spark_options(),
            catalog_resource.open(),
            spark.live_session,
            RetryPolicy(6, 1, 5),
        )
        try:
            with pytest.raises(RecordTooLargeError, match=f"partition 0 offset 5 has {SIZE:,} bytes") as error:
                ingest(spec, connections, "run-1")
            assert f"kafka-lake reset {topic.name} --to 0:6`" in error.value.remedy
            assert see.ids() == list(range(10))
            assert see.position() == {0: 5, 1: 5}
            assert sum("ended unexpectedly" in line for line in deaths) == 2, deaths
            topic.send({"id": 11}, 1)
            with pytest.raises(RecordTooLargeError, match="partition 0 offset 5"):
                ingest(spec, connections, "run-2")
            assert see.ids() == [*range(10), 11], "the other partition goes on"
            reset(spec, connections, "skip", "0:6")
            ingest(spec, connections, "run-3")
            assert see.ids() == list(range(12))
            assert [str(loss) for loss in recorded_losses(see.table)] == [
                f"topic {topic.name} partition 0 skipped offsets 5 to 5 by a reset"
            ]
            assert sum("ended unexpectedly" in line for line in deaths) == 2, deaths
        finally:
            spark.stop()
