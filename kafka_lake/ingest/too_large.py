"""A record that is too large for the engine: found once an engine has died of it, named, and not read again.

A value may compress to next to nothing, and no setting bounds what a fetch expands to. So a run looks for such a record
after its engine has died, tries it alone, and if the engine dies again it stops with the record's place. A property of
the table keeps that, so that no further run ends the engine, which other topics need.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from pyiceberg.table import Table

from kafka_lake.common.offsets import OffsetRange, TopicIdentity
from kafka_lake.errors import RecordTooLargeError
from kafka_lake.ingest.causes import engine_died, is_transient
from kafka_lake.ingest.context import Context
from kafka_lake.ingest.plan.model import Plan, can_be_parted, part

TOO_LARGE = "kafka-lake.too-large"
"""A property of a table: the records that have ended the engine, as JSON, by topic id and Kafka partition."""
LARGE = 32 * 1024 * 1024
"""Bytes of a record from which on it may be the reason why an engine died."""


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
    """The records that a run must not read together with others, or not at all.

    Args:
        large: Returns the first record of a plan that has more bytes than `LARGE`; None if there is none.
    """

    def __init__(self, context: Context, large: Callable[[Plan], Large | None]) -> None:
        self._context = context
        self._large = large
        self._suspect: Large | None = None
        self._others_had_their_turn = False

    def cut(self, todo: Plan, table: Table | None) -> Plan:
        """Return what of a plan can be read before a record that is too large, or is tried alone.

        Args:
            table: As the plan saw it; None if there is none.

        Raises:
            RecordTooLargeError: If the record comes next. The other partitions have had a commit.
        """
        refused = refused_in(table, todo.after.identity)
        for each in todo.ranges if can_be_parted(todo) else ():
            found = next((one for one in (*refused, self._suspect) if one and _holds(each, one)), None)
            if found is None:
                continue
            others = tuple(r for r in todo.ranges if r is not each and len(r))
            if others and not self._others_had_their_turn:
                self._others_had_their_turn = True
                return self.cut(part(todo, others), table)
            if each.start < found.offset:
                before = OffsetRange(each.partition, each.start, found.offset)
                return replace(part(todo, (before,)), one_by_one=True)
            if found in refused:
                raise self._error(found)
            return replace(part(todo, (OffsetRange(each.partition, each.start, each.start + 1),)), one_by_one=True)
        return todo

    def failed(self, todo: Plan | None, error: Exception) -> None:
        """Look for a record that is too large, if the engine has died while it worked at a plan.

        Args:
            todo: What it read; None if it read nothing.

        Raises:
            RecordTooLargeError: If the engine died of a record. The table tells later runs, if there is one.
        """
        if todo is None or not can_be_parted(todo) or not engine_died(error):
            return
        tried = self._suspect
        if tried is None or not any(_holds(each, tried) for each in todo.ranges):
            tried = None
            self._suspect = self._large(todo)
        if self._suspect is None:
            return
        if tried is None and is_transient(error):
            # The engine is shared: another topic's record may have ended it.
            self._others_had_their_turn = False
            self._context.observer.warn(
                f"Topic {self._context.spec.topic}: the engine died, and {self._suspect}. It is tried alone."
            )
            return
        self._keep(self._suspect, todo.after.identity)
        raise self._error(self._suspect) from error

    def _error(self, found: Large) -> RecordTooLargeError:
        topic, place = self._context.spec.full_topic, f"{found.partition}:{found.offset}"
        return RecordTooLargeError(
            f"Topic {self._context.spec.topic}: {found}, which is too large for the engine's memory.",
            f"The table has what comes before it. `kafka-lake reset {topic} --to {found.partition}:{found.offset + 1}` "
            "skips the record, and records that. To read it, give the engine more memory (KAFKA_LAKE_CONNECT_HEAP), "
            f"then `kafka-lake reset {topic} --to {place}`.",
        )

    def _keep(self, found: Large, identity: TopicIdentity) -> None:
        table = self._context.connections.catalog.table(self._context.spec.identifier)
        if table is None:
            return
        known = _known(table)
        mine = {**known.get(_key(identity), {}), str(found.partition): [found.offset, found.size]}
        with table.transaction() as transaction:
            transaction.set_properties({TOO_LARGE: json.dumps({**known, _key(identity): mine})})


def refused_in(table: Table | None, identity: TopicIdentity) -> tuple[Large, ...]:
    """Return the records of a topic that have ended the engine, as a table tells.

    Args:
        table: As it was loaded; None for no table.
    """
    found = _known(table).get(_key(identity), {}) if table else {}
    return tuple(Large(int(partition), offset, size) for partition, (offset, size) in found.items())


def forget(table: Table, identity: TopicIdentity) -> None:
    """Let a topic's records be read again that have ended the engine."""
    known = _known(table)
    if known.pop(_key(identity), None) is not None:
        with table.transaction() as transaction:
            transaction.set_properties({TOO_LARGE: json.dumps(known)})


def _holds(each: OffsetRange, found: Large) -> bool:
    return each.partition == found.partition and each.start <= found.offset < each.end


def _key(identity: TopicIdentity) -> str:
    return identity.topic_id or identity.topic


def _known(table: Table) -> dict[str, Mapping[str, list[int]]]:
    found: dict[str, Mapping[str, list[int]]] = json.loads(table.properties.get(TOO_LARGE, "{}"))
    return found
