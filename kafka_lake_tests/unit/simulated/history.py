"""What happens in a history, and the state of tables in it."""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple
from uuid import UUID

from pyiceberg.schema import Schema
from pyiceberg.types import NestedField, StringType, StructType
from pyspark.sql import types as T

from kafka_lake.common.offsets import TopicIdentity

TOPIC, TABLE, LETTERS = "pizzas", ("pizza", "orders"), ("pizza", "orders__dead_letters")
OTHER_TOPIC = "drinks"
IDENTITIES = {
    topic: TopicIdentity("cluster-1", f"topic-{number}", topic) for number, topic in enumerate((TOPIC, OTHER_TOPIC), 1)
}


def identity_of(topic: str) -> TopicIdentity:
    """Return the identity of a record's topic: ``pizzas#2`` is the topic that was deleted and recreated once."""
    name, _, generation = topic.partition("#")
    identity = IDENTITIES[name]
    return replace(identity, topic_id=f"{identity.topic_id}#{generation}") if generation else identity


ATTEMPTS = 3
POISON = "bad-poison"
UNROUTABLE = "bad-route"
STEPS = (
    "planned", "table created", "table staged", "dead letters staged", "audited", "dead letters published",
    "table published", "dead letters reconciled", "reconciled dead letters published",
)  # fmt: skip
OPERATIONS = ("create branch", "commit", "publish", "drop branch", "expire", "create table")
PLACES = (*STEPS, *(f"{when} {what}" for what in OPERATIONS for when in ("before", "after")), "watermarks", "load")


class Record(NamedTuple):
    """A record of the log, and the row or letter that it becomes."""

    partition: int
    offset: int
    kind: str
    topic: str = TOPIC

    @property
    def key(self) -> tuple[str, int, int]:
        """Return what names it."""
        return self.topic, self.partition, self.offset

    @property
    def place(self) -> tuple[str, int]:
        """Return its topic's id, and its partition."""
        return identity_of(self.topic).topic_id, self.partition

    @property
    def state(self) -> str:
        """Return what becomes of it: of a kind as ``good/a``, what is before the slash."""
        return self.kind.partition("/")[0]


class Unmatched(Record):
    """A record that no table takes, and so a dead letter."""


@dataclass(frozen=True)
class Event:
    """What happens to a run when it passes a place for the nth time."""

    place: str
    nth: int
    action: str
    argument: Any = None


@dataclass(frozen=True)
class Attempt:
    """One run as a process of its own: what it is told to do, and what befalls it."""

    what: str = "ingest"
    partitions: frozenset[int] | None = None
    limit: int = 100
    accept_losses: bool = True
    events: tuple[Event, ...] = ()
    max_bytes: int | None = None
    topics: tuple[str, ...] = (TOPIC,)
    start: str = "earliest"
    where: str | None = None


class Poison(Exception):
    """What a record raises that no decoder gets along with."""


class Killed(BaseException):
    """The end of a process: nothing that it would still do happens."""


@dataclass(frozen=True)
class Snapshot:
    """As PyIceberg shows it, with its rows."""

    snapshot_id: int
    parent_snapshot_id: int | None
    sequence_number: int
    timestamp_ms: int
    summary: Any
    content: tuple[Record, ...]
    schema_id: None = None

    def manifests(self, _: Any) -> tuple[()]:
        """Return none: there are no files."""
        return ()


@dataclass(frozen=True)
class Ref:
    """What a branch points to."""

    snapshot_id: int
    max_ref_age_ms: None = None
    max_snapshot_age_ms: None = None
    min_snapshots_to_keep: None = None


@dataclass(frozen=True)
class Metadata:
    """One version of a table's metadata; a commit makes another."""

    refs: dict[str, Any]
    by_id: dict[int, Snapshot]
    schemas: tuple[()] = ()
    properties: tuple[()] = ()
    # Spark writes the tables of this version.
    format_version: int = 3

    @property
    def table_uuid(self) -> UUID:
        """Return the identity of each table: none is dropped and made again."""
        return UUID(int=0)

    @property
    def snapshots(self) -> list[Snapshot]:
        return list(self.by_id.values())

    @property
    def snapshot_log(self) -> list[Any]:
        """Return all snapshots, as if ``main`` had been at each."""
        return [Ref(snapshot_id) for snapshot_id in self.by_id]

    def snapshot_by_id(self, snapshot_id: int) -> Snapshot | None:
        return self.by_id.get(snapshot_id)


_ORIGIN = [NestedField(n, name, StringType()) for n, name in enumerate(("topic", "topic_id", "partition", "offset"), 2)]
SCHEMA = Schema(NestedField(1, "_kafka", StructType(*_ORIGIN)))
COLUMNS = T.StructType()
