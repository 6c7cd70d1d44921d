"""The address of an SQL catalog's database, as JDBC has it. Pure.

PyIceberg's `SqlCatalog` gives its ``uri`` to SQLAlchemy's `create_engine`.
"""

from collections.abc import Collection, Mapping
from pathlib import Path
from urllib.parse import quote

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from kafka_lake.common.catalog_variables import catalog_variable
from kafka_lake.common.errors import ConfigurationError
from kafka_lake.lake.java_names.jdbc_names import jdbc_names

# By SQLAlchemy's name of the database: JDBC's, and JDBC's names for what the driver for Python takes in the address.
_DATABASES: dict[str, tuple[str, Mapping[str, str]]] = {
    "postgresql": (
        "postgresql",
        {
            **{name: name for name in ("sslmode", "sslrootcert", "sslcert", "options")},
            **{"user": "user", "password": "password"},
            **{"connect_timeout": "connectTimeout", "application_name": "ApplicationName"},
            # In both of them disable, prefer or require; Neon's addresses have it.
            **{"channel_binding": "channelBinding"},
        },
    ),
    "mysql": ("mysql", {}),
    "mariadb": ("mariadb", {}),
}
_KEEPALIVES = ("keepalives", "keepalives_idle", "keepalives_interval", "keepalives_count", "tcp_user_timeout")
_PYTHON_ALONE: dict[str, Mapping[str, Collection[str] | None]] = {
    # They watch the connection of the process that has them; Java's driver has times of its own for that.
    "postgresql": dict.fromkeys(_KEEPALIVES),
    # Both drivers of Java take text in UTF-8.
    "mysql": {"charset": ("utf8mb4", "utf8")},
    "mariadb": {"charset": ("utf8mb4", "utf8")},
}
"""Parameters of an address that Java needn't be told, with the values for which that is so; None for all."""


def sqlite_address(name: str, uri: str) -> str:
    """Return the address of a catalog's SQLite database there; empty if its database is another.

    Raises:
        ConfigurationError: If it is no file, or no address.
    """
    return _sqlite(name, _parsed(name, uri)) if uri.startswith("sqlite") else ""


def database_properties(name: str, properties: Mapping[str, str]) -> dict[str, str]:
    """Return a database's address as JDBC has it, and apart from it what must not be shown.

    Args:
        name: The catalog's name, for messages.
        properties: The catalog's. Those in JDBC's names win over what is in the address.

    Raises:
        ConfigurationError: If the address, or a property of the driver, can't be told to Java.
    """
    setting = catalog_variable(name, "uri")
    url = _parsed(name, properties["uri"])
    database = url.get_backend_name()
    if database != "sqlite" and database not in _DATABASES:
        raise ConfigurationError(
            f"Catalog {name}: its database is {database}, which Spark has no driver for here.",
            f"Set {setting} to one of sqlite, {', '.join(_DATABASES)}, or use a REST catalog in front of it.",
        )
    given = jdbc_names(name, database, properties)
    if database == "sqlite":
        return {"uri": _sqlite(name, url), **given}
    jdbc, known = _DATABASES[database]
    alone = _PYTHON_ALONE[database]
    query = {key: value for key, value in url.query.items() if key not in alone or not _is_among(value, alone[key])}
    if "sslkey" in query and "jdbc.sslkey" in given:
        query.pop("sslkey")
    _check(name, setting, query, known)
    if not url.host:
        raise ConfigurationError(
            f"Catalog {name}: {setting} names no host, and Spark reaches databases only over the network.",
            "Name the host.",
        )
    told = {"user": url.username, "password": url.password}
    told |= {known[key]: str(value) for key, value in query.items()}
    java = {f"jdbc.{key}": value for key, value in told.items() if value}
    return {"uri": f"jdbc:{jdbc}://{_hosts(url)}/{_database_name(name, jdbc, url.database or '')}", **java, **given}


def _parsed(name: str, uri: str) -> URL:
    try:
        return make_url(uri)
    except (ArgumentError, ValueError):
        # What SQLAlchemy takes for a port may be a part of the password.
        raise ConfigurationError(
            f"Catalog {name}: its address is not a URL.",
            f"Write {catalog_variable(name, 'uri')} as postgresql+psycopg2://user:password@host:5432/database. Several "
            "hosts have one port: host1,host2:5432.",
        ) from None


def _is_among(value: str | tuple[str, ...], values: Collection[str] | None) -> bool:
    return values is None or value in values


def _check(name: str, setting: str, query: Mapping[str, object], known: Mapping[str, str]) -> None:
    """Make sure that JDBC can be told the parameters of an address."""
    if "sslkey" in query:
        # LibPQFactory of PostgreSQL's Java driver reads ".p12", and its LazyKeyManager a PKCS8EncodedKeySpec.
        raise ConfigurationError(
            f"Catalog {name}: {setting} has sslkey, a file as PEM, which Java can't read.",
            "Set jdbc.sslkey beside it to the same key as PKCS-8: openssl pkcs8 -topk8 -nocrypt -outform DER "
            "-in key.pem -out key.pk8.",
        )
    if unknown := [key for key in query if key not in known]:
        raise ConfigurationError(
            f"Catalog {name}: {setting} has the parameter {unknown[0]}, which has no equivalent for Spark's driver.",
            "Leave it out of the address. For Spark alone, set it as jdbc. and its name in JDBC.",
        )
    if several := [key for key, value in query.items() if not isinstance(value, str)]:
        raise ConfigurationError(
            f"Catalog {name}: {setting} has the parameter {several[0]} more than once.", "Leave one of them."
        )


def _hosts(url: URL) -> str:
    """Return hosts and port: in JDBC each of several has its own, for libpq one counts for all."""
    port = f":{url.port}" if url.port else ""
    host = url.host or ""
    if ":" in host:
        return f"[{host}]{port}"
    return ",".join(f"{each}{port}" for each in host.split(","))


def _database_name(name: str, jdbc: str, database: str) -> str:
    """Return a database's name as the drivers decode it: PostgreSQL's by ``URLDecoder``, for which + is a space."""
    written = quote(database, safe="")
    if jdbc == "mariadb" and written != database:
        raise ConfigurationError(
            f"Catalog {name}: MariaDB's Java driver can't be told a database's name with such characters: {database}.",
            "Use a database whose name has letters, digits, - and _ alone.",
        )
    return written


def _sqlite(name: str, url: URL) -> str:
    """Return the address for sqlite-jdbc, which takes all up to a question mark for the file, as it is written."""
    setting = catalog_variable(name, "uri")
    if not url.database or url.database == ":memory:":
        raise ConfigurationError(
            f"Catalog {name}: a database in memory belongs to one process, and Spark is another process.",
            f"Set {setting} to a file.",
        )
    if url.drivername not in ("sqlite", "sqlite+pysqlite") or "uri" in url.query or url.database.startswith("file:"):
        raise ConfigurationError(
            f"Catalog {name}: Spark can't be told an SQLite database with another driver, or by a file: URI.",
            f"Write {setting} as sqlite:////folder/file.db.",
        )
    if "?" in url.database:
        raise ConfigurationError(
            f"Catalog {name}: its SQLite file has a ? in its name, which Spark's driver can't be told.",
            f"Set {setting} to a file without it.",
        )
    # Spark may run in another folder.
    return f"jdbc:sqlite:{Path(url.database).absolute()}?busy_timeout=30000"
