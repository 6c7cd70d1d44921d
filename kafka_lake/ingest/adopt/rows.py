"""Rows that name their record in columns of their own: whether any is at or beyond where an adopted table resumes."""

from collections.abc import Sequence

from pyiceberg.expressions import And, EqualTo, GreaterThanOrEqual, Reference
from pyiceberg.expressions.literals import literal
from pyiceberg.table import Table

from kafka_lake.common.errors import ConfigurationError
from kafka_lake.ingest.adopt.model import AdoptionRefusedError, PartitionStart

KNOWN = (("_kafka_partition", "_kafka_offset"), ("_kafka_metadata.partition", "_kafka_metadata.offset"))
"""Columns of OLake, and of the transformation KafkaMetadataTransform of Kafka Connect."""


def record_columns(table: Table, named: str | None) -> tuple[str, str] | None:
    """Return the columns that hold partition and offset of a row's record; None if there are none.

    Args:
        table: The table.
        named: Both, as in ``part,off``; None to look for `KNOWN` ones.

    Raises:
        ConfigurationError: If these are not two columns of the table.
    """
    columns = set(table.schema().column_names)
    if named is None:
        return next((each for each in KNOWN if columns >= set(each)), None)
    parts = [part.strip() for part in named.split(",")]
    if len(parts) != 2 or not columns >= set(parts):
        raise ConfigurationError(
            f"--offset-columns: {named!r} are not two columns of table {'.'.join(table.name())}.",
            "Name the columns with partition and offset of a row's record, as in _kafka_partition,_kafka_offset.",
        )
    return parts[0], parts[1]


def refuse_rows_beyond(table: Table, columns: tuple[str, str], found: Sequence[PartitionStart]) -> None:
    """Refuse to resume at an offset whose record, or a later one, is a row already.

    Args:
        table: The table.
        columns: Those of partition and offset.
        found: Where it would resume.

    Raises:
        AdoptionRefusedError: If there is such a row.
    """
    partition, offset = columns
    for each in found:
        condition = And(
            EqualTo(term=Reference(partition), value=literal(each.partition)),
            GreaterThanOrEqual(term=Reference(offset), value=literal(each.offset)),
        )
        rows = table.scan(row_filter=condition, selected_fields=(offset,), limit=1).to_arrow()
        if rows.num_rows:
            raise AdoptionRefusedError(
                f"Table {'.'.join(table.name())}: partition {each.partition} would resume at offset {each.offset}, and "
                f"a row of offset {each.offset} or later is in the table already, by its columns {partition} and "
                f"{offset}.",
                "Nothing was changed, since rows would double. Let the other writer finish its last commit and stop "
                "it, or name the offsets with --from-offsets.",
            )
