"""The address of an SQL catalog's database, as JDBC has it: PostgreSQL and SQLite. Pure.

PyIceberg's `SqlCatalog` gives its ``uri`` to SQLAlchemy's `create_engine`.
"""

from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from kafka_lake.common.catalog import catalog_variable
from kafka_lake.errors import ConfigurationError

_PREFIX = "jdbc."
# What PostgreSQL's driver for Python takes in the address, and the name of it in JDBC; None if Java needn't know it.
_PARAMETERS: Mapping[str, str | None] = {
    **{name: name for name in ("user", "password", "sslmode", "sslrootcert", "sslcert", "options")},
    **{"connect_timeout": "connectTimeout", "application_name": "ApplicationName"},
    **{"channel_binding": "channelBinding"},
    **dict.fromkeys(
        ("keepalives", "keepalives_idle", "keepalives_interval", "keepalives_count", "tcp_user_timeout"), None
    ),
}
_ICEBERG = ("add-view-support", "init-catalog-tables", "schema-version", "strict-mode")
# https://jdbc.postgresql.org/documentation/use/#connection-parameters
_DRIVER = """
ApplicationName cancelSignalTimeout channelBinding connectTimeout currentSchema gssEncMode hostRecheckSeconds
jaasApplicationName kerberosServerName loadBalanceHosts loginTimeout options password prepareThreshold service
socketFactory socketTimeout ssl sslcert sslfactory sslkey sslmode sslNegotiation sslpassword sslResponseTimeout
sslrootcert targetServerType tcpKeepAlive user
"""
_IN_LOWER_CASE = {each.lower(): each for each in (*_DRIVER.split(), *_ICEBERG)}


def sqlite_address(name: str, uri: str) -> str:
    """Return the address of a catalog's SQLite database in JDBC; empty if its database is another.

    Raises:
        ConfigurationError: If it isn't a file, or the address isn't a URL.
    """
    return _sqlite(name, _parsed(name, uri)) if uri.startswith("sqlite") else ""


def database_properties(name: str, properties: Mapping[str, str]) -> dict[str, str]:
    """Return a database's address as JDBC has it, with user and password apart from it.

    Args:
        name: The catalog's name, for messages.
        properties: The catalog's. Those that begin with ``jdbc.`` win over what is in the address.

    Raises:
        ConfigurationError: If the address, or a property of the driver, can't be translated.
    """
    setting = catalog_variable(name, "uri")
    url = _parsed(name, properties["uri"])
    database = url.get_backend_name()
    given = {key: value for key, value in properties.items() if key.startswith(_PREFIX)}
    if database == "sqlite":
        return {"uri": _sqlite(name, url), **given}
    if database != "postgresql":
        raise ConfigurationError(
            f"Catalog {name}: its database is {database}; catalogs of type sql are in PostgreSQL or SQLite.",
            f"Set {setting} to one of those, or use a REST catalog in front of this database.",
        )
    if not url.host:
        raise ConfigurationError(
            f"Catalog {name}: {setting} names no host, and Spark reaches databases only over the network.",
            "Name the host.",
        )
    given = {_driver_name(name, key): value for key, value in given.items()}
    told = {"user": url.username, "password": url.password, **_parameters(name, setting, url, given)}
    java = {f"{_PREFIX}{key}": value for key, value in told.items() if value}
    return {"uri": f"jdbc:postgresql://{_hosts(url)}/{quote(url.database or '', safe='')}", **java, **given}


def _driver_name(name: str, key: str) -> str:
    """Return a property as the driver writes it: PyIceberg makes names in variables and in its file lower-case.

    The driver ignores a property in another case.
    """
    short = key.removeprefix(_PREFIX)
    if short == short.lower() and short not in _IN_LOWER_CASE:
        raise ConfigurationError(
            f"Catalog {name}: {key} is no property of PostgreSQL's Java driver that is known in lower case.",
            "Write it among catalog_properties in YAML, with the driver's upper-case letters; or leave it out.",
        )
    return f"{_PREFIX}{_IN_LOWER_CASE.get(short, short)}"


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


def _parameters(name: str, setting: str, url: URL, given: Mapping[str, str]) -> dict[str, str]:
    """Return the parameters of an address in JDBC's names."""
    told: dict[str, str] = {}
    for key, value in url.query.items():
        if key == "sslkey":
            if "jdbc.sslkey" in given:
                continue
            raise ConfigurationError(
                f"Catalog {name}: {setting} has sslkey, a file as PEM, which Java can't read.",
                "Set jdbc.sslkey beside it to the same key as PKCS-8: openssl pkcs8 -topk8 -nocrypt -outform DER "
                "-in key.pem -out key.pk8.",
            )
        if key not in _PARAMETERS:
            raise ConfigurationError(
                f"Catalog {name}: {setting} has the parameter {key}, which has no equivalent for Spark's driver.",
                "Leave it out of the address. For Spark alone, set it as jdbc. and its name in JDBC.",
            )
        if not isinstance(value, str):
            raise ConfigurationError(
                f"Catalog {name}: {setting} has the parameter {key} more than once.", "Leave one of them."
            )
        if java := _PARAMETERS[key]:
            told[java] = value
    return told


def _hosts(url: URL) -> str:
    """Return hosts and port: in JDBC each of several has its own, for libpq one counts for all."""
    port = f":{url.port}" if url.port else ""
    host = url.host or ""
    if ":" in host:
        return f"[{host}]{port}"
    return ",".join(f"{each}{port}" for each in host.split(","))


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
            f"Catalog {name}: Spark can't open an SQLite database with another driver, or by a file: URI.",
            f"Write {setting} as sqlite:////folder/file.db.",
        )
    if "?" in url.database:
        raise ConfigurationError(
            f"Catalog {name}: its SQLite file has a ? in its name, which ends the name for Spark's driver.",
            f"Set {setting} to a file without it.",
        )
    # Spark may run in another folder.
    return f"jdbc:sqlite:{Path(url.database).absolute()}?busy_timeout=30000"
