"""Values that a source didn't send, since they haven't changed: which columns they are of, and which have none."""

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from kafka_lake.ingest.decode import VALUE_NOT_SENT
from kafka_lake.ingest.decode.target import Target

_ALWAYS_SENT = (T.NumericType, T.BooleanType, T.DateType, T.TimestampType, T.TimestampNTZType)


def may_be_unavailable(kind: T.DataType) -> bool:
    """Return whether a column's values may be stored beside their row in PostgreSQL, so that some aren't sent."""
    return not isinstance(kind, _ALWAYS_SENT)


@dataclass(frozen=True)
class Unavailable:
    """What becomes of fields whose values weren't sent.

    Args:
        fields: Their names, a list; null if there are none.
        target: The table's columns.
        left_out: Fields that get no column; None if no field without a column gets one.
    """

    fields: Column
    target: Target
    left_out: Sequence[str] | None

    @property
    def kept(self) -> Column:
        """Return the columns that these fields feed: a list of names, which is empty if there are none."""
        feeds = [self.target.feeds(field.name, field.name) for field in self.target.columns]
        every = [name for each in feeds for name in each]
        # What feeds no column by its own name may do so in another case.
        strange = _lower(F.array_except(self.fields, _texts(every)))
        found = [
            F.when(
                F.arrays_overlap(self.fields, _texts(each)) | F.arrays_overlap(strange, _lower(_texts(each))),
                F.lit(field.name),
            )
            for field, each in zip(self.target.columns, feeds, strict=True)
            if may_be_unavailable(field.dataType)
        ]
        names = F.array_compact(F.array(*found)) if found else _texts([])
        return F.when(self.fields.isNotNull(), names).otherwise(_texts([]))

    def without(self, row: Column, kept: Column) -> Column:
        """Return a row whose columns that keep what they have are null.

        Args:
            row: The decoded columns.
            kept: What `kept` gave.
        """
        values = [F.when(~F.array_contains(kept, f.name), row[f.name]).alias(f.name) for f in self.target.columns]
        return F.when(row.isNotNull() & (F.size(kept) > 0), F.struct(*values)).otherwise(row) if values else row

    @property
    def verdicts(self) -> list[tuple[Column, str, Column]]:
        """Return why a change can't be applied: condition, error class, message."""
        if self.left_out is None:
            return []
        feeds = [
            name
            for field in self.target.columns
            if may_be_unavailable(field.dataType)
            for name in self.target.feeds(field.name, field.name)
        ]
        taken = _lower(_texts([*feeds, *self.left_out]))
        untaken = F.filter(self.fields, lambda name: ~F.array_contains(taken, F.lower(name)))
        said = F.concat(
            F.lit("Not sent, since unchanged, and the table has no such values: "), F.array_join(untaken, ", ")
        )
        return [(F.coalesce(F.size(untaken) > 0, F.lit(False)), VALUE_NOT_SENT, F.concat(said, F.lit(".")))]


def _texts(names: Sequence[str]) -> Column:
    return F.array(*map(F.lit, names)).cast("array<string>")


def _lower(names: Column) -> Column:
    return F.transform(names, F.lower)
