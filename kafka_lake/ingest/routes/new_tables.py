"""Values that have no table yet: found in a commit's records, and given one before any record goes there."""

from dataclasses import dataclass, replace

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from kafka_lake.ingest.context import Context
from kafka_lake.ingest.decode.by_schema.names import SchemaNames
from kafka_lake.ingest.plan.model import Plan, position_only
from kafka_lake.ingest.routes.by_value import Admission, admitted, knowing
from kafka_lake.ingest.routes.conditions import values_of
from kafka_lake.ingest.samples import quoted
from kafka_lake.ingest.topic_state import state_of
from kafka_lake.ingest.topic_table import TopicTable
from kafka_lake.lake.positions import TableState

_MOST_VALUES = 1_000
_SHOWN = 3


@dataclass(frozen=True)
class NewValues:
    """What a commit's records have of values without a table.

    Args:
        admission: Which of them get one.
        records: How many records have one of the others, which the table without a condition takes, or none.
    """

    admission: Admission
    records: int

    def told(self, spec: TopicTable) -> str:
        """Return what becomes of the records whose values have no table; empty if there are none."""
        refused = self.admission.refused
        if not self.records:
            return ""
        shown = [f"{quoted(value, spec.samples, spec.mask)!r}: {why}" for value, why in refused.items()][:_SHOWN]
        why = "; ".join(shown if spec.samples else dict.fromkeys(refused.values()))
        more = f"; and {len(refused) - _SHOWN} more" if spec.samples and len(refused) > _SHOWN else ""
        takes = "no table takes them" if spec.where else f"table {'.'.join(spec.identifier)} takes them"
        return (
            f"Topic {spec.topic}: tables_by: {self.records} records have a value without a table: {takes} "
            f"({why}{more})."
        )


def with_known(context: Context, state: TableState | None) -> Context:
    """Return what a run works with, knowing the tables that values have.

    Args:
        state: The topic's own table, as the plan sees it; None if there is none yet.
    """
    if context.spec.route_by is None:
        return context
    return replace(context, spec=knowing(context.spec, state.table.properties if state else {}))


def new_values(context: Context, routed_records: DataFrame, names: SchemaNames) -> NewValues | None:
    """Return what a commit's records have of values without a table; None if they have none.

    Args:
        context: Of the run, with the tables that are known.
        routed_records: The records, with the routes that take them.
    """
    spec = context.spec
    if spec.route_by is None:
        return None
    left = values_of(routed_records, spec, names)
    counted = left.groupBy("value").agg(F.count(F.lit(1)).alias("records"))
    have = {value for value, _, _ in spec.route_by.known}
    rows = counted.orderBy(F.desc("records"), "value").limit(_MOST_VALUES + len(have)).collect()
    found = {row["value"]: row["records"] for row in rows if row["value"] not in have}
    if not found:
        return None
    admission = admitted(spec, list(found), lambda table: _is_free(context, table))
    if not admission.refused:
        return NewValues(admission, 0)
    taken = [value for value, _, _ in admission.known]
    return NewValues(admission, left.filter(~F.col("value").isin(taken)).count() if taken else left.count())


def telling(state: TableState, todo: Plan) -> Plan:
    """Return the commit to the topic's own table that tells of new tables: it moves nothing but the head.

    Args:
        todo: The commit whose records have shown the values.
    """
    starts = {r.partition: r.start for r in todo.ranges}
    return position_only(state.position or replace(todo.after, offsets={**todo.after.offsets, **starts}, last={}))


def _is_free(context: Context, table: TopicTable) -> bool:
    """Return whether the catalog has no table of others by the names of a table to be."""
    catalog = context.connections.catalog
    own = catalog.table(table.identifier)
    if own is not None:
        # The topic's own table may have been made again since, and has forgotten.
        position = state_of(table, own).position
        return position is not None and position.identity.topic == context.spec.topic
    return all(catalog.table(each) is None for each in table.identifiers)
