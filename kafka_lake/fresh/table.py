"""A table with the records that Kafka has behind its position, as one relation."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
from duckdb import DuckDBPyRelation
from pyiceberg.table import Table

from kafka_lake.catalog.positions import head_of, row_count, state_of
from kafka_lake.common.offsets import OffsetRange, TopicIdentity, Watermarks
from kafka_lake.errors import SnapshotExpiredError, TableError
from kafka_lake.fresh import history, upsert
from kafka_lake.fresh.conditions import condition_for
from kafka_lake.fresh.decode import TopicDecoder, in_columns
from kafka_lake.fresh.tail import MaxTail, Tail
from kafka_lake.ingest.plan import Backlog, backlog, start_offsets
from kafka_lake.ingest.topic_ends import TopicEnds
from kafka_lake.routing.by_value import begins_in, knowing
from kafka_lake.runtime.context import Connections, Context, Timings
from kafka_lake.runtime.snapshot_rows import (
    Database,
    SnapshotRows,
    file_errors,
    open_database,
    query_errors,
    quoted,
    types_of,
    view_names,
)
from kafka_lake.spec.topic_table import TopicTable
from kafka_lake.writers.decoding import SparkDecoding


@dataclass(frozen=True)
class Fresh:
    """The rows of a table at a snapshot, and of the records behind it.

    Args:
        table: The table's name.
        snapshot: The snapshot's id; None for a table without one.
        ranges: The offsets that were read from Kafka, by topic.
        records: Number of records in them that are the table's, tombstones included.
        dead_letters: Number of these that the next commit would make dead letters.
        seconds: Time of each step.
        columns: The columns of the rows.
        paths: The snapshot's data files.
    """

    table: str
    snapshot: int | None
    ranges: dict[str, tuple[OffsetRange, ...]]
    records: int
    dead_letters: int
    seconds: dict[str, float]
    columns: pa.Schema
    paths: list[str]
    connections: Connections
    database: Database

    def duckdb(self) -> DuckDBPyRelation:
        """Return the rows as a lazy relation of DuckDB, whose columns and filters reach the table's files."""
        return self.database.view("this")

    def sql(self, query: str) -> pa.Table:
        """Run a query of DuckDB's SQL, in which the rows have the name ``this``.

        Raises:
            SnapshotExpiredError: If the snapshot's files were deleted meanwhile.
            KafkaLakeError: If DuckDB can't read the table's files, or can't run the query.
        """
        return self._answer(lambda: self.database.sql(query).to_arrow_table())

    def arrow(self) -> pa.Table:
        """Return the rows as a table of Arrow; raises as `sql`."""
        return self.sql("SELECT * FROM this").cast(self.columns)

    def polars(self) -> Any:
        """Return the rows as a data frame of Polars, which must be installed; raises as `sql`."""
        return self._answer(lambda: self.duckdb().pl())

    def spark(self) -> Any:
        """Return the rows as a data frame of the deployment's Spark; raises as `sql`."""
        return self.connections.frames.from_arrow(self.connections.spark(), self.arrow())

    def _answer(self, ask: Callable[[], Any]) -> Any:
        with query_errors(self.table, self.columns):
            return ask()


class _Snapshot:
    """A table at one snapshot, with a decoder and the unread offsets for each topic."""

    def __init__(self, table: "FreshTable", loaded: Table) -> None:
        self.head, self.schema = head_of(loaded), loaded.metadata.current_schema_id
        self.rows = SnapshotRows(table.database, loaded, self.head)
        self.topics = [_Topic(table, spec, loaded) for spec in table.spec.each_topic]


class _Topic:
    """One of the topics of a table at a snapshot."""

    def __init__(self, table: "FreshTable", spec: TopicTable, loaded: Table) -> None:
        connections = table.connections
        self.spec, self.state = spec, state_of(spec, loaded)
        self.begins: dict[int, int] | None = None
        self._context = Context(spec, connections, "fresh", decoding=SparkDecoding())
        self._validated: Watermarks | None = None
        topic = table.topic if len(table.spec.each_topic) == 1 else spec
        own = loaded if topic.identifier == spec.identifier else connections.catalog.table(topic.identifier)
        properties = own.properties if own is not None else {}
        self._begins_of_value = begins_in(properties, spec.identifier)
        condition = condition_for(knowing(topic, properties), spec)
        self.decoder = TopicDecoder(table.database, spec, connections, self.state, condition=condition)
        if self.state.position is None and row_count(loaded):
            raise TableError(
                f"Table {'.'.join(spec.identifier)} has rows and no position in topic {spec.topic}.",
                f"`kafka-lake ingest {spec.full_topic}` recovers the position.",
            )

    def backlog(self) -> Backlog:
        """Return the unread offsets; raises as the plan of an append."""
        ends, position, cluster = TopicEnds(self._context), self.state.position, self._context.connections.cluster
        now = ends.now
        if self._validated is None or now.epochs != self._validated.epochs:
            # Once for each snapshot and leader: it reads the last records before the position.
            now = self._validated = ends.validated(position)
        if position is None and self.begins is None:
            self.begins = start_offsets(self.spec, cluster, now, self._begins_of_value)
        accepts = self.spec.on_data_loss == "continue"
        return backlog(position, now, starts=self.begins or {}, accept_losses=accepts)


class FreshTable:
    """A table to read again and again, with its unread records; a context manager, since it holds connections.

    Consumer, decoder and unread records are kept between reads. One thread reads at a time.

    Args:
        spec: The settings of the table.
        topic: The settings of its topic; by default the table is the topic's only one.

    Raises:
        FreshReadError: If the table has a setting that fresh reads don't support.
        TableError: If there is no such table yet.
    """

    def __init__(
        self,
        spec: TopicTable,
        connections: Connections,
        topic: TopicTable | None = None,
        max_tail: MaxTail | None = None,
    ) -> None:
        self.spec, self.topic, self.connections = spec, topic or spec, connections
        self.database = open_database()
        self._limit = max_tail or MaxTail()
        self._lock = threading.Lock()
        self._tails = {
            item.topic: Tail(connections.cluster, item.topic, ".".join(spec.identifier)) for item in spec.each_topic
        }
        self._snapshot: _Snapshot | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the consumers. Results stay valid."""
        for tail in self._tails.values():
            tail.close()

    def read(self) -> Fresh:
        """Return the table at its newest snapshot, and Kafka's records from the snapshot's position to the ends of now.

        Raises:
            TailTooLongError: If there are more unread records than `max_tail`.
            DataLossError: If Kafka no longer has some of them, and the settings don't say to go on.
            SchemaRefusedError: If the next commit would refuse them.
        """
        with self._lock, file_errors(".".join(self.spec.identifier)):
            return self._read()

    def query(self, sql: str) -> pa.Table:
        """Read the table and run a query as `Fresh.sql`; once more if the snapshot expires meanwhile."""
        try:
            return self.read().sql(sql)
        except SnapshotExpiredError:
            return self.read().sql(sql)

    def _read(self) -> Fresh:
        clock = Timings()
        snapshot = self._current()
        clock.finish("snapshot")
        dues = [topic.backlog() for topic in snapshot.topics]
        clock.finish("watermarks")
        chunks, ranges = {}, {}
        for topic, due in zip(snapshot.topics, dues, strict=True):
            chunks[topic.spec.topic], ranges[topic.spec.topic] = self._tails[topic.spec.topic].read(
                due.ranges, due.before, self._limit
            )
        clock.finish("read")
        made = []
        for topic, due in zip(snapshot.topics, dues, strict=True):
            made += topic.decoder.decode(chunks[topic.spec.topic], due.before.identity)
        clock.finish("decode")
        columns = pa.unify_schemas([topic.decoder.columns for topic in snapshot.topics], promote_options="permissive")
        tail = [in_columns(answer.rows, columns) for answer in made]
        database = self._merged(snapshot, columns, tail, dues[0].before.identity)
        clock.finish("merge")
        return Fresh(
            ".".join(self.spec.identifier),
            snapshot.head,
            ranges,
            records=sum(answer.records for answer in made),
            dead_letters=sum(answer.dead_letters for answer in made),
            seconds=dict(clock.seconds),
            columns=columns,
            paths=snapshot.rows.paths,
            connections=self.connections,
            database=database,
        )

    def _current(self) -> _Snapshot:
        loaded = self.connections.catalog.table(self.spec.identifier)
        if loaded is None:
            raise TableError(
                f"Topic {self.spec.topic} has no table {'.'.join(self.spec.identifier)} yet.",
                f"`kafka-lake ingest {self.spec.full_topic}` creates it.",
            )
        known = self._snapshot
        if known is None or (known.head, known.schema) != (head_of(loaded), loaded.metadata.current_schema_id):
            self._snapshot = known = _Snapshot(self, loaded)
        return known

    def _merged(
        self, snapshot: _Snapshot, columns: pa.Schema, tail: list[pa.Table], identity: TopicIdentity
    ) -> Database:
        """Return a connection with the view ``this``."""
        database = self.database.cursor()
        kinds, have = types_of(database, columns), set(snapshot.rows.columns.names)
        listed = ", ".join(
            f"CAST({quoted(c) if c in have else 'NULL'} AS {kind}) AS {quoted(c)}" for c, kind in kinds.items()
        )
        database.execute(
            f"CREATE TEMP VIEW __base AS SELECT {listed} FROM ({snapshot.rows.sql(database, '__base_deleted')})"
        )
        query = f"SELECT {', '.join(map(quoted, columns.names))} FROM "
        has_tail = any(map(len, tail))
        if has_tail:
            database.register("__tail", pa.concat_tables(tail))
        if not has_tail:
            query += "__base"
        elif self.spec.write == "append":
            query += f"__base UNION ALL {query}__tail"
        else:
            topic = snapshot.topics[0]
            changes = upsert.Changes(
                database,
                topic.decoder.spec,
                topic.state,
                columns=columns,
                key=topic.decoder.key,
                topic_id=identity.topic_id,
            )
            is_history = self.spec.write == "history"
            query = history.merge(changes) if is_history else upsert.merge(changes, self.connections)
        for view in view_names(self.spec.table):
            database.execute(f"CREATE TEMP VIEW {quoted(view)} AS {query}")
        return database
