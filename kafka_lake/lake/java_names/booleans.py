"""Properties that are true or false, read as PyIceberg reads them. Pure."""

from collections.abc import Mapping

from pyiceberg.types import strtobool

from kafka_lake.common.errors import ConfigurationError

# Those that PyIceberg gives to `strtobool`, alone or in `property_as_bool`.
_BOOLEANS = (
    "gcs.requester-pays",
    "gcs.version-aware",
    "glue.skip-archive",
    "hive.hive2-compatible",
    "hive.kerberos-authentication",
    "init_catalog_tables",
    "pool_pre_ping",
    "rest.sigv4-enabled",
    "s3.anonymous",
    "s3.force-virtual-addressing",
    "s3.resolve-region",
    "view-endpoints-supported",
)


def plain_booleans(name: str, properties: Mapping[str, str]) -> dict[str, str]:
    """Return a catalog's properties with each boolean as ``true`` or ``false``, the only words that Java knows.

    PyIceberg's `strtobool`: "True values are 'y', 'yes', 't', 'true', 'on', and '1'; false values are 'n', 'no', 'f',
    'false', 'off', and '0'". Iceberg's ``PropertyUtil.propertyAsBoolean`` is Java's ``Boolean.parseBoolean``, for which
    all but ``true`` is false.

    Args:
        name: The catalog's name, for messages.
        properties: In PyIceberg's names.

    Raises:
        ConfigurationError: If one is neither.

    >>> plain_booleans("lake", {"s3.anonymous": "Yes", "uri": "yes"})
    {'s3.anonymous': 'true', 'uri': 'yes'}
    """
    told = dict(properties)
    for key in _BOOLEANS:
        if key in told:
            try:
                told[key] = "true" if strtobool(told[key]) else "false"
            except ValueError:
                raise ConfigurationError(
                    f"Catalog {name}: {key} is neither true nor false.", "Write one of these."
                ) from None
    return told
