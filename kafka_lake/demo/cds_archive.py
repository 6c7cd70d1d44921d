"""Has Spark do once, on a broker and a table that are gone afterwards, what runs do: its start is cheaper from then on.

Java writes down the classes that were loaded meanwhile; `kafka_lake.spark.class_archive` says what for. Takes a minute,
once per version of Java, of PySpark and of the jars: ``python -m kafka_lake.demo.cds_archive``.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil

from kafka_lake.components.resources.catalog import CatalogResource
from kafka_lake.components.resources.kafka import KafkaResource
from kafka_lake.components.resources.spark import SparkResource
from kafka_lake.demo.orders import OrderProducer, produce_orders
from kafka_lake.demo.topics import ensure_topic
from kafka_lake.errors import KafkaLakeError
from kafka_lake.ingest.connections import Connections
from kafka_lake.ingest.run import ingest
from kafka_lake.ingest.topic_table import TopicTable
from kafka_lake.lake.catalog import LakeCatalog
from kafka_lake.local_stack.broker import EmbeddedBroker
from kafka_lake.spark.class_archive import class_archive, training_options
from kafka_lake.spark.connect import JVM_OPTIONS, ConnectServer
from kafka_lake.spark.jars import jars_classpath, spark_jars
from kafka_lake.spark.settings import local_conf

_TOPIC = "cds-archive"
_ORDERS = 1_000
_SCHEMA = "order_id bigint, store_id int, date_ordered timestamp, sauce string, meats array<string>"
_DUMP_SECONDS = 300
_KEPT = 3


def make_archive(tell_user: Callable[[str], None]) -> Path:
    """Return the archive of Spark's classes, after making it if there is none."""
    archive = class_archive(jars_classpath("spark"))
    if archive.is_file():
        return archive
    tell_user("Storing Spark's classes, so that it starts in a third less time (once; takes a minute)")
    archive.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=archive.parent) as scratch:
        written = Path(scratch, archive.name)
        _train(Path(scratch), written)
        if not written.is_file():
            raise KafkaLakeError("Java wrote no archive of Spark's classes.", "Everything works without it, slower.")
        written.replace(archive)
    _forget_all_but_the_newest(archive.parent)
    return archive


def _forget_all_but_the_newest(folder: Path) -> None:
    # Each is a quarter of a gigabyte, and of one virtual environment.
    by_age = sorted(folder.glob("*.jsa"), key=lambda archive: archive.stat().st_mtime)
    for archive in by_age[:-_KEPT]:
        archive.unlink()


def _train(folder: Path, archive: Path) -> None:
    properties = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/warehouse"}
    catalog = LakeCatalog("lake", properties)
    extra = {"spark.driver.extraJavaOptions": f"{JVM_OPTIONS} {training_options(archive)}"}
    conf = local_conf(catalog.for_spark(), "local[2]", spark_jars(), extra)
    with EmbeddedBroker(folder / "kafka") as broker, ConnectServer(folder / "connect", conf=conf) as server:
        ensure_topic(broker.bootstrap_servers, _TOPIC, 2)
        produce_orders(broker.bootstrap_servers, _TOPIC, _ORDERS, seed=1)
        producer = OrderProducer(broker.bootstrap_servers, _TOPIC)
        producer.send("0", "no order")
        producer.flush()
        with _engine(server.remote):
            _ingest(broker.bootstrap_servers, catalog)
        java = psutil.Process(server.pid)
        java.terminate()
        psutil.wait_procs([java], _DUMP_SECONDS)


@contextmanager
def _engine(remote: str) -> Iterator[None]:
    before = os.environ.get("SPARK_REMOTE")
    os.environ["SPARK_REMOTE"] = remote
    try:
        yield
    finally:
        del os.environ["SPARK_REMOTE"]
        if before is not None:
            os.environ["SPARK_REMOTE"] = before


def _ingest(bootstrap: str, catalog: LakeCatalog) -> None:
    kafka = KafkaResource(properties={"bootstrap.servers": bootstrap})
    spark = SparkResource(spark_config={}, catalog=CatalogResource(name="lake"))
    connections = Connections(kafka.cluster(), kafka.spark_options(), catalog, spark.live_session)
    try:
        # Spark writes tables of format version 3.
        for table, version in (("by_arrow", "2"), ("by_spark", "3")):
            spec = TopicTable(_TOPIC, _TOPIC, table, schema=_SCHEMA, table_properties={"format-version": version})
            ingest(spec, connections, table)
    finally:
        spark.stop()


def main() -> None:
    """Make the archive, with progress on standard output; without it all goes on, so that a failure is only said."""
    try:
        print(f"Spark's classes: {make_archive(lambda line: print(line, flush=True))}")
    except KafkaLakeError as error:
        print(f"Spark's classes were not stored: {error}")


if __name__ == "__main__":
    main()
