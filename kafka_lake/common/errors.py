"""Errors that a user can fix: each says what is wrong, where, and what to do next.

The docstring of a class, `retry_helps` and `what_to_do` make its entry in ``docs/operations.md``: a test renders them.
"""

from typing import ClassVar


class KafkaLakeError(Exception):
    """Something failed that a person can fix. The message says what, and what to do next.

    Args:
        message: What is wrong, naming the topic, partition, offset, table or configuration line.
        remedy: What to do next, one sentence.
    """

    retry_helps: ClassVar[bool] = False
    """Whether the same request may succeed later although nobody has changed anything."""

    what_to_do: ClassVar[str] = (
        "Do what the last sentence of the message says. `kafka-lake doctor` checks every system that a run needs. "
        "`kafka-lake --verbose …` shows the trace."
    )
    """What a person does about any error of the class; the message of an error is more specific."""

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(f"{message} {remedy}".strip())
        self.message = message
        self.remedy = remedy


class ConfigurationError(KafkaLakeError):
    """A setting is missing, unknown or impossible. Nothing has been started."""

    what_to_do: ClassVar[str] = (
        "Correct the setting that the message names: a line of YAML, an environment variable or an option of the "
        "command. Then run `dg check defs`, or `kafka-lake reload` beside a running `kafka-lake up`. "
        "[The reference](reference.md) has all settings."
    )


class KafkaError(KafkaLakeError):
    """The brokers didn't answer, or refused a request. Nothing has been read."""

    retry_helps: ClassVar[bool] = True
    what_to_do: ClassVar[str] = (
        "Check that the brokers run, and that this machine reaches the address in the message. "
        "`KAFKA_LAKE_BOOTSTRAP_SERVERS` sets it. Brokers also tell clients their own addresses "
        "(`advertised.listeners`): this machine and the Spark workers must reach those too. `kafka-lake doctor` "
        "tells whether it works. A run that gave up needs nothing else: the sensor starts another."
    )


class UnknownTopicError(KafkaError):
    """The topic doesn't exist, or this client may not see it. Nothing has been read."""

    retry_helps: ClassVar[bool] = False
    what_to_do: ClassVar[str] = (
        "Compare `topic:` in the YAML with the list that `kafka-lake discover` prints. If the topic is not in that "
        "list, create it, or give this client's user the right to describe and read it (ACL `TOPIC READ`)."
    )


class AuthenticationError(KafkaError):
    """The brokers don't accept this client's identity, or this client doesn't accept theirs. Nothing has been read."""

    retry_helps: ClassVar[bool] = False
    what_to_do: ClassVar[str] = (
        "Check the user, the password and the mechanism (`KAFKA_LAKE_KAFKA_SASL_…`), the certificates and their "
        "dates (`KAFKA_LAKE_KAFKA_SSL_…`), and that `KAFKA_LAKE_KAFKA_SECURITY_PROTOCOL` fits the port. Restart "
        "Dagster after a change of the environment."
    )


class AuthorizationError(KafkaError):
    """The brokers know this client and don't allow what it asked for. Nothing has been read."""

    retry_helps: ClassVar[bool] = False
    what_to_do: ClassVar[str] = (
        "Ask whoever administers Kafka for the right that the message names. A run needs `TOPIC READ` on the topic. "
        "`GROUP READ` on the group `kafka-lake.…` is needed only to show lag in other tools."
    )


class RegistryError(KafkaLakeError):
    """The schema registry didn't answer, or was overloaded. Nothing has changed."""

    retry_helps: ClassVar[bool] = True
    what_to_do: ClassVar[str] = (
        "Check that the registry runs, and that `KAFKA_LAKE_SCHEMA_REGISTRY_URL` is its address. A run that gave up "
        "needs nothing else: the sensor starts another."
    )


class RegistryRefusedError(RegistryError):
    """The registry refuses this client, or the address is not a schema registry. Nothing has changed."""

    retry_helps: ClassVar[bool] = False
    what_to_do: ClassVar[str] = (
        "Check the address, including its path, and the credentials: `KAFKA_LAKE_REGISTRY_BASIC_AUTH_USER_INFO`, "
        "`KAFKA_LAKE_REGISTRY_BEARER_AUTH_TOKEN` or a client certificate ([how to set "
        "them](formats.md#the-registry))."
    )


class UnknownSchemaError(RegistryError):
    """The registry answers, but it doesn't have the schema, or only in a language that is not supported."""

    retry_helps: ClassVar[bool] = False
    what_to_do: ClassVar[str] = (
        "Register the schema, or correct `subject:` in the YAML. A record whose schema id is unknown doesn't stop a "
        "run: it is a dead letter of class `unknown_schema`. After the schema is registered, `kafka-lake "
        "dead-letters TOPIC --replay` moves such records into the table."
    )


class CatalogError(KafkaLakeError):
    """The catalog didn't answer, or was overloaded. Tables are as they were, or have the whole commit."""

    retry_helps: ClassVar[bool] = True
    what_to_do: ClassVar[str] = (
        "Check that the catalog runs, and that `PYICEBERG_CATALOG__<NAME>__URI` is its address. A run that gave up "
        "needs nothing else: the next one finds in the table whether the commit was made."
    )


class CatalogRefusedError(CatalogError):
    """The catalog refuses this client, or can't be used as it is configured. Tables are as they were."""

    retry_helps: ClassVar[bool] = False
    what_to_do: ClassVar[str] = (
        "Check credential, warehouse and type in the variables `PYICEBERG_CATALOG__<NAME>__…`, and the rights of "
        "that credential: it must be able to create tables, and to read and write the warehouse's files. [What "
        "Spark is told](catalogs.md#settings) lists the properties."
    )


class EngineUnavailableError(KafkaLakeError):
    """The Spark Connect server doesn't answer. Nothing has been done."""

    retry_helps: ClassVar[bool] = True
    what_to_do: ClassVar[str] = (
        "If `SPARK_REMOTE` is set, check the address and that the server runs. The server of `kafka-lake up` is "
        "restarted automatically; its log is in the folder `connect` of `KAFKA_LAKE_HOME`. Without `SPARK_REMOTE`, "
        "Spark runs in the process of the run and needs no server."
    )


class RecordTooLargeError(KafkaLakeError):
    """A record takes more memory than the engine has, which died of it. `main` has whole commits only.

    Its value may compress well: brokers bound what they store, and nothing bounds what it expands to.
    """

    what_to_do: ClassVar[str] = (
        "The message names partition, offset and size. Everything before the record is in the table, and the other "
        "partitions go on with each run. `kafka-lake reset TOPIC --to PARTITION:OFFSET` with the next offset skips the "
        "record, which the check `data_loss` tells. To read it, give the engine [more "
        "memory](engine.md#the-connect-server), and reset to the record's own offset: until then no run tries it again."
    )


class SchemaNotSupportedError(KafkaLakeError):
    """A schema is invalid, or has a type that no table can have. Nothing has been staged."""

    what_to_do: ClassVar[str] = (
        "The message names the field. Change the schema, or read the topic in another way: `format: bytes` or "
        "`format: string` keeps each value whole. [Formats](formats.md) lists which types become which columns."
    )


class DataLossError(KafkaLakeError):
    """Kafka no longer has records that the table doesn't have yet. `main` is as it was.

    Retention was shorter than the table's lag, the log was cut off, or the brokers were restored from an older copy.
    """

    what_to_do: ClassVar[str] = (
        "The message names partitions and offsets; those records can't be read from Kafka any more. If another copy "
        "of them exists, produce them again later. To continue with what is left, either run `kafka-lake reset "
        "TOPIC --to earliest --partitions …`, which shows its effect and asks, or set `on_data_loss: continue`: the "
        "loss is then recorded in the snapshot and in the check `data_loss`. A replay that meets such offsets is "
        "refused too: begin it later, or keep those rows with `--keep-missing`. If a log was replaced, the records "
        "below the table's position may be other ones than those that the table has: [restored "
        "brokers](operations.md#brokers-restored-from-an-older-copy). To prevent it, make retention "
        "longer than the longest outage that you expect. See [what happens "
        "when](guarantees.md#when-something-else-changes)."
    )


class TopicReplacedError(DataLossError):
    """The topic of that name is not the one that the table was filled from. `main` is as it was.

    The topic was deleted and recreated, or the brokers are those of another cluster.
    """

    what_to_do: ClassVar[str] = (
        "First check `KAFKA_LAKE_BOOTSTRAP_SERVERS`, and `cluster:` in the topic's YAML: a wrong cluster looks the "
        "same. If the topic really was recreated and its records shall follow in the same table, run `kafka-lake "
        "reset TOPIC --to earliest` once, or set `on_data_loss: continue`. Rows of the two topics are told apart by "
        "`_kafka.topic_id`. If they shall not mix, set another `table:`."
    )


class TableError(KafkaLakeError):
    """The table in the catalog is not what the topic's configuration needs. `main` is as it was.

    Examples: it has no position yet, its position is gone and can't be rebuilt with certainty, or it has a column
    that can't be filled.
    """

    what_to_do: ClassVar[str] = (
        "If the table has no position yet, run the topic once: materialize it in Dagster, or `kafka-lake ingest "
        "TOPIC`. If the position is gone (all snapshots with a position have expired, and the rows don't tell it), "
        "set it with `kafka-lake reset TOPIC --to …`. If the table belongs to something else, set another `table:` "
        "or another namespace."
    )


class AuditFailedError(KafkaLakeError):
    """A check refused the staged snapshot. `main` is as it was, and the staged snapshot has been removed."""

    what_to_do: ClassVar[str] = (
        "The message names the check and the numbers. Run the topic again once the cause is fixed. If counts or "
        "offsets don't fit although nothing was changed, this is a bug: please report it with the message."
    )


class PublishRefusedError(KafkaLakeError):
    """Something else moved `main` after this run had read the table's position. `main` has the other commit."""

    retry_helps: ClassVar[bool] = True
    what_to_do: ClassVar[str] = (
        "Usually nothing: a run plans again from the new position, up to five times. If runs fail with it, another "
        "writer commits all the time: a second deployment with the same table, or a maintenance job that runs in a "
        "loop. Let only one deployment ingest the topic, and run maintenance less often."
    )
