"""How old rows are: which column tells it, which rows a limit takes, and what a file's statistics say. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal

from pyiceberg.conversions import from_bytes
from pyiceberg.expressions import LessThan, Reference
from pyiceberg.expressions.literals import literal
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import DateType, NestedField, PrimitiveType, StructType, TimestampType, TimestamptzType

from kafka_lake.common.errors import TableError
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
        field_id: Of the innermost field.
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
        table: As it was loaded.
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
