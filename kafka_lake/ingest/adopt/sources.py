"""The places that `kafka-lake adopt` can take offsets from: each asks Kafka, the table or a folder for its evidence."""

import json
from dataclasses import dataclass
from typing import Protocol

from pyarrow import fs
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table import Table

from kafka_lake.common.errors import ConfigurationError
from kafka_lake.common.offsets import Watermarks
from kafka_lake.ingest.adopt.checkpoint import Checkpoint, checkpoint_evidence
from kafka_lake.ingest.adopt.marks import batches_of, control_offsets, sinks_of
from kafka_lake.ingest.adopt.model import AdoptionRefusedError, Evidence
from kafka_lake.ingest.adopt.sink import SinkTable, sink_evidence
from kafka_lake.ingest.adopt.sink_events import DataComplete, DataWritten, NotAnEventError, Place, parse_event
from kafka_lake.ingest.plan.start import offsets_of
from kafka_lake.kafka.cluster import KafkaCluster
from kafka_lake.kafka.groups import ConsumerGroups
from kafka_lake.kafka.read_all import read_all

_STOP = "Nothing was changed. Stop it first. After a crash, its members leave when their session times out."


class Source(Protocol):
    """Knows up to which offsets another writer has filled a table."""

    def evidence(self, table: Table, cluster: KafkaCluster, now: Watermarks) -> Evidence:
        """Return what it knows.

        Args:
            table: The table, freshly loaded.
            cluster: Where the topic is.
            now: What the topic holds.

        Raises:
            AdoptionRefusedError: If that can't be told with certainty.
            KafkaLakeError: If Kafka or a folder can't be read.
        """


@dataclass(frozen=True)
class FromOffsets:
    """Offsets that a person names.

    Args:
        text: As `plan.start.offsets_of` understands it.
    """

    text: str

    def evidence(self, table: Table, cluster: KafkaCluster, now: Watermarks) -> Evidence:
        """Return the offsets named; `Source.evidence` says the rest."""
        offsets = offsets_of(self.text, now.identity.topic, cluster, now)
        return Evidence("--from-offsets", offsets, dict.fromkeys(offsets, f"named: {self.text}"))


@dataclass(frozen=True)
class FromGroup:
    """What a consumer group has committed. Nobody may be in it.

    Args:
        group: Its name.
    """

    group: str

    def evidence(self, table: Table, cluster: KafkaCluster, now: Watermarks) -> Evidence:
        """Return the group's offsets of the topic; `Source.evidence` says the rest."""
        groups, topic = ConsumerGroups(cluster), now.identity.topic
        _refuse_group_of_sink(self.group, table)
        _refuse_members(groups, [self.group], table, f"consumer group {self.group}")
        offsets = groups.offsets(self.group, topic, now.partitions)
        note = (
            f"Group {self.group} and the table were changed in two steps: the offsets are right only if the job was "
            "stopped between two commits."
        )
        return Evidence(
            f"consumer group {self.group}",
            offsets,
            dict.fromkeys(offsets, f"committed by group {self.group}"),
            notes=(note,),
        )


@dataclass(frozen=True)
class FromKafkaConnect:
    """What the Iceberg sink of Kafka Connect has committed to the table. The connector must be stopped.

    Args:
        connector: Its name.
    """

    connector: str

    def evidence(self, table: Table, cluster: KafkaCluster, now: Watermarks) -> Evidence:
        """Return what the table's snapshots and the control topic say; `Source.evidence` says the rest."""
        name = ".".join(table.name())
        found = control_offsets(table, (f"connect-{self.connector}", self.connector))
        if found is None:
            known = ", ".join(sinks_of(table)) or "none"
            raise AdoptionRefusedError(
                f"Table {name}: no snapshot in main's history is of connector {self.connector} (control topic and "
                f"consumer group of those that there are: {known}).",
                "Nothing was changed. Check the connector's name and its branch. If its snapshots have expired, name "
                "the offsets with --from-offsets.",
            )
        control, group, committed = found
        groups = ConsumerGroups(cluster)
        _refuse_members(groups, [group, f"{group}-coord"], table, f"connector {self.connector}")
        # Whatever the topic's records are, events that were aborted never count.
        events = KafkaCluster(cluster.properties, cluster.timeout)
        ends = events.watermarks_of(control)
        # The sink's own note of partitions of the control topic that no snapshot names.
        committed = {**groups.offsets(f"{group}-coord", control, ends.partitions), **committed}
        if gone := [p for p in ends.partitions if ends.low[p] > committed.get(p, 0)]:
            raise AdoptionRefusedError(
                f"Table {name}: the control topic {control} has events from offset {ends.low[gone[0]]} of partition "
                f"{gone[0]} on, and the table has what was announced before {committed.get(gone[0], 0)}.",
                "Nothing was changed. What was announced between can't be told any more. Name the offsets with "
                "--from-offsets.",
            )
        return sink_evidence(
            SinkTable(
                name=tuple(table.name()),
                uuid=str(table.metadata.table_uuid),
                connector=self.connector,
                group=group,
                committed=committed,
            ),
            now.identity.topic,
            self._events(events, ends, group, name),
            groups.offsets(group, now.identity.topic, now.partitions),
            control_is_whole=not any(ends.low.values()),
        )

    def _events(
        self, cluster: KafkaCluster, ends: Watermarks, group: str, table: str
    ) -> list[DataWritten | DataComplete]:
        found = []
        for record in read_all(cluster, ends):
            try:
                event = parse_event(Place(record.partition, record.offset, record.key or b""), record.value, group)
            except NotAnEventError as error:
                raise AdoptionRefusedError(
                    f"Table {table}: the record at offset {record.offset} of partition {record.partition} of the "
                    f"control topic {ends.identity.topic} is no event of Apache Iceberg's sink: {error}.",
                    "Nothing was changed. Versions before Apache Iceberg 1.6 are not understood: name the offsets "
                    "with --from-offsets.",
                ) from error
            if event is not None:
                found.append(event)
        return found


@dataclass(frozen=True)
class FromCheckpoint:
    """What a Structured Streaming query has committed to the table. The query must be stopped.

    Args:
        folder: Its checkpoint: a path, or an address that the catalog's file access knows.
    """

    folder: str

    def evidence(self, table: Table, cluster: KafkaCluster, now: Watermarks) -> Evidence:
        """Return what checkpoint and snapshots say; `Source.evidence` says the rest."""
        checkpoint = _read_checkpoint(self.folder, table)
        return checkpoint_evidence(".".join(table.name()), now.identity.topic, checkpoint, batches_of(table))


def _refuse_group_of_sink(group: str, table: Table) -> None:
    """Refuse the group of a sink, which is ahead of the table while announced files wait for their commit."""
    if control_offsets(table, [group]) is None:
        return
    raise AdoptionRefusedError(
        f"Table {'.'.join(table.name())}: consumer group {group} is of the Iceberg sink of Kafka Connect, and may be "
        "ahead of the table.",
        f"Nothing was changed. Use --from-kafka-connect {group.removeprefix('connect-')}, which looks at the sink's "
        "control topic too.",
    )


def _refuse_members(groups: ConsumerGroups, names: list[str], table: Table, who: str) -> None:
    members = [each for name in names for each in groups.members(name)]
    if members:
        raise AdoptionRefusedError(f"Table {'.'.join(table.name())}: {who} still runs ({members[0]}).", _STOP)


def _read_checkpoint(folder: str, table: Table) -> Checkpoint:
    """Return a checkpoint as it is now.

    Raises:
        ConfigurationError: If it is none.
    """
    try:
        files, root = _place(folder, table)
        query_id = str(json.loads(_text(files, f"{root}/metadata"))["id"])
        batches = {number: _text(files, path) for number, path in _numbered(files, f"{root}/offsets").items()}
        commits = frozenset(_numbered(files, f"{root}/commits"))
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise ConfigurationError(
            f"--from-checkpoint: {folder} can't be read as a checkpoint of Structured Streaming: {error}.",
            "Name the folder that has metadata, offsets and commits in it.",
        ) from error
    return Checkpoint(folder, query_id, batches, commits)


def _place(folder: str, table: Table) -> tuple[fs.FileSystem, str]:
    scheme, netloc, path = PyArrowFileIO.parse_location(folder.rstrip("/"), table.io.properties)
    if scheme == "file":
        return fs.LocalFileSystem(), path
    access = table.io if isinstance(table.io, PyArrowFileIO) else PyArrowFileIO(table.io.properties)
    return access.fs_by_scheme(scheme, netloc), path


def _numbered(files: fs.FileSystem, folder: str) -> dict[int, str]:
    listed = files.get_file_info(fs.FileSelector(folder, allow_not_found=True))
    return {int(each.base_name): each.path for each in listed if each.base_name.isdecimal()}


def _text(files: fs.FileSystem, path: str) -> str:
    with files.open_input_stream(path) as stream:
        return bytes(stream.readall()).decode()
