"""Adopt: write the position of a table that another writer has filled, in a commit of its own."""

from pyspark.sql import types as T

from kafka_lake.catalog.positions import ADOPTED_AT, TableState
from kafka_lake.catalog.tables import apply_changes, schema_of
from kafka_lake.common.offsets import Position
from kafka_lake.engine.interop import to_arrow_schema
from kafka_lake.engine.task import METADATA_COLUMN
from kafka_lake.errors import AdoptionRefusedError, TableError
from kafka_lake.formats.rows import METADATA
from kafka_lake.ingest.adopt import Adoption, Source, plan_adoption
from kafka_lake.ingest.jobs.append import Job
from kafka_lake.ingest.topic_ends import TopicEnds
from kafka_lake.runtime.commit import Commit
from kafka_lake.runtime.context import Connections, Context
from kafka_lake.runtime.plan import Plan, position_only
from kafka_lake.schema.rules import needed_changes
from kafka_lake.spec.topic_table import TopicTable


class Adopt(Job):
    """Writes the position of a table that another writer has filled, if nothing has changed since it was planned."""

    position_required = False
    position_sought = False

    def __init__(self, context: Context, agreed: Adoption, source: Source) -> None:
        super().__init__(context)
        self._agreed = agreed
        self._source = source
        self._done = False

    def prepare(self, topic: TopicEnds) -> None:
        """Add the metadata column and note the position, if nothing has changed."""
        context, agreed = self.context, self._agreed
        now = plan_adoption(context.spec, context.connections, self._source)
        if now.head != agreed.head or now.position != agreed.position:
            raise self._moved(f"{dict(agreed.position.offsets)} became {dict(now.position.offsets)}")
        prepare_table(context.spec, context.connections, agreed.position)

    def plan(self, topic: TopicEnds, state: TableState | None) -> Plan | None:
        """Return the commit that has the position; None once it is made."""
        agreed = self._agreed
        if self._done:
            return None
        if state is None or state.head != agreed.head:
            raise self._moved(f"main was at snapshot {agreed.head} and is at {state.head if state else None}")
        stay = position_only(agreed.position)
        return Plan(stay.ranges, stay.after, 0, "adopt", adopted_from=(agreed.source, agreed.rows))

    def committed(self, commit: Commit, todo: Plan) -> None:
        """Finish after one commit."""
        self._done = True

    def _moved(self, what: str) -> AdoptionRefusedError:
        return AdoptionRefusedError(
            f"Table {self.context.table_name}: the other writer has committed meanwhile: {what}.",
            "Nothing was committed. Stop it, and try again.",
        )


def prepare_table(spec: TopicTable, connections: Connections, position: Position) -> None:
    """Add the metadata column if it is missing, and note the position in the table's properties.

    The note outlives snapshots: records before it must never be read again, since their rows can't be identified.
    """
    table = connections.catalog.table(spec.identifier)
    if table is None:
        raise TableError(f"Table {'.'.join(spec.identifier)} is gone.", "Nothing was changed.")
    with table.transaction() as transaction:
        transaction.set_properties({ADOPTED_AT: position.to_json()})
    # Regardless of the evolution policy: new rows must be identified.
    target = schema_of(to_arrow_schema(T.StructType([T.StructField(METADATA_COLUMN, METADATA)])))
    apply_changes(table, target, needed_changes(table.schema(), target))
