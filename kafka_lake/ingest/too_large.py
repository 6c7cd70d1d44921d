"""Records that are too large for the engine's memory: found once, recorded in the table, and not read again."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pyiceberg.table import Table

from kafka_lake.common.offsets import OffsetRange, TopicIdentity
from kafka_lake.error_classification import engine_died, is_transient
from kafka_lake.errors import RecordTooLargeError
from kafka_lake.runtime.context import Context
from kafka_lake.runtime.plan import Plan, can_be_parted, part

TOO_LARGE = "kafka-lake.too-large"
"""Table property: the records that ended the engine, as JSON, by topic id and Kafka partition."""
LARGE = 32 * 1024 * 1024
"""Bytes of a record from which on it is suspected when an engine died."""


@dataclass(frozen=True)
class Large:
    """A large record.

    Args:
        size: Its bytes, uncompressed; None if Python's client doesn't expand so much.
    """

    partition: int
    offset: int
    size: int | None

    def __str__(self) -> str:
        size = "more bytes than Python's client expands" if self.size is None else f"{self.size:,} bytes"
        return f"the record at partition {self.partition} offset {self.offset} has {size}"


class TooLarge:
    """Finds a record that ends the engine: the records before it are read first, then it is tried alone.

    Args:
        first_large: Returns the first record of a plan with more bytes than `LARGE`; None if there is none.
    """

    def __init__(self, context: Context, first_large: Callable[[Plan], Large | None]) -> None:
        self._context = context
        self._first_large = first_large
        self._suspect: Large | None = None
        self._has_read_others = False

    def cut(self, todo: Plan, table: Table | None) -> Plan:
        """Return the part of a plan before a suspected record, or that record alone."""
        recorded = recorded_in(table, todo.after.identity)
        for r in todo.ranges if can_be_parted(todo) else ():
            record = next((record for record in (*recorded, self._suspect) if record and _contains(r, record)), None)
            if record is None:
                continue
            others = tuple(other for other in todo.ranges if other is not r and len(other))
            if others and not self._has_read_others:
                self._has_read_others = True
                return self.cut(part(todo, others), table)
            if record in recorded and r.start == record.offset:
                raise self._error(record)
            end = max(record.offset, r.start + 1)
            return replace(part(todo, (OffsetRange(r.partition, r.start, end),)), one_by_one=True)
        return todo

    def failed(self, todo: Plan | None, error: Exception) -> None:
        """Suspect a large record of a plan if the engine died; raise an error if it was tried alone already."""
        if todo is None or not can_be_parted(todo) or not engine_died(error):
            return
        tried = self._suspect
        if tried is None or not any(_contains(r, tried) for r in todo.ranges):
            tried = None
            self._suspect = self._first_large(todo)
        if self._suspect is None:
            return
        if tried is None and is_transient(error):
            # Another topic's record may have ended a shared engine.
            self._has_read_others = False
            self._context.observer.warn(
                f"Topic {self._context.spec.topic}: the engine died, and {self._suspect}. The run tries this record "
                "alone."
            )
            return
        self._record(self._suspect, todo.after.identity)
        raise self._error(self._suspect) from error

    def _error(self, record: Large) -> RecordTooLargeError:
        topic, place = self._context.spec.full_topic, f"{record.partition}:{record.offset}"
        return RecordTooLargeError(
            f"Topic {self._context.spec.topic}: {record}, which is too large for the engine's memory.",
            f"The table has the records before it. `kafka-lake reset {topic} --to "
            f"{record.partition}:{record.offset + 1}` skips it; the check data_loss lists it. To read it, give the "
            f"engine more memory (KAFKA_LAKE_CONNECT_HEAP), then `kafka-lake reset {topic} --to {place}`.",
        )

    def _record(self, record: Large, identity: TopicIdentity) -> None:
        table = self._context.connections.catalog.table(self._context.spec.identifier)
        if table is None:
            return
        recorded = _all_recorded(table)
        records = {**recorded.get(_key(identity), {}), str(record.partition): [record.offset, record.size]}
        _write(table, {**recorded, _key(identity): records})


def recorded_in(table: Table | None, identity: TopicIdentity) -> tuple[Large, ...]:
    """Return the records of a topic that ended the engine, as the table's properties have them."""
    records = _all_recorded(table).get(_key(identity), {}) if table else {}
    return tuple(Large(int(partition), offset, size) for partition, (offset, size) in records.items())


def forget(table: Table, identity: TopicIdentity) -> None:
    """Allow a topic's records that ended the engine to be read again."""
    recorded = _all_recorded(table)
    if recorded.pop(_key(identity), None) is not None:
        _write(table, recorded)


def _contains(r: OffsetRange, record: Large) -> bool:
    return r.partition == record.partition and r.start <= record.offset < r.end


def _key(identity: TopicIdentity) -> str:
    return identity.topic_id or identity.topic


def _all_recorded(table: Table) -> dict[str, Any]:
    return dict(json.loads(table.properties.get(TOO_LARGE, "{}")))


def _write(table: Table, recorded: Mapping[str, Any]) -> None:
    with table.transaction() as transaction:
        transaction.set_properties({TOO_LARGE: json.dumps(recorded)})
