"""What one commit of a derived table does: decided from metadata alone, before Spark is asked for anything."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation

from kafka_lake.common.errors import ConfigurationError, TableError
from kafka_lake.common.offsets import OffsetRange, TopicIdentity
from kafka_lake.derive.derived_table import DerivedTable, Identifier
from kafka_lake.derive.detect import Changes, changes_since
from kafka_lake.derive.query import fingerprint
from kafka_lake.derive.record import Read, Record, read_of, record_of
from kafka_lake.derive.window import Window
from kafka_lake.ingest.decode.key_columns import KEYED
from kafka_lake.lake.catalog import LakeCatalog
from kafka_lake.lake.positions import DERIVED, ancestors, has_origin, head_of, read_state, row_count, summary_of


@dataclass(frozen=True)
class Pinned:
    """A table that a query reads, at the snapshot at which it is read.

    Args:
        identifier: Namespace and name.
        read: The table as this commit reads it.
        before: The table as it was read last; None if everything is computed.
        changes: What has happened to it since then; None likewise.
        origin: The column that names the records of its rows; None if it has none.
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
        record: What its next snapshot names as its origin.
        upstream: The tables of ``from``, by their names in the query.
        joined: The tables of ``join``, likewise.
        full: Why everything is computed; empty if what is new is enough.
        is_first: Whether the table has no commit of this kind yet.
        of_others: Snapshots of the derived table, since its own last one, by which others have changed its rows.
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
    window: Window | None = None


@dataclass(frozen=True)
class State:
    """The tables as they were loaded: the derived one (None if there is none yet), and those that the query reads."""

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
    upstream, joined = ({name: found[name] for name in names} for names in (spec.upstream, spec.joined))
    return State(table, upstream, joined, {**spec.upstream, **spec.joined})


def plan(spec: DerivedTable, state: State, rebuild: bool = False, zone: str = "") -> DerivePlan | None:
    """Return the next commit; None if the table is up to date. Pure.

    Args:
        spec: The derived table.
        state: The tables.
        rebuild: Whether to compute everything again, whatever there is.
        zone: Spark's session time zone; empty if Spark hasn't been asked.

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
            _check_is_log(spec, state.identifiers[name], table)
    tables = {**state.upstream, **state.joined}
    reads = {name: read_of(table) for name, table in tables.items()}
    upstream, joined = ({name: reads[name] for name in names} for names in (state.upstream, state.joined))
    record = Record(fingerprint(spec), upstream, joined, zone)
    before = {**known.upstream, **known.joined} if known else {}
    whole = not spec.is_incremental
    changes = {n: changes_since(before[n], reads[n], each, whole) for n, each in tables.items() if n in before}
    why = _why_full(spec, known, record, rebuild=rebuild)
    counting = state.upstream if spec.is_incremental else tables
    if not why and not any(changes[name].news for name in counting if name in changes):
        return None
    if spec.write == "replace":
        why = why or "write: replace"
    why = why or _why_unknown(spec, [changes[name] for name in state.upstream if name in changes])

    def pinned(name: str) -> Pinned:
        last, since = (None, None) if why or name not in before else (before[name], changes[name])
        return Pinned(state.identifiers[name], reads[name], last, since, origin=origin_of(tables[name]))

    return DerivePlan(
        table=state.table,
        head=head_of(state.table) if state.table is not None else None,
        record=record,
        upstream={name: pinned(name) for name in state.upstream},
        joined={name: pinned(name) for name in state.joined},
        full=why,
        is_first=known is None,
        of_others=tuple(_of_others(state.table)) if state.table is not None else (),
    )


def plan_window(spec: DerivedTable, state: State, window: Window, zone: str) -> DerivePlan | None:
    """Return the commit that computes some partitions again; None if the table must be brought up to date first. Pure.

    It reads the upstream snapshots that the table is made of. So the next run goes on from there, and no row comes
    twice.

    Raises:
        ConfigurationError: As `plan` does.
        TableError: As `plan` does.
    """
    if plan(spec, state, zone=zone) is not None:
        return None
    todo = plan(spec, state, rebuild=True, zone=zone)
    assert todo is not None, "a rebuild has always something to do"
    return replace(todo, full=f"partitions were asked for, {window}", window=window)


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


def _check_is_log(spec: DerivedTable, identifier: Identifier, table: Table) -> None:
    """Raise an error unless rows are only added to a table, and name their records."""
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
    """Return the column of a table that names the records of its rows; None if it has none."""
    return next((field.name for field in table.schema().fields if has_origin(field.field_type)), None)


def ranges_by_topic(
    ranges: Mapping[str, tuple[OffsetRange, ...]], upstream: Mapping[str, Pinned]
) -> dict[str, tuple[OffsetRange, ...]]:
    """Return offsets by topic, from those by upstream table: several of these may be of the same topic."""
    found: dict[str, set[OffsetRange]] = {}
    for name, each in ranges.items():
        if each:
            found.setdefault(topic_of(upstream[name].identity), set()).update(each)
    return {topic: tuple(sorted(each)) for topic, each in found.items()}


def topic_of(identity: TopicIdentity) -> str:
    """Return the id of a topic, or its name where brokers have no ids."""
    return identity.topic_id or identity.topic
