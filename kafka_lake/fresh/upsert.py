"""Unread changes of an upsert table merged with its rows: the newest change of each key wins, as in a commit.

`Keys` gives key and order as Spark's SQL, as for a MERGE. The queries here are DuckDB's.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa
from pyspark.sql import types as T

from kafka_lake.catalog.positions import TableState, head_of
from kafka_lake.cdc.task.change import DELETE, READ, UPSERT
from kafka_lake.common.text import seconds_of
from kafka_lake.engine.interop import from_arrow_schema
from kafka_lake.engine.task import METADATA_COLUMN
from kafka_lake.errors import FreshReadError
from kafka_lake.formats.rows import CHANGE, DELETED, EVENT, change_columns
from kafka_lake.fresh.conditions import in_duckdb
from kafka_lake.fresh.decode import CHANGE_EVENT, OPERATION
from kafka_lake.runtime.context import Connections
from kafka_lake.runtime.snapshot_rows import Database, SnapshotRows, literal, quoted
from kafka_lake.spec.topic_table import TopicTable
from kafka_lake.writers.upsert.change_events import may_be_unchanged
from kafka_lake.writers.upsert.cutoff import remembered_cutoff
from kafka_lake.writers.upsert.keys import UNCHANGED, Keys, partitions_error, tombstone_error

_EVENT, _REMEMBERED, _STORED = range(3)
"""Kinds of changes: unread events, deletes that the table remembers, and its rows."""
_NO_NAMES = "[]::VARCHAR[]"


@dataclass(frozen=True)
class Changes:
    """The unread change events of a table: ``__tail`` of a database, which has the table's rows as ``__base``.

    Args:
        columns: The columns of the table after the next commit.
        key: The columns of the key; empty if the key is the record's key.
    """

    database: Database
    spec: TopicTable
    state: TableState
    columns: pa.Schema
    key: Sequence[str]
    topic_id: str

    @cached_property
    def table(self) -> T.StructType:
        """The columns as Spark's."""
        columns: T.StructType = from_arrow_schema(self.columns, prefer_timestamp_ntz=True)
        return columns

    @cached_property
    def keys(self) -> Keys:
        """Key and order of the events."""
        return Keys.of(self.spec, self.key, self.topic_id)

    @cached_property
    def own(self) -> set[str]:
        """The columns that the write mode adds."""
        return {field.name for field in change_columns(self.spec)} & set(self.columns.names)

    @property
    def values(self) -> list[str]:
        """The columns of the source's row."""
        return [column for column in self.columns.names if column not in {*self.own, METADATA_COLUMN}]

    @cached_property
    def nullable(self) -> list[str]:
        """The columns that an event may leave unchanged."""
        fixed = {*self.keys.columns, *self.keys.order_by}
        return [f for f in self.values if f not in fixed and may_be_unchanged(self.table[f], self.spec)]

    def key_of(self, alias: str) -> str:
        """Return the key as the columns __key_0, __key_1, …."""
        return ", ".join(f"{in_duckdb(part)} AS __key_{n}" for n, part in enumerate(self.keys.key(alias)))

    @property
    def key_names(self) -> list[str]:
        """Names of the key's columns in the tables of events."""
        return [f"__key_{n}" for n in range(len(self.keys.key("e")))]

    def same_key(self, alias: str) -> str:
        """Return the condition that a row has a key of ``__touched``."""
        return " AND ".join(f"{in_duckdb(part)} = __key_{n}" for n, part in enumerate(self.keys.key(alias)))

    def load_events(self) -> None:
        """Create the tables ``__events``, without deletes that the settings ignore, and ``__touched``: their keys."""
        spec, event, keys = self.spec, f"e.{CHANGE_EVENT}", self.keys
        names = list(self.database.sql(f"SELECT {CHANGE_EVENT}.* FROM __tail LIMIT 0").columns)
        own, unchanged = self._own_columns(OPERATION), self._unchanged(names)
        columns = ", ".join(f"{own.get(c, f'e.{quoted(c)}')} AS {quoted(c)}" for c in self.columns.names)
        queries = [f"SELECT {columns}, {OPERATION}, {unchanged} AS {UNCHANGED} FROM __tail AS e"]
        if "old_key" in names:
            # An update of the key also deletes the row of the old key, with the same offset and order.
            delete = {quoted(key): f"{event}.old_key.{quoted(key)}" for key in keys.columns}
            delete |= {quoted(c): f"e.{quoted(c)}" for c in (*keys.order_by, METADATA_COLUMN) if c not in keys.columns}
            delete |= {quoted(c): sql for c, sql in self._own_columns(f"'{DELETE}'").items()}
            delete |= {OPERATION: f"'{DELETE}'", UNCHANGED: self._all_values if spec.deletes == "soft" else _NO_NAMES}
            listed = ", ".join(f"{sql} AS {column}" for column, sql in delete.items())
            differs = " OR ".join(f"{event}.old_key.{quoted(k)} IS DISTINCT FROM e.{quoted(k)}" for k in keys.columns)
            queries.append(f"SELECT {listed} FROM __tail AS e WHERE {event}.old_key IS NOT NULL AND ({differs})")
        ignored = f" WHERE {OPERATION} <> '{DELETE}'" if spec.deletes == "ignore" else ""
        self.database.execute(
            f"CREATE TEMP TABLE __events AS SELECT * FROM ({' UNION ALL BY NAME '.join(queries)}){ignored}"
        )
        self.database.execute(f"CREATE TEMP TABLE __touched AS SELECT DISTINCT {self.key_of('e')} FROM __events AS e")

    def _own_columns(self, operation: str) -> dict[str, str]:
        """Return the columns that the write mode adds, of an event with an operation."""
        event = f"e.{CHANGE_EVENT}"
        columns = {
            CHANGE: f'{{op: {operation}, "order": {event}."order"}}',
            DELETED: f"{operation} = '{DELETE}'",
            EVENT: f'{{kept: [], "at": make_timestamptz({event}.at * 1000)}}',
        }
        return {
            column: f"CAST({sql} AS {self.type_of(column)})" for column, sql in columns.items() if column in self.own
        }

    @property
    def _all_values(self) -> str:
        """All columns but the key's: a soft delete leaves them unchanged. The metadata column marks partial rows."""
        return f"[{', '.join(map(literal, [*self.values, METADATA_COLUMN]))}]"

    def type_of(self, column: str) -> str:
        """Return the type of a column in DuckDB's SQL."""
        return str(self.database.sql(f"SELECT {quoted(column)} FROM __tail LIMIT 0").types[0])

    def _unchanged(self, names: Sequence[str]) -> str:
        """Return the columns that an event leaves unchanged."""
        spec, decoded = self.spec, f"e.{CHANGE_EVENT}.operation"
        sql = _NO_NAMES
        if spec.is_partial:
            nulls = [c for c in self.values if spec.null_leaves(c) and c not in (*spec.key, *spec.order_by)]
            listed = ", ".join(f"CASE WHEN e.{quoted(c)} IS NULL THEN {literal(c)} END" for c in nulls)
            operation = decoded if spec.deletes == "soft" else OPERATION
            sql = (
                f"CASE WHEN {operation} IN ('{UPSERT}', '{READ}') "
                f"THEN list_filter([{listed}]::VARCHAR[], lambda c: c IS NOT NULL) ELSE [] END"
            )
        elif "unavailable" in names:
            sql = f"coalesce(e.{CHANGE_EVENT}.unavailable, [])"
        if spec.deletes == "soft":
            sql = f"CASE WHEN {decoded} = '{DELETE}' THEN {self._all_values} ELSE {sql} END"
        return sql


def merge(changes: Changes, connections: Connections) -> str:
    """Return the query for the table's rows with its unread changes.

    Raises:
        ChangeRefusedError: If a change can't be ordered.
        FreshReadError: If a change lacks a value.
    """
    changes.load_events()
    has_deletes = _load_deletes(changes, connections)
    _place(changes, has_deletes)
    _check_order(changes)
    _check_complete(changes)
    database, columns = changes.database, ", ".join(map(quoted, changes.columns.names))
    database.execute(f"CREATE TEMP TABLE __changed AS {_newest(changes)}")
    unchanged = f"SELECT {columns} FROM __base AS b ANTI JOIN __touched ON {changes.same_key('b')}"
    return f"{unchanged} UNION ALL SELECT {columns} FROM __changed"


def _load_deletes(changes: Changes, connections: Connections) -> bool:
    """Create the view ``__deletes`` of the deletes that the table remembers; return whether there are any."""
    spec = changes.spec
    table = connections.catalog.table(spec.deletes_table) if spec.write == "upsert" else None
    head = head_of(table) if table else None
    if table is None or head is None:
        return False
    query = SnapshotRows(changes.database, table, head).sql(changes.database, "__deletes_deleted")
    since = time.time() - seconds_of(spec.keep_deletes)
    has_order = f" AND NOT ({in_duckdb(changes.keys.has_no_order('d'))})" if changes.keys.has_order else ""
    changes.database.execute(
        f"CREATE TEMP VIEW __deletes AS SELECT * FROM ({query}) AS d "
        f"WHERE d._deleted_at >= to_timestamp({since}){has_order}"
    )
    return True


def sortable(values: Sequence[str]) -> str:
    """Return one comparable value; null is the least, as in Spark."""
    parts = [f"f{n}: ({value}) IS NOT NULL, v{n}: {value}" for n, value in enumerate(map(in_duckdb, values))]
    return f"{{{', '.join(parts) or 'f: true'}}}"


def _place(changes: Changes, has_deletes: bool) -> None:
    """Create the table ``__placed``: events, rows and remembered deletes of their keys, with their order ``__o``.

    A delete without an order gets the newest order before it in its Kafka partition, or the row's if that is newer.
    After a delete with the source's own order it adds nothing.
    """
    keys = changes.keys
    todays, partition, offset = map(in_duckdb, keys.kafka_order("e"))
    names = [*dict.fromkeys([*keys.columns, *keys.order_by, *([CHANGE] if keys.has_envelope else [])])]
    every = [
        f"SELECT *, {_EVENT} AS __kind FROM __events",
        f"SELECT b.*, '{UPSERT}' AS {OPERATION}, {_NO_NAMES} AS {UNCHANGED}, {_STORED} AS __kind "
        f"FROM __base AS b SEMI JOIN __stored ON {changes.same_key('b')}",
    ]
    # The keys alone first: often few rows have them, and the other columns of few rows are read.
    changes.database.execute(
        f"CREATE TEMP TABLE __stored AS SELECT {changes.key_of('b')} FROM __base AS b "
        f"SEMI JOIN __touched ON {changes.same_key('b')}"
    )
    if has_deletes:
        place = f"d.{quoted(METADATA_COLUMN)}"
        listed = ", ".join([*(f"d.{quoted(c)}" for c in names), place])
        every.append(
            f"SELECT {listed}, '{DELETE}' AS {OPERATION}, {_NO_NAMES} AS {UNCHANGED}, {_REMEMBERED} AS __kind "
            f"FROM __deletes AS d SEMI JOIN __touched ON {changes.same_key('d')}"
        )
    cutoff = remembered_cutoff(changes.state)
    within = "true" if cutoff is None else f"__kind <> {_EVENT} OR NOT {in_duckdb(cutoff.is_older(keys, 'e'))}"
    values = (
        "{" + ", ".join([f"o{n}: {in_duckdb(v)}" for n, v in enumerate(keys.order_values("e"))] or ["o: true"]) + "}"
    )
    has_no_order = in_duckdb(keys.has_no_order("e")) if keys.has_order else "false"
    own = f"{{source: {sortable(keys.source_order('e'))}, vals: {values}}}"
    key = ", ".join(changes.key_names)
    place, placed = "__own", "ordered"
    if keys.has_order:
        earlier = newest_before(changes, f"{OPERATION} = '{DELETE}'", among=f"__kind = {_EVENT}")
        row = f"max(CASE WHEN __kind = {_STORED} THEN __own END) OVER (PARTITION BY {key}, __topic, __part)"
        older = f"max(CASE WHEN __kind = {_STORED} AND NOT __todays THEN __own END) OVER (PARTITION BY {key})"
        placed = f"(SELECT *, {earlier} AS __earlier FROM ordered)"
        after_delete = "WHEN __earlier.is_delete THEN __earlier.own " if keys.has_envelope else ""
        place = (
            f"CASE WHEN NOT __no_order OR {OPERATION} <> '{DELETE}' OR __kind <> {_EVENT} THEN __own "
            f"{after_delete}ELSE greatest(__earlier.own, {row}, {older}) END"
        )
    changes.database.execute(
        f"""
        CREATE TEMP TABLE __placed AS
        WITH every AS ({" UNION ALL BY NAME ".join(every)}),
        ordered AS (
            SELECT e.*, {changes.key_of("e")}, {todays} AS __todays, e.{quoted(METADATA_COLUMN)}.topic_id AS __topic,
                {partition} AS __part, {offset} AS __off, {has_no_order} AS __no_order, {own} AS __own
            FROM every AS e WHERE {within}
        ),
        filled AS (SELECT *, {place} AS __place FROM {placed})
        SELECT *, {{source: __place.source, todays: __todays, part: __part, off: __off, kind: __kind}} AS __o
        FROM filled
        """
    )


def newest_before(changes: Changes, is_delete: str, among: str = "true") -> str:
    """Return the newest event before each in its Kafka partition, as a struct of its order and whether it deletes."""
    window = f"OVER (PARTITION BY {', '.join(changes.key_names)}, __topic, __part ORDER BY __off)"
    event = f"CASE WHEN NOT __no_order AND {among} THEN {{own: __own, is_delete: {is_delete}}} END"
    newest = f"max({event}) {window}"
    if not changes.keys.has_envelope:
        return newest
    # Debezium sends a delete and then a tombstone. If a connector sends both again, newer events precede them.
    previous = f"last_value({event} IGNORE NULLS) {window}"
    return f"CASE WHEN ({previous}).is_delete THEN {previous} ELSE {newest} END"


def _check_order(changes: Changes) -> None:
    """Refuse events that can't be ordered against others of their key in other Kafka partitions."""
    keys, key = changes.keys, ", ".join(changes.key_names)
    if keys.has_order:
        found = changes.database.execute(
            f"SELECT e.__part, e.__off, s.__part FROM __placed AS e JOIN __placed AS s USING ({key}) "
            f"WHERE e.__place IS NULL AND s.__kind <> {_REMEMBERED} AND NOT s.__no_order AND s.__todays "
            "AND s.__part <> e.__part LIMIT 1"
        ).fetchone()
        if found:
            raise tombstone_error(changes.spec, *found)
        return
    found = changes.database.execute(
        "SELECT arg_max(__part, __off), max(__off), arg_min(__part, __off) FROM __placed WHERE __todays "
        f"GROUP BY {key} HAVING min(__part) <> max(__part) LIMIT 1"
    ).fetchone()
    if found:
        raise partitions_error(changes.spec, *found)


def _check_complete(changes: Changes) -> None:
    """Refuse an event that leaves a value unchanged which no event before it has."""
    spec, key = changes.spec, ", ".join(changes.key_names)
    if spec.is_partial or spec.deletes == "soft" or not changes.nullable:
        return
    until = f"OVER (PARTITION BY {key} ORDER BY __o)"
    deleted_at = f"max(CASE WHEN {OPERATION} = '{DELETE}' THEN __o END) {until}"
    lacks = []
    for column in changes.nullable:
        has_at = f"max(CASE WHEN {_has(column)} THEN __o END) {until}"
        has_none = f"coalesce({deleted_at} > {has_at}, {has_at} IS NULL)"
        lacks.append(f"(list_contains({UNCHANGED}, {literal(column)}) AND {has_none})")
    found = changes.database.execute(
        f"SELECT __part, __off FROM __placed WHERE __place IS NOT NULL "
        f"QUALIFY __kind = {_EVENT} AND {OPERATION} <> '{DELETE}' AND ({' OR '.join(lacks)}) LIMIT 1"
    ).fetchone()
    if found:
        raise FreshReadError(
            f"Topic {spec.topic}: the change in partition {found[0]} at offset {found[1]} omits an unchanged value, "
            "and no earlier change has it.",
            f"The next commit makes it a dead letter: `kafka-lake ingest {spec.full_topic}`.",
        )


def _has(column: str) -> str:
    return f"NOT list_contains({UNCHANGED}, {literal(column)}) AND {OPERATION} <> '{DELETE}'"


def _newest(changes: Changes) -> str:
    """Return the query for the rows of the events' keys after the newest change of each.

    A value that a change leaves unchanged comes from the newest change before it that has the value, back to the last
    delete.
    """
    spec, keys, key = changes.spec, changes.keys, ", ".join(changes.key_names)
    is_soft, nullable = spec.deletes == "soft", changes.nullable
    ordered = dict.fromkeys(keys.order_by)
    columns = {column: quoted(column) for column in changes.columns.names}
    for number, column in enumerate([*ordered, *([CHANGE] if keys.has_envelope else [])]):
        value = f"__place.vals.o{number}"
        columns[column] = f'{{op: {quoted(CHANGE)}.op, "order": {value}}}' if column == CHANGE else value
    for column in nullable:
        has = f"NOT list_contains({UNCHANGED}, {literal(column)})" if is_soft else _has(column)
        columns[column] = f"(arg_max({{v: {quoted(column)}}}, __o) FILTER (WHERE {has}) OVER (PARTITION BY {key})).v"
    deleted_at = f"max(CASE WHEN {OPERATION} = '{DELETE}' THEN __o END) OVER (PARTITION BY {key})"
    since = f" QUALIFY coalesce(__o >= {deleted_at}, true)" if nullable and not is_soft else ""
    has_row = f"bool_or(NOT list_contains({UNCHANGED}, {literal(METADATA_COLUMN)})) OVER (PARTITION BY {key})"
    listed = ", ".join(f"{sql} AS {quoted(column)}" for column, sql in columns.items())
    is_row = f"__operation IN ('{UPSERT}', '{READ}')"
    if is_soft:
        is_row += f" OR (__has_row AND __kind <> {_REMEMBERED})"
    return (
        f"SELECT * EXCLUDE (__operation, __kind, __has_row) FROM (SELECT {listed}, {OPERATION} AS __operation, __kind, "
        f"{has_row} AS __has_row FROM (SELECT * FROM __placed WHERE __place IS NOT NULL{since}) "
        f"QUALIFY row_number() OVER (PARTITION BY {key} ORDER BY __o DESC) = 1) WHERE {is_row}"
    )
