"""Which of a topic's tables have their dead letters decoded again."""

from kafka_lake.ingest.topic_table import TopicTable
from kafka_lake.lake.catalog import LakeCatalog
from kafka_lake.lake.positions import row_count


def replayable(topic: TopicTable, catalog: LakeCatalog) -> list[TopicTable]:
    """Return the tables of a topic whose dead letters are asked for again.

    Dead letters of keyed tables are refused. So of a topic with routes such a table comes last, for the others are
    done by then, and only if it has any.

    Args:
        topic: Its settings.
        catalog: Where the dead-letter tables are.
    """
    if not topic.has_routes:
        return [topic]
    keyed = [each for each in topic.tables if each.write == "upsert"]
    refused = [each for each in keyed if row_count(catalog.table(each.dead_letter_table))]
    return [*(each for each in topic.tables if each not in keyed), *refused]
