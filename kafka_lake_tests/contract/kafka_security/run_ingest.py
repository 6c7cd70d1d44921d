"""A run in a process of its own, configured by environment variables: ``… TOPIC FOLDER SPARK_CONF_AS_JSON``."""

import json
import logging
import sys

from kafka_lake.ingest.run import ingest
from kafka_lake.orchestration.resources import CatalogResource, KafkaResource, SparkResource
from kafka_lake.runtime.context import Connections
from kafka_lake.spec.topic_table import TopicTable


def main(topic: str, folder: str, conf: str) -> None:
    logging.basicConfig(level=logging.DEBUG)
    address = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/warehouse"}
    catalog = CatalogResource(name="lake", properties=address)
    spark = SparkResource(spark_config={"spark.master": "local[1]", **json.loads(conf)}, catalog=catalog)
    kafka = KafkaResource()
    connections = Connections(kafka.cluster(), kafka.spark_options(), catalog.open(), lambda: spark.spark_session)
    spec = TopicTable(topic, "security", table="orders", schema="id bigint")
    try:
        print("rows:", ingest(spec, connections, "run-1").total("rows"))
    finally:
        spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
