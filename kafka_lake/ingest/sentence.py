"""One sentence for an error, whoever raised it: ours as it is, those of clients and engines by their headline."""

from kafka_lake.common.errors import KafkaLakeError
from kafka_lake.common.redaction import without_secret_values
from kafka_lake.ingest.causes import headline

# Whose errors tell of a system that a user can mend, and not of a mistake in this program.
_OF_SYSTEMS = {
    "botocore",
    "confluent_kafka",
    "grpc",
    "pyarrow",
    "py4j",
    "pyiceberg",
    "pyspark",
    "requests",
    "sqlalchemy",
    "thrift",
    "urllib3",
}


def sentence(error: BaseException) -> str | None:
    """Return what a user is told of an error, without secrets.

    Args:
        error: What was raised.

    Returns:
        One line; None for an error of a program, whose trace is needed.
    """
    if isinstance(error, KafkaLakeError):
        return without_secret_values(str(error))
    if isinstance(error, OSError) or type(error).__module__.partition(".")[0] in _OF_SYSTEMS:
        return f"{headline(error).rstrip('.')}. `kafka-lake doctor` tells which system is ill."
    return None
