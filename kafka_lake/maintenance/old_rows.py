"""Old rows: which column has their time, which data files have some, and when they expired last."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Literal

from pyiceberg.conversions import from_bytes
from pyiceberg.expressions import LessThan, Reference
from pyiceberg.expressions.literals import literal
from pyiceberg.manifest import DataFile, ManifestContent
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import DateType, NestedField, PrimitiveType, StructType, TimestampType, TimestamptzType

from kafka_lake.catalog.lake_catalog import quoted
from kafka_lake.catalog.positions import ancestors, head_of
from kafka_lake.common.offsets import Positions, positions_from_json, positions_to_json
from kafka_lake.errors import TableError
from kafka_lake.spec.maintenance import Maintenance

EXPIRED = "kafka-lake.expired-rows"
"""A table property, so that it outlives snapshots: the last expiry of rows."""
Share = Literal["all", "some", "none"]
_DAY_MS = 86_400_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_KINDS = (TimestamptzType, TimestampType, DateType)
_SHARE, _LONGEST_MS, _SHORTEST_MS = 0.1, _DAY_MS, 60_000


@dataclass(frozen=True)
class RowLimit:
    """A condition: rows whose time is before a moment; rows without a time don't match.

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
        """Return the moment in the unit of the column's values: microseconds, or days."""
        return self.before_ms // _DAY_MS if isinstance(self.kind, DateType) else self.before_ms * 1000

    @property
    def sql(self) -> str:
        """Return the condition for Spark, which holds in any time zone of the session."""
        column = ".".join(map(quoted, self.path))
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
        """Return how many of a file's rows match, by its statistics; "some" where those don't tell."""
        lower, upper = (_bound(self.kind, bounds, self.field_id) for bounds in (file.lower_bounds, file.upper_bounds))
        values, nulls = ((each or {}).get(self.field_id) for each in (file.value_counts, file.null_value_counts))
        if (lower is not None and lower >= self.stored) or (nulls is not None and nulls == values):
            return "none"
        # Counts of a field may leave out rows whose struct is null.
        complete = values == file.record_count and nulls == 0
        return "all" if complete and upper is not None and upper < self.stored else "some"


def row_limit(table: Table, column: str, before_ms: int) -> RowLimit:
    """Return the condition for rows that are older than a moment, in milliseconds since 1970."""
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
    """The rows of a table that expire.

    Args:
        by: The column that has their time.
        before_ms: Rows with an earlier time expire; milliseconds since 1970.
        needs_position: Whether no row may expire while no snapshot has the position, which is then recovered from rows.
    """

    by: str
    before_ms: int
    needs_position: bool = True


@dataclass(frozen=True)
class ExpiredRows:
    """Numbers of rows and files that expired, or would expire.

    Args:
        dropped: Data files with old rows only.
        partly: Data files that have other rows too, or no statistics.
    """

    rows: int
    dropped: int
    partly: int


@dataclass(frozen=True)
class OldFiles:
    """The files of a table with old rows.

    Args:
        whole: Files with old rows only.
        partly: Files that have other rows too, or no statistics.
        has_deletes: Whether the table has delete files.
    """

    limit: RowLimit
    whole: tuple[DataFile, ...]
    partly: tuple[DataFile, ...]
    has_deletes: bool


def count_old_rows(table: Table, asked: OldRows) -> ExpiredRows:
    """Return what would expire. Only the column is read, from files that have other rows too, without Spark."""
    found = old_files(table, asked)
    try:
        scan = table.scan(found.limit.expression, selected_fields=(found.limit.name,))
        rows = scan.count() if found.whole or found.partly else 0
    except ValueError as error:
        raise TableError(
            f"Table {'.'.join(table.name())}: its old rows can't be counted without Spark: {error}",
            "Nothing is wrong with the table: kafka-lake maintain --yes deletes them, and says how many they were.",
        ) from error
    return ExpiredRows(rows, len(found.whole), len(found.partly))


def old_files(table: Table, asked: OldRows) -> OldFiles:
    """Return the files of a table with old rows, by its manifests."""
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
    """Return whether PyIceberg can drop whole files, and knows how many rows they have."""
    columns = table.schema().field_ids
    # It can't write format version 3, nor partitions of dropped columns.
    plain = table.format_version == 2 and not found.has_deletes
    return plain and all(field.source_id in columns for spec in table.specs().values() for field in spec.fields)


@dataclass(frozen=True)
class Expired:
    """The last expiry of rows.

    Args:
        before_ms: Rows with an earlier time were deleted; milliseconds since 1970.
        by: The column that had their time.
        sequence: Sequence number of the snapshot; 0 in a table of format version 1.
        positions: The table's, which may no longer be recoverable from its rows.
    """

    before_ms: int
    by: str
    sequence: int = 0
    positions: Positions = field(default_factory=dict)

    def to_json(self) -> str:
        """Return the text that the property has."""
        told = {"before": self.before_ms, "by": self.by, "sequence": self.sequence}
        return json.dumps(told | ({"positions": positions_to_json(self.positions.values())} if self.positions else {}))


def expired_of(table: Table) -> Expired | None:
    """Return a table's last expiry of rows; None if there was none, or the property can't be read."""
    try:
        told = json.loads(table.properties.get(EXPIRED, "null"))
        if told is None:
            return None
        positions = positions_from_json(told["positions"]) if "positions" in told else {}
        return Expired(int(told["before"]), str(told["by"]), int(told["sequence"]), positions)
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def proven_positions(table: Table) -> Positions:
    """Return the positions that a table had when rows expired; none if that commit was rolled back.

    They are used if other programs have expired all snapshots with a position.
    """
    found = expired_of(table)
    if found is None or not found.sequence:
        return {}
    history = [each.sequence_number or 0 for each in ancestors(table, head_of(table))]
    follows = found.sequence in history or (bool(history) and min(history) > found.sequence)
    return found.positions if follows else {}


def limit_ms(policy: Maintenance, now_ms: int) -> int | None:
    """Return the moment before which rows expire, in milliseconds since 1970; None if none do."""
    age = policy.row_retention_seconds
    # Nothing is before the year 1.
    return None if age is None else max(now_ms - int(age * 1000), -62_135_596_800_000)


def why_expire(table: Table, policy: Maintenance, now_ms: int, by: str) -> str:
    """Return the reason to expire rows of a table now; empty if it is too early since the last time."""
    limit, last = limit_ms(policy, now_ms), expired_of(table)
    if policy.row_retention is None or limit is None or head_of(table) is None:
        return ""
    pause = min(_LONGEST_MS, max(_SHORTEST_MS, (now_ms - limit) * _SHARE))
    if last is not None and last.by == by and limit - last.before_ms < pause:
        return ""
    return f"rows older than {policy.row_retention.older_than}"
