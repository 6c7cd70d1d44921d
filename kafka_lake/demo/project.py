"""The project that the demo is for: it has the tables of the demo's topics."""

from kafka_lake.cli.project import topic_tables
from kafka_lake.common.errors import ConfigurationError, KafkaLakeError
from kafka_lake.demo import deliveries, orders


def check_project() -> None:
    """Check that the project at hand has a table for the demo's records; one that can't be loaded passes.

    Raises:
        ConfigurationError: If it has none. The demo would produce records that nothing reads.
    """
    try:
        specs = topic_tables()
    except KafkaLakeError:
        # Dagster's pages say what is wrong with it.
        return
    if orders.TOPIC not in {spec.topic for spec in specs}:
        raise ConfigurationError(
            f"The demo produces records to the topics {orders.TOPIC} and {deliveries.TOPIC}, and this project has no "
            "table of them.",
            "Run it in a clone of kafka_lake's repository: `make dev` or `make demo`. Here, `kafka-lake up` does "
            "without it.",
        )
