"""Settings of a Hive Metastore, in Java's names. Pure."""

from kafka_lake.common.errors import ConfigurationError

_KERBEROS = "hive.kerberos-authentication"
_SERVICE = "hive.kerberos-service-name"
_PRINCIPAL = "hadoop.hive.metastore.kerberos.principal"


def hive_properties(name: str, told: dict[str, str]) -> dict[str, str]:
    """Return the properties of a Hive Metastore's catalog with those of log-in in Java's names.

    Hive's Java client has ``hive.metastore.sasl.enabled`` and ``hive.metastore.kerberos.principal`` in Hadoop's
    configuration, which Iceberg takes from a catalog's properties that begin with ``hadoop.``. PyIceberg's
    ``_HiveClient`` has no principal, only the name of its service. ``ugi``, by which it calls ``set_ugi``, is the user
    of the process in Java.

    Args:
        name: The catalog's name, for messages.
        told: Its properties.

    Raises:
        ConfigurationError: If one can't be told to Java.

    https://iceberg.apache.org/docs/latest/spark-configuration/#catalog-configuration
    """
    if "ugi" in told:
        raise ConfigurationError(
            f"Catalog {name}: Spark can't be told ugi.",
            "Leave it out, and run as that user: in Java the user of a metastore is that of the process.",
        )
    service = told.pop(_SERVICE, "hive")
    if told.pop(_KERBEROS, "") != "true":
        return told
    if (principal := told.get(_PRINCIPAL, "")).partition("/")[0] != service:
        raise ConfigurationError(
            f"Catalog {name}: Spark needs the metastore's principal for {_KERBEROS}, and {_PRINCIPAL} "
            f"{'is of another service than ' + service if principal else 'is not set'}.",
            f"Set it, as in {service}/_HOST@EXAMPLE.COM. Hadoop's core-site.xml must say kerberos, too.",
        )
    return {"hadoop.hive.metastore.sasl.enabled": "true", **told}
