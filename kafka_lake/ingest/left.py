"""What a commit leaves behind: the tables as they are now, and dead letters whose records are rows by now."""

from kafka_lake.ingest.context import Context
from kafka_lake.ingest.dead_letters.unreconciled import unreconciled
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
