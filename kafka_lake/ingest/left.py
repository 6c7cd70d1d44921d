"""What a commit leaves behind: the tables as they are now, and dead letters whose records are rows by now."""

from kafka_lake.ingest.context import Context
from kafka_lake.ingest.dead_letters.reconcile import reconcile
from kafka_lake.ingest.dead_letters.unreconciled import unreconciled
from kafka_lake.ingest.gate import Published
from kafka_lake.ingest.stage.staged import Staged
from kafka_lake.ingest.table_state import Tables
from kafka_lake.ingest.topic_state import state_of


def left_by(context: Context, found: Tables, staged: Staged) -> Tables | None:
    """Return a table as a commit left it; None where an answer was lost, or dead letters may be obsolete now.

    Args:
        context: Of the run, with the table's settings.
        found: The table and its dead-letter table, as the plan saw them.
        staged: What was published.
    """
    table = staged.primary.branch.published
    dead_letters = found.dead_letters.table if found.dead_letters else None
    if staged.dead_letters:
        dead_letters = staged.dead_letters.branch.published
        if dead_letters is None:
            return None
    if table is None:
        return None
    left = state_of(context.spec, table)
    beside = state_of(context.spec, dead_letters) if dead_letters else None
    return None if beside and unreconciled(left, beside) else Tables(left, beside)


def reconcile_sides(published: Published) -> None:
    """Take dead letters out of the tables of routes whose records a commit has made rows.

    Those of the topic's own table are looked at when the run plans again. Tables of routes are looked at when there are
    records, which may be tomorrow. Never raises: if it fails, the next run that has records does it.

    Args:
        published: The commit.
    """
    for side, its in published.sides:
        context = side.context
        if (side.found.dead_letters is None and its.staged.dead_letters is None) or left_by(
            context, side.found, its.staged
        ):
            continue
        try:
            reconcile(context)
        except Exception as error:
            context.observer.warn(
                f"Table {context.table_name}: dead letters whose records are rows now stay until the next run: {error}"
            )
