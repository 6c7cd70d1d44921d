"""What a commit reads: those of its plan's records that are for its table."""

from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql import DataFrame

from kafka_lake.ingest.plan.model import Plan
from kafka_lake.ingest.stage.arrow_tables import Prewritten

NewTables = tuple[tuple[str, str, str], ...]


@dataclass(frozen=True)
class Records:
    """The records of a commit.

    Args:
        plan: The commit, with the table's share of its records.
        frame: The table's records, lazy.
        others: Gives what names the records of the topic's other tables, lazy; None if all records are the table's.
        written: The table's rows, if they have been written together with those of other tables.
        new_tables: Values that get tables, as `Admission.new` has them: the table names them before it gets records.
        without_table: How many of the records have a value that gets no table.
        unmatched: Other records, lazy, which become dead letters of the table since no table takes them; None for none.
        ignored: How many others no table takes, and none gets.
    """

    plan: Plan
    frame: DataFrame
    others: Callable[[], DataFrame] | None = None
    written: Prewritten | None = None
    new_tables: NewTables = ()
    without_table: int = 0
    unmatched: DataFrame | None = None
    ignored: int = 0
