"""Runs in a process of their own, configured by environment variables: ``… TOPIC``, by ``arrow`` and ``spark``."""

import json
import sys
from dataclasses import replace

from kafka_lake.ingest.run import ingest
from kafka_lake.orchestration.resources import CatalogResource, KafkaResource, SparkResource
from kafka_lake.runtime.context import Connections
from kafka_lake.spec.topic_table import TopicTable

SCHEMA = "id bigint, name string"


def main(topic: str, *engines: str) -> None:
    catalog = CatalogResource()
    spark = SparkResource(spark_config={"spark.master": "local[1]", "spark.driver.memory": "512m"}, catalog=catalog)
    kafka = KafkaResource()
    try:
        for arrow in [engine == "arrow" for engine in engines]:
            connections = Connections(
                kafka.cluster(), kafka.spark_options(), catalog.open(), lambda: spark.spark_session
            )
            spec = TopicTable(topic, "rest", table=f"arrow_{arrow}".lower(), schema=SCHEMA)
            if not arrow:
                # Spark itself writes upsert tables.
                spec = replace(spec, write="upsert", key=("id",))
            ingest(spec, connections, "run-1")
            by_python, by_spark = _rows(connections, spec, spark)
            print("ROWS", json.dumps([spec.table, by_python, by_spark]))
    finally:
        spark.stop()


def _rows(connections: Connections, spec: TopicTable, spark: SparkResource) -> tuple[list[object], list[object]]:
    table = connections.catalog.table(spec.identifier)
    assert table is not None
    by_python = [[row["id"], row["name"]] for row in table.scan().to_arrow().to_pylist()]
    name = connections.catalog.spark_name(spec.identifier)
    by_spark = [list(row) for row in spark.spark_session.sql(f"SELECT id, name FROM {name}").collect()]
    return sorted(by_python), sorted(by_spark)


if __name__ == "__main__":
    main(*sys.argv[1:])
