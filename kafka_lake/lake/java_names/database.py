"""The address of an SQL catalog's database, as JDBC has it. Pure.

PyIceberg takes an address of SQLAlchemy.
"""

from collections.abc import Mapping
from pathlib import Path

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from kafka_lake.common.catalog_variables import catalog_variable
from kafka_lake.common.errors import ConfigurationError

# By SQLAlchemy's name of the database: JDBC's, and JDBC's names for what the driver for Python takes in the address.
_DATABASES: dict[str, tuple[str, Mapping[str, str]]] = {
    "postgresql": (
        "postgresql",
        {
            **{name: name for name in ("sslmode", "sslrootcert", "sslcert", "sslkey", "options")},
            **{"user": "user", "password": "password"},
            **{"connect_timeout": "connectTimeout", "application_name": "ApplicationName"},
        },
    ),
    "mysql": ("mysql", {}),
    "mariadb": ("mariadb", {}),
}


def sqlite_address(name: str, uri: str) -> str:
    """Return the address of a catalog's SQLite database there; empty if its database is another.

    Raises:
        ConfigurationError: If it is no file, or no address.
    """
    return database_properties(name, uri)["uri"] if uri.startswith("sqlite") else ""


def database_properties(name: str, uri: str) -> dict[str, str]:
    """Return a database's address as JDBC has it, and apart from it what must not be shown."""
    setting = catalog_variable(name, "uri")
    try:
        url = make_url(uri)
    except ArgumentError:
        raise ConfigurationError(
            f"Catalog {name}: its address is not a URL.",
            f"Write {setting} as postgresql+psycopg2://user:password@host/database.",
        ) from None
    database = url.get_backend_name()
    if database == "sqlite":
        return {"uri": _sqlite(name, setting, url)}
    if database not in _DATABASES:
        raise ConfigurationError(
            f"Catalog {name}: its database is {database}, which Spark has no driver for here.",
            f"Set {setting} to one of sqlite, {', '.join(_DATABASES)}, or use a REST catalog in front of it.",
        )
    jdbc, known = _DATABASES[database]
    if unknown := [key for key in url.query if key not in known]:
        raise ConfigurationError(
            f"Catalog {name}: {setting} has the parameter {unknown[0]}, which has no equivalent for Spark's driver.",
            "Leave it out of the address. For Spark alone, set it as jdbc. and its name in JDBC.",
        )
    if not url.host:
        raise ConfigurationError(
            f"Catalog {name}: {setting} names no host, and Spark reaches databases only over the network.",
            "Name the host.",
        )
    host = f"[{url.host}]" if ":" in url.host else url.host
    port = f":{url.port}" if url.port else ""
    told = {"user": url.username, "password": url.password}
    told |= {known[key]: str(value) for key, value in url.query.items()}
    java = {f"jdbc.{key}": value for key, value in told.items() if value}
    return {"uri": f"jdbc:{jdbc}://{host}{port}/{url.database or ''}", **java}


def _sqlite(name: str, setting: str, url: URL) -> str:
    if not url.database or url.database == ":memory:":
        raise ConfigurationError(
            f"Catalog {name}: a database in memory belongs to one process, and Spark is another process.",
            f"Set {setting} to a file.",
        )
    # Spark may run in another folder.
    return f"jdbc:sqlite:{Path(url.database).absolute()}?busy_timeout=30000"
