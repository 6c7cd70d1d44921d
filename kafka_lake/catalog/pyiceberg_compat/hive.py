"""Compare-and-set in a Hive Metastore: commits name the metadata file that they replace.

PyIceberg relies on a lock of the metastore, which ends after five minutes without a heartbeat. PyIceberg sends none, so
a writer that was paused for so long would undo other commits. With ``expected_parameter_key`` the metastore refuses
that (https://issues.apache.org/jira/browse/HIVE-26882; Hive 4.0.0 and 2.3.10 have it). Other writers need the lock.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException, ServerError, ServiceUnavailableError
from pyiceberg.serializers import FromInputFile

from kafka_lake.errors import CatalogRefusedError

_LOCATION = "metadata_location"
_MODIFIED = f"The table has been modified. The parameter value for key '{_LOCATION}' is"


def compare_on_commit(catalog: Catalog) -> Catalog:
    """Let a Hive catalog commit by compare-and-set. Only this object is changed.

    Private: ``HiveCatalog._client``, which is replaced on this object, and ``_load_file_io``. Without them
    PyIceberg commits itself, and `compares_on_commit` is false: such a catalog is refused.
    """
    hive: Any = catalog
    if hasattr(hive, "_client") and hasattr(hive, "_load_file_io"):

        def earlier_files(location: str) -> set[str]:
            metadata = FromInputFile.table_metadata(hive._load_file_io(location=location).new_input(location))
            return {entry.metadata_file for entry in metadata.metadata_log}

        hive._client = _ComparingClient(hive._client, earlier_files)
    return catalog


def compares_on_commit(catalog: Catalog, database: str, table: str) -> bool:
    """Return whether the metastore refuses a change of a table that another writer has changed.

    A metastore that doesn't refuse has written the table unchanged, under its lock.
    """
    from hive_metastore.ttypes import EnvironmentContext, LockState, UnlockRequest

    hive: Any = catalog
    if not isinstance(getattr(hive, "_client", None), _ComparingClient):
        return False
    with hive._client as client:
        lock = client.lock(hive._create_lock_request(database, table))
        try:
            if lock.state == LockState.WAITING:
                hive._wait_for_lock(database, table, lock.lockid, client)
            current = client.get_table(dbname=database, tbl_name=table)
            client.expect(database, table, "kafka-lake.commit-requirements")
            client.alter_table_with_environment_context(database, table, current, EnvironmentContext(properties={}))
        except CommitFailedException:
            return True
        finally:
            client.unlock(UnlockRequest(lockid=lock.lockid))
    return False


class _ComparingClient:
    """PyIceberg's client of the metastore.

    Args:
        earlier_files: Returns the metadata files before the one at a location.
    """

    def __init__(self, client: Any, earlier_files: Callable[[str], set[str]]) -> None:
        self._client = client
        self._earlier_files = earlier_files

    def __enter__(self) -> "_Conversation":
        return _Conversation(_answer(self._client.__enter__), self._earlier_files)

    def __exit__(self, *error: Any) -> None:
        self._client.__exit__(*error)


class _Conversation:
    """The metastore's methods. A table that was read in it is changed only if it is still the same."""

    def __init__(self, client: Any, earlier_files: Callable[[str], set[str]]) -> None:
        self._client = client
        self._earlier_files = earlier_files
        self._seen: dict[tuple[str, str], str] = {}
        self._expected: dict[tuple[str, str], str] = {}

    def expect(self, dbname: str, tbl_name: str, location: str) -> None:
        """Set what a table's metadata file must be for the next change, instead of the one that was read."""
        self._expected[dbname, tbl_name] = location

    def get_table(self, dbname: str, tbl_name: str) -> Any:
        table = _answer(self._client.get_table, dbname=dbname, tbl_name=tbl_name)
        self._seen[dbname, tbl_name] = (table.parameters or {}).get(_LOCATION, "")
        return table

    def alter_table_with_environment_context(
        self, dbname: str, tbl_name: str, new_tbl: Any, environment_context: Any
    ) -> None:
        seen = self._seen.get((dbname, tbl_name), "")
        if expected := self._expected.get((dbname, tbl_name), seen):
            environment_context.properties |= {
                "expected_parameter_key": _LOCATION,
                "expected_parameter_value": expected,
            }
        try:
            _answer(self._client.alter_table_with_environment_context, dbname, tbl_name, new_tbl, environment_context)
        except ServerError as error:
            if _MODIFIED not in str(error):
                raise
            # The metastore retries: it may have found this very change.
            now, new = self.get_table(dbname, tbl_name).parameters[_LOCATION], new_tbl.parameters[_LOCATION]
            if new == seen or (new != now and new not in self._earlier_files(now)):
                raise CommitFailedException(f"Table {dbname}.{tbl_name} was changed by another writer.") from error

    def __getattr__(self, name: str) -> Any:
        return partial(_answer, getattr(self._client, name))


def _answer(method: Callable[..., Any], *args: Any, **named: Any) -> Any:
    """Return what the metastore answers; errors that PyIceberg doesn't expect become PyIceberg's.

    None of them means that a commit didn't happen: PyIceberg keeps the files of such a commit.
    """
    from hive_metastore.ttypes import MetaException, NoSuchLockException
    from thrift.Thrift import TApplicationException
    from thrift.transport.TTransport import TTransportException

    try:
        return method(*args, **named)
    except (TTransportException, NoSuchLockException) as error:
        raise ServiceUnavailableError(error.message) from error
    except MetaException as error:
        raise ServerError(error.message) from error
    except TApplicationException as error:
        raise CatalogRefusedError(
            f"The Hive Metastore can't be used: {error.message}. Iceberg's clients need methods that Hive 4.0.1 "
            "removed.",
            "Use Hive Metastore 2.3.10 or 4.0.0, or the REST catalog that Hive has since 4.1 (type: rest).",
        ) from error
