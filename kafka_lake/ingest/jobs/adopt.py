"""Adopt: take over a table that another writer has filled, by a commit of the position at which it resumes.

The offsets are given by the user, or are those of the Iceberg sink of Kafka Connect.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from uuid import UUID

from pyiceberg.expressions import NotNull, Reference
from pyiceberg.table import Table
from pyspark.sql import types as T

from kafka_lake.catalog.positions import (
    ADOPTED_AT,
    TableState,
    ancestors,
    has_origin,
    head_of,
    read_state,
    row_count,
    summary_of,
)
from kafka_lake.catalog.tables import apply_changes, schema_of
from kafka_lake.common.offsets import Position, Watermarks
from kafka_lake.engine.interop import to_arrow_schema
from kafka_lake.engine.task import METADATA_COLUMN
from kafka_lake.errors import AdoptionRefusedError, ConfigurationError, TableError
from kafka_lake.formats.rows import METADATA
from kafka_lake.ingest.jobs.append import Job
from kafka_lake.ingest.plan import offsets_of
from kafka_lake.ingest.table_state import SINK
from kafka_lake.ingest.topic_ends import TopicEnds
from kafka_lake.kafka.cluster import KafkaCluster
from kafka_lake.kafka.records import Record, read_all
from kafka_lake.runtime.commit import Commit
from kafka_lake.runtime.context import Connections, Context
from kafka_lake.runtime.plan import Plan, position_only
from kafka_lake.schema.rules import needed_changes
from kafka_lake.spec.topic_table import TopicTable


def control_offsets(table: Table, groups: Iterable[str]) -> tuple[str, str, dict[int, int]] | None:
    """Return the control topic, group and control offsets of a sink, from its snapshots' ``kafka.connect.offsets.…``.

    A restarted coordinator notes only partitions with events since then, so the largest offset of the history counts.
    """
    offsets: dict[int, int] = {}
    sink: tuple[str, str] | None = None
    for snapshot in ancestors(table, head_of(table)):
        for key, text in summary_of(snapshot).items():
            group = next(
                (candidate for candidate in groups if key.startswith(SINK) and key.endswith(f".{candidate}")), None
            )
            if group is None or (sink is not None and _split(key, group) != sink):
                continue
            sink = _split(key, group)
            for partition, offset in _numbers(table, key, text).items():
                offsets[partition] = max(offset, offsets.get(partition, 0))
    return None if sink is None else (*sink, offsets)


def sinks_of(table: Table) -> list[str]:
    """Return the keys ``kafka.connect.offsets.…`` of the snapshots of all branches, without that prefix."""
    keys = {key for snapshot in table.metadata.snapshots for key in summary_of(snapshot) if key.startswith(SINK)}
    return sorted(key.removeprefix(SINK) for key in keys)


def _split(key: str, group: str) -> tuple[str, str]:
    return key.removeprefix(SINK).removesuffix(f".{group}"), group


def _numbers(table: Table, key: str, text: str) -> Mapping[int, int]:
    try:
        return {int(p): int(o) for p, o in json.loads(text).items()}
    except (ValueError, AttributeError, TypeError) as error:
        raise TableError(
            f"Table {'.'.join(table.name())}: the snapshot property {key} has no offsets.",
            "Nothing was changed. Name the offsets with --from-offsets.",
        ) from error


_WITHOUT_FILES = (b"StartCommit", b"DataComplete", b"CommitToTable", b"CommitComplete")
_FILES = b"DataWritten"


def first_uncommitted(events: Iterable[Record], table: str, uuid: UUID) -> Record | None:
    """Return the first event that may announce files of a table; None if the sink has finished.

    A task of the sink announces its files on the control topic and commits its offsets to the connector's group in one
    Kafka transaction. The coordinator commits the files to the table later, so the group may be ahead of the table. The
    snapshot has the offset of the control topic up to which files are committed.

    Each event contains its payload's name; an announcement contains the name and id of its table. An unknown event may
    announce files of any table.
    """
    return next((event for event in events if _may_announce(event.value or b"", table.encode(), uuid.bytes)), None)


def _may_announce(event: bytes, table: bytes, uuid: bytes) -> bool:
    if _FILES in event:
        return table in event or uuid in event
    return not any(payload in event for payload in _WITHOUT_FILES)


@dataclass(frozen=True)
class Evidence:
    """The next offsets of another writer.

    Args:
        complete: Whether the table has no record of the other partitions.
    """

    source: str
    offsets: Mapping[int, int]
    why: str
    complete: bool = False


@dataclass(frozen=True)
class PartitionStart:
    """The offset at which a Kafka partition resumes.

    Args:
        end: Exclusive end of what Kafka has.
    """

    partition: int
    offset: int
    why: str
    low: int
    end: int


@dataclass(frozen=True)
class Adoption:
    """The plan of an adoption."""

    topic: str
    table: str
    source: str
    head: int | None
    rows: int
    position: Position
    partitions: tuple[PartitionStart, ...]
    notes: tuple[str, ...] = ()


_BY_HAND = "If you know the offsets, name those of all partitions with --from-offsets."


def starts(table: str, evidence: Evidence, now: Watermarks) -> tuple[PartitionStart, ...]:
    """Return the offset at which each Kafka partition resumes."""
    topic = now.identity.topic
    if unknown := sorted(evidence.offsets.keys() - now.end.keys()):
        raise AdoptionRefusedError(
            f"Table {table}: {evidence.source} names partition {unknown[0]} of topic {topic}, which has the partitions "
            f"{', '.join(map(str, now.partitions)) or '(none)'}.",
            "Nothing was changed. Check the topic and the brokers: the topic may have been recreated.",
        )
    missing = [p for p in now.partitions if p not in evidence.offsets]
    if missing and not evidence.complete:
        raise AdoptionRefusedError(
            f"Table {table}: {evidence.source} has no offset for partition {', '.join(map(str, missing))} of topic "
            f"{topic}.",
            f"Nothing was changed, because records could be lost or duplicated. {_BY_HAND}",
        )
    problems = [
        f"partition {p} resumes at offset {o}, and the oldest that Kafka has is {now.low[p]}"
        if o < now.low[p]
        else f"partition {p} resumes at offset {o}, and Kafka's end is {now.end[p]}"
        for p, o in sorted(evidence.offsets.items())
        if not now.low[p] <= o <= now.end[p]
    ]
    if problems:
        raise AdoptionRefusedError(
            f"Table {table}, topic {topic}: by {evidence.source}, {'; '.join(problems)}.",
            "Nothing was changed. Kafka can't provide deleted records. A position beyond the end belongs to another "
            "topic or cluster, or to an open transaction. To use other offsets, name them with --from-offsets.",
        )
    return tuple(
        PartitionStart(
            partition=p,
            offset=evidence.offsets.get(p, now.low[p]),
            why=evidence.why if p in evidence.offsets else "the table has none of its records; starts at the oldest",
            low=now.low[p],
            end=now.end[p],
        )
        for p in now.partitions
    )


def position_of(found: tuple[PartitionStart, ...], now: Watermarks) -> Position:
    """Return the position to write, with the current topic id and leader epochs."""
    return Position(now.identity, {start.partition: start.offset for start in found}, now.epochs)


@dataclass(frozen=True)
class FromOffsets:
    """Offsets given by the user."""

    text: str

    def evidence(self, table: Table, cluster: KafkaCluster, now: Watermarks) -> Evidence:
        """Return the given offsets."""
        offsets = offsets_of(self.text, now.identity.topic, cluster, now)
        return Evidence("--from-offsets", offsets, f"named: {self.text}")


@dataclass(frozen=True)
class FromKafkaConnect:
    """The offsets of a stopped Iceberg sink of Kafka Connect that has committed all of its files."""

    connector: str

    def evidence(self, table: Table, cluster: KafkaCluster, now: Watermarks) -> Evidence:
        """Return the offsets of the connector's group."""
        name, topic = ".".join(table.name()), now.identity.topic
        found = control_offsets(table, (f"connect-{self.connector}", self.connector))
        if found is None:
            known = ", ".join(sinks_of(table)) or "none"
            raise AdoptionRefusedError(
                f"Table {name}: no snapshot in main's history is from connector {self.connector}. Control topics and "
                f"consumer groups in the table: {known}.",
                "Nothing was changed. Check the connector's name and its branch. If its snapshots have expired, name "
                "the offsets with --from-offsets.",
            )
        control, group, committed = found
        if members := [member for name_ in (group, f"{group}-coord") for member in cluster.group_members(name_)]:
            raise AdoptionRefusedError(
                f"Table {name}: connector {self.connector} still runs ({members[0]}).",
                "Nothing was changed. Stop it first. After a crash, its members leave when their session times out.",
            )
        # Read the group first: a transaction that has moved it is then in the control topic, or still open.
        offsets = cluster.group_offsets(group, topic, now.partitions)
        self._refuse_unfinished(table, cluster, control, committed)
        return Evidence(
            f"connector {self.connector}",
            offsets,
            f"committed by group {group}; the table has all files of the control topic",
            # A task commits an offset for each partition with a record. A group without offsets has expired.
            complete=bool(offsets),
        )

    def _refuse_unfinished(
        self, table: Table, cluster: KafkaCluster, control: str, committed: Mapping[int, int]
    ) -> None:
        """Refuse a sink that may have announced files that are not committed to the table."""
        name = ".".join(table.name())
        # Aborted events never count, whatever isolation the topic is read with.
        events = KafkaCluster(cluster.properties, cluster.timeout)
        written = KafkaCluster(cluster.properties, cluster.timeout, read_committed=False).watermarks_of(control).end
        now = events.watermarks_of(control)
        if still_open := [p for p in now.partitions if now.end[p] < written.get(p, 0)]:
            raise AdoptionRefusedError(
                f"Table {name}: connector {self.connector} has an open transaction in partition {still_open[0]} of its "
                f"control topic {control}.",
                "Nothing was changed. Stop the connector, and try again when the brokers have ended its transaction, "
                "after a minute by default.",
            )
        if gone := [p for p in now.partitions if now.low[p] > committed.get(p, 0)]:
            raise AdoptionRefusedError(
                f"Table {name}: the control topic {control} has events from offset {now.low[gone[0]]} of partition "
                f"{gone[0]} on, and the table has only the files listed before offset {committed.get(gone[0], 0)}.",
                "Nothing was changed. The events in between were deleted. Name the offsets with --from-offsets.",
            )
        beyond = replace(now, low={p: max(now.low[p], committed.get(p, 0)) for p in now.partitions})
        event = first_uncommitted(read_all(events, beyond), table.name()[-1], table.metadata.table_uuid)
        if event is not None:
            raise AdoptionRefusedError(
                f"Table {name}: connector {self.connector} has not finished. The event at offset {event.offset} of "
                f"partition {event.partition} of its control topic {control} lists files that no snapshot of the "
                "table has.",
                "Nothing was changed. Start the connector again, and wait for two of its commits "
                "(iceberg.control.commit.interval-ms, 5 minutes by default). Then stop it just after a commit, and run "
                "this command again: it succeeds when the connector has finished. If you know the offsets, name them "
                "with --from-offsets.",
            )


Source = FromOffsets | FromKafkaConnect
_DELETES = "total-equality-deletes"


def plan_adoption(spec: TopicTable, connections: Connections, source: Source) -> Adoption:
    """Return what `kafka-lake adopt` would write."""
    name = ".".join(spec.identifier)
    if spec.topics:
        raise ConfigurationError(
            f"Table {name} has several topics: {', '.join(spec.topics)}. Only a table of one topic can be taken over.",
            "Nothing was changed. Take it over with topic: in its YAML, and write topics: after that.",
        )
    now = connections.cluster.watermarks_of(spec.topic)
    table = connections.catalog.table(spec.identifier)
    if table is None:
        raise TableError(f"Table {name} doesn't exist.", "Nothing was changed. Check the name of the table:.")
    state = read_state(table)
    for topic, position in state.positions.items():
        raise TableError(
            f"Table {name} already has a position in topic {topic}: {dict(position.offsets)}.",
            f"Nothing was changed. kafka_lake already fills it; `kafka-lake reset {spec.full_topic} --to …` sets its "
            "position.",
        )
    if state.head is None:
        raise TableError(
            f"Table {name} has no snapshot, so there is nothing to take over.",
            f"Nothing was changed. Set starting_offsets:, and run `kafka-lake ingest {spec.full_topic}`.",
        )
    _refuse_updated(table)
    _refuse_occupied_column(spec, table)
    evidence = source.evidence(table, connections.cluster, now)
    found = starts(name, evidence, now)
    return Adoption(
        topic=spec.topic,
        table=name,
        source=evidence.source,
        head=state.head,
        rows=row_count(table),
        position=position_of(found, now),
        partitions=found,
        notes=(
            f"Column {METADATA_COLUMN} is added, and is null in existing rows: replay and reset can't read "
            "their records again.",
        ),
    )


def _refuse_updated(table: Table) -> None:
    """Refuse a table whose writer replaces rows by key: an adopted table is appended to."""
    snapshot = table.current_snapshot()
    if snapshot is None or not int(summary_of(snapshot).get(_DELETES, 0)):
        return
    raise AdoptionRefusedError(
        f"Table {'.'.join(table.name())} has equality deletes: its writer replaces rows by key.",
        "Nothing was changed. kafka_lake appends every record. Set another table:, or compact the table if the "
        "deletes are old.",
    )


def _refuse_occupied_column(spec: TopicTable, table: Table) -> None:
    """Refuse a table whose metadata column is another writer's, or has values of an earlier run."""
    column, name = METADATA_COLUMN, ".".join(spec.identifier)
    here = next((f for f in table.schema().fields if f.name.lower() == column), None)
    if here is None:
        return
    if here.name != column or not has_origin(here.field_type):
        raise ConfigurationError(
            f"Table {name} has a column {here.name} of another writer.",
            "Nothing was changed. Rename that column, or set another table:.",
        )
    # A failed attempt may have added the column, without values.
    rows = table.scan(
        row_filter=NotNull(term=Reference(f"{column}.offset")), selected_fields=(f"{column}.offset",), limit=1
    )
    if rows.to_arrow().num_rows:
        raise TableError(
            f"Table {name} has no position, but its column {column} shows that a run filled it.",
            f"Nothing was changed. Run `kafka-lake ingest {spec.full_topic}`, which finds the position in the rows, or "
            f"`kafka-lake reset {spec.full_topic} --to …`.",
        )


class Adopt(Job):
    """Writes the position of a table that another writer has filled, if nothing has changed since it was planned."""

    position_required = False
    position_sought = False

    def __init__(self, context: Context, agreed: Adoption, source: Source) -> None:
        super().__init__(context)
        self._agreed = agreed
        self._source = source
        self._done = False

    def prepare(self, topic: TopicEnds) -> None:
        """Add the metadata column and note the position, if nothing has changed."""
        context, agreed = self.context, self._agreed
        now = plan_adoption(context.spec, context.connections, self._source)
        if now.head != agreed.head or now.position != agreed.position:
            raise self._moved(f"{dict(agreed.position.offsets)} became {dict(now.position.offsets)}")
        prepare_table(context.spec, context.connections, agreed.position)

    def plan(self, topic: TopicEnds, state: TableState | None) -> Plan | None:
        """Return the commit that has the position; None once it is made."""
        agreed = self._agreed
        if self._done:
            return None
        if state is None or state.head != agreed.head:
            raise self._moved(f"main was at snapshot {agreed.head} and is at {state.head if state else None}")
        stay = position_only(agreed.position)
        return Plan(stay.ranges, stay.after, 0, "adopt", adopted_from=(agreed.source, agreed.rows))

    def committed(self, commit: Commit, todo: Plan) -> None:
        """Finish after one commit."""
        self._done = True

    def _moved(self, what: str) -> AdoptionRefusedError:
        return AdoptionRefusedError(
            f"Table {self.context.table_name}: the other writer has committed since the preview: {what}.",
            "Nothing was committed. Stop that writer, and try again.",
        )


def prepare_table(spec: TopicTable, connections: Connections, position: Position) -> None:
    """Add the metadata column if it is missing, and note the position in the table's properties.

    The note outlives snapshots: records before it must never be read again, since their rows can't be identified.
    """
    table = connections.catalog.table(spec.identifier)
    if table is None:
        raise TableError(f"Table {'.'.join(spec.identifier)} no longer exists.", "Nothing was changed.")
    with table.transaction() as transaction:
        transaction.set_properties({ADOPTED_AT: position.to_json()})
    # Regardless of the evolution policy: new rows must be identified.
    target = schema_of(to_arrow_schema(T.StructType([T.StructField(METADATA_COLUMN, METADATA)])))
    apply_changes(table, target, needed_changes(table.schema(), target))
