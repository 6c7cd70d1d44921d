"""Recognises in Spark's errors what a setting mends, and says so: brokers that refuse its client, files out of reach.

Brokers: mostly Python's client is refused first. Spark alone is where a right to describe is there and one to read is
not, or where a password or a right has changed meanwhile. Files: a REST catalog alone may know where they are.
"""

import re

from kafka_lake.common.catalog_variables import catalog_variable
from kafka_lake.common.cluster_variables import own_variables
from kafka_lake.errors import AuthenticationError, ConfigurationError, KafkaLakeError
from kafka_lake.ingest.causes import java_text
from kafka_lake.kafka.cluster import KafkaCluster
from kafka_lake.kafka.explain import Right, missing_right
from kafka_lake.kafka.security.identity import identity
from kafka_lake.lake.java_properties import S3_FILES, files_class

_NO_REGION = "Unable to load region from any of the providers"
_NO_FILE_SYSTEM = re.compile(r"No FileSystem for scheme \"(\w+)\"")

_TOPIC = re.compile(r"TopicAuthorizationException: Not authorized to access topics: \[([^\]]+)\]")
_GROUP = re.compile(r"GroupAuthorizationException: Not authorized to access group: (\S+)")
_REFUSED = re.compile(r"(?:Sasl|Ssl)\w*AuthenticationException: ([^\n]+)")
_STORE = re.compile(r"KafkaException: (Failed to load (?:PEM )?SSL \w*store[^\n]*|[^\n]*Invalid PEM \w*store[^\n]*)")


def files_out_of_reach(error: BaseException, table: str, catalog: str) -> KafkaLakeError | None:
    """Return the error for the user, if Spark wasn't told how to reach the storage that a table's files are in.

    Args:
        error: What writing or reading the table raised, in this process or through Spark Connect.
    """
    text, setting = java_text(error) or "", catalog_variable(catalog)
    if _NO_REGION in text:
        return ConfigurationError(
            f"Table {table}: Spark doesn't know the region of its files in S3.",
            f"Set {setting}S3__REGION; a store of your own has one as well, and mostly takes any. Nothing was written.",
        )
    found = _NO_FILE_SYSTEM.search(text)
    if not found:
        return None
    files = files_class(found[1])
    remedy = f"Set {setting}IO_IMPL to the Java class that reads and writes there, and give Spark its jar."
    if files == S3_FILES:
        remedy = f"Set {setting}S3__REGION: where the catalog alone knows the location, any setting of S3 tells Spark."
    elif files:
        remedy = f"Set {setting}IO_IMPL={files}; Spark then gets its jar."
    return ConfigurationError(
        f"Table {table}: its files are at {found[1]}://, and Spark has no client for that.",
        f"{remedy} Nothing was written.",
    )


def refused_by_kafka(error: BaseException, topic: str, cluster: KafkaCluster) -> KafkaLakeError | None:
    """Return the error for the user, if Spark failed since the brokers refused it.

    Args:
        error: What evaluating a frame of `read` raised, in this process or through Spark Connect.
        topic: The topic that was read.
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
