"""A plan and its records, shared out among a topic's tables."""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from pyspark.sql import DataFrame

from kafka_lake.ingest.context import Context
from kafka_lake.ingest.plan.model import Plan
from kafka_lake.ingest.routes.conditions import OWN
from kafka_lake.ingest.routes.heads import HEADS
from kafka_lake.ingest.routes.new_tables import NewValues
from kafka_lake.ingest.stage.arrow_tables import Prewritten
from kafka_lake.ingest.stage.staged import Staged
from kafka_lake.ingest.table_state import Tables


@dataclass(frozen=True)
class Side:
    """A table of a route in a commit.

    Args:
        context: Of the run, with the table's settings.
        found: The tables as the plan saw them; None in it for a table that is still to be created.
        plan: Its share of the topic's plan.
        records: Its share of the records, lazy.
        others: What names the records that other tables get, lazy; None if it can have no rows of theirs.
        route: The number of its route, where it gets records.
        written: Its rows, if they have been written together with those of other tables.
    """

    context: Context
    found: Tables
    plan: Plan
    records: DataFrame
    others: DataFrame | None = None
    route: int = OWN
    written: Prewritten | None = None

    def unwritten(self) -> "Side":
        """Return the same where no row is written yet."""
        return self if self.written is None else replace(self, records=self.written.again(), written=None)


@dataclass(frozen=True)
class Shares:
    """A plan and its records, shared out.

    Args:
        plan: What of the plan is for the topic's own table.
        records: Its records, lazy.
        others: What names the records of the other tables, lazy; None if it can have no rows of theirs.
        sides: The tables of routes that get records or, by a reset or replay, lose rows.
        ignored: Records that no table gets, as ``otherwise: ignore`` says.
        values: What the records have of values without a table; None if they have none.
        heads: The commits that the tables of routes have, as `heads_of` has them.
        written: The rows of the topic's own table, if they have been written together with those of other tables.
        write_created: Writes tables together that have been created since the others were, and returns all.
    """

    plan: Plan
    records: DataFrame
    others: DataFrame | None = None
    sides: tuple[Side, ...] = ()
    ignored: int = 0
    values: NewValues | None = None
    heads: Mapping[str, int] = field(default_factory=dict)
    written: Prewritten | None = None
    write_created: Callable[[tuple[Side, ...]], tuple[Side, ...]] = tuple

    @property
    def shows_new_tables(self) -> bool:
        """Return whether the topic's own table is to tell of new tables first. Nothing is shared out then."""
        return self.values is not None and bool(self.values.admission.new)

    def told(self, sides: Iterable[tuple[Side, Staged]]) -> Plan:
        """Return what of the plan is for the topic's own table, with the commits that other tables have beside it."""
        if self.plan.share is None:
            return self.plan
        staged = {side.context.table_name: each.primary.appended for side, each in sides}
        marks = {HEADS: json.dumps({**self.heads, **staged})}
        return replace(self.plan, share=replace(self.plan.share, marks=marks))
