"""Plan one commit of a derived table from metadata alone. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from pyiceberg.table import Table

from kafka_lake.catalog.lake_catalog import LakeCatalog
from kafka_lake.catalog.positions import has_origin, head_of, read_state, row_count
from kafka_lake.common.offsets import TopicIdentity
from kafka_lake.derived.derived_table import DerivedTable, Identifier, Window
from kafka_lake.derived.query import fingerprint
from kafka_lake.derived.upstream import Changes, Read, Record, changes_since, read_of, record_of
from kafka_lake.errors import ConfigurationError, TableError
from kafka_lake.formats.key_columns import KEYED


@dataclass(frozen=True)
class Pinned:
    """A table that a query reads, at a pinned snapshot.

    Args:
        before: The table as it was read last; None if everything is computed, like ``changes``.
        origin: Its metadata column.
    """

    identifier: Identifier
    read: Read
    before: Read | None = None
    changes: Changes | None = None
    origin: str | None = None

    @property
    def identity(self) -> TopicIdentity:
        """Return the topic of its offsets."""
        assert self.read.position is not None, "only a table with a position is read by offsets"
        return self.read.position.identity


@dataclass(frozen=True)
class DerivePlan:
    """One commit.

    Args:
        table: The derived table as loaded, with ``head`` as its ``main``; None if it doesn't exist.
        record: What the snapshot will record.
        upstream: The tables of ``from`` by their names in the query; ``joined`` those of ``join``.
        full: The reason to compute everything; empty if new rows are enough.
        is_first: Whether the table has no such commit yet.
        window: Partitions to replace; None for all rows.
    """

    table: Table | None
    head: int | None
    record: Record
    upstream: Mapping[str, Pinned]
    joined: Mapping[str, Pinned]
    full: str = ""
    is_first: bool = False
    window: Window | None = None


@dataclass(frozen=True)
class State:
    """The derived table, if it exists, and the tables that the query reads, as they were loaded."""

    table: Table | None
    read: Mapping[str, Table]


def load(spec: DerivedTable, catalog: LakeCatalog) -> State:
    """Load the tables, the derived one first, so that it is never ahead."""
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
    return State(table, found)


def plan(spec: DerivedTable, state: State, rebuild: bool = False, zone: str = "") -> DerivePlan | None:
    """Return the next commit; None if the table is up to date."""
    known = record_of(state.table) if state.table is not None else None
    if known is None and state.table is not None and row_count(state.table):
        raise TableError(
            f"Table {spec.name} has rows, and none of its snapshots tells what it was made of.",
            "It is another program's or a topic's: give the derived table another name.",
        )
    if spec.is_incremental:
        for name, identifier in spec.upstream.items():
            _check_is_log(spec, identifier, state.read[name])
    reads = {name: read_of(table) for name, table in state.read.items()}
    upstream, joined = ({name: reads[name] for name in names} for names in (spec.upstream, spec.joined))
    record = Record(fingerprint(spec), upstream, joined, zone)
    before = {**known.upstream, **known.joined} if known else {}
    changes = {
        name: changes_since(before[name], reads[name], table, whole=not spec.is_incremental)
        for name, table in state.read.items()
        if name in before
    }
    why = _why_full(spec, known, record, rebuild=rebuild)
    counting = spec.upstream if spec.is_incremental else state.read
    if not why and not any(changes[name].news for name in counting if name in changes):
        return None
    why = why or ("" if spec.is_incremental else "write: replace")
    why = why or _why_unknown(spec, [changes[name] for name in spec.upstream if name in changes])

    def pinned(names: Mapping[str, Identifier]) -> dict[str, Pinned]:
        since = {} if why else changes
        return {
            name: Pinned(
                each,
                reads[name],
                before=before[name] if name in since else None,
                changes=since.get(name),
                origin=origin_of(table),
            )
            for name, each in names.items()
            for table in [state.read[name]]
        }

    head = head_of(state.table) if state.table is not None else None
    return DerivePlan(
        state.table,
        head,
        record,
        upstream=pinned(spec.upstream),
        joined=pinned(spec.joined),
        full=why,
        is_first=known is None,
    )


def plan_window(spec: DerivedTable, state: State, window: Window, zone: str) -> DerivePlan | None:
    """Return the commit that recomputes partitions; None if the table must be brought up to date first.

    It reads the upstream rows that the table was made of, so that the next run continues from there.
    """
    if plan(spec, state, zone=zone) is not None:
        return None
    todo = plan(spec, state, rebuild=True, zone=zone)
    assert todo is not None, "a rebuild has always something to do"
    return replace(todo, full="partitions were asked for", window=window)


def _why_full(spec: DerivedTable, known: Record | None, record: Record, rebuild: bool) -> str:
    if known is None:
        return "the table is new"
    if rebuild:
        return "a rebuild was asked for"
    zones = [each for each in (known.zone, record.zone) if each]
    changed = "" if len(set(zones)) < 2 else f"Spark's session time zone has changed from {zones[0]} to {zones[1]}"
    if known.query != record.query:
        changed = "the query has changed, or a setting that the rows depend on"
    if not changed or spec.write == "replace" or spec.on_change == "rebuild":
        return changed
    if spec.on_change == "forward" and set(known.upstream) == set(spec.upstream):
        return ""
    raise ConfigurationError(
        f"Table {spec.name}: {changed}.",
        f"Run `kafka-lake rebuild {spec.name}` to compute everything again once, set on_change: rebuild to do so "
        "automatically or on_change: forward to keep the rows that are there, or undo the change.",
    )


def _why_unknown(spec: DerivedTable, changes: list[Changes]) -> str:
    """Return the reason to compute everything although the query is the same."""
    unknown = next((each.unknown for each in changes if each.unknown), "")
    if not unknown or spec.on_change == "rebuild":
        return unknown
    raise TableError(
        f"Table {spec.name} can't be brought up to date by new rows alone: {unknown}.",
        f"Run `kafka-lake rebuild {spec.name}` to compute everything again once, or set on_change: rebuild to do so "
        "automatically. main is as it was.",
    )


def _check_is_log(spec: DerivedTable, identifier: Identifier, table: Table) -> None:
    """Raise an error unless rows are only added to a table and have their records' place."""
    state, name = read_state(table), ".".join(identifier)
    if KEYED in table.properties or origin_of(table) is None or state.others:
        raise ConfigurationError(
            f"Table {spec.name}: write: {spec.write} needs upstream tables to which rows are only added, each with its "
            f"place in one topic, and {name} isn't one of them.",
            "Use write: replace, or put it under join: if its rows are looked up only. For changes, keep the topic in "
            "a table without write: upsert as well, and read that.",
        )
    if state.position is None:
        raise TableError(
            f"Table {spec.name}: none of the snapshots that {name} still has tells its position.",
            "Run its topic once, or the table that it is derived by, which writes it down; then run this one.",
        )


def origin_of(table: Table) -> str | None:
    """Return the metadata column of a table."""
    return next((field.name for field in table.schema().fields if has_origin(field.field_type)), None)
