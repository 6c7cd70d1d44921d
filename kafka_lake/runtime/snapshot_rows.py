"""The rows of a table at a snapshot as a query of DuckDB, which reads only the columns and row groups that it needs."""

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import duckdb
import pyarrow as pa
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.manifest import DataFile, FileFormat
from pyiceberg.schema import index_by_id
from pyiceberg.table import FileScanTask, Table
from pyiceberg.table.deletion_vector import deletion_vectors_from_puffin_file
from pyiceberg.table.puffin import PuffinFile

from kafka_lake.catalog.positions import CREATED
from kafka_lake.errors import KafkaLakeError, SnapshotExpiredError, TableError
from kafka_lake.formats.task.shapes import small_offsets
from kafka_lake.schema.names import is_plain

Database = duckdb.DuckDBPyConnection

_LOCAL = re.compile(r"^file:/+")
_NAME_MAPPING = "schema.name-mapping.default"
_FILE = "__kafka_lake_file"
_NO_DELETES = pa.schema([("path", pa.string()), ("pos", pa.int64())])


def open_database() -> Database:
    """Return a new database in memory."""
    settings: dict[str, Any] = {
        "TimeZone": "UTC",
        "autoinstall_known_extensions": False,
        "parquet_metadata_cache": True,
    }
    return duckdb.connect(":memory:", config=settings)


def quoted(column: str) -> str:
    """Return a quoted name in DuckDB's SQL."""
    return '"' + column.replace('"', '""') + '"'


def literal(value: str) -> str:
    """Return a text as a literal of DuckDB's SQL."""
    return "'" + value.replace("'", "''") + "'"


def view_names(table: str) -> list[str]:
    """Return the names by which a query reads a table."""
    return ["this"] if table.lower() == "this" else ["this", table]


def types_of(database: Database, columns: pa.Schema) -> dict[str, str]:
    """Return DuckDB's types of Arrow columns by name."""
    relation = database.from_arrow(columns.empty_table())
    return dict(zip(relation.columns, map(str, relation.types), strict=True))


def file_error(error: Exception, table: str) -> KafkaLakeError | None:
    """Return the error for files of a table that can't be read; None if the error isn't about files."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    # DuckDB gives errors of an object store's client as tracebacks.
    is_of_client = isinstance(error, duckdb.Error) and lines[0].startswith("Traceback")
    reason = lines[-1 if is_of_client else 0].rstrip(".")
    if isinstance(error, duckdb.IOException | FileNotFoundError) or (is_of_client and "FileNotFound" in reason):
        return SnapshotExpiredError(f"Files of table {table} can't be read any more: {reason}.", "Read again.")
    if is_of_client or isinstance(error, OSError):
        remedy = "Check that the object store answers, and its credentials."
        return TableError(f"Files of table {table} can't be read: {reason}.", remedy)
    return None


def restrict(database: Database, paths: Sequence[str]) -> None:
    """Let queries of untrusted SQL read only some files, and what the database spills to disk."""
    database.execute("SET allowed_paths = ?", [list(paths)])
    database.execute("SET enable_external_access = false")
    database.execute("SET lock_configuration = true")


@contextmanager
def query_errors(table: str, columns: pa.Schema) -> Iterator[None]:
    """Raise DuckDB's errors about a query of a table as errors that name what can be queried."""
    try:
        yield
    except duckdb.Error as error:
        raise file_error(error, table) or KafkaLakeError(
            f"DuckDB can't run this query: {str(error).strip().splitlines()[0].rstrip('.!')}.",
            f"The table's name is this; its columns are {', '.join(columns.names)}.",
        ) from error


@contextmanager
def file_errors(table: str) -> Iterator[None]:
    """Raise errors about files of a table as `file_error` returns them."""
    try:
        yield
    except (duckdb.Error, OSError) as error:
        if known := file_error(error, table):
            raise known from error
        raise


def columns_of(table: Table) -> pa.Schema:
    """Return a table's current columns in Arrow's types."""
    return plain(schema_to_pyarrow(table.schema(), include_field_ids=False))


def plain(columns: pa.Schema) -> pa.Schema:
    """Return columns in the types of decoders, all nullable."""
    return pa.schema([small_offsets(field).with_nullable(True).remove_metadata() for field in columns])


class SnapshotRows:
    """The rows of a table at a snapshot.

    Raises:
        TableError: If DuckDB can't read the table's files as Iceberg asks.
    """

    def __init__(self, database: Database, table: Table, snapshot: int | None) -> None:
        self.columns = columns_of(table)
        self._ids = {field.name: field.field_id for field in table.schema().fields}
        self._evolved = _evolved(table)
        _check_readable(table)
        tasks = [] if snapshot is None else _planned(table, snapshot)
        self.paths = [_path(task.file.file_path) for task in tasks]
        _register_storage(database, table, self.paths)
        deletes = {delete.file_path: delete for task in tasks for delete in task.delete_files}
        self._deleted = _deleted_rows(database, table, deletes.values())

    def sql(self, database: Database, view: str) -> str:
        """Return a query for the rows; ``view`` names a view of the deleted ones, which is created if there are any."""
        types = types_of(database, self.columns)
        if not self.paths:
            nothing = ", ".join(f"NULL::{kind} AS {quoted(column)}" for column, kind in types.items())
            return f"SELECT {nothing} LIMIT 0"
        # Names that no column of DuckDB's reader has, such as file_row_number.
        names = {column: f"__column_{self._ids[column]}" for column in types}
        by_id = ", ".join(
            f"{self._ids[column]}: {{name: {literal(names[column])}, type: {literal(kind)}, default_value: NULL}}"
            for column, kind in types.items()
        )
        # DuckDB 2.0 fails to read one field of a struct that a file has without that field.
        whole = {column: f"CASE WHEN file_row_number >= 0 THEN {names[column]} END" for column in self._evolved}
        columns = ", ".join(f"{whole.get(column, names[column])} AS {quoted(column)}" for column in types)
        query = (
            f"SELECT {columns} FROM read_parquet([{', '.join(map(literal, self.paths))}], hive_partitioning = false, "
            f"schema = MAP {{{by_id}}}, filename = {literal(_FILE)}, file_row_number = true) AS f"
        )
        if not len(self._deleted):
            return query
        database.register(view, self._deleted)
        return f"{query} ANTI JOIN {view} AS d ON d.path = f.{_FILE} AND d.pos = f.file_row_number"


def _planned(table: Table, snapshot: int) -> list[FileScanTask]:
    try:
        return list(table.scan(snapshot_id=snapshot).plan_files())
    except (NotImplementedError, ValueError) as error:
        # PyIceberg doesn't apply equality deletes.
        raise _unreadable(table, str(error).rstrip(".")) from error


def _unreadable(table: Table, problem: str) -> TableError:
    return TableError(
        f"Table {'.'.join(table.name())} can't be read by DuckDB: {problem}.",
        'Read it with Spark, for which `eval "$(kafka-lake env --secrets)"` sets what it needs.',
    )


def _evolved(table: Table) -> set[str]:
    """Return the columns that got fields within after the first files."""
    schema = table.schema()
    paths = [
        str(schema.find_column_name(field))
        for other in table.metadata.schemas
        for field in schema.field_ids - other.field_ids
    ]
    return {field.name for field in schema.fields if any(path.startswith(f"{field.name}.") for path in paths)}


def _check_readable(table: Table) -> None:
    """Refuse files without field ids, and columns in structs that files have by another name: DuckDB reads nulls."""
    schema = table.schema()
    ids = {str(schema.find_column_name(field)): field for field in schema.field_ids}
    # Some catalogs give each table a mapping. A table that kafka_lake made has field ids in all files.
    may_lack_ids = _NAME_MAPPING in table.properties and CREATED not in table.properties
    problem = "its files may have no field ids" if may_lack_ids else ""
    top_level = {field.field_id for field in schema.fields}
    if encoded := [f for i, f in index_by_id(schema).items() if i not in top_level and not is_plain(f.name)]:
        problem = f"its files have field {encoded[0].name} in an object by an encoded name"
    for other in table.metadata.schemas:
        for field in other.field_ids & schema.field_ids:
            before, now = (str(version.find_column_name(field)) for version in (other, schema))
            if "." in now and before.rpartition(".")[2] != now.rpartition(".")[2]:
                problem = f"its column {now} was renamed"
        for field in other.field_ids:
            name = str(other.find_column_name(field))
            column = other.find_field(name.partition(".")[0]).field_id
            # DuckDB finds columns by their ids, and fields within them by name.
            if ids.get(name, field) != field and column in top_level and column != field:
                problem = f"its column {name} was dropped and added again"
    if len({field.name.lower() for field in schema.fields}) < len(schema.fields):
        problem = "names of its columns differ only in case"
    if problem:
        raise _unreadable(table, problem)


def _deleted_rows(database: Database, table: Table, files: Iterable[DataFile]) -> pa.Table:
    """Return paths and positions of deleted rows: of position-delete files, and of deletion vectors."""
    parts, paths = [_NO_DELETES.empty_table()], list[str]()
    for file in files:
        if file.file_format is FileFormat.PUFFIN:
            with table.io.new_input(file.file_path).open() as content:
                puffin = PuffinFile(content.read())
            for vector in deletion_vectors_from_puffin_file(puffin):
                positions = vector.to_vector()
                path = pa.repeat(_path(vector.referenced_data_file), len(positions))
                parts.append(pa.table([path, positions.combine_chunks()], schema=_NO_DELETES))
        else:
            paths.append(_path(file.file_path))
    if paths:
        listed = ", ".join(map(literal, paths))
        query = f"SELECT file_path AS path, pos FROM read_parquet([{listed}], hive_partitioning = false)"
        found = database.sql(query).to_arrow_table().cast(_NO_DELETES)
        distinct = found.column("path").combine_chunks().dictionary_encode()
        local = pa.array([_path(path) for path in distinct.dictionary.to_pylist()], pa.string())
        parts.append(found.set_column(0, "path", local.take(distinct.indices)))
    return pa.concat_tables(parts)


def _path(location: str) -> str:
    """Return a file's path as DuckDB shows it.

    >>> _path("file:///lake/a.parquet"), _path("s3://lake/a.parquet")
    ('/lake/a.parquet', 's3://lake/a.parquet')
    """
    return _LOCAL.sub("/", location)


def _register_storage(database: Database, table: Table, paths: Sequence[str]) -> None:
    """Let DuckDB read an object store by PyIceberg's own client of it."""
    schemes = {path.partition("://")[0] for path in paths if "://" in path}
    if not schemes:
        return
    from pyiceberg.io.fsspec import FsspecFileIO

    for scheme in schemes:
        try:
            storage: Any = FsspecFileIO(table.io.properties).get_fs(scheme)
        except ImportError as error:
            raise TableError(
                f"Table {'.'.join(table.name())}: reading {scheme}:// needs a package: {error}.",
                "Install kafka-lake[s3] for S3, or the fsspec package of the store.",
            ) from error
        protocols = {storage.protocol} if isinstance(storage.protocol, str) else set(storage.protocol)
        if not any(database.filesystem_is_registered(protocol) for protocol in protocols):
            database.register_filesystem(storage)
