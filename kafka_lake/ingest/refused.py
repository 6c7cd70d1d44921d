"""Recognises in Spark's errors that the brokers refused its Java client, and says so as for Python's client.

Mostly Python's client is refused first. Spark alone is where a right to describe is there and one to read is not, or
where a password or a right has changed meanwhile.
"""

import re

from kafka_lake.common.cluster_variables import own_variables
from kafka_lake.common.errors import AuthenticationError, ConfigurationError, KafkaLakeError
from kafka_lake.ingest.causes import java_text
from kafka_lake.kafka.cluster import KafkaCluster
from kafka_lake.kafka.explain import Right, missing_right
from kafka_lake.kafka.security.identity import identity

_TOPIC = re.compile(r"TopicAuthorizationException: Not authorized to access topics: \[([^\]]+)\]")
_GROUP = re.compile(r"GroupAuthorizationException: Not authorized to access group: (\S+)")
_REFUSED = re.compile(r"(?:Sasl|Ssl)\w*AuthenticationException: ([^\n]+)")
_STORE = re.compile(r"KafkaException: (Failed to load (?:PEM )?SSL \w*store[^\n]*|[^\n]*Invalid PEM \w*store[^\n]*)")


def refused_by_kafka(error: BaseException, topic: str, cluster: KafkaCluster) -> KafkaLakeError | None:
    """Return the error for the user, if Spark failed since the brokers refused it.

    Args:
        error: What evaluating a frame of `read` raised, in this process or through Spark Connect.
        topic: The topic that was read.
        cluster: Where.

    Returns:
        What is missing or wrong; None if it is another error.
    """
    text = java_text(error)
    found = None if text is None else _refused(text, topic, cluster)
    return found and own_variables(found, cluster.name)


def _refused(text: str, topic: str, cluster: KafkaCluster) -> KafkaLakeError | None:
    properties = cluster.properties
    where = f"Reading topic {topic} in Spark: the cluster at {cluster.bootstrap_servers}"
    if found := _TOPIC.search(text):
        return missing_right(where, Right("READ", "topic", found[1]), properties)
    if found := _GROUP.search(text):
        return missing_right(where, Right("READ", "group", found[1]), properties)
    if found := _STORE.search(text):
        return ConfigurationError(
            f"{where} can't be reached: {found[1].strip().rstrip('.')}.",
            "Each machine that Spark runs on needs the file, in the same place. Or set the certificate's text: "
            "KAFKA_LAKE_KAFKA_SSL_CA_PEM.",
        )
    if found := _REFUSED.search(text):
        return AuthenticationError(
            f"{where} refused {identity(properties)}: {found[1].strip().rstrip('.')}.",
            "If the password or the certificate has changed, restart this process with the new one. The next run "
            "continues where the table ends.",
        )
    return None
