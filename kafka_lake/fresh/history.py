"""Unread changes of a history table: the versions of their keys are computed anew, with the table's rows of the keys.

The query follows `kafka_lake.writers.history.versions.with_intervals` step by step, in DuckDB's SQL.
"""

from collections.abc import Sequence

from kafka_lake.engine.task import METADATA_COLUMN
from kafka_lake.errors import FreshReadError
from kafka_lake.formats.rows import DELETED, EVENT, VALID_FROM, VALID_TO
from kafka_lake.fresh.conditions import in_duckdb
from kafka_lake.fresh.decode import OPERATION
from kafka_lake.fresh.upsert import Changes, newest_before, sortable
from kafka_lake.runtime.snapshot_rows import quoted
from kafka_lake.writers.history.versions import HistoryTable
from kafka_lake.writers.upsert.keys import UNCHANGED


def merge(changes: Changes) -> str:
    """Return the query for the table's rows with its unread changes.

    Raises:
        FreshReadError: If a change of one of their keys leaves a column as it is.
    """
    columns = ", ".join(map(quoted, changes.columns.names))
    if VALID_FROM not in changes.columns.names:
        # No record has shown the order yet: all events are tombstones of unknown keys.
        return f"SELECT {columns} FROM __base"
    changes.load_events()
    nullable = tuple(changes.nullable)
    history = HistoryTable(changes.keys, changes.table, track=changes.spec.track, nullable=nullable)
    _check_complete(changes, nullable)
    changes.database.execute(f"CREATE TEMP TABLE __changed AS {_versions(changes, history)}")
    unchanged = f"SELECT {columns} FROM __base AS b ANTI JOIN __touched ON {changes.same_key('b')}"
    return f"{unchanged} UNION ALL SELECT {columns} FROM __changed"


def _check_complete(changes: Changes, nullable: Sequence[str]) -> None:
    kept = (
        f"SELECT {UNCHANGED} AS kept FROM __events UNION ALL SELECT list_transform(b.{quoted(EVENT)}.kept, "
        f"lambda c: c::VARCHAR) FROM __base AS b SEMI JOIN __touched ON {changes.same_key('b')}"
    )
    if nullable and changes.database.execute(f"SELECT 1 FROM ({kept}) WHERE len(kept) > 0 LIMIT 1").fetchone():
        raise FreshReadError(
            f"Table {'.'.join(changes.spec.identifier)}: an unread change leaves a column unchanged, which fresh "
            "reads of "
            "history tables don't support.",
            "Query the table without its unread records.",
        )


def _versions(changes: Changes, history: HistoryTable) -> str:
    keys, key = history.keys, ", ".join(changes.key_names)
    meta, deleted = f"e.{quoted(METADATA_COLUMN)}", quoted(DELETED)
    todays, partition, offset = map(in_duckdb, keys.kafka_order("e"))
    values = [in_duckdb(value) for value in keys.order_values("e")]
    has_no_order = f"{values[0]} IS NULL" if keys.has_order else "false"
    # A delete without an order has the one before it in its Kafka partition.
    parts = ", ".join(f"o{number}: {value}" for number, value in enumerate(values)) or "o0: true"
    own = f"{{source: {sortable(keys.source_order('e'))}, vals: {{{parts}}}, off: {offset}}}"
    earlier = newest_before(changes, deleted)
    is_envelope = str(keys.has_envelope).lower()
    until = f"OVER (PARTITION BY {key} ORDER BY __order ROWS UNBOUNDED PRECEDING)"
    window = f"(PARTITION BY {key} ORDER BY __order)"
    tracked = ", ".join(f"v{number}: {quoted(column)}" for number, column in enumerate(history.tracked))
    order_number = {column: number for number, column in enumerate(keys.order_by)}
    interval, kafka_time = history.interval_column, f"{quoted(METADATA_COLUMN)}.timestamp"
    times = f"coalesce({quoted(EVENT)}.\"at\", {kafka_time}, TIMESTAMPTZ '1970-01-01 00:00:00Z')"
    if interval is not None:
        time = f"__place.vals.o{order_number[interval]}"
    else:
        time = f"CASE WHEN NOT __unplaced THEN {times} END"
    following = f"lead(__time) OVER {window}"
    kind = changes.type_of(VALID_FROM)
    if kind.startswith(("TIMESTAMP", "DATE")):
        between = f"greatest(__time, least(CAST({times} AS {kind}), {following}))"
        has_no_time = f"__unplaced OR ({str(interval is not None).lower()} AND {deleted} AND __no_order)"
        of_tombstones = f"CASE WHEN {has_no_time} THEN {between} ELSE __time END"
    else:
        # The first event of a key gets an empty interval.
        of_tombstones = f"coalesce(__time, {following}, 0)"
    intervals = {
        VALID_FROM: "CASE WHEN __is_version THEN __began ELSE __time END",
        VALID_TO: "CASE WHEN __is_version THEN __next.time ELSE __time END",
    }
    columns = ", ".join(
        f"CAST({intervals.get(c, quoted(c))} AS {changes.type_of(c)}) AS {quoted(c)}" for c in changes.columns.names
    )
    return f"""
        WITH every AS (
            SELECT * EXCLUDE ({OPERATION}, __kafka_lake_unchanged), false AS __stored FROM __events
            UNION ALL BY NAME
            SELECT b.*, true AS __stored FROM __base AS b SEMI JOIN __touched ON {changes.same_key("b")}
        ),
        declared AS (
            SELECT e.*, {changes.key_of("e")}, {todays} AS __todays, {meta}.topic_id AS __topic, {partition} AS __part,
                {offset} AS __off, {has_no_order} AS __no_order, {own} AS __own FROM every AS e
        ),
        earlier AS (SELECT *, {earlier} AS __earlier FROM declared),
        filled AS (
            SELECT *, CASE WHEN __no_order THEN __earlier.own ELSE __own END AS __place,
                {deleted} AND __no_order AND __earlier IS NULL AS __unplaced,
                min({kafka_time}) OVER (PARTITION BY {key}, __topic) AS __topic_time
            FROM earlier
            WHERE __stored OR NOT coalesce({deleted} AND __no_order AND (
                (__earlier IS NULL AND {is_envelope}) OR __earlier.is_delete), false)
        ),
        ordered AS (
            SELECT *, {{is_placed: NOT __unplaced, source: __place.source, todays: __todays, topic: __topic_time,
                part: __part, off: __off}} AS __order FROM filled
        ),
        timed AS (SELECT * REPLACE (max(__time) {until} AS __time) FROM (SELECT *, {time} AS __time FROM ordered)),
        compared AS (
            SELECT * REPLACE ({of_tombstones} AS __time), coalesce(
                NOT {deleted} AND NOT lag({deleted}) OVER {window}
                AND lag({{{tracked}}}) OVER {window} IS NOT DISTINCT FROM {{{tracked}}}, false) AS __same
            FROM timed
        ),
        runs AS (
            SELECT *, lead({{time: __time, same: __same}}) OVER {window} AS __next,
                last_value(CASE WHEN NOT {deleted} AND NOT __same THEN __time END IGNORE NULLS) {until} AS __began
            FROM compared
        )
        SELECT {columns}
        FROM (SELECT *, NOT {deleted} AND NOT coalesce(__next.same, false) AS __is_version FROM runs)
    """
