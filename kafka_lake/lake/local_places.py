"""What of a catalog is on this machine: the embedded one, files by relative paths, folders that are to be made."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from kafka_lake.common.catalog import catalog_variable
from kafka_lake.errors import ConfigurationError

_FILE = "file://"
_CUT = ("?", "#")


def embedded_catalog(home: Path) -> dict[str, str]:
    """Return the properties of the embedded catalog: SQLite, and files beside it.

    SQLAlchemy decodes what is percent-encoded in an address. Neither engine decodes a location: PyIceberg takes
    ``urlparse(location).path``, Hadoop's ``Path`` the text. So the location is as the folder is written.

    Args:
        home: The folder of the deployment's local state, absolute.

    Raises:
        ConfigurationError: If the folder's name has a character at which PyIceberg ends a location.
    """
    if cut := [each for each in _CUT if each in str(home)]:
        raise ConfigurationError(
            f"KAFKA_LAKE_HOME={home} has a {cut[0]}, at which PyIceberg would end the address of a file.",
            "Choose a folder without it.",
        )
    uri = URL.create("sqlite", database=str(home / "catalog.db")).render_as_string(hide_password=False)
    return {"type": "sql", "uri": uri, "warehouse": f"{_FILE}{home / 'warehouse'}"}


def on_this_machine(name: str, kind: str, properties: Mapping[str, str]) -> dict[str, str]:
    """Return a catalog's properties with absolute paths: PyIceberg and Spark may run in different folders.

    Args:
        name: The catalog's name, for messages.
        kind: Its type. Of a relative warehouse only an SQL catalog means a folder of this machine.

    Raises:
        ConfigurationError: If the warehouse is a folder that PyIceberg can't have.
    """
    told = dict(properties)
    warehouse = told.get("warehouse", "")
    is_path = kind == "sql" and not urlsplit(warehouse).scheme and "DEFAULT_SCHEME" not in told
    if (is_path or warehouse.startswith(_FILE)) and (cut := [each for each in _CUT if each in warehouse]):
        raise ConfigurationError(
            f"Catalog {name}: its warehouse has a {cut[0]}, at which PyIceberg would end the address of a file.",
            f"Set {catalog_variable(name, 'warehouse')} to a folder without it.",
        )
    if kind == "sql" and warehouse.startswith(_FILE) and (host := urlsplit(warehouse).netloc):
        # PyIceberg takes file://./w for the relative path ./w, Hadoop for /w on a host.
        raise ConfigurationError(
            f"Catalog {name}: its warehouse {warehouse} has {host} where a path begins.",
            f"Set {catalog_variable(name, 'warehouse')} to file:///folder, or to a path without file://.",
        )
    if is_path:
        told["warehouse"] = f"{_FILE}{Path(warehouse).absolute()}"
    database = _sqlite_file(told.get("uri", "")) if kind == "sql" else ""
    if database and not Path(database).is_absolute():
        absolute = make_url(told["uri"]).set(database=str(Path(database).absolute()))
        told["uri"] = absolute.render_as_string(hide_password=False)
    return told


def local_folders(properties: Mapping[str, str]) -> Iterator[Path]:
    """Yield the folders of this machine that a catalog needs: its SQLite file's, and its warehouse."""
    if database := _sqlite_file(properties.get("uri", "")):
        yield Path(database).parent
    if (warehouse := properties.get("warehouse", "")).startswith(_FILE):
        yield Path(urlsplit(warehouse).path)


def _sqlite_file(uri: str) -> str:
    """Return the file of an SQLite database; empty if there is none."""
    try:
        url = make_url(uri) if uri.startswith("sqlite") else None
    except (ArgumentError, ValueError):
        return ""
    file = (url.database or "") if url else ""
    return "" if file == ":memory:" or file.startswith("file:") else file
