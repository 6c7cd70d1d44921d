"""The table of a route that can't take its records: with ``on_table_error: dead_letter`` they become its dead letters.

So the other tables, and the position of the topic, go on. A dead letter is in the table's own dead-letter table, and is
published with the table's own position: each record is there once, whatever is killed.
"""

from collections.abc import Sequence
from dataclasses import replace

from kafka_lake.ingest.finding import Finding
from kafka_lake.ingest.routes.shared import Side


def may_refuse(side: Side) -> bool:
    """Return whether the other tables go on without this one.

    What is read again stays as it is in all tables if one refuses it: it would take rows from readers.
    """
    return side.context.spec.on_table_error == "dead_letter" and side.plan.kind == "append"


def refused(side: Side, reason: str) -> Side:
    """Return a table's share with all of its records as dead letters.

    Args:
        side: The share.
        reason: Why the table can't take them.
    """
    assert side.plan.share is not None, "each table of a route has one"
    # The limit is for records that are bad one by one. It may be the very reason.
    context = replace(side.context, spec=replace(side.context.spec, max_dead_letters=None))
    return replace(
        side.unwritten(), context=context, plan=replace(side.plan, share=replace(side.plan.share, refused=reason))
    )


def as_warnings(findings: Sequence[Finding]) -> list[Finding]:
    """Return what refused a table's records, as it is told beside the commit that has them as dead letters."""
    return [Finding(each.check, each.problems, {}, each.changes, warns=True) for each in findings if each.refuses]
