"""``python -m kafka_lake_tests.contract.spark_cluster.ingest_once TOPIC CONF``: one run whose driver is this process.

Both arguments are JSON: the settings of a topic, and those of Spark. Brokers, catalog and master are told by variables.
"""

import json
import sys

from kafka_lake.ingest.run import ingest
from kafka_lake.orchestration.resources import CatalogResource, KafkaResource, SparkResource
from kafka_lake.runtime.context import Connections
from kafka_lake.spec.topic_table import TopicTable


def main() -> None:
    """Ingest, and print how many rows the run published."""
    topic, conf = map(json.loads, sys.argv[1:])
    kafka, catalog = KafkaResource(), CatalogResource()
    spark = SparkResource(spark_config=conf, catalog=catalog)
    connections = Connections(kafka.cluster(), kafka.spark_options(), catalog.open(), spark.live_session)
    report = ingest(TopicTable(**topic), connections, "run")
    print(json.dumps({"rows": report.total("rows")}))
    spark.stop()


if __name__ == "__main__":
    main()
