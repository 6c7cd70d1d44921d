"""A reset of a topic with routes changes several tables: what says that one was killed in the midst.

Tables of routes are reset first, and the topic's own last. In between, rows are gone from the former that the topic
would not be read for again. So they carry a property until the topic's own table is reset as well.
"""

import logging

from pyiceberg.table import Table

from kafka_lake.common.errors import TableError
from kafka_lake.ingest.context import Context
from kafka_lake.ingest.routes.new_tables import every_table
from kafka_lake.lake.positions import RESET, ancestors, head_of, read_positions, row_count, summary_of

log = logging.getLogger(__name__)

UNFINISHED = "kafka-lake.unfinished-reset"
"""Property of a table of a route: the run that has reset it, until the topic's own table is reset, too."""


def refuse_unfinished(context: Context, own: tuple[str, str], table: Table) -> None:
    """Stop a run where a reset before it was killed in the midst.

    Args:
        context: Of the run, with the settings of the route's table.
        own: Namespace and name of the topic's own table.
        table: The route's table.

    Raises:
        TableError: If it was.
    """
    run_id = table.properties.get(UNFINISHED)
    if run_id is None:
        return
    if _is_finished(context, own, run_id):
        finish(context)
        return
    raise TableError(
        f"Table {context.table_name} was reset by run {run_id}, which ended before it had reset table "
        f"{'.'.join(own)} of topic {context.spec.topic}.",
        f"Nothing was read. Finish it: `kafka-lake reset {context.spec.full_topic} --to …`, as that run was asked to.",
    )


def is_unfinished(context: Context) -> bool:
    """Return whether a reset of the topic was killed before it was through with all tables."""
    own, *others = (each.identifier for each in every_table(context))
    found = (context.connections.catalog.table(each) for each in others)
    runs = {table.properties[UNFINISHED] for table in found if table is not None and UNFINISHED in table.properties}
    return any(not _is_finished(context, own, run_id) for run_id in runs)


def _is_finished(context: Context, own: tuple[str, str], run_id: str) -> bool:
    """Return whether a reset has reached the topic's own table: as it is now, for others may have finished it.

    A table that begins anew, since the one before was dropped, is read from further back than any reset would say.
    """
    now = context.connections.catalog.table(own)
    if now is None or (not row_count(now) and not read_positions(now)):
        return True
    return any(summary_of(each).get(RESET) == run_id for each in ancestors(now, head_of(now)))


def finish(context: Context) -> None:
    """Take the property away. Never raises: the next run does it else."""
    try:
        table = context.connections.catalog.table(context.spec.identifier)
        if table is not None and UNFINISHED in table.properties:
            with table.transaction() as transaction:
                transaction.remove_properties(UNFINISHED)
    except Exception as error:
        log.warning("Table %s: its property %s stays until the next run: %s", context.table_name, UNFINISHED, error)
