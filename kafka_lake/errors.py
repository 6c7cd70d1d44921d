"""All errors that a user can fix. Each names the problem, its place, and the next step.

    KafkaLakeError
      ConfigurationError
        ConditionError
        NoProjectError
      KafkaError
        UnknownTopicError
        AuthenticationError
        AuthorizationError
        EmbeddedBrokerStoppedError
      RegistryError
        RegistryRefusedError
        UnknownSchemaError
      CatalogError
        CatalogRefusedError
      EngineUnavailableError
      RecordTooLargeError
      EveryRecordFailsError
      SchemaNotSupportedError
      DataLossError
        TopicReplacedError
      TableError
        AdoptionRefusedError
      AuditFailedError
        ChangeRefusedError
        UnmatchedRecordError
        CheckFailedError          in `runtime.commit`, with the result of each check
        SchemaRefusedError        in `writers.schema_changes`, with the changes
      PublishRefusedError
      FreshReadError
        TailTooLongError
        SnapshotExpiredError
      LeftBehindError             in `ingest.topic_runner`, with an error for each table
      JavaNotFoundError
      JarsError
      ServerStartError

The docstring of a class, `retry_helps` and `what_to_do` make its entry in ``docs/errors.md``: a test renders them.
"""

from typing import ClassVar


class KafkaLakeError(Exception):
    """Base class of these errors. The message names the problem and the next step.

    Args:
        message: What is wrong, naming the topic, partition, offset, table or configuration line.
        remedy: What to do next, one sentence.
    """

    retry_helps: ClassVar[bool] = False
    """Whether the same request may succeed later without any change."""

    what_to_do: ClassVar[str] = (
        "Follow the last sentence of the message. `kafka-lake doctor` checks every system that a run needs. "
        "`kafka-lake --verbose …` shows the trace."
    )
    """The remedy for any error of the class; the message of an error is more specific."""

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(f"{message} {remedy}".strip())
        self.message = message
        self.remedy = remedy


class ConfigurationError(KafkaLakeError):
    """A setting is missing, unknown or invalid. Nothing has been started."""

    what_to_do: ClassVar[str] = (
        "Correct the YAML line, environment variable or option that the message names. Then run `dg check defs`, or "
        "`kafka-lake reload` while `kafka-lake up` runs. See [all settings](settings.md)."
    )


class ConditionError(ConfigurationError):
    """A table's SQL condition can't be evaluated on the topic's records. Nothing has been published."""

    what_to_do: ClassVar[str] = (
        "Correct `where: {sql: …}` of the named table. The message lists the columns that a condition may use."
    )


class NoProjectError(ConfigurationError):
    """The command found no Dagster project in this folder. Nothing has been started."""

    what_to_do: ClassVar[str] = (
        "Run the command in the project's folder, or name the project: `kafka-lake -m MODULE …`, `-f FILE` or `-w "
        "WORKSPACE`. `kafka-lake init` creates a project."
    )


class KafkaError(KafkaLakeError):
    """The brokers didn't answer, or refused a request. Nothing has been read."""

    retry_helps: ClassVar[bool] = True
    what_to_do: ClassVar[str] = (
        "Check that the brokers run, and that this machine and the Spark workers reach their `advertised.listeners`. "
        "`KAFKA_LAKE_BOOTSTRAP_SERVERS` sets the first addresses."
    )


class UnknownTopicError(KafkaError):
    """The topic doesn't exist, or the client may not see it. Nothing has been read."""

    retry_helps: ClassVar[bool] = False
    what_to_do: ClassVar[str] = (
        "Compare `topic:` with the list of `kafka-lake discover`. Create the topic, or grant the user `READ` on it."
    )


class AuthenticationError(KafkaError):
    """The brokers refused the credentials, or the client doesn't trust their certificate. Nothing has been read."""

    retry_helps: ClassVar[bool] = False
    what_to_do: ClassVar[str] = (
        "Check user, password and mechanism (`KAFKA_LAKE_KAFKA_SASL_…`), certificates and their dates "
        "(`KAFKA_LAKE_KAFKA_SSL_…`), and that `KAFKA_LAKE_KAFKA_SECURITY_PROTOCOL` matches the port. After a change "
        "of the environment, restart Dagster."
    )


class AuthorizationError(KafkaError):
    """The client's user lacks a permission. Nothing has been read."""

    retry_helps: ClassVar[bool] = False
    what_to_do: ClassVar[str] = (
        "Grant the permission that the message names. See [required "
        "permissions](kafka-security.md#required-permissions)."
    )


class EmbeddedBrokerStoppedError(KafkaError):
    """The embedded broker is configured, but not running. Nothing has been read."""

    what_to_do: ClassVar[str] = (
        "Start it with `kafka-lake up`. For your own brokers, set `KAFKA_LAKE_BOOTSTRAP_SERVERS`."
    )


class RegistryError(KafkaLakeError):
    """The schema registry didn't answer, or was overloaded. Nothing has changed."""

    retry_helps: ClassVar[bool] = True
    what_to_do: ClassVar[str] = "Check that the registry runs at `KAFKA_LAKE_SCHEMA_REGISTRY_URL`."


class RegistryRefusedError(RegistryError):
    """The registry refused the client, or the address isn't a schema registry. Nothing has changed."""

    retry_helps: ClassVar[bool] = False
    what_to_do: ClassVar[str] = (
        "Check the address with its path, and the [credentials](formats.md#the-schema-registry)."
    )


class UnknownSchemaError(RegistryError):
    """The registry doesn't have the schema, or has it in another format."""

    retry_helps: ClassVar[bool] = False
    what_to_do: ClassVar[str] = (
        "Register the schema, or correct `subject:`. Records with an unknown schema id are dead letters of class "
        "`unknown_schema`; after you register it, run `kafka-lake dead-letters TOPIC --replay`."
    )


class CatalogError(KafkaLakeError):
    """The catalog didn't answer, or was overloaded. Tables are unchanged, or have the whole commit."""

    retry_helps: ClassVar[bool] = True
    what_to_do: ClassVar[str] = (
        "Check that the catalog runs at `PYICEBERG_CATALOG__<NAME>__URI`. The next run finds out from the table "
        "whether the commit succeeded."
    )


class CatalogRefusedError(CatalogError):
    """The catalog refused the client, or its configuration is invalid. Tables are unchanged."""

    retry_helps: ClassVar[bool] = False
    what_to_do: ClassVar[str] = (
        "Check type, warehouse and credential in `PYICEBERG_CATALOG__<NAME>__…`. The credential must allow creating "
        "tables, and reading and writing their files. See [catalogs](catalogs.md)."
    )


class EngineUnavailableError(KafkaLakeError):
    """The Spark Connect server doesn't answer. Nothing has changed."""

    retry_helps: ClassVar[bool] = True
    what_to_do: ClassVar[str] = (
        "Check the address in `SPARK_REMOTE`, and that the server runs. `kafka-lake up` restarts its own server, "
        "whose log is in `connect` in `KAFKA_LAKE_HOME`."
    )


class RecordTooLargeError(KafkaLakeError):
    """A record needs more memory than the engine has. `main` has only complete commits."""

    what_to_do: ClassVar[str] = (
        "Runs still read the other partitions. `kafka-lake reset TOPIC --to PARTITION:OFFSET` with the next offset "
        "skips the record. To read it, give the engine [more memory](engine.md#the-connect-server) and reset to the "
        "record's offset."
    )


class EveryRecordFailsError(KafkaLakeError):
    """Ten records in a row failed, one by one, so the records aren't the cause. `main` has only complete commits."""

    what_to_do: ClassVar[str] = (
        "Check the quoted error, the topic's `transform:`, the packages of Spark's Python workers, and the engine. "
        "Run the topic again, then `kafka-lake dead-letters TOPIC --replay` for records of class `undecodable`."
    )


class SchemaNotSupportedError(KafkaLakeError):
    """A schema is invalid, or has a type that tables can't store. Nothing has been staged."""

    what_to_do: ClassVar[str] = (
        "Change the named field, or store whole values with `format: bytes` or `format: string`. "
        "[Formats](formats.md) lists the types."
    )


class DataLossError(KafkaLakeError):
    """Kafka has lost unread records: retention was too short, or the log was truncated or replaced.

    `main` is unchanged.
    """

    what_to_do: ClassVar[str] = (
        "`kafka-lake reset TOPIC --to earliest --partitions …` continues with the remaining records. `on_data_loss: "
        "continue` does so automatically, and records the loss. See [replay and "
        "reset](replay.md#kafka-no-longer-has-the-records), also for [restored "
        "brokers](replay.md#brokers-restored-from-an-older-copy)."
    )


class TopicReplacedError(DataLossError):
    """The topic was recreated, or the brokers belong to another cluster. `main` is unchanged."""

    what_to_do: ClassVar[str] = (
        "First check `KAFKA_LAKE_BOOTSTRAP_SERVERS` and `cluster:`, because a wrong cluster looks the same. To "
        "continue in the same table, run `kafka-lake reset TOPIC --to earliest`; `_kafka.topic_id` distinguishes the "
        "topics' rows. Otherwise set another `table:`."
    )


class TableError(KafkaLakeError):
    """The table doesn't match the configuration; for example, it has no position. `main` is unchanged."""

    what_to_do: ClassVar[str] = (
        "If the table has no position yet, run `kafka-lake ingest TOPIC`. If its position expired with its "
        "snapshots, run `kafka-lake reset TOPIC --to …`. If another program uses the table, set another `table:`."
    )


class AdoptionRefusedError(TableError):
    """The position of an adopted table is uncertain. `main` is unchanged."""

    what_to_do: ClassVar[str] = (
        "Let the other writer finish a commit, stop it, and run `kafka-lake adopt` again. If you know the offsets, "
        "pass them as `--from-offsets`. See [migrate](migrate.md)."
    )


class AuditFailedError(KafkaLakeError):
    """The audit rejected the staged snapshot, which has been removed. `main` is unchanged."""

    what_to_do: ClassVar[str] = (
        "The message names the check and the numbers. Fix the cause, then run the topic again. If counts or offsets "
        "differ and you find no cause, please report it."
    )


class ChangeRefusedError(AuditFailedError):
    """A change can't be applied to an upsert table, or a setting refuses it. `main` is unchanged."""

    what_to_do: ClassVar[str] = (
        "Set `order_by:` if a key's changes come from several partitions. `deletes:`, `on_truncate:` and "
        "`on_snapshot:` control deletes."
    )


class UnmatchedRecordError(AuditFailedError):
    """No table takes a record, and `unmatched: fail` is set. `main` is unchanged."""

    what_to_do: ClassVar[str] = "Add a table that takes the named record, or set `unmatched: dead_letter` or `ignore`."


class PublishRefusedError(KafkaLakeError):
    """Another commit moved `main` after this run read the table's position. `main` has the other commit."""

    retry_helps: ClassVar[bool] = True
    what_to_do: ClassVar[str] = (
        "Usually nothing: the run plans again, up to five attempts. If runs fail with this error, let only one "
        "deployment ingest the topic, and let other programs write to the table less often."
    )


class FreshReadError(KafkaLakeError):
    """Fresh reads don't support a setting of the table, or an event in its unread records. Nothing has changed."""

    what_to_do: ClassVar[str] = (
        "Query the table itself, without `--fresh`. [Fresh reads](fresh-reads.md) lists what is supported."
    )


class TailTooLongError(FreshReadError):
    """The table is too far behind its topic for a fresh read. Nothing has changed."""

    what_to_do: ClassVar[str] = (
        "Run `kafka-lake ingest TOPIC`. If this happens often, use [continuous runs](continuous.md), or raise "
        "`max_tail`."
    )


class SnapshotExpiredError(FreshReadError):
    """Maintenance removed files of the snapshot while a query read them. Nothing has changed."""

    what_to_do: ClassVar[str] = (
        "Read again: the next read uses the newest snapshot. If this happens often, raise `maintenance: expire_after`."
    )


class JavaNotFoundError(KafkaLakeError):
    """This machine has no usable Java. The message lists the searched places."""

    what_to_do: ClassVar[str] = "Install Java 17 or 21 and set `JAVA_HOME`, or run `pip install 'kafka-lake[java]'`."


class JarsError(KafkaLakeError):
    """Jars for Spark or the embedded servers couldn't be retrieved. The message has the reason and the log's path."""

    what_to_do: ClassVar[str] = (
        "Without access to the default repository, set `KAFKA_LAKE_IVY_SETTINGS` to an Ivy settings file with your "
        "mirror or a folder. If Java doesn't trust the repository's certificate (\"PKIX path building failed\"), add "
        "your network's CA: to `SSL_CERT_FILE` for the Java of `[java]`, otherwise to Java's trust store. Correct "
        "`KAFKA_LAKE_SPARK_JARS` if it names a missing file. Then run `python -m kafka_lake.engine.jars`, which "
        "retrieves the jars."
    )


class ServerStartError(KafkaLakeError):
    """A server didn't start and was stopped; its data is kept. The message has the reason or the last log lines."""

    what_to_do: ClassVar[str] = (
        "If the port is in use, end the other program or set the server's `KAFKA_LAKE_…_PORT`. If memory is "
        "short, lower `KAFKA_LAKE_CONNECT_HEAP` and `KAFKA_LAKE_CONNECT_DIRECT`. If a program is missing, install"
        " the named package. Otherwise read the named log. To use your own broker, registry or database instead, "
        "set its [variable](configuration.md#environment-variables)."
    )
