"""``python -m benchmarks.verify_table``: how long it takes to verify a table, beside its ingest, in one process."""

import json
import resource
import time
from typing import Annotated

import typer

from benchmarks.data import SMALL, fill
from benchmarks.ours import Engine, catalog_in
from benchmarks.throughput import scratch
from kafka_lake.devstack.servers import EmbeddedBroker
from kafka_lake.ingest.run import ingest
from kafka_lake.orchestration.resources import KafkaResource, SparkResource
from kafka_lake.runtime.context import Connections
from kafka_lake.spec.topic_table import TopicTable
from kafka_lake.verify.run import verify


def main(
    records: Annotated[int, typer.Option(min=1000)] = 10_000_000,
    sample: Annotated[float, typer.Option(min=0, max=1)] = 0.01,
) -> None:
    """Fill a topic, ingest it, verify its table, and print seconds and CPU seconds as JSON."""
    with scratch() as folder, EmbeddedBroker(folder / "broker", heap="512m") as broker:
        fill(broker.bootstrap_servers, SMALL, records)
        kafka = KafkaResource(properties={"bootstrap.servers": broker.bootstrap_servers})
        catalog = catalog_in(folder)
        spark = SparkResource(spark_config=Engine().spark_config(), catalog=catalog)
        connections = Connections(kafka.cluster(), kafka.spark_options(), catalog.open(), lambda: spark.spark_session)
        spec = TopicTable(SMALL.name, "bench", "verified", schema=SMALL.ddl)
        began = time.monotonic()
        ingest(spec, connections, "bench")
        ingested = time.monotonic() - began
        spark.stop()
        cpu = time.process_time()
        report = verify(spec, spec, connections, sample=sample)
        result = {
            "records": records,
            "problems": len(report.problems),
            "compared_rows": report.counts["compared_rows"],
            "ingest_seconds": round(ingested, 1),
            "verify_seconds": round(report.seconds, 1),
            "verify_cpu_seconds": round(time.process_time() - cpu, 1),
            "peak_memory_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        }
        typer.echo(json.dumps(result, indent=2))


if __name__ == "__main__":
    typer.run(main)
