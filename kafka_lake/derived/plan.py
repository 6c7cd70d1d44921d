"""Plan one commit of a derived table from metadata alone. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from pyiceberg.table import Table

from kafka_lake.catalog.lake_catalog import LakeCatalog
from kafka_lake.catalog.positions import has_origin, head_of, read_state, row_count
from kafka_lake.common.offsets import TopicIdentity
from kafka_lake.config.derived_table import DerivedTable, Identifier
from kafka_lake.config.query import fingerprint
from kafka_lake.derived.upstream import Changes, Read, Record, changes_since, read_of, record_of
from kafka_lake.errors import ConfigurationError, TableError
from kafka_lake.formats.table_compatibility import KEY_SETTINGS


@dataclass(frozen=True)
class Pinned:
    """A table that a query reads, at one snapshot."""

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
    """

    table: Table | None
    head: int | None
    record: Record
    upstream: Mapping[str, Pinned]
    joined: Mapping[str, Pinned]
    full: str = ""
    is_first: bool = False


@dataclass(frozen=True)
class State:
    """The derived table, if it exists, and the tables that the query reads, as they were loaded."""

    table: Table | None
    read: Mapping[str, Table]


def load(spec: DerivedTable, catalog: LakeCatalog) -> State:
    """Load the tables, the derived one first, so that it is never ahead."""
    table = catalog.table(spec.identifier)
    read: dict[str, Table] = {}
    for name, identifier in {**spec.upstream, **spec.joined}.items():
        upstream = catalog.table(identifier)
        if upstream is None or head_of(upstream) is None:
            reason = "doesn't exist" if upstream is None else "is empty"
            raise TableError(
                f"Table {spec.name} reads {'.'.join(identifier)}, which {reason} yet.",
                "Materialize it first; if it has another name, correct from: or join:.",
            )
        read[name] = upstream
    return State(table, read)


def plan(spec: DerivedTable, state: State, rebuild: bool = False, zone: str = "") -> DerivePlan | None:
    """Return the next commit; None if the table is up to date."""
    last = record_of(state.table) if state.table is not None else None
    if last is None and state.table is not None and row_count(state.table):
        raise TableError(
            f"Table {spec.name} has rows, but none of its snapshots records its upstream tables.",
            "A topic or another program writes it: give the derived table another name.",
        )
    if spec.is_incremental:
        for name, identifier in spec.upstream.items():
            _check_is_log(spec, identifier, state.read[name])
    reads = {name: read_of(table) for name, table in state.read.items()}
    upstream, joined = ({name: reads[name] for name in names} for names in (spec.upstream, spec.joined))
    record = Record(fingerprint(spec), upstream, joined, zone)
    before = {**last.upstream, **last.joined} if last else {}
    changes = {
        name: changes_since(before[name], reads[name], table, whole=not spec.is_incremental)
        for name, table in state.read.items()
        if name in before
    }
    full = _why_full(spec, last, record, rebuild=rebuild)
    counting = spec.upstream if spec.is_incremental else state.read
    if not full and not any(changes[name].news for name in counting if name in changes):
        return None
    full = full or ("" if spec.is_incremental else "write: replace")
    full = full or _why_unknown(spec, [changes[name] for name in spec.upstream if name in changes])

    def pinned(names: Mapping[str, Identifier]) -> dict[str, Pinned]:
        since = {} if full else changes
        return {
            name: Pinned(
                identifier,
                reads[name],
                before=before[name] if name in since else None,
                changes=since.get(name),
                origin=origin_of(state.read[name]),
            )
            for name, identifier in names.items()
        }

    head = head_of(state.table) if state.table is not None else None
    return DerivePlan(
        state.table,
        head,
        record,
        upstream=pinned(spec.upstream),
        joined=pinned(spec.joined),
        full=full,
        is_first=last is None,
    )


def _why_full(spec: DerivedTable, last: Record | None, record: Record, rebuild: bool) -> str:
    """Return the reason to compute everything; empty if there is none."""
    if last is None:
        return "the table is new"
    if rebuild:
        return "a rebuild was asked for"
    changed = ""
    if last.zone and record.zone and last.zone != record.zone:
        changed = f"Spark's session time zone has changed from {last.zone} to {record.zone}"
    if last.query != record.query:
        changed = "the query has changed, or a setting that the rows depend on"
    if not changed or spec.write == "replace" or spec.on_change == "rebuild":
        return changed
    if spec.on_change == "forward" and set(last.upstream) == set(spec.upstream):
        return ""
    raise ConfigurationError(
        f"Table {spec.name}: {changed}.",
        f"Run `kafka-lake rebuild {spec.name}` to recompute everything once, set on_change: rebuild to do so "
        "automatically or on_change: forward to keep the old rows, or undo the change.",
    )


def _why_unknown(spec: DerivedTable, changes: list[Changes]) -> str:
    """Return the reason to compute everything if snapshots don't show what changed."""
    unknown = next((change.unknown for change in changes if change.unknown), "")
    if not unknown or spec.on_change == "rebuild":
        return unknown
    raise TableError(
        f"Table {spec.name} can't be updated from new rows alone: {unknown}.",
        f"Run `kafka-lake rebuild {spec.name}` to recompute everything once, or set on_change: rebuild to do so "
        "automatically. main is unchanged.",
    )


def _check_is_log(spec: DerivedTable, identifier: Identifier, table: Table) -> None:
    """Raise an error unless a table only gets new rows, with the offsets of one topic."""
    state, name = read_state(table), ".".join(identifier)
    if KEY_SETTINGS in table.properties or origin_of(table) is None or state.others:
        raise ConfigurationError(
            f"Table {spec.name}: write: {spec.write} needs append-only upstream tables with offsets of one topic, "
            f"and {name} isn't one of them.",
            "Use write: replace, or put it under join: if its rows are only looked up. To read changes, add an "
            "append table of the same topic.",
        )
    if state.position is None:
        raise TableError(
            f"Table {spec.name}: no remaining snapshot of {name} has its position.",
            f"Run the topic or derived table that fills {name} once, then this table.",
        )


def origin_of(table: Table) -> str | None:
    """Return the metadata column of a table."""
    return next((field.name for field in table.schema().fields if has_origin(field.field_type)), None)
