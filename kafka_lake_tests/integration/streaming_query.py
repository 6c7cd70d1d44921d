"""A Structured Streaming query from a topic into an Iceberg table, in a process of its own, which can be killed.

Its argument is a JSON document: the catalog, Spark's settings, the brokers, the topic, the table and the checkpoint.
"""

import json
import sys
from typing import Any


def start(
    spark: Any, options: dict[str, str], topic: str, table: str, checkpoint: str, foreach_batch: bool = False
) -> Any:
    """Start a query as Iceberg's documentation has it, with small batches one after the other."""
    reader = spark.readStream.format("kafka").options(**options).option("subscribe", topic)
    records = reader.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", "50").load()
    rows = records.selectExpr("from_json(cast(value AS string), 'id bigint, name string') AS row").select("row.*")
    writer = rows.writeStream.outputMode("append").option("checkpointLocation", checkpoint)
    if foreach_batch:
        return writer.foreachBatch(lambda batch, _: batch.writeTo(table).append()).start()
    return writer.format("iceberg").toTable(table)


if __name__ == "__main__":
    from kafka_lake.components.resources.catalog import CatalogResource
    from kafka_lake.spark.local_session import local_session

    given = json.loads(sys.argv[1])
    session = local_session(CatalogResource(**given["catalog"]).open().for_spark(), given["conf"])
    start(session, given["options"], given["topic"], given["table"], given["checkpoint"]).awaitTermination()
