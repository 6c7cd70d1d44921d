"""Publish: make an audited commit visible by a compare-and-set on the planned head of each of its tables."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from types import MappingProxyType

from kafka_lake.catalog.positions import TableState, head_of
from kafka_lake.catalog.tables import Totals, added
from kafka_lake.errors import KafkaLakeError, PublishRefusedError
from kafka_lake.ingest.audit import Audited
from kafka_lake.ingest.table_state import Tables, current_dead_letters
from kafka_lake.runtime.commit import CheckFailedError
from kafka_lake.runtime.context import Context
from kafka_lake.writers.staged import StagedTable

_NO_PROPERTIES: Mapping[str, str] = MappingProxyType({})


def publish(
    context: Context, tables: Tables, audited: Audited, properties: Mapping[str, str] = _NO_PROPERTIES
) -> Audited:
    """Publish a commit and return it with the time when readers could see it."""
    try:
        published_at = _move_heads(context, tables, audited, properties)
    except BaseException:
        audited.staged.discard()
        raise
    context.timings.reset()
    return replace(audited, published_at=published_at)


def _move_heads(context: Context, tables: Tables, audited: Audited, properties: Mapping[str, str]) -> float:
    """Move ``main`` of the side tables, then of the topic's table; return the time of the latter.

    A replay into an upsert table or a history removes dead letters that are changes now, and deletes no rows: there,
    the dead letters come last.
    """
    staged = audited.staged
    letters, letters_last = staged.dead_letters, audited.plan.replaces and context.spec.is_keyed
    if letters is None or letters_last:
        planned = letters.branch.head if letters else tables.dead_letters and tables.dead_letters.head
        now = current_dead_letters(context)
        if (now and now.head) != planned:
            # The new dead letters may be of records that are rows of this commit.
            raise PublishRefusedError(f"Table {context.table_name}: another commit changed its dead-letter table.")
    totals = totals_of_commit(context, audited)
    if not letters_last:
        _move_side(context, "dead letters", letters)
    _move_side(context, "deletes", staged.deletes)
    primary = staged.primary
    primary.branch.publish(primary.snapshot, lambda before: {**added(before, totals), **properties})
    published_at = time.time()
    context.observer.step_done("table published")
    if letters_last:
        _move_side(context, "dead letters", letters)
    return published_at


def _move_side(context: Context, name: str, side: StagedTable | None) -> None:
    if side is not None:
        side.branch.publish(side.snapshot)
        context.observer.step_done(f"{name} published")


def totals_of_commit(context: Context, audited: Audited) -> Totals:
    """Return what the commit adds to the table's lifetime totals."""
    plan, staged = audited.plan, audited.staged
    totals = Totals(
        commits=1,
        refused=context.timings.refused,
        rewrites=int(not plan.appends),
        seconds=context.timings.seconds,
    )
    result = staged.merge_result
    if plan.replays_dead_letters:
        return replace(totals, moved=staged.primary.rows if result is None else result.changes)
    # The changes of an upsert table are upserts and deletes; deletes without a value are tombstones.
    rows = staged.primary.rows if result is None else result.changes - staged.tombstones
    return replace(
        totals,
        records=staged.records,
        rows=rows,
        dead_letters=staged.failed,
        tombstones=staged.tombstones,
        bytes_read=staged.bytes_read,
    )


@contextmanager
def refused_if_main_moved(context: Context, state: TableState) -> Iterator[None]:
    """Turn any error of staging into `PublishRefusedError` if ``main`` has moved.

    Whoever published removed the branches that can't be published any more, so the error may be of any kind.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, KafkaLakeError) and not isinstance(error, CheckFailedError):
            raise
        table = context.connections.catalog.table(context.spec.identifier)
        if (head := head_of(table) if table else None) == state.head:
            raise
        raise PublishRefusedError(
            f"Table {context.table_name}: another commit moved main from snapshot {state.head} to {head}."
        ) from error
