"""How Kafka's properties are named to a user, and which client they are for. Pure."""

from collections.abc import Mapping

from kafka_lake.common import environment
from kafka_lake.errors import ConfigurationError

FOR_JAVA = "java."
"""A property that begins so is for Spark's Java client alone."""

FOR_LIBRDKAFKA = "librdkafka."
"""A property that begins so is for librdkafka alone."""


def setting(name: str) -> str:
    """Name a property, and the variable that sets it.

    >>> setting("sasl.username")
    'Kafka property sasl.username (KAFKA_LAKE_KAFKA_SASL_USERNAME)'
    """
    return f"Kafka property {name} ({environment.KAFKA.name}{name.upper().replace('.', '_')})"


def given_for(prefix: str, properties: Mapping[str, str]) -> dict[str, str]:
    """Return the properties of one client: those for both, and its own without their prefix."""
    own = {name.removeprefix(prefix): value for name, value in properties.items() if name.startswith(prefix)}
    return {n: v for n, v in properties.items() if not n.startswith((FOR_JAVA, FOR_LIBRDKAFKA))} | own


def needed(given: Mapping[str, str], name: str, why: str) -> str:
    """Return a property's value.

    Raises:
        ConfigurationError: If it is missing or empty.
    """
    if value := given.get(name):
        return value
    raise ConfigurationError(f"{why} needs {setting(name)}, which is not set.", "Set it.")
