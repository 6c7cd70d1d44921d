"""Where the Iceberg sink for Kafka Connect has left a table: a decision from its events, without asking anyone.

The consumer group of the connector is ahead of the table while announced files wait for the coordinator's commit, and
stays so if the connector dies then. So the events decide, and the group must agree with them.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from kafka_lake.ingest.adopt.model import AdoptionRefusedError, Evidence
from kafka_lake.ingest.adopt.sink_events import DataComplete, DataWritten

_AGAIN = (
    "Nothing was changed. Start the connector again, let it commit, stop it, and try again; or, if you know the "
    "offsets, name them with --from-offsets."
)


@dataclass(frozen=True)
class SinkTable:
    """A table as the sink has left it.

    Args:
        name: The parts of its name.
        uuid: Its id.
        connector: The connector's name.
        group: Its consumer group.
        committed: Per partition of the control topic, before which offset everything announced is in the table.
    """

    name: tuple[str, ...]
    uuid: str
    connector: str
    group: str
    committed: Mapping[int, int]


@dataclass(frozen=True)
class _Share:
    """What one transaction of a task says about one Kafka partition."""

    offset: int
    files: Literal["none", "in the table", "waiting"]


def sink_evidence(
    table: SinkTable,
    topic: str,
    events: Iterable[DataWritten | DataComplete],
    group: Mapping[int, int],
    control_is_whole: bool,
) -> Evidence:
    """Return up to which offsets the table has the topic's records.

    Args:
        table: As the sink has left it.
        topic: The topic.
        events: All that the control topic still has of this connector, in order within each of its partitions.
        group: What the connector's consumer group has committed, by partition of the topic.
        control_is_whole: Whether the control topic still has its first event.

    Raises:
        AdoptionRefusedError: If announced files are in the table in part, or group and events disagree.
    """
    shares: dict[int, list[_Share]] = {}
    others: set[str] = set()
    for written, complete in _transactions(events):
        files = _files(table, written, complete)
        for (name, partition), offset in complete.offsets.items():
            if name == topic:
                shares.setdefault(partition, []).append(_Share(offset, files))
            else:
                others.add(name)
    offsets: dict[int, int] = {}
    why: dict[int, str] = {}
    for partition in sorted(shares.keys() | group.keys()):
        known = sorted(shares.get(partition, []), key=lambda each: each.offset)
        _refuse_disagreement(table, partition, known, group.get(partition))
        found = _resume(
            table, partition, known=known, committed=group.get(partition), control_is_whole=control_is_whole
        )
        if found is not None:
            offsets[partition], why[partition] = found
    notes = []
    if others:
        notes.append(f"The connector also reads {', '.join(sorted(others))}; this program won't.")
    return Evidence(f"connector {table.connector}", offsets, why, complete=True, notes=tuple(notes))


def _transactions(
    events: Iterable[DataWritten | DataComplete],
) -> Iterable[tuple[Sequence[DataWritten], DataComplete]]:
    """Yield what each task announced together: its files, and the offsets that they reach."""
    open_: dict[tuple[int, bytes], list[DataWritten]] = {}
    for event in events:
        task = event.place.partition, event.place.sender
        if isinstance(event, DataWritten):
            open_.setdefault(task, []).append(event)
        else:
            yield open_.pop(task, []), event


def _files(
    table: SinkTable, written: Sequence[DataWritten], complete: DataComplete
) -> Literal["none", "in the table", "waiting"]:
    """Return where the files are that a task has announced for this table."""
    known = table.committed.get(complete.place.partition, 0)
    mine = [each for each in written if each.records and _is_of(each, table)]
    waiting = [each for each in mine if each.place.offset >= known]
    if waiting and len(waiting) < len(mine):
        place = waiting[0].place
        raise AdoptionRefusedError(
            f"Table {'.'.join(table.name)}: connector {table.connector} has committed a part of the files that a task "
            f"announced together (control topic partition {place.partition}, offset {place.offset} on is missing).",
            _AGAIN,
        )
    return "waiting" if waiting else "in the table" if mine else "none"


def _is_of(event: DataWritten, table: SinkTable) -> bool:
    return event.table_uuid == table.uuid if event.table_uuid else event.table == table.name


def _refuse_disagreement(table: SinkTable, partition: int, known: Sequence[_Share], committed: int | None) -> None:
    """Refuse where the group says something else than the last event: both are written in one transaction."""
    last = known[-1].offset if known else None
    if last is None or committed is None or last == committed:
        return
    raise AdoptionRefusedError(
        f"Table {'.'.join(table.name)}: connector {table.connector} announced partition {partition} up to offset "
        f"{last}, and its consumer group {table.group} is at {committed}.",
        "Nothing was changed. Somebody has moved the group, or its transaction isn't over: try again in a minute. If "
        "you know the offsets, name them with --from-offsets.",
    )


def _resume(
    table: SinkTable, partition: int, known: Sequence[_Share], committed: int | None, control_is_whole: bool
) -> tuple[int, str] | None:
    """Return offset and reason of one partition; None if nothing of it is in the table."""
    pending = [each.offset for each in known if each.files == "waiting"]
    if not pending:
        if known:
            return known[-1].offset, "all that the connector announced is in the table"
        assert committed is not None, "else there is nothing to ask for"
        return committed, f"committed by group {table.group}, and nothing announced is missing"
    if later := [each.offset for each in known if each.files == "in the table" and each.offset > pending[0]]:
        raise AdoptionRefusedError(
            f"Table {'.'.join(table.name)}: files with records of partition {partition} up to offset {pending[0]} are "
            f"announced and not in the table, though later ones, up to {later[0]}, are in it.",
            _AGAIN,
        )
    before = [each.offset for each in known if each.offset < pending[0]]
    if before:
        return before[-1], f"announced up to {pending[-1]}, but only this far in the table: the rest is read again"
    if control_is_whole:
        return None
    raise AdoptionRefusedError(
        f"Table {'.'.join(table.name)}: files with records of partition {partition} up to offset {pending[-1]} are "
        "announced and not in the table, and the control topic no longer tells where they begin.",
        _AGAIN,
    )
