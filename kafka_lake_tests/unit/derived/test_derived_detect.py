"""Changes of upstream tables: each changed row is reported, or the change is unknown."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from pydantic import TypeAdapter
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.types import LongType, NestedField, StructType

from kafka_lake.catalog.positions import DERIVED, EXPIRE_ROWS, POSITION, REMOVES, author_summary, summary_of
from kafka_lake.catalog.tables import TOTALS, Totals
from kafka_lake.common.offsets import OffsetRange, Position, TopicIdentity
from kafka_lake.config.derived_table import DerivedTable
from kafka_lake.config.query import fingerprint
from kafka_lake.derived.plan import DerivePlan, State, plan
from kafka_lake.derived.upstream import Changes, Read, Record, changes_since, read_of, record_of
from kafka_lake.errors import ConfigurationError, TableError

ME = TopicIdentity("c", "t", "orders")
Rows = dict[tuple[int, int], int]


@dataclass
class Upstream:
    """A table of a topic with two partitions, its snapshots, and the rows that each of them has."""

    identity: TopicIdentity = ME
    uuid: str = "one"
    position: dict[int, int] = field(default_factory=lambda: {0: 0, 1: 0})
    rows: Rows = field(default_factory=dict)
    snapshots: list[Snapshot] = field(default_factory=list)
    rows_of: dict[int, Rows] = field(default_factory=dict)
    totals: Totals = field(default_factory=Totals)
    version: int = 0
    schemas: list[Schema] = field(default_factory=lambda: [Schema(NestedField(1, "id", LongType()), schema_id=0)])

    def __post_init__(self) -> None:
        self.commit(Operation.APPEND, {})

    def commit(self, operation: Operation, rows: Rows, summary: dict[str, str] | None = None) -> None:
        added = len(rows.items() - self.rows.items())
        reported = {
            "added-records": str(added if operation is not Operation.REPLACE else 5),
            "deleted-records": str(len(self.rows.items() - rows.items()) if operation is not Operation.REPLACE else 5),
            "total-records": str(len(rows)),
            **(summary or {}),
        }
        number = len(self.rows_of) + 1
        parent = self.snapshots[-1].snapshot_id if self.snapshots else None
        kind: Any = Summary(operation, **reported)
        self.snapshots.append(
            Snapshot(
                snapshot_id=number, parent_snapshot_id=parent, sequence_number=number, timestamp_ms=number,
                manifest_list="", summary=kind, schema_id=self.schemas[-1].schema_id,
            )
        )  # fmt: skip
        self.rows, self.rows_of[number] = rows, rows

    def ours(self, kind: str, rows: Rows, ranges: tuple[OffsetRange, ...] = (), removed: bool = False) -> None:
        reported = {
            POSITION: Position(self.identity, dict(self.position)).to_json(),
            **author_summary("r", kind, ranges),
        }
        if kind in ("replace", "reset"):
            reported[REMOVES] = str(self.snapshots[-1].snapshot_id) if removed else "none"
        added = len(rows.items() - self.rows.items())
        done = Totals(rows=added, rewrites=int(kind != "append"))
        self.totals = self.totals.plus(replace(done, rows=0) if kind == "dead_letter_replay" else done)
        self.commit(Operation.APPEND, rows, reported)

    def append(self, partition: int, gaps: int) -> None:
        first = self.position[partition] + gaps
        self.position[partition] = first + 2
        self.ours("append", {**self.rows, (partition, first): 0, (partition, first + 1): 0})

    def letters(self, partition: int, number: int) -> None:
        """Give rows to some offsets that have none."""
        free = [o for o in range(self.position[partition]) if (partition, o) not in self.rows][: number + 1]
        self.ours("dead_letter_replay", {**self.rows, **{(partition, o): 0 for o in free}})

    def replace(self, partition: int, start: int) -> None:
        end = min(start + 3, self.position[partition])
        if start < end:
            self.version += 1
            gone = {place: v for place, v in self.rows.items() if place[0] != partition or not start <= place[1] < end}
            if removed := gone != self.rows:
                self.commit(Operation.DELETE, gone)
            again = {(partition, o): self.version for o in range(start, end) if (o + self.version) % 3}
            self.ours("replace", {**gone, **again}, (OffsetRange(partition, start, end),), removed)

    def reset(self, partition: int, to: int) -> None:
        removed = False
        if to < self.position[partition]:
            left = {place: v for place, v in self.rows.items() if place[0] != partition or place[1] < to}
            if removed := left != self.rows:
                self.commit(Operation.DELETE, left)
        self.position[partition] = to
        self.ours("reset", self.rows, removed=removed)

    def compact(self, *_: int) -> None:
        self.commit(Operation.REPLACE, self.rows)

    def foreign_delete(self, partition: int, offset: int) -> None:
        left = {place: v for place, v in self.rows.items() if place != (partition, offset)}
        self.commit(Operation.DELETE, left)

    def foreign_append(self, partition: int, offset: int) -> None:
        self.commit(Operation.APPEND, {(partition, offset): -1, **self.rows})

    def table(self, snapshots: list[Snapshot] | None = None) -> Table:
        kept = self.snapshots if snapshots is None else snapshots
        by_id = {snapshot.snapshot_id: snapshot for snapshot in kept}
        metadata = SimpleNamespace(
            snapshots=kept,
            refs={"main": SimpleNamespace(snapshot_id=self.snapshots[-1].snapshot_id)},
            table_uuid=self.uuid,
            snapshot_by_id=by_id.get,
            schemas=self.schemas,
        )
        properties = {TOTALS: self.totals.to_json()}
        return cast(Table, SimpleNamespace(metadata=metadata, properties=properties, name=lambda: ("lake", "orders")))


def told_of(changes: Changes, upstream: Upstream, place: tuple[int, int]) -> bool:
    partition, offset = place
    if offset >= changes.since.get(partition, 0):
        return True
    if any(range_.partition == partition and range_.start <= offset < range_.end for range_ in changes.ranges):
        return True
    return any(place in upstream.rows_of[b].keys() - upstream.rows_of[a].keys() for a, b in changes.added)


NUMBERS = st.integers(0, 8)
OURS = ("append", "append", "append", "letters", "replace", "reset", "compact")
FOREIGN = ("foreign_delete", "foreign_append")
STEPS = st.tuples(st.sampled_from((*OURS, *FOREIGN)), st.integers(0, 1), NUMBERS)


@given(st.lists(STEPS, max_size=8), st.lists(STEPS, max_size=8), st.booleans())
@example([], [("compact", 0, 0)], False)
@example([], [("append", 0, 0), ("compact", 0, 0), ("append", 1, 0)], True)
def test_each_row_that_is_another_one_is_told_of(
    before: list[tuple[str, int, int]], after: list[tuple[str, int, int]], expired: bool
) -> None:
    upstream = Upstream()
    for name, partition, number in before:
        getattr(upstream, name)(partition, number)
    read, rows = read_of(upstream.table()), upstream.rows
    for name, partition, number in after:
        getattr(upstream, name)(partition, number)
    # The newest with a position stays, and all after it.
    newest = max(i for i, snapshot in enumerate(upstream.snapshots) if not i or POSITION in summary_of(snapshot))
    table = upstream.table(upstream.snapshots[newest:] if expired else None)
    changes = changes_since(read, read_of(table), table)
    different = {place for place, _ in rows.items() ^ upstream.rows.items()}
    names = {name for name, _, _ in after}
    # `test_only_others_…` is about what totals can't tell.
    assume(not (expired and names >= set(FOREIGN)))
    if names <= {"append", "compact"}:
        assert not changes.unknown, "only additions"
        assert not changes.ranges
        assert not changes.added
    if changes.unknown:
        assert names & set(FOREIGN) or expired, "each commit of ours tells what it does"
        return
    assert changes.news or not different
    assert all(told_of(changes, upstream, place) for place in different)


def test_only_others_that_delete_and_append_as_many_rows_escape_once_their_snapshots_have_expired() -> None:
    upstream = Upstream()
    upstream.append(0, 0)
    read = read_of(upstream.table())
    upstream.foreign_delete(0, 0)
    alone, balanced = upstream.table(upstream.snapshots[-1:]), upstream
    assert changes_since(read, read_of(alone), alone).unknown
    balanced.foreign_append(0, 9)
    table = balanced.table(balanced.snapshots[-1:])
    assert not changes_since(read, replace(read_of(table), position=read.position), table).unknown
    assert changes_since(read, read_of(upstream.table()), upstream.table()).unknown, "their snapshots tell"


def test_a_table_that_is_read_as_a_whole_is_read_again_where_nobody_can_tell() -> None:
    upstream = Upstream()
    upstream.append(0, 0)
    read = read_of(upstream.table())
    # Others update as many rows as there were, and their snapshots expire.
    upstream.foreign_delete(0, 0)
    upstream.foreign_append(0, 9)
    table = upstream.table(upstream.snapshots[-1:])
    now = replace(read_of(table), position=read.position)
    assert changes_since(read, now, table, whole=True).news
    upstream.compact()
    again = upstream.table()
    assert not changes_since(replace(read, snapshot=now.snapshot), read_of(again), again, whole=True).news


def nested(number: int, inner: int) -> NestedField:
    return NestedField(number, "s", StructType(NestedField(inner, "x", LongType())))


@pytest.mark.parametrize(
    ("columns", "another"),
    [
        ((NestedField(1, "id", LongType()), nested(2, 3), NestedField(4, "more", LongType())), ""),
        ((NestedField(1, "key", LongType()), nested(2, 3)), ""),
        ((NestedField(1, "key", LongType()), nested(2, 3), NestedField(4, "id", LongType())), "column id was renamed"),
        ((NestedField(1, "id", LongType()), nested(2, 4)), r"column s\.x was renamed"),
    ],
)
def test_a_column_that_has_the_name_of_another_one_is_found(columns: tuple[NestedField, ...], another: str) -> None:
    upstream = Upstream(schemas=[Schema(NestedField(1, "id", LongType()), nested(2, 3), schema_id=0)])
    read = read_of(upstream.table())
    upstream.schemas.append(Schema(*columns, schema_id=1))
    upstream.append(0, 0)
    assert re.search(another or "^$", changes_since(read, read_of(upstream.table()), upstream.table()).unknown)
    upstream.schemas.pop(0)
    assert not changes_since(read, read_of(upstream.table()), upstream.table()).unknown, "old schemas were removed"


@pytest.mark.parametrize("expired_snapshots", [False, True])
@pytest.mark.parametrize("rewritten", [False, True])
def test_rows_that_are_old_go_and_what_was_made_of_them_stays(rewritten: bool, expired_snapshots: bool) -> None:
    upstream = Upstream()
    upstream.append(0, 0)
    upstream.append(0, 0)
    read = read_of(upstream.table())
    left = {place: row for place, row in upstream.rows.items() if place[1] > 0}
    summary = author_summary("r", EXPIRE_ROWS)
    if rewritten:
        # Spark's statement, and the commit without rows that holds the position.
        upstream.commit(Operation.OVERWRITE, left, {"added-records": "3", "deleted-records": "4"})
        upstream.commit(Operation.APPEND, left, summary)
    else:
        upstream.commit(Operation.DELETE, left, summary)
    upstream.totals = upstream.totals.plus(Totals(expired=1))
    table = upstream.table(upstream.snapshots[-1:] if expired_snapshots else None)
    changes = changes_since(read, read_of(table), table)
    assert (changes.news, changes.unknown, changes.ranges, changes.added) == (False, "", (), ())
    upstream.append(1, 0)
    assert changes_since(read, read_of(upstream.table()), upstream.table()).news
    upstream.foreign_delete(0, 1)
    assert changes_since(read, read_of(upstream.table()), upstream.table()).unknown


def test_rows_at_offsets_that_had_none_show_in_no_number_of_rows() -> None:
    upstream = Upstream()
    upstream.append(0, 3)
    read = read_of(upstream.table())
    upstream.replace(0, 0)
    upstream.append(0, 0)
    table = upstream.table(upstream.snapshots[-1:])
    assert "rows of it were replaced" in changes_since(read, read_of(table), table).unknown


@pytest.mark.parametrize("between", [0, 1])
def test_rows_that_others_delete_just_before_a_replay_are_none_that_it_replaces(between: int) -> None:
    upstream = Upstream()
    upstream.append(0, 3)
    read = read_of(upstream.table())
    upstream.foreign_delete(0, 4)
    if between:
        upstream.append(1, 0)
    upstream.replace(0, 0)
    assert "deleted by snapshot 3" in changes_since(read, read_of(upstream.table()), upstream.table()).unknown


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda now: replace(now, uuid="two"), "created again"),
        (lambda now: replace(now, position=Position(TopicIdentity("c", "u", "orders"), {})), "was created again"),
    ],
)
def test_another_table_or_topic_of_the_same_name_is_no_continuation(change: Callable[[Read], Read], why: str) -> None:
    upstream = Upstream()
    upstream.append(0, 0)
    read = read_of(upstream.table())
    upstream.append(0, 0)
    assert why in changes_since(read, change(read_of(upstream.table())), upstream.table()).unknown


SPEC = DerivedTable(table="t", sources=("orders",), write="append", sql="SELECT a FROM orders")


def derived(spec: DerivedTable, read: Read, rows: int = 1, **other: str) -> Table:
    """Return a derived table that was made of an upstream table as it was read."""
    record = Record(other.get("query", fingerprint(spec)), {"orders": read}, {}, other.get("zone", ""))
    made = Upstream()
    made.commit(Operation.APPEND, {(0, n): 0 for n in range(rows)}, {DERIVED: record.to_json()})
    table: Any = made.table()
    table.current_snapshot = lambda: made.snapshots[-1]
    return cast(Table, table)


def upstream_table(upstream: Upstream, **properties: str) -> Table:
    table: Any = upstream.table()
    table.properties |= properties
    origin = SimpleNamespace(name="_kafka", field_type=None)
    table.schema = lambda: SimpleNamespace(fields=[origin])
    return cast(Table, table)


@pytest.fixture(autouse=True)
def _origin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kafka_lake.derived.plan.has_origin", lambda kind: kind is None)


def planned(
    spec: DerivedTable, table: Table | None, upstream: Upstream, zone: str = "", **properties: str
) -> DerivePlan | None:
    tables = {"orders": upstream_table(upstream, **properties)}
    return plan(spec, State(table, tables), zone=zone)


def test_what_is_read_is_what_the_next_commit_begins_at() -> None:
    upstream = Upstream()
    upstream.append(0, 1)
    first = planned(SPEC, None, upstream)
    assert first is not None
    assert (first.full, first.is_first) == ("the table is new", True)
    table = derived(SPEC, first.record.upstream["orders"])
    assert record_of(table) == first.record, "it is read as it was written"
    assert planned(SPEC, table, upstream) is None
    upstream.append(1, 0)
    upstream.replace(0, 1)
    second = planned(SPEC, table, upstream)
    assert second is not None
    changes = second.upstream["orders"].changes
    assert changes is not None
    assert (second.full, dict(changes.since), changes.ranges) == ("", {0: 3, 1: 0}, (OffsetRange(0, 1, 3),))


@pytest.mark.parametrize(
    ("on_change", "expected"),
    [("forward", ""), ("rebuild", "the query has changed, or a setting that the rows depend on")],
)
def test_a_changed_query_goes_forward_or_is_computed_again(on_change: Any, expected: str) -> None:
    upstream = Upstream()
    table = derived(SPEC, read_of(upstream.table()), query="other")
    upstream.append(0, 0)
    found = planned(SPEC.model_copy(update={"on_change": on_change}), table, upstream)
    assert found is not None
    assert found.full.startswith(expected)
    assert bool(found.full) is bool(expected)


def test_days_of_another_time_zone_are_other_keys() -> None:
    upstream = Upstream()
    upstream.append(0, 0)
    table = derived(SPEC, read_of(upstream.table()), zone="UTC")
    upstream.append(0, 0)
    for zone in ("UTC", ""):
        assert planned(SPEC, table, upstream, zone) is not None
    with pytest.raises(ConfigurationError, match=r"time zone has changed from UTC to Asia/Tokyo.*rebuild"):
        planned(SPEC, table, upstream, "Asia/Tokyo")
    for on_change, why in (
        ("rebuild", "Spark's session time zone has changed from UTC to Asia/Tokyo"),
        ("forward", ""),
    ):
        found = planned(SPEC.model_copy(update={"on_change": on_change}), table, upstream, "Asia/Tokyo")
        assert found is not None
        assert (found.full, found.record.zone) == (why, "Asia/Tokyo")
    untold = derived(SPEC, read_of(Upstream().table()))
    assert planned(SPEC, untold, upstream, "Asia/Tokyo") is not None


def test_a_changed_query_fails_by_default_and_says_what_to_do() -> None:
    upstream = Upstream()
    upstream.append(0, 0)
    table = derived(SPEC, read_of(upstream.table()), query="other")
    with pytest.raises(ConfigurationError, match=r"lake\.t: the query.*kafka-lake rebuild lake\.t.*on_change: forward"):
        planned(SPEC, table, upstream)


def test_what_nobody_can_tell_fails_or_is_computed_again() -> None:
    upstream = Upstream()
    upstream.append(0, 0)
    table = derived(SPEC, read_of(upstream.table()))
    upstream.foreign_delete(0, 0)
    with pytest.raises(TableError, match=r"lake\.t can't be updated.*deleted by snapshot 3.*rebuild lake\.t"):
        planned(SPEC, table, upstream)
    for spec in (SPEC.model_copy(update={"on_change": "rebuild"}), SPEC.model_copy(update={"write": "replace"})):
        found = planned(spec, derived(spec, read_of(Upstream().table())), upstream)
        assert found is not None


def test_a_log_whose_position_is_gone_needs_a_run_first() -> None:
    upstream = Upstream()
    upstream.commit(Operation.APPEND, {(0, 0): 0})
    with pytest.raises(
        TableError, match=r"no remaining snapshot of lake\.orders has its position.*that fills lake\.orders once"
    ):
        planned(SPEC, None, upstream)


def test_a_table_of_somebody_else_is_left_alone() -> None:
    made = Upstream()
    made.append(0, 0)
    table: Any = made.table()
    table.current_snapshot = lambda: made.snapshots[-1]
    with pytest.raises(TableError, match="A topic or another program writes it"):
        planned(SPEC, table, Upstream())


def test_a_keyed_table_is_not_read_by_offsets() -> None:
    with pytest.raises(ConfigurationError, match=r"lake\.orders isn't one of them.*write: replace"):
        planned(SPEC, None, Upstream(), **{"kafka-lake.key-settings": "{}"})
    assert (
        planned(SPEC.model_copy(update={"write": "replace"}), None, Upstream(), **{"kafka-lake.key-settings": "{}"})
        is not None
    )


@given(st.text(max_size=5), st.dictionaries(st.integers(0, 99), st.integers(0, 2**40), max_size=3), st.integers(0, 9))
def test_a_record_is_read_as_it_was_written(name: str, offsets: dict[int, int], number: int) -> None:
    position = Position(TopicIdentity("c", name, "topic"), offsets) if number else None
    read = Read(f"lake.{name}", "uuid", number or None, position, number, 0, number, 1)
    record = Record("query", {name: read}, {"dim": read})
    assert TypeAdapter(Record).validate_json(record.to_json()) == record


def test_a_record_that_can_not_be_read_is_an_error() -> None:
    made = Upstream()
    made.commit(Operation.APPEND, {(0, 0): 0}, {DERIVED: "{}"})
    with pytest.raises(TableError, match=r"has an invalid kafka-lake\.derived"):
        record_of(made.table())


def test_rows_of_partitions_that_had_none_are_new_from_their_first_offset() -> None:
    assert Changes(True, {0: 5, 3: 7}).new_since == {0: 5, 1: 0, 2: 0, 3: 7}
    assert Changes(True, {}).new_since == {}
