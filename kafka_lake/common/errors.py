"""Errors that a user can mend: each says what is wrong, where, and what to do next."""


class KafkaLakeError(Exception):
    """Base of all errors raised on purpose.

    Args:
        message: What is wrong, naming the topic, partition, offset, table or configuration line.
        remedy: What to do next, one sentence.
    """

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(f"{message} {remedy}".strip())
        self.message = message
        self.remedy = remedy


class ConfigurationError(KafkaLakeError):
    """A setting is missing, unknown or impossible. Nothing has been started."""


class KafkaError(KafkaLakeError):
    """The brokers refused or didn't answer. Nothing has been read; asking again is safe."""


class UnknownTopicError(KafkaError):
    """The topic doesn't exist, or this client may not see it."""


class AuthenticationError(KafkaError):
    """The brokers don't accept who this client says it is, or it them. Asking again is in vain until that is mended."""


class AuthorizationError(KafkaError):
    """The brokers know this client and don't allow it what it asked. Asking again is in vain until they do."""


class RegistryError(KafkaLakeError):
    """The schema registry didn't answer, or was overtaxed. No state is touched; asking again is safe."""


class RegistryRefusedError(RegistryError):
    """The registry refuses this client, or it isn't a registry. Asking again is in vain until that is mended."""


class UnknownSchemaError(RegistryError):
    """The registry has no such schema, or none in a language known here. It is up and asking again is in vain."""


class CatalogError(KafkaLakeError):
    """The catalog didn't answer, or is overtaxed. What was asked for may be asked for again."""


class CatalogRefusedError(CatalogError):
    """The catalog refuses this client, or can't be used as configured. Asking again is in vain until that is mended."""


class EngineUnavailableError(KafkaLakeError):
    """The Spark Connect server doesn't answer. Nothing has been done; asking again is safe."""


class SchemaNotSupportedError(KafkaLakeError):
    """A schema is invalid, or has a type that no table can have. Nothing has been staged."""


class DataLossError(KafkaLakeError):
    """Kafka no longer has records that the table has not yet. ``main`` is as it was."""


class TopicReplacedError(DataLossError):
    """The topic of that name is another one than the table was filled from. ``main`` is as it was."""


class TableError(KafkaLakeError):
    """The table in the catalog is not what the topic's configuration needs. ``main`` is as it was."""


class AuditFailedError(KafkaLakeError):
    """A gate refused the staged snapshot. ``main`` is as it was; the staged snapshot has been removed."""


class PublishRefusedError(KafkaLakeError):
    """Somebody else moved ``main`` since the position was read. The caller plans again from the new position."""
