"""All errors that a user can fix: each says what is wrong, where, and what to do next.

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
        GateFailedError           in `ingest.gate`, with the result of each check
        SchemaRefusedError        in `ingest.stage.schema`, with the changes
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
        "Correct the line of YAML, the environment variable or the option that the message names. Then run `dg "
        "check defs`, or `kafka-lake reload` beside a running `kafka-lake up`. [All settings](settings.md)."
    )


class ConditionError(ConfigurationError):
    """A table's SQL condition can't be evaluated on the topic's records. Nothing has been published."""

    what_to_do: ClassVar[str] = (
        "Correct `where: {sql: …}` of the table that the message names. The message lists the columns that a "
        "condition may use."
    )


class NoProjectError(ConfigurationError):
    """There is no Dagster project in this folder, and the command names none. Nothing has been started."""

    what_to_do: ClassVar[str] = (
        "Run the command in a folder of the project, or name the project: `kafka-lake -m MODULE …`, `-f FILE`, `-w "
        "WORKSPACE`. `kafka-lake init` makes a new project."
    )


class KafkaError(KafkaLakeError):
    """The brokers didn't answer, or refused a request. Nothing has been read."""

    retry_helps: ClassVar[bool] = True
    what_to_do: ClassVar[str] = (
        "Check that the brokers run, and that this machine and the Spark workers reach the addresses that the "
        "brokers advertise (`advertised.listeners`). `KAFKA_LAKE_BOOTSTRAP_SERVERS` sets the first address. If a "
        "run gave up, the sensor starts another."
    )


class UnknownTopicError(KafkaError):
    """The topic doesn't exist, or this client may not see it. Nothing has been read."""

    retry_helps: ClassVar[bool] = False
    what_to_do: ClassVar[str] = (
        "Compare `topic:` with the list of `kafka-lake discover`. Create the topic, or grant this client's user "
        "`READ` on it."
    )


class AuthenticationError(KafkaError):
    """The brokers refuse this client's identity, or this client refuses theirs. Nothing has been read."""

    retry_helps: ClassVar[bool] = False
    what_to_do: ClassVar[str] = (
        "Check user, password and mechanism (`KAFKA_LAKE_KAFKA_SASL_…`), certificates and their dates "
        "(`KAFKA_LAKE_KAFKA_SSL_…`), and that `KAFKA_LAKE_KAFKA_SECURITY_PROTOCOL` fits the port. Restart Dagster "
        "after a change of the environment."
    )


class AuthorizationError(KafkaError):
    """This client's user lacks a right. Nothing has been read."""

    retry_helps: ClassVar[bool] = False
    what_to_do: ClassVar[str] = (
        "Grant the right that the message names. A run needs `READ` on the topic; `READ` on the group "
        "`kafka-lake.…` only shows lag in other tools."
    )


class EmbeddedBrokerStoppedError(KafkaError):
    """The embedded broker is configured and isn't running. Nothing has been read."""

    what_to_do: ClassVar[str] = (
        "Start it with `kafka-lake up`. For your own brokers, set `KAFKA_LAKE_BOOTSTRAP_SERVERS`."
    )


class RegistryError(KafkaLakeError):
    """The schema registry didn't answer, or was overloaded. Nothing has changed."""

    retry_helps: ClassVar[bool] = True
    what_to_do: ClassVar[str] = (
        "Check that the registry runs at `KAFKA_LAKE_SCHEMA_REGISTRY_URL`. If a run gave up, the sensor starts another."
    )


class RegistryRefusedError(RegistryError):
    """The registry refuses this client, or the address is not a schema registry. Nothing has changed."""

    retry_helps: ClassVar[bool] = False
    what_to_do: ClassVar[str] = (
        "Check the address with its path, and the credentials: `KAFKA_LAKE_REGISTRY_BASIC_AUTH_USER_INFO`, "
        "`KAFKA_LAKE_REGISTRY_BEARER_AUTH_TOKEN` or a client certificate ([the schema "
        "registry](formats.md#the-schema-registry))."
    )


class UnknownSchemaError(RegistryError):
    """The registry doesn't have the schema, or has it in an unsupported language."""

    retry_helps: ClassVar[bool] = False
    what_to_do: ClassVar[str] = (
        "Register the schema, or correct `subject:`. A record with an unknown schema id is a dead letter of class "
        "`unknown_schema`: `kafka-lake dead-letters TOPIC --replay` moves it into the table once the schema is "
        "registered."
    )


class CatalogError(KafkaLakeError):
    """The catalog didn't answer, or was overloaded. Tables are as they were, or have the whole commit."""

    retry_helps: ClassVar[bool] = True
    what_to_do: ClassVar[str] = (
        "Check that the catalog runs at `PYICEBERG_CATALOG__<NAME>__URI`. The next run finds in the table whether "
        "the commit was made."
    )


class CatalogRefusedError(CatalogError):
    """The catalog refuses this client, or its configuration can't work. Tables are as they were."""

    retry_helps: ClassVar[bool] = False
    what_to_do: ClassVar[str] = (
        "Check type, warehouse and credential in `PYICEBERG_CATALOG__<NAME>__…`. The credential must be able to "
        "create tables and to read and write their files. [Catalogs](catalogs.md)."
    )


class EngineUnavailableError(KafkaLakeError):
    """The Spark Connect server doesn't answer. Nothing has been done."""

    retry_helps: ClassVar[bool] = True
    what_to_do: ClassVar[str] = (
        "Check the address in `SPARK_REMOTE`, and that the server runs. `kafka-lake up` restarts its own server; "
        "the log is in the folder `connect` of `KAFKA_LAKE_HOME`."
    )


class RecordTooLargeError(KafkaLakeError):
    """A record takes more memory than the engine has. `main` has whole commits only."""

    what_to_do: ClassVar[str] = (
        "The message names partition, offset and size. The other partitions go on with each run. `kafka-lake reset "
        "TOPIC --to PARTITION:OFFSET` with the next offset skips the record. To read it, give the engine [more "
        "memory](engine.md#the-connect-server) and reset to its own offset."
    )


class EveryRecordFailsError(KafkaLakeError):
    """Ten records in a row failed one by one, so the cause is not in the records. `main` has whole commits only."""

    what_to_do: ClassVar[str] = (
        "Look at the quoted error, the topic's `transform:`, the packages of Spark's Python workers, and the "
        "engine. Run the topic again, then `kafka-lake dead-letters TOPIC --replay` for the records of class "
        "`undecodable`."
    )


class SchemaNotSupportedError(KafkaLakeError):
    """A schema is invalid, or has a type that no table can have. Nothing has been staged."""

    what_to_do: ClassVar[str] = (
        "Change the field that the message names, or keep each value whole with `format: bytes` or `format: "
        "string`. [Formats](formats.md) lists the types."
    )


class DataLossError(KafkaLakeError):
    """Kafka no longer has records that the table lacks: retention was too short, or the log was truncated or replaced.

    `main` is as it was.
    """

    what_to_do: ClassVar[str] = (
        "The message names partitions and offsets. `kafka-lake reset TOPIC --to earliest --partitions …` continues "
        "with what is left; `on_data_loss: continue` does so automatically and records the loss. See [replay and "
        "reset](replay.md#kafka-no-longer-has-the-records), also for [restored "
        "brokers](replay.md#brokers-restored-from-an-older-copy)."
    )


class TopicReplacedError(DataLossError):
    """The topic was recreated, or the brokers belong to another cluster. `main` is as it was."""

    what_to_do: ClassVar[str] = (
        "Check `KAFKA_LAKE_BOOTSTRAP_SERVERS` and `cluster:` first: a wrong cluster looks the same. To continue "
        "with a recreated topic in the same table, run `kafka-lake reset TOPIC --to earliest`; `_kafka.topic_id` "
        "identifies the topic of each row. Otherwise set another `table:`."
    )


class TableError(KafkaLakeError):
    """The table isn't what the configuration needs: for example, it has no position. `main` is as it was."""

    what_to_do: ClassVar[str] = (
        "If the table has no position yet, run the topic once: `kafka-lake ingest TOPIC`. If its position has "
        "expired with its snapshots, set it with `kafka-lake reset TOPIC --to …`. If the table belongs to "
        "something else, set another `table:`."
    )


class AdoptionRefusedError(TableError):
    """It is uncertain where an adopted table must resume. `main` is as it was."""

    what_to_do: ClassVar[str] = (
        "Let the other writer finish a commit, stop it, and run `kafka-lake adopt` again. If you know the offsets, "
        "name them with `--from-offsets`. See [migrate](migrate.md)."
    )


class AuditFailedError(KafkaLakeError):
    """A check refused the staged snapshot. `main` is as it was, and the staged snapshot has been removed."""

    what_to_do: ClassVar[str] = (
        "The message names the check and the numbers. Run the topic again once the cause is fixed. If counts or "
        "offsets don't fit although nothing was changed, please report it."
    )


class ChangeRefusedError(AuditFailedError):
    """A change of an upsert table can't be applied, or its settings say to stop. `main` is as it was."""

    what_to_do: ClassVar[str] = (
        "The message names partition and offset. Set `order_by:` for a key whose changes come from several "
        "partitions; `deletes:`, `on_truncate:` and `on_snapshot:` decide about deletes."
    )


class UnmatchedRecordError(AuditFailedError):
    """No table takes a record, and `unmatched: fail` is set. `main` is as it was."""

    what_to_do: ClassVar[str] = (
        "Add a table that takes the record that the message names, or set `unmatched: dead_letter` or `ignore`."
    )


class PublishRefusedError(KafkaLakeError):
    """Another commit moved `main` after this run had read the table's position. `main` has the other commit."""

    retry_helps: ClassVar[bool] = True
    what_to_do: ClassVar[str] = (
        "Usually nothing: a run plans again, up to five times. If runs fail with it, another writer commits all "
        "the time: let one deployment ingest the topic, and run maintenance less often."
    )


class FreshReadError(KafkaLakeError):
    """A table has a setting, or its unread records an event, that fresh reads don't support. Nothing was changed."""

    what_to_do: ClassVar[str] = (
        "Read the table itself: `kafka-lake query TOPIC SQL` without `--fresh`. [Fresh reads](fresh-reads.md) lists "
        "what they support."
    )


class TailTooLongError(FreshReadError):
    """A table is too far behind its topic for a fresh read. Nothing was changed."""

    what_to_do: ClassVar[str] = (
        "Bring the table up to date: `kafka-lake ingest TOPIC`. If it is often so far behind, run it continuously or "
        "more often, or raise `max_tail`."
    )


class SnapshotExpiredError(FreshReadError):
    """Maintenance removed files of the snapshot while a query read them. Nothing was changed."""

    what_to_do: ClassVar[str] = (
        "Read again: the next read uses the newest snapshot. If it happens often, keep snapshots longer than queries "
        "take."
    )


class JavaNotFoundError(KafkaLakeError):
    """No usable Java is on this machine. The message lists the places that were tried."""

    what_to_do: ClassVar[str] = (
        "Install Java 17 or 21 and set `JAVA_HOME`, or install Java as a Python package: `pip install "
        "'kafka-lake[java]'`."
    )


class JarsError(KafkaLakeError):
    """Jars for Spark or the embedded servers could not be retrieved. The message says why, and where the log is."""

    what_to_do: ClassVar[str] = (
        "If this machine has no access to the default repository, set `KAFKA_LAKE_IVY_SETTINGS` to an Ivy settings "
        "file that names your mirror or a folder. If Java doesn't trust the repository's certificate (\"PKIX path "
        "building failed\"), name your network's CA: in `SSL_CERT_FILE` for the Java that comes with `[java]`, in its "
        "own trust store for another one. If `KAFKA_LAKE_SPARK_JARS` names a file that doesn't exist, "
        "correct it. Then run `python -m kafka_lake.engine.jars`, which retrieves them."
    )


class ServerStartError(KafkaLakeError):
    """A server didn't start. The message has the reason or its last log lines; its process has ended, its data stay."""

    what_to_do: ClassVar[str] = (
        "If its port is in use, end the other program or choose another port: `KAFKA_LAKE_BROKER_PORT`, "
        "`KAFKA_LAKE_REGISTRY_PORT`, `KAFKA_LAKE_CONNECT_PORT`, `KAFKA_LAKE_UI_PORT`. If memory is short, lower "
        "`KAFKA_LAKE_CONNECT_HEAP` and `KAFKA_LAKE_CONNECT_DIRECT`. If a program is missing, install the package that "
        "the message names. Otherwise read the log that the message names. A broker, registry, store or database of "
        "your own doesn't need the embedded one: [the reference](configuration.md) has the variables that name it."
    )
