"""Old rows: which column tells their age, and which data files have some, by their statistics."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal

from pyiceberg.conversions import from_bytes
from pyiceberg.expressions import LessThan, Reference
from pyiceberg.expressions.literals import literal
from pyiceberg.manifest import DataFile, ManifestContent
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import DateType, NestedField, PrimitiveType, StructType, TimestampType, TimestamptzType

from kafka_lake.errors import TableError
from kafka_lake.lake.catalog import quoted

Share = Literal["all", "some", "none"]
_DAY_MS = 86_400_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_KINDS = (TimestamptzType, TimestampType, DateType)


@dataclass(frozen=True)
class RowLimit:
    """Rows of a table whose time is before a moment. A row without a time is none of them.

    Args:
        path: Names of the column, and of the fields within it.
        kind: Its type: a timestamp with or without time zone, or a date.
        before_ms: The moment, in milliseconds since 1970.
    """

    path: tuple[str, ...]
    field_id: int
    kind: PrimitiveType
    before_ms: int

    @property
    def name(self) -> str:
        """Return the column's name, with dots."""
        return ".".join(self.path)

    @property
    def stored(self) -> int:
        """Return the moment as the column's values are stored: microseconds, or days; a day goes when it is over."""
        return self.before_ms // _DAY_MS if isinstance(self.kind, DateType) else self.before_ms * 1000

    @property
    def column(self) -> str:
        """Return the column for Spark."""
        return ".".join(quoted(each) for each in self.path)

    @property
    def sql(self) -> str:
        """Return the condition for Spark, whatever the session's time zone is."""
        column = self.column
        moment = _EPOCH + timedelta(milliseconds=self.before_ms)
        if isinstance(self.kind, DateType):
            return f"{column} < DATE '{moment.date().isoformat()}'"
        text = moment.replace(tzinfo=None).isoformat(sep=" ", timespec="milliseconds")
        if isinstance(self.kind, TimestamptzType):
            return f"{column} < TIMESTAMP '{text}Z'"
        return f"{column} < TIMESTAMP_NTZ '{text}'"

    @property
    def expression(self) -> LessThan:
        """Return the condition for PyIceberg."""
        return LessThan(term=Reference(self.name), value=literal(self.stored).to(self.kind))

    def share_of(self, file: DataFile) -> Share:
        """Return how many of a file's rows are before the moment, as far as its statistics tell.

        "all" is certain: every row has a time, and the latest is before the moment. Where there are no statistics, it
        is "some".
        """
        lower, upper = (_bound(self.kind, bounds, self.field_id) for bounds in (file.lower_bounds, file.upper_bounds))
        values, nulls = ((each or {}).get(self.field_id) for each in (file.value_counts, file.null_value_counts))
        if (lower is not None and lower >= self.stored) or (nulls is not None and nulls == values):
            return "none"
        # Counts of a field within a struct may leave out rows whose struct is null.
        complete = values == file.record_count and nulls == 0
        return "all" if complete and upper is not None and upper < self.stored else "some"


def row_limit(table: Table, column: str, before_ms: int) -> RowLimit:
    """Return the rows of a table that are older than a moment.

    Args:
        column: Name of the column; or names with dots before fields of a struct.
        before_ms: The moment, in milliseconds since 1970.

    Raises:
        TableError: If there is no such column, or it tells no time.
    """
    whole = any(each.name == column for each in table.schema().fields)
    names = (column,) if whole else tuple(column.split("."))
    found, where = _field(table.schema(), names), f"Table {'.'.join(table.name())}: row_retention: by: {column}"
    if found is None:
        known = ", ".join(_times(table.schema().fields))
        raise TableError(
            f"{where} is no column of the table. No row was deleted.",
            f"Name one of those that tell a time: {known}." if known else "No column of the table tells a time.",
        )
    if not isinstance(found.field_type, _KINDS):
        raise TableError(
            f"{where} is of type {found.field_type}, which doesn't tell how old a row is. No row was deleted.",
            "Name a column of type timestamp, timestamp_ntz (which counts as UTC) or date.",
        )
    return RowLimit(names, found.field_id, found.field_type, before_ms)


def _field(schema: Schema, names: Sequence[str]) -> NestedField | None:
    fields, found = schema.fields, None
    for name in names:
        found = next((each for each in fields if each.name == name), None)
        if found is None:
            return None
        fields = found.field_type.fields if isinstance(found.field_type, StructType) else ()
    return found


def _times(fields: Sequence[NestedField], above: str = "") -> list[str]:
    found: list[str] = []
    for each in fields:
        if isinstance(each.field_type, _KINDS):
            found.append(f"{above}{each.name}")
        elif isinstance(each.field_type, StructType):
            found += _times(each.field_type.fields, f"{above}{each.name}.")
    return found


def _bound(kind: PrimitiveType, bounds: dict[int, bytes] | None, field_id: int) -> int | None:
    raw = (bounds or {}).get(field_id)
    return None if raw is None else int(from_bytes(kind, raw))


@dataclass(frozen=True)
class OldRows:
    """Which rows of a table shall go.

    Args:
        by: The column that tells how old a row is.
        before_ms: Rows whose time is before this moment go; milliseconds since 1970.
        needs_position: Whether nothing may go as long as no snapshot tells the position: rows may have to prove it.
    """

    by: str
    before_ms: int
    needs_position: bool = True


@dataclass(frozen=True)
class ExpiredRows:
    """What went, or would go.

    Args:
        dropped: Data files of which all rows are old.
        partly: Data files that also have rows that stay; or whose statistics don't tell.
    """

    rows: int
    dropped: int
    partly: int


@dataclass(frozen=True)
class OldFiles:
    """The files of a table with rows that are old.

    Args:
        whole: Files of which all rows are.
        partly: Files that also have others, or whose statistics don't tell.
        has_deletes: Whether rows of the table are deleted by files of their own.
    """

    limit: RowLimit
    whole: tuple[DataFile, ...]
    partly: tuple[DataFile, ...]
    has_deletes: bool


def count_old_rows(table: Table, asked: OldRows) -> ExpiredRows:
    """Return what would go. Of files that also have rows that stay, the column is read, without Spark.

    Raises:
        TableError: If the column doesn't tell a time, or files have deletes that PyIceberg can't read.
    """
    found = old_files(table, asked)
    try:
        # Of no other column anything is read.
        scan = table.scan(found.limit.expression, selected_fields=(found.limit.name,))
        rows = scan.count() if found.whole or found.partly else 0
    except ValueError as error:
        raise TableError(
            f"Table {'.'.join(table.name())}: its old rows can't be counted without Spark: {error}",
            "Nothing is wrong with the table: kafka-lake maintain --yes deletes them, and says how many they were.",
        ) from error
    return ExpiredRows(rows, len(found.whole), len(found.partly))


def old_files(table: Table, asked: OldRows) -> OldFiles:
    """Return the files of a table with rows that are old; manifests are read, and no data.

    Raises:
        TableError: If the column doesn't tell a time.
    """
    limit = row_limit(table, asked.by, asked.before_ms)
    snapshot = table.current_snapshot()
    manifests = snapshot.manifests(table.io) if snapshot else []
    whole, partly, has_deletes = list[DataFile](), list[DataFile](), False
    for manifest in manifests:
        if manifest.content is not ManifestContent.DATA:
            has_deletes = True
            continue
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
            share = limit.share_of(entry.data_file)
            if share != "none":
                (whole if share == "all" else partly).append(entry.data_file)
    return OldFiles(limit, tuple(whole), tuple(partly), has_deletes)


def can_be_dropped(table: Table, found: OldFiles) -> bool:
    """Return whether PyIceberg can drop the files of which all rows are old, and knows how many rows they have."""
    columns = table.schema().field_ids
    # It can't write format version 3, nor partitions of columns that have been dropped.
    plain = table.format_version == 2 and not found.has_deletes
    return plain and all(field.source_id in columns for spec in table.specs().values() for field in spec.fields)
