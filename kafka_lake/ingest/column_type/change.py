"""A column gets another type: all rows are written again, and schema and rows become visible by one commit.

For Iceberg it is another column of the same name. It is added as a schema that isn't the current one; the rows are
written by that schema and staged on a branch; and the commit that moves ``main`` there makes the schema current. So a
reader has the old type with the old files, or the new one with the new files. Old snapshots keep their schema.
"""

import pickle
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import tenacity
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema, index_by_id
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update import (
    AddSchemaUpdate,
    AssertCurrentSchemaId,
    AssertLastAssignedFieldId,
    AssertTableUUID,
    TableRequirement,
)
from pyiceberg.types import FixedType, IcebergType, MapType, NestedField, StructType, TimeType, UUIDType
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from kafka_lake.common.errors import AuditFailedError, ConfigurationError, PublishRefusedError, TableError
from kafka_lake.executors.writing.rows import FILES, write_rows
from kafka_lake.executors.writing.work import Work
from kafka_lake.ingest.column_type.casts import Cast, cast_of
from kafka_lake.ingest.connections import Connections
from kafka_lake.ingest.decode.ddl import check_ddl
from kafka_lake.ingest.decode.target import iceberg_columns, spark_columns
from kafka_lake.ingest.record_keys import added_between
from kafka_lake.ingest.stage.arrow_doubts import why_not_written
from kafka_lake.ingest.tasks import told
from kafka_lake.lake.author import CHANGE_COLUMN, author_summary
from kafka_lake.lake.branches import StagingBranch, branch_name
from kafka_lake.lake.catalog import quoted
from kafka_lake.lake.maintenance.staging import refused_if_main_moved
from kafka_lake.lake.positions import ancestors, carried_positions, head_of, summary_of
from kafka_lake.lake.pyiceberg_compat.rewriting import refuse_untested
from kafka_lake.lake.tables.retyped import column_at, refuse_layout_column, retyped
from kafka_lake.lake.totals import Totals, added, totals_of

_REWRITES, _FOLLOWED = 4, 20
_SHOWN = 80


@dataclass(frozen=True)
class ColumnType:
    """A column of a table, and the type that it shall have.

    Args:
        identifier: Namespace and name of the table.
        column: Its path, through structs.
        kind: The type, in Spark's SQL.
    """

    identifier: tuple[str, str]
    column: str
    kind: str

    @property
    def table(self) -> str:
        """Return the table's name as messages have it."""
        return ".".join(self.identifier)

    @property
    def spark_type(self) -> T.DataType:
        """Return the type; a session must have been started.

        Raises:
            ConfigurationError: If Spark has no such type.
        """
        names = check_ddl(f"c {self.kind}", "TYPE")
        parsed: T.StructType = T.DataType.fromDDL(f"c {self.kind}")
        if len(names) != 1 or not parsed[0].nullable or parsed[0].metadata:
            raise ConfigurationError(
                f"TYPE: {self.kind!r} is more than a type.", "Write the type alone, as double or decimal(12,2)."
            )
        return parsed[0].dataType


@dataclass(frozen=True)
class Changed:
    """What a change of a column's type did, or would do.

    Args:
        rows: How many rows were written.
        values: How many of them have a value in the column.
        files: How many data files they were in.
        size: The bytes of those.
        snapshot: The one that has them; None if nothing was changed.
    """

    rows: int
    values: int
    files: int
    size: int
    snapshot: int | None = None


@dataclass(frozen=True)
class Planned:
    """A change of a column's type that may be made: nothing of the table's metadata forbids it.

    Args:
        asked: Which column, and its type.
        table: The table as it was looked at.
        names: The column's path, name by name.
        cast: How its values change.
        schema: The table's schema by then.
        before: The column's type as it is, for messages.
    """

    asked: ColumnType
    table: Table
    names: tuple[str, ...]
    cast: Cast
    schema: Schema
    before: str

    def made_columns(self, rows: DataFrame) -> list[Column]:
        """Return all columns of rows, with the new values in this one."""
        new, name = F.expr(self.cast.made), self.names[0]
        if len(self.names) > 1:
            new = F.col(quoted(name)).withField(".".join(map(quoted, self.names[1:])), new)
        return [(new if each == name else F.col(quoted(each))).alias(each) for each in rows.columns]


def plan(asked: ColumnType, table: Table) -> Planned:
    """Return how a column gets another type, by the table's metadata; a Spark session must have been started.

    Raises:
        ConfigurationError: If there is no such type.
        TableError: If there is no such column, or its type can't be changed so.
    """
    refuse_untested()
    column, kind = column_at(table, asked.column), asked.spark_type
    refuse_layout_column(table, asked.column, column[-1])
    doubt = why_not_written(table)
    if not doubt and _has(table.schema().as_struct(), UUIDType, FixedType, TimeType):
        doubt = "it has a column of type uuid, fixed or time"
    if doubt:
        raise TableError(
            f"Table {asked.table}: its rows can't be written again by this command: {doubt}.",
            "With on_incompatible: new_column in the topic's YAML, such values go to a column beside the old one.",
        )
    have = spark_columns(StructType(column[-1]))[0].dataType
    if have.simpleString() == kind.simpleString():
        raise TableError(
            f"Table {asked.table}: column {asked.column} is of type {kind.simpleString()}.", "Nothing is to be changed."
        )
    names = tuple(each.name for each in column)
    cast = cast_of(".".join(map(quoted, names)), have, kind)
    if cast is None:
        raise TableError(
            f"Table {asked.table}: column {asked.column} can't become {kind.simpleString()}: no plain cast makes that "
            f"of {have.simpleString()}.",
            "Numbers become other numbers, times other times, text numbers or times, and anything becomes string. For "
            "other types, set on_incompatible: new_column in the topic's YAML, or give the topic another table.",
        )
    new = iceberg_columns(T.StructType([T.StructField("c", kind)])).fields[0].field_type
    return Planned(asked, table, names, cast, schema=retyped(table, column, new), before=have.simpleString())


def look(asked: ColumnType, connections: Connections) -> Changed:
    """Return what `change` would do; nothing is changed.

    Raises:
        ConfigurationError: As `change`.
        TableError: As `change`.
    """
    spark = connections.spark()
    planned = plan(asked, _table(asked, connections))
    summary = planned.table.current_snapshot()
    told = summary_of(summary) if summary else {}
    counted = _looked_at(planned, spark.table(connections.catalog.spark_name(asked.identifier)))
    return Changed(
        rows=counted.rows,
        values=counted.values,
        files=int(told.get("total-data-files", 0)),
        size=int(told.get("total-files-size", 0)),
    )


def change(
    asked: ColumnType, connections: Connections, run_id: str, tell: Callable[[str], object] = lambda _: None
) -> Changed:
    """Give a column another type, if all of its values stay what they are.

    Rows that others append meanwhile are written likewise. After other commits, all rows are written once more.

    Args:
        asked: Which column, and its type.
        connections: Catalog and Spark.
        run_id: For the snapshot.
        tell: Is told of each step.

    Raises:
        ConfigurationError: If there is no such type.
        TableError: If there is no such column, its type can't be changed so, or a value would be lost; it is named.
        PublishRefusedError: If others kept moving ``main``. The table is as they left it.
        AuditFailedError: If other rows were written than were read. The table is as it was.
        Exception: Whatever Spark raises. The table is as it was.
    """

    def again(_: tenacity.RetryCallState) -> None:
        tell("the table has changed meanwhile; it is planned again")

    retrying = tenacity.Retrying(
        stop=tenacity.stop_after_attempt(_REWRITES),
        retry=tenacity.retry_if_exception_type(PublishRefusedError),
        before_sleep=again,
        reraise=True,
    )
    return retrying(_Change(asked, connections, run_id, tell).attempt)


def _table(asked: ColumnType, connections: Connections) -> Table:
    table = connections.catalog.table(asked.identifier)
    if table is None or head_of(table) is None:
        raise TableError(f"Table {asked.table} doesn't exist, or has no snapshot.", "Its first run makes it.")
    return table


@dataclass(frozen=True)
class _Counted:
    """What rows come to: their number, how many have a value in the column, and a checksum of what is in them."""

    rows: int
    values: int
    checksum: int


@dataclass(frozen=True)
class _Change:
    """One change; its fields are the arguments of `change`."""

    asked: ColumnType
    connections: Connections
    run_id: str
    tell: Callable[[str], object]

    def attempt(self) -> Changed:
        spark = self.connections.spark()
        if spark.conf.get("spark.sql.session.timeZone") != "UTC":
            raise TableError(
                f"Table {self.asked.table}: the type of a column is changed by a Spark session in UTC, and this one "
                "has another time zone.",
                "Set spark.sql.session.timeZone to UTC.",
            )
        with ExitStack() as undo:
            planned = self._with_schema(plan(self.asked, _table(self.asked, self.connections)))
            with refused_if_main_moved(self.connections.catalog, self.asked.identifier, head_of(planned.table)):
                # Read by a branch, whose columns are those of now: a snapshot may have been made with others.
                rows = spark.table(self._branch(planned.table, undo).write_name)
                if rows.columns != [each.name for each in planned.table.schema().fields]:
                    raise PublishRefusedError(f"Table {self.asked.table}: its columns have changed meanwhile.")
                counted = _looked_at(planned, rows)
                self.tell(f"{counted.rows:,} rows checked: no value is lost")
                files = self._written(planned, rows)
                self.tell(f"{counted.rows:,} rows written")
            return self._published(planned, files, counted, undo)

    def _with_schema(self, planned: Planned) -> Planned:
        """Add the schema to the table, whose current one stays: field ids of the new files are nobody else's then."""
        table = planned.table
        requirements: tuple[TableRequirement, ...] = (
            AssertTableUUID(uuid=table.metadata.table_uuid),
            AssertCurrentSchemaId.model_validate({"current-schema-id": table.metadata.current_schema_id}),
            AssertLastAssignedFieldId.model_validate({"last-assigned-field-id": table.metadata.last_column_id}),
        )
        added = AddSchemaUpdate.model_validate({"schema": planned.schema})
        try:
            table.catalog.commit_table(table, requirements, (added,))
        except CommitFailedException as error:
            raise PublishRefusedError(f"Table {self.asked.table}: another commit came first.") from error
        now, fields = _table(self.asked, self.connections), planned.schema.as_struct()
        known = next((each for each in now.metadata.schemas if each.as_struct() == fields), None)
        if known is None or now.metadata.current_schema_id != table.metadata.current_schema_id:
            raise PublishRefusedError(f"Table {self.asked.table}: its columns have changed meanwhile.")
        return replace(planned, table=now, schema=known)

    def _branch(self, table: Table, undo: ExitStack) -> StagingBranch:
        head = head_of(table)
        assert head is not None, "there is a snapshot"
        branch = StagingBranch(
            spark=self.connections.spark(),
            catalog=self.connections.catalog,
            identifier=self.asked.identifier,
            name=branch_name(self.run_id, head, "retype"),
            head=head,
            table=table,
        )
        branch.create()
        # What was published is no branch any more. Until the end, the others keep the files alive.
        undo.callback(branch.discard)
        return branch

    def _written(self, planned: Planned, rows: DataFrame) -> tuple[DataFile, ...]:
        """Write rows as data files of the new schema, which no snapshot has yet."""
        metadata = planned.table.metadata.model_copy(update={"current_schema_id": planned.schema.schema_id, **_SLIM})
        work = Work(
            metadata.model_dump_json(), planned.table.io.properties, {}, "", topic_id=None, metadata_column=None
        )
        kind = T.StructType([T.StructField(FILES, T.BinaryType())])
        found = rows.select(*planned.made_columns(rows)).mapInArrow(told(write_rows, vars(work)), kind).collect()
        files = tuple(chain.from_iterable(pickle.loads(row[FILES]) for row in found))
        for each in files:
            # Pickling drops it.
            each.spec_id = planned.table.metadata.default_spec_id
        return files

    def _published(self, planned: Planned, files: tuple[DataFile, ...], counted: _Counted, undo: ExitStack) -> Changed:
        """Stage the files and publish them; rows that others have appended meanwhile are written first."""
        table, before = planned.table, planned.table.metadata.current_schema_id
        for followed in range(_FOLLOWED + 1):
            gone = table.current_snapshot()
            with refused_if_main_moved(self.connections.catalog, self.asked.identifier, head_of(table)):
                branch = self._branch(table, undo)
                summary = {**author_summary(self.run_id, CHANGE_COLUMN), **carried_positions(table)}
                branch.rewrite(planned.schema.schema_id, files, summary)
                tip = branch.written(branch.head).snapshot_id
                self._audit(planned, branch, tip, counted, whole=followed == 0)
            try:
                branch.publish(tip, _told_totals, (before, planned.schema.schema_id))
            except PublishRefusedError:
                now = _table(self.asked, self.connections)
                if followed == _FOLLOWED or not _only_appended(table, now):
                    raise
                self.tell("rows were appended meanwhile; they are written, too")
                more = added_between(
                    self.connections.spark(),
                    self.connections.catalog.spark_name(self.asked.identifier),
                    _head(table),
                    _head(now),
                )
                counted = _sum(counted, _looked_at(planned, more))
                files, table = (*files, *self._written(planned, more)), now
            else:
                told = summary_of(gone) if gone else {}
                size = int(told.get("total-files-size", 0))
                return Changed(counted.rows, counted.values, int(told.get("total-data-files", 0)), size, snapshot=tip)
        raise AssertionError("the last refusal is raised")

    def _audit(self, planned: Planned, branch: StagingBranch, tip: int, counted: _Counted, whole: bool) -> None:
        """Refuse a staged snapshot that has other rows, or other values, than were read.

        Args:
            planned: The change.
            branch: Where it is staged.
            tip: The staged snapshot.
            counted: What was read.
            whole: Whether all values are read again; else the number of rows tells.
        """
        staged = branch.staged.metadata.snapshot_by_id(tip) if branch.staged else None
        rows = int(summary_of(staged).get("total-records", -1)) if staged else -1
        found = replace(counted, rows=rows)
        if whole and rows == counted.rows:
            name = self.connections.catalog.spark_name(self.asked.identifier)
            frame = self.connections.spark().sql(f"SELECT * FROM {name} VERSION AS OF {tip}")
            found = _counted(planned, frame)
        if found != counted:
            raise AuditFailedError(
                f"Table {self.asked.table}: {counted.rows} rows with {counted.values} values in {self.asked.column} "
                f"were read, and {found.rows} with {found.values} were written, or their values differ.",
                "Nothing was published, and the table is as it was. That is a defect of kafka_lake: please report it.",
            )
        self.tell("the staged rows are those that were read")


_SLIM: Mapping[str, Any] = {
    "snapshots": [],
    "snapshot_log": [],
    "metadata_log": [],
    "refs": {},
    "current_snapshot_id": None,
}


def _told_totals(before: Table) -> Mapping[str, str]:
    return added(before, Totals(rewrites=1)) if totals_of(before) else {}


def _head(table: Table) -> int:
    head = head_of(table)
    assert head is not None, "there is a snapshot"
    return head


def _only_appended(before: Table, now: Table) -> bool:
    """Return whether others have done nothing but append rows, and the columns are what they were."""
    head = head_of(before)
    for snapshot in ancestors(now, head_of(now)):
        if snapshot.snapshot_id == head:
            same: bool = before.metadata.current_schema_id == now.metadata.current_schema_id
            return same and before.metadata.default_spec_id == now.metadata.default_spec_id
        if snapshot.summary is None or snapshot.summary.operation is not Operation.APPEND:
            return False
    return False


def _sum(one: _Counted, other: _Counted) -> _Counted:
    return _Counted(one.rows + other.rows, one.values + other.values, one.checksum ^ other.checksum)


def _looked_at(planned: Planned, rows: DataFrame) -> _Counted:
    """Return what rows come to with the new values.

    Raises:
        TableError: If a value would be lost.
    """
    asked, old = planned.asked, ".".join(map(quoted, planned.names))
    is_lost = F.expr(planned.cast.is_lost)
    shown = F.substring(F.expr(f"try_cast({old} AS string)"), 1, _SHOWN)
    aggregates = _aggregates(planned, F.expr(planned.cast.made), planned.made_columns(rows))
    found = rows.agg(*aggregates, F.count_if(is_lost), F.max(F.when(is_lost, shown))).collect()[0]
    if found[3]:
        raise TableError(
            f"Table {asked.table}: column {asked.column} can't become {asked.kind}: of its values, {found[3]} would be "
            f"lost or altered, {found[4]} for example.",
            "Choose a type that holds all of them; string holds any value.",
        )
    return _Counted(*found[:3])


def _counted(planned: Planned, rows: DataFrame) -> _Counted:
    """Return what rows come to that have the new type."""
    value = F.col(".".join(map(quoted, planned.names)))
    columns = [F.col(quoted(each)) for each in rows.columns]
    return _Counted(*rows.agg(*_aggregates(planned, value, columns)).collect()[0])


def _aggregates(planned: Planned, value: Column, columns: Sequence[Column]) -> tuple[Column, ...]:
    """Return how many rows there are, how many have a value, and a checksum of all columns without maps in them."""
    kinds = [each.field_type for each in planned.schema.fields]
    hashed = [column for column, kind in zip(columns, kinds, strict=True) if not _has(kind, MapType)]
    # To the hash, null and empty are the same.
    checksum = F.bit_xor(F.xxhash64(*hashed, *(each.isNull() for each in columns)))
    return F.count("*"), F.count(value), F.coalesce(checksum, F.lit(0))


def _has(kind: IcebergType, *types: type[IcebergType]) -> bool:
    """Return whether there are such types in a type, at any depth."""
    inner = index_by_id(Schema(NestedField(0, "whole", kind, required=False))).values()
    return any(isinstance(each.field_type, types) for each in inner)
