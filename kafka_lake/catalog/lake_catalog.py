"""One catalog configuration, in Iceberg's standard property names, for both engines: PyIceberg and Spark."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from uuid import uuid4

from pyiceberg.catalog import (
    LOCATION,
    WAREHOUSE_LOCATION,
    Catalog,
    MetastoreCatalog,
    load_catalog,
)
from pyiceberg.exceptions import (
    BadRequestError,
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
)
from pyiceberg.io import FSSPEC_FILE_IO, SCHEMA_TO_FILE_IO
from pyiceberg.table import Table
from pyiceberg.table.update import AssertRefSnapshotId, SetPropertiesUpdate
from sqlalchemy import exc as sql

from kafka_lake.catalog.catalog_errors import explained, without_secrets
from kafka_lake.catalog.catalog_properties import (
    CatalogSettings,
    catalog_name,
    local_folders,
    properties_from_environment,
    python_properties,
)
from kafka_lake.catalog.pyiceberg_compat.hive import compare_on_commit, compares_on_commit
from kafka_lake.catalog.pyiceberg_compat.loading import share_snapshots
from kafka_lake.catalog.pyiceberg_compat.writing import put_at_once, take_over_writing
from kafka_lake.common.environment import catalog_variable
from kafka_lake.common.files import ensure_home, home
from kafka_lake.errors import CatalogRefusedError, ConfigurationError, KafkaLakeError

_FOLDER_BYTES = 200


def configured_catalog() -> "LakeCatalog":
    """Return the catalog of the environment, not connected yet; raises `ConfigurationError` as `LakeCatalog` does."""
    name = catalog_name()
    return LakeCatalog(name, properties_from_environment(name))


@contextmanager
def metadata_by_fsspec() -> Iterator[None]:
    """Read local files by fsspec in the block: PyArrow takes longer to import than metadata take to read."""
    before, SCHEMA_TO_FILE_IO["file"] = SCHEMA_TO_FILE_IO["file"], [FSSPEC_FILE_IO]
    try:
        yield
    finally:
        SCHEMA_TO_FILE_IO["file"] = before


def quoted_path(column: str, names: Collection[str]) -> str:
    """Return a column in Spark SQL, or the path of a struct's field if no column has that name.

    >>> quoted_path("who.id", ["who"]), quoted_path("who.id", ["who.id"])
    ('`who`.`id`', '`who.id`')
    """
    return quoted(column) if column in names else ".".join(map(quoted, column.split(".")))


def quoted(name: str) -> str:
    """Return a name as one part of an identifier in Spark SQL.

    >>> quoted("shop"), quoted("a`b.c")
    ('`shop`', '`a``b.c`')
    """
    return f"`{name.replace('`', '``')}`"


def literal(text: str) -> str:
    r"""Return a text as a literal of Spark SQL.

    >>> print(literal(r"it's 1\2"))
    'it\'s 1\\2'
    """
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


class LakeCatalog(CatalogSettings):
    """A catalog, for PyIceberg and for Spark; raises as `CatalogSettings`."""

    @cached_property
    def pyiceberg(self) -> Catalog:
        """Return the connected PyIceberg catalog; folders of a local catalog are created.

        Raises:
            CatalogError: If the catalog doesn't answer; `CatalogRefusedError` if a retry can't help.
            ConfigurationError: If its address isn't a URL.
        """
        with self._asking("Connecting"):
            return self._connected()

    @contextmanager
    def _asking(self, what: str) -> Iterator[None]:
        """Translate errors of the catalog's client in the block."""
        try:
            yield
        except KafkaLakeError:
            raise
        except Exception as error:
            if (mended := explained(self.name, self.type, properties=self.properties, what=what, error=error)) is None:
                raise
            raise mended from error

    def _connected(self) -> Catalog:
        for folder in local_folders(self.properties):
            self._make_folder(folder)
        catalog = share_snapshots(
            load_catalog(self.name, **{**python_properties(self.properties), "type": self.type}), self.type
        )
        take_over_writing(catalog)
        put_at_once(catalog)
        if self.type == "hive":
            compare_on_commit(catalog)
        return catalog

    def _make_folder(self, folder: Path) -> None:
        try:
            if folder.is_relative_to(home()):
                ensure_home()
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            setting = catalog_variable(self.name)
            raise CatalogRefusedError(
                f"Catalog {self.name}: folder {folder} can't be created: {error.strerror}.",
                f"Let this user create it, or set KAFKA_LAKE_HOME, or {setting}URI and {setting}WAREHOUSE.",
            ) from error

    def address_of(self, name: str) -> str:
        """Return the address in a property without user, password and query; empty if it isn't set."""
        return without_secrets(self.properties.get(name, ""))

    def table(self, identifier: tuple[str, str]) -> Table | None:
        """Return the table as the catalog knows it now, or None if there is none.

        Raises:
            CatalogError: If the catalog doesn't answer; `CatalogRefusedError` if a retry can't help.
        """
        try:
            with self._asking(f"Table {'.'.join(identifier)}"):
                return self.pyiceberg.load_table(identifier)
        except NoSuchTableError:
            return None

    def tables(self) -> Iterator[Table]:
        """Yield all Iceberg tables of the catalog, those in nested namespaces too.

        Raises:
            CatalogError: If the catalog doesn't answer; `CatalogRefusedError` if a retry can't help.
        """
        with self._asking("Listing the tables"):
            visited: set[tuple[str, ...]] = set()
            pending = [tuple(name) for name in self.pyiceberg.list_namespaces()]
            while pending:
                namespace = pending.pop()
                if namespace in visited:
                    continue
                visited.add(namespace)
                with suppress(NoSuchNamespaceError):
                    pending += [tuple(name) for name in self.pyiceberg.list_namespaces(namespace)]
                for identifier in self.pyiceberg.list_tables(namespace):
                    # It may have been dropped by now.
                    with suppress(NoSuchTableError):
                        yield self.pyiceberg.load_table(identifier)

    def new_location(self, identifier: tuple[str, str]) -> str | None:
        """Return a location that no other table has had; None if the catalog's server chooses one.

        A renamed table keeps its location, which a new table of the old name must not share.
        """
        if not isinstance(self.pyiceberg, MetastoreCatalog):
            return None
        with self._asking(f"Table {'.'.join(identifier)}"):
            place = self._place_of(identifier[0])
        # A folder's name has at most 255 bytes.
        folder = identifier[1].encode()[:_FOLDER_BYTES].decode(errors="ignore")
        return f"{place}/{folder}-{uuid4().hex[:12]}"

    def _place_of(self, namespace: str) -> str:
        """Return where the tables of a namespace are, by the conventions of Iceberg's own catalogs."""
        if place := self.pyiceberg.load_namespace_properties(namespace).get(LOCATION):
            return str(place).rstrip("/")
        if warehouse := self.pyiceberg.properties.get(WAREHOUSE_LOCATION):
            return f"{warehouse.rstrip('/')}/{namespace}{self.backend.folder_ending}"
        raise ConfigurationError(
            f"Catalog {self.name}: neither namespace {namespace} nor the catalog defines a location for new tables.",
            f"Set {catalog_variable(self.name, 'warehouse')}, or the namespace's location.",
        )

    def check(self) -> int:
        """Return how many namespaces the catalog has.

        Raises:
            CatalogError: If the catalog doesn't answer; `CatalogRefusedError` if a retry can't help.
            ConfigurationError: If its address isn't a URL.
        """
        with self._asking("Listing the namespaces"):
            return len(self.pyiceberg.list_namespaces())

    def ensure_namespace(self, namespace: str) -> None:
        """Create the namespace if there is none."""
        try:
            with self._asking(f"Namespace {namespace}"):
                self.pyiceberg.create_namespace_if_not_exists(namespace)
        except (NamespaceAlreadyExistsError, sql.IntegrityError):
            # Another process created it meanwhile: SqlCatalog looks first and inserts then.
            return

    def purge(self, identifier: tuple[str, str]) -> None:
        """Drop a table with its files; PyIceberg's Hive catalog alone can't.

        Raises:
            NoSuchTableError: If there is none.
            RESTError: If the catalog refuses.
        """
        catalog = self.pyiceberg
        if isinstance(catalog, MetastoreCatalog):
            MetastoreCatalog.purge_table(catalog, identifier)
        else:
            catalog.purge_table(identifier)

    def spark_name(self, identifier: tuple[str, str], branch: str | None = None) -> str:
        """Return the quoted name that Spark SQL knows the table, or a branch of it, by."""
        parts = [self.name, *identifier] + ([f"branch_{branch}"] if branch else [])
        return ".".join(quoted(part) for part in parts)

    def call(self, procedure: str, identifier: tuple[str, str], **arguments: str) -> str:
        """Return the statement that calls one of Iceberg's procedures for a table.

        The table's name has all three parts: with two, Iceberg takes a namespace of the catalog's name for the catalog.

        Args:
            arguments: Further arguments as SQL; `literal` makes one from a text.
        """
        named = {"table": literal(self.spark_name(identifier)), **arguments}
        listed = ", ".join(f"{name} => {value}" for name, value in named.items())
        return f"CALL {quoted(self.name)}.system.{procedure}({listed})"


_PROBE = "kafka_lake_probe"
_NO_SNAPSHOT = 1


def enforces_requirements(table: Table) -> bool:
    """Return whether the catalog refuses a commit that asserts a missing branch.

    A catalog that accepts it has set the property ``kafka-lake.commit-requirements``, and nothing else.
    """
    asserted = AssertRefSnapshotId.model_validate(
        {"type": "assert-ref-snapshot-id", "ref": _PROBE, "snapshot-id": _NO_SNAPSHOT}
    )
    try:
        table.catalog.commit_table(
            table, (asserted,), (SetPropertiesUpdate(updates={"kafka-lake.commit-requirements": "ignored"}),)
        )
    except (CommitFailedException, BadRequestError):
        return True
    return False


def without_branches(catalog: LakeCatalog) -> CatalogRefusedError:
    """Return the error about a catalog that accepts a branch and doesn't keep it."""
    return CatalogRefusedError(
        f"Catalog {catalog.name} at {catalog.address_of('uri')} doesn't keep branches of Iceberg tables: rows would "
        "reach main before they are checked, and replace existing rows.",
        "Use a catalog that keeps branches. Nessie's REST catalog keeps one snapshot of each table, on main.",
    )


def check_commit_requirements(catalog: LakeCatalog, table: Table) -> None:
    """Test whether a REST catalog or a Hive Metastore refuses outdated commits; databases and Glue always do."""
    if catalog.pyiceberg.properties.get("nessie.is-nessie-catalog") == "true":
        raise without_branches(catalog)
    if catalog.type == "rest" and not enforces_requirements(table):
        raise CatalogRefusedError(
            f"Catalog {catalog.name} at {catalog.address_of('uri')} accepts commits whose assertions fail "
            f"(assert-ref-snapshot-id, tested on table {'.'.join(table.name())}): writers would overwrite each "
            "other's commits.",
            "Use a catalog, or another version of this catalog, that follows Iceberg's REST specification.",
        )
    if catalog.type == "hive" and not compares_on_commit(catalog.pyiceberg, *table.name()[-2:]):
        raise CatalogRefusedError(
            f"Catalog {catalog.name}: the Hive Metastore at {catalog.address_of('uri')} accepts conflicting commits "
            f"(expected_parameter_key, tested on table {'.'.join(table.name())}): a writer that is suspended until "
            "its lock expires would overwrite other writers' commits.",
            "Use Hive Metastore 2.3.10 or 4.0.0, which support compare-and-set (HIVE-26882), or a REST catalog.",
        )
