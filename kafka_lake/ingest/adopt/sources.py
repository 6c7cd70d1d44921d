"""The places that `kafka-lake adopt` can take offsets from: each asks Kafka or the table for its evidence."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from pyiceberg.table import Table

from kafka_lake.common.offsets import Watermarks
from kafka_lake.errors import AdoptionRefusedError
from kafka_lake.ingest.adopt.marks import control_offsets, first_uncommitted, sinks_of
from kafka_lake.ingest.adopt.model import Evidence
from kafka_lake.ingest.plan.start import offsets_of
from kafka_lake.kafka.cluster import KafkaCluster
from kafka_lake.kafka.groups import ConsumerGroups
from kafka_lake.kafka.read_all import read_all

_STOP = "Nothing was changed. Stop it first. After a crash, its members leave when their session times out."


class Source(Protocol):
    """Knows up to which offsets another writer has filled a table."""

    def evidence(self, table: Table, cluster: KafkaCluster, now: Watermarks) -> Evidence:
        """Return what it knows.

        Raises:
            AdoptionRefusedError: If that can't be told with certainty.
            KafkaLakeError: If Kafka can't be read.
        """


@dataclass(frozen=True)
class FromOffsets:
    """Offsets that a person names."""

    text: str

    def evidence(self, table: Table, cluster: KafkaCluster, now: Watermarks) -> Evidence:
        """Return the offsets named; `Source.evidence` says the rest."""
        offsets = offsets_of(self.text, now.identity.topic, cluster, now)
        return Evidence("--from-offsets", offsets, dict.fromkeys(offsets, f"named: {self.text}"))


@dataclass(frozen=True)
class FromGroup:
    """What a consumer group has committed. Nobody may be in it."""

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
    """What the Iceberg sink of Kafka Connect has committed to the table. It must be stopped, and have finished."""

    connector: str

    def evidence(self, table: Table, cluster: KafkaCluster, now: Watermarks) -> Evidence:
        """Return the offsets of the connector's group; `Source.evidence` says the rest."""
        name, topic = ".".join(table.name()), now.identity.topic
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
        # The group before the control topic: a transaction that has moved the group is either seen there, or is open.
        offsets = groups.offsets(group, topic, now.partitions)
        self._refuse_unfinished(table, cluster, control, committed)
        return Evidence(
            f"connector {self.connector}",
            offsets,
            dict.fromkeys(offsets, f"committed by group {group}, and no announced file is missing"),
            # A task commits an offset for every partition that has given it a record. Without any, they have expired.
            complete=bool(offsets),
        )

    def _refuse_unfinished(
        self, table: Table, cluster: KafkaCluster, control: str, committed: Mapping[int, int]
    ) -> None:
        """Refuse a sink that may have announced files of the table which the table doesn't have."""
        name = ".".join(table.name())
        # Whatever the topic's records are, events that were aborted never count.
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
                f"{gone[0]} on, and the table has what was announced before {committed.get(gone[0], 0)}.",
                "Nothing was changed. What was announced between has been deleted. Name the offsets with "
                "--from-offsets.",
            )
        beyond = replace(now, low={p: max(now.low[p], committed.get(p, 0)) for p in now.partitions})
        event = first_uncommitted(read_all(events, beyond), table.name()[-1], table.metadata.table_uuid)
        if event is not None:
            raise AdoptionRefusedError(
                f"Table {name}: connector {self.connector} has not finished. The event at offset {event.offset} of "
                f"partition {event.partition} of its control topic {control} announces files, and no snapshot of the "
                "table has them.",
                "Nothing was changed. Start the connector again, and wait for two of its commits "
                "(iceberg.control.commit.interval-ms, 5 minutes by default). Then stop it just after a commit, and run "
                "this command again: it succeeds when the connector has finished. If you know the offsets, name them "
                "with --from-offsets.",
            )


def _refuse_group_of_sink(group: str, table: Table) -> None:
    """Refuse the group of a sink, which is ahead of the table while announced files wait for their commit."""
    if control_offsets(table, [group]) is None:
        return
    raise AdoptionRefusedError(
        f"Table {'.'.join(table.name())}: consumer group {group} is of the Iceberg sink of Kafka Connect, and may be "
        "ahead of the table.",
        f"Nothing was changed. Use --from-kafka-connect {group.removeprefix('connect-')}, which refuses a sink that "
        "has not finished.",
    )


def _refuse_members(groups: ConsumerGroups, names: list[str], table: Table, who: str) -> None:
    members = [each for name in names for each in groups.members(name)]
    if members:
        raise AdoptionRefusedError(f"Table {'.'.join(table.name())}: {who} still runs ({members[0]}).", _STOP)
