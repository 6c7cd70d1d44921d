"""What one commit of a derived table does: decided from metadata alone, before Spark is asked for anything."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation

from kafka_lake.common.durations import seconds_of
from kafka_lake.common.errors import ConfigurationError, TableError
from kafka_lake.common.offsets import OffsetRange, TopicIdentity
from kafka_lake.derive.derived_table import DerivedTable, Identifier
from kafka_lake.derive.detect import Changes, changes_since
from kafka_lake.derive.query import fingerprint
from kafka_lake.derive.record import Read, Record, read_of, record_of
from kafka_lake.derive.waiting import Waiting
from kafka_lake.derive.window import Window
from kafka_lake.ingest.decode.key_columns import KEYED
from kafka_lake.lake.catalog import LakeCatalog
from kafka_lake.lake.positions import DERIVED, ancestors, has_origin, head_of, read_state, row_count, summary_of


@dataclass(frozen=True)
class Pinned:
    """A table that a query reads, at the snapshot at which it is read.

    Args:
        identifier: Namespace and name.
        read: What of it is read.
        before: What of it was read last; None if everything is computed.
        changes: What has happened to it since then; None likewise.
        origin: The column that tells the records of its rows; None if it has none.
    """

    identifier: Identifier
    read: Read
    before: Read | None = None
    changes: Changes | None = None
    origin: str | None = None

    @property
    def identity(self) -> TopicIdentity:
        """Return the topic that its offsets are of."""
        assert self.read.position is not None, "only a table with a position is read by offsets"
        return self.read.position.identity


@dataclass(frozen=True)
class DerivePlan:
    """One commit to be.

    Args:
        table: The derived table as it was loaded; None if there is none yet.
        head: The snapshot of its ``main``.
        record: What its snapshot will tell.
        upstream: The tables of ``from``, by their names in the query.
        joined: The tables of ``join``, likewise.
        full: Why everything is computed; empty if what is new is enough.
        is_first: Whether no commit was made of anything yet.
        of_others: Snapshots of the derived table, since its own last one, by which others have changed its rows.
        waiting: Records whose rows are kept back by now.
        looks_again: Whether those are asked again for what they wait for.
        now: Seconds since 1970, by which they have waited.
        window: The only rows that are computed, and replace those that are there; None for all.
    """

    table: Table | None
    head: int | None
    record: Record
    upstream: Mapping[str, Pinned]
    joined: Mapping[str, Pinned]
    full: str = ""
    is_first: bool = False
    of_others: tuple[int, ...] = ()
    waiting: Waiting = field(default_factory=Waiting)
    looks_again: bool = False
    now: float = 0.0
    window: Window | None = None


@dataclass(frozen=True)
class State:
    """The tables as they were loaded.

    Args:
        table: The derived table; None if there is none yet.
        upstream: The tables of ``from``, by their names in the query.
        joined: The tables of ``join``, likewise.
    """

    table: Table | None
    upstream: Mapping[str, Table]
    joined: Mapping[str, Table]
    identifiers: Mapping[str, Identifier] = field(default_factory=dict)


def load(spec: DerivedTable, catalog: LakeCatalog) -> State:
    """Return the tables as they are now; the derived one is looked at first, so that it is never ahead.

    Raises:
        TableError: If a table that the query reads isn't there.
    """
    table = catalog.table(spec.identifier)
    found: dict[str, Table] = {}
    for name, identifier in {**spec.upstream, **spec.joined}.items():
        one = catalog.table(identifier)
        if one is None or head_of(one) is None:
            raise TableError(
                f"Table {spec.name} reads {'.'.join(identifier)}, which {'is not there' if one is None else 'is empty'}"
                " yet.",
                "Materialize it first; if it has another name, correct from: or join:.",
            )
        found[name] = one
    return State(
        table,
        {name: found[name] for name in spec.upstream},
        {name: found[name] for name in spec.joined},
        {**spec.upstream, **spec.joined},
    )


def plan(
    spec: DerivedTable, state: State, rebuild: bool = False, zone: str = "", *, now: float = 0.0
) -> DerivePlan | None:
    """Return the next commit; None if the table is up to date. Pure.

    Args:
        spec: The derived table.
        state: The tables.
        rebuild: Whether to compute everything again, whatever there is.
        zone: Spark's session time zone, as far as it is known.
        now: Seconds since 1970: rows that are kept back don't wait for ever.

    Raises:
        ConfigurationError: If the query, or the time zone, has changed and ``on_change`` is ``fail``, or an upstream
            table's rows can change, and the query would miss that.
        TableError: If rows of an upstream table have changed and nobody can tell which, or the table is another
            program's.
    """
    known = record_of(state.table) if state.table is not None else None
    if known is None and state.table is not None and row_count(state.table):
        raise TableError(
            f"Table {spec.name} has rows, and none of its snapshots tells what it was made of.",
            "It is another program's or a topic's: give the derived table another name.",
        )
    for name, table in state.upstream.items():
        if spec.is_incremental:
            _refuse_changing(spec, state.identifiers[name], table)
    query = fingerprint(spec)
    reads = {name: read_of(table) for name, table in (*state.upstream.items(), *state.joined.items())}
    record = Record(query, {n: reads[n] for n in state.upstream}, {n: reads[n] for n in state.joined}, zone)
    before = {**known.upstream, **known.joined} if known else {}
    tables = {**state.upstream, **state.joined}
    whole = not spec.is_incremental
    changes = {n: changes_since(before[n], reads[n], each, whole) for n, each in tables.items() if n in before}
    why = _why_full(spec, known, record, rebuild=rebuild)
    counting = state.upstream if spec.is_incremental else tables
    waiting = known.waiting if known else Waiting()
    looks_again = _looks_again(spec, waiting, changes, now=now)
    if not why and not looks_again and not any(changes[name].news for name in counting if name in changes):
        return None
    if spec.write == "replace":
        why = why or "write: replace"
    why = why or _why_unknown(spec, [changes[name] for name in state.upstream if name in changes])

    def pinned(name: str) -> Pinned:
        read, origin = reads[name], origin_of(tables[name])
        if why or name not in before:
            return Pinned(state.identifiers[name], read, origin=origin)
        return Pinned(state.identifiers[name], read, before[name], changes[name], origin=origin)

    return DerivePlan(
        table=state.table,
        head=head_of(state.table) if state.table is not None else None,
        record=record,
        upstream={name: pinned(name) for name in state.upstream},
        joined={name: pinned(name) for name in state.joined},
        full=why,
        is_first=known is None,
        of_others=tuple(_of_others(state.table)) if state.table is not None else (),
        waiting=waiting,
        looks_again=looks_again,
        now=now,
    )


def plan_window(spec: DerivedTable, state: State, window: Window, zone: str, *, now: float) -> DerivePlan | None:
    """Return the commit that computes some partitions again; None if the table must be brought up to date first. Pure.

    What is read of the upstream tables is what the table is made of: so the next run goes on from there, and no row
    comes twice.

    Args:
        spec: The derived table.
        state: The tables.
        window: The partitions.
        zone: As for `plan`.
        now: As for `plan`.

    Raises:
        ConfigurationError: As `plan` does.
        TableError: As `plan` does.
    """
    if plan(spec, state, zone=zone, now=now) is not None:
        return None
    todo = plan(spec, state, rebuild=True, zone=zone, now=now)
    assert todo is not None, "a rebuild has always something to do"
    return replace(todo, full=f"partitions were asked for, {window}", window=window)


def _looks_again(spec: DerivedTable, waiting: Waiting, changes: Mapping[str, Changes], *, now: float) -> bool:
    """Return whether records that wait may have found what they wait for, or have waited for long enough."""
    if not waiting.ranges or not spec.wait_for or spec.lookback is None:
        return bool(waiting.ranges)
    if waiting.has_waited(seconds_of(spec.lookback), now):
        return True
    return any(name not in changes or changes[name].news for name in spec.joined)


def _of_others(table: Table) -> Iterator[int]:
    for snapshot in ancestors(table, head_of(table)):
        if DERIVED in (summary := summary_of(snapshot)):
            return
        is_rewrite = snapshot.summary is not None and snapshot.summary.operation == Operation.REPLACE
        counts = ("added-records", "deleted-records", "added-position-deletes", "added-equality-deletes")
        if not is_rewrite and any(int(summary.get(each, 0)) for each in counts):
            yield snapshot.snapshot_id


def _why_full(spec: DerivedTable, known: Record | None, record: Record, rebuild: bool) -> str:
    if known is None:
        return "the table is new"
    if rebuild:
        return "a rebuild was asked for"
    zones = [each for each in (known.zone, record.zone) if each]
    same_query, same_zone = known.query == record.query, len(set(zones)) < 2
    if same_query and same_zone:
        return ""
    if spec.write == "replace" or spec.on_change == "rebuild":
        return "the query has changed" if same_zone else "Spark's session time zone has changed"
    if spec.on_change == "forward" and set(known.upstream) == set(spec.upstream):
        return ""
    forward = ", on_change: forward to go on with the new one" if spec.on_change == "fail" else ""
    what = "the query, or a setting that it depends on, is another one than the rows were made by"
    if same_query:
        what = f"Spark's session time zone is {zones[1]}, and the rows were made in {zones[0]}, with days of their own"
    raise ConfigurationError(
        f"Table {spec.name}: {what}.",
        f"Run `kafka-lake rebuild {spec.name}` to compute everything again once, set on_change: rebuild to do so "
        f"automatically{forward}, or undo the change.",
    )


def _why_unknown(spec: DerivedTable, changes: list[Changes]) -> str:
    """Return why everything is to be computed although the query is the same; empty if it needn't be."""
    unknown = next((each.unknown for each in changes if each.unknown), "")
    if not unknown or spec.on_change == "rebuild":
        return unknown
    raise TableError(
        f"Table {spec.name} can't be brought up to date by new rows alone: {unknown}.",
        f"Run `kafka-lake rebuild {spec.name}` to compute everything again once, or set on_change: rebuild to do so "
        "automatically. main is as it was.",
    )


def _refuse_changing(spec: DerivedTable, identifier: Identifier, table: Table) -> None:
    """Refuse to read a table by offsets whose rows are updated or deleted, or don't tell their records.

    Raises:
        ConfigurationError: If it is one.
    """
    keyed, state = KEYED in table.properties, read_state(table)
    is_log = not keyed and origin_of(table) is not None and not state.others
    if is_log and state.position is not None:
        return
    if is_log:
        raise TableError(
            f"Table {spec.name}: none of the snapshots that {'.'.join(identifier)} still has tells its position.",
            "Run its topic once, or the table that it is derived by, which writes it down; then run this one.",
        )
    why = "is a keyed table" if keyed else "isn't a table of records, each with its place in one topic"
    raise ConfigurationError(
        f"Table {spec.name}: write: {spec.write} needs upstream tables to which rows are only added, and "
        f"{'.'.join(identifier)} {why}.",
        "Use write: replace, or put it under join: if its rows are looked up only."
        + (" For changes, keep the topic in a table without write: upsert as well, and read that." if keyed else ""),
    )


def origin_of(table: Table) -> str | None:
    """Return the column of a table that tells the records of its rows; None if it has none."""
    return next((field.name for field in table.schema().fields if has_origin(field.field_type)), None)


def ranges_by_topic(ranges: Mapping[str, tuple[OffsetRange, ...]], plan_: DerivePlan) -> dict[str, set[OffsetRange]]:
    """Return the offsets whose rows are derived again, by topic: upstream tables may be of the same one.

    Args:
        ranges: The offsets by the upstream table that tells them.
        plan_: Of the commit.
    """
    found: dict[str, set[OffsetRange]] = {}
    for name, told in ranges.items():
        if told:
            found.setdefault(topic_of(plan_.upstream[name].identity), set()).update(told)
    return found


def topic_of(identity: TopicIdentity) -> str:
    """Return what tells a topic from others: its id, or its name where brokers tell none."""
    return identity.topic_id or identity.topic
