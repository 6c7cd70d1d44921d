"""Upsert tables: each key's row against the newest of its changes, by DuckDB. Histories: versions don't overlap."""

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame

from kafka_lake.catalog.positions import TableState
from kafka_lake.cdc.task.change import DELETE, NOTHING, TRUNCATE
from kafka_lake.engine.task import METADATA_COLUMN
from kafka_lake.formats.rows import DELETED, VALID_FROM, VALID_TO
from kafka_lake.formats.table_compatibility import key_columns
from kafka_lake.runtime.context import Connections
from kafka_lake.runtime.snapshot_rows import Database, literal, quoted
from kafka_lake.spec.topic_table import TopicTable
from kafka_lake.verify.report import Report
from kafka_lake.verify.window import Window
from kafka_lake.writers.decoding import SparkDecoding


class NewestChanges:
    """The changes of an upsert table's topic, in a database that keeps on disk what memory can't hold."""

    def __init__(self, spec: TopicTable, state: TableState, connections: Connections, database: Database) -> None:
        self._spec, self._state, self._connections, self._database = spec, state, connections, database
        self._is_empty = True

    @property
    def key(self) -> str:
        """Return the key of the table's rows in DuckDB's SQL."""
        columns = [quoted(column) for column in key_columns(self._spec, self._state.table)]
        columns = columns or [f"{quoted(METADATA_COLUMN)}.key"]
        return f"struct_pack({', '.join(f'k{number} := {column}' for number, column in enumerate(columns))})"

    def add(self, records: DataFrame, window: Window, given_up: np.ndarray) -> np.ndarray:
        """Add the changes of a window's records; return which records are changes. Dead letters aren't.

        Args:
            given_up: Offsets that the table may lack: keys with such a change aren't compared.
        """
        found: pa.Table = SparkDecoding().changes(self._spec, self._connections, self._state, records).toArrow()
        cells = window.cells(found["p"].to_numpy(), found["o"].to_numpy())
        is_change = np.zeros(len(window), dtype=bool)
        is_change[cells[cells >= 0]] = True
        found = found.append_column("given_up", pa.array(given_up[cells]))
        found = found.filter(pa.array((cells >= 0) & (window.dead_letters[cells] == 0)))
        self._database.register("found", found)
        into = "CREATE TABLE events AS" if self._is_empty else "INSERT INTO events"
        self._database.execute(f"{into} SELECT * FROM found")
        self._database.unregister("found")
        self._is_empty = False
        return is_change

    def compare(self, rows: str, report: Report) -> None:
        """Report the keys whose row isn't that of their newest change."""
        spec, database = self._spec, self._database
        if self._is_empty or (reason := self._unsupported_reason()):
            if not self._is_empty:
                report.note(f"rows with the newest change of their key: {reason}")
            return
        database.execute("DELETE FROM events WHERE k IN (SELECT k FROM events WHERE given_up)")
        ignored = [NOTHING, TRUNCATE, *([DELETE] if spec.ignores_deletes else [])]
        # A delete without an order is newer than the changes before it in its Kafka partition.
        before = "max(CASE WHEN NOT bare THEN place END) OVER (PARTITION BY k, p ORDER BY o)"
        database.execute(
            f"CREATE TEMP VIEW placed AS SELECT p, o, op, k, CASE WHEN bare THEN {before} ELSE place END AS place "
            f"FROM events WHERE op NOT IN ({', '.join(map(literal, ignored))})"
        )
        database.execute(
            "CREATE TEMP TABLE newest AS SELECT * FROM placed "
            "QUALIFY row_number() OVER (PARTITION BY k ORDER BY place DESC NULLS LAST, p DESC, o DESC) = 1"
        )
        database.execute(f"CREATE TEMP TABLE live AS SELECT p, o, code, mark, content AS k FROM ({rows})")
        same = "l.p = n.p AND l.o = n.o AND l.code = 0 AND NOT l.mark"
        # Rows of records that Kafka no longer has may be newer by their order.
        is_known = "l.code = 0 AND EXISTS (SELECT 1 FROM events AS e WHERE e.p = l.p AND e.o = l.o)"
        if not (self._spec.has_source_order or self._spec.order_by):
            is_known = f"(({is_known}) OR (l.code = 0 AND l.p = n.p AND l.o < n.o))"
        is_delete, is_row = f"n.op = {literal(DELETE)}", "(l.k IS NOT NULL AND NOT l.mark)"
        # A soft delete of a row that was there keeps it.
        earlier = f"e.k = n.k AND e.op <> {literal(DELETE)} AND e.p = n.p AND e.o < n.o"
        had_row = f"EXISTS (SELECT 1 FROM events AS e WHERE {earlier})"
        has_row = f"(NOT {is_delete} OR {had_row})" if self._spec.marks_deletes else f"NOT {is_delete}"
        queries = {
            "doubled": "SELECT p, o FROM live WHERE code = 0 "
            "QUALIFY row_number() OVER (PARTITION BY k ORDER BY p, o) > 1",
            "missing": f"SELECT n.p, n.o FROM newest AS n ANTI JOIN live AS l ON l.k = n.k WHERE {has_row}",
            "not_newest": f"SELECT n.p, n.o FROM newest AS n JOIN live AS l ON l.k = n.k WHERE {is_known} "
            f"AND (({is_delete} AND {is_row}) OR NOT ({same} OR {is_delete}))",
            "key_differs": "SELECT l.p, l.o FROM live AS l ANTI JOIN newest AS n ON l.k = n.k "
            "WHERE l.code = 0 AND EXISTS (SELECT 1 FROM events AS e WHERE e.p = l.p AND e.o = l.o)",
        }
        for kind, query in queries.items():
            add_places(database, report, kind, spec.topic, query=query)

    def _unsupported_reason(self) -> str:
        if len(self._spec.each_topic) > 1:
            return "several topics fill the table"
        truncates = self._database.execute(f"SELECT count(*) FROM events WHERE op = {literal(TRUNCATE)}").fetchone()
        if self._spec.replaces_by_snapshot or (truncates and truncates[0] and self._spec.applies_truncates):
            return "a truncate or a source's snapshot has removed rows"
        return ""


def add_places(database: Database, report: Report, kind: str, topic: str, *, query: str) -> None:
    """Report the partitions and offsets that a query gives."""
    found = database.execute(f"SELECT p, list(DISTINCT o ORDER BY o) FROM ({query}) AS q(p, o) GROUP BY p ORDER BY p")
    for partition, offsets in found.fetchall():
        report.add(kind, topic, partition, offsets)  # type: ignore[arg-type]


def overlapping_versions(database: Database, rows: str, spec: TopicTable, state: TableState, *, report: Report) -> None:
    """Report versions of a history that end after the next version of their key begins."""
    columns = key_columns(spec, state.table)
    kafka, start, end = quoted(METADATA_COLUMN), quoted(VALID_FROM), quoted(VALID_TO)
    key = ", ".join(map(quoted, columns)) or f"{kafka}.key"
    versions = f"SELECT * FROM ({rows}) WHERE NOT {quoted(DELETED)} AND ({end} IS NULL OR {start} < {end})"
    following = f"lead({start}) OVER (PARTITION BY {key} ORDER BY {start}, {end} NULLS LAST)"
    overlaps = f"following IS NOT NULL AND ({end} IS NULL OR following < {end})"
    rows = f"SELECT *, {following} AS following FROM ({versions})"
    query = f"SELECT {kafka}.partition, {kafka}.{quoted('offset')} FROM ({rows}) WHERE {overlaps}"
    add_places(database, report, "versions", spec.topic, query=query)
