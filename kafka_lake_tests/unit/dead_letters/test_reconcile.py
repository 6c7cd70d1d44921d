"""What metadata say is to be reconciled, and what is left is counted: on real tables, without an engine."""

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from kafka_lake.catalog.positions import head_of, read_state, summary_of
from kafka_lake.common.offsets import OffsetRange
from kafka_lake.dead_letters import reconcile
from kafka_lake.dead_letters.pending import (
    RECONCILED,
    RECONCILED_FROM,
    STAGED_WITH,
    UNRECONCILED,
    Pending,
    pending_reconciliation,
)
from kafka_lake.dead_letters.reconcile import added_keys, dead_letters_in, joined_ranges
from kafka_lake.errors import AuditFailedError
from kafka_lake.runtime.context import Context
from kafka_lake.spec.topic_table import TopicTable
from kafka_lake_tests.conftest import without_totals

SPEC = TopicTable("pizzas", "pizza", "orders")
ROW = pa.table({"id": [1]})


def context(connections: Any, spec: TopicTable = SPEC) -> Context:
    decoding: Any = None
    return Context(spec, connections, "run", decoding=decoding)


class Tables:
    """A topic's table and its dead-letter table; appends return the new head."""

    def __init__(self, catalog):
        catalog.ensure_namespace("pizza")
        self.catalog = catalog
        self.names = {"table": SPEC.identifier, "letters": SPEC.dead_letter_table}
        for name in self.names.values():
            catalog.pyiceberg.create_table(name, ROW.schema)

    def load(self, which):
        return self.catalog.pyiceberg.load_table(self.names[which])

    def append(self, which, **summary):
        keys = {
            "unreconciled": UNRECONCILED,
            "reconciled": RECONCILED,
            "reconciled_from": RECONCILED_FROM,
            "staged_with": STAGED_WITH,
        }
        table = self.load(which)
        table.append(ROW, snapshot_properties={keys[name]: str(value) for name, value in summary.items()})
        return head_of(self.load(which))

    def sequence(self, which, snapshot):
        return self.load(which).metadata.snapshot_by_id(snapshot).sequence_number

    def pending_reconciliation(self):
        return pending_reconciliation(*(read_state(self.load(name)) for name in ("table", "letters")))


@pytest.fixture
def tables(catalog):
    return Tables(catalog)


def test_nothing_is_due_where_nothing_says_so(tables):
    assert tables.pending_reconciliation() is None
    first = tables.append("table")
    tables.append("letters", staged_with=first)
    tables.append("table")
    assert tables.pending_reconciliation() is None, "they were published together"


def test_commits_that_may_have_made_letters_obsolete_count_until_they_are_reconciled(tables):
    tables.append("table")
    tables.append("letters")
    marked = tables.append("table", unreconciled="a")
    assert tables.pending_reconciliation() == Pending("a@2", None, (marked,))
    later = tables.append("table", unreconciled="b")
    assert tables.pending_reconciliation() == Pending("b@3", None, (later, marked))
    tables.append("letters", reconciled="a@2")
    assert tables.pending_reconciliation() == Pending("b@3", None, (later,))
    tables.append("letters", reconciled="b@3")
    tables.append("letters")
    assert tables.pending_reconciliation() is None
    again = tables.append("table", unreconciled="a")
    assert tables.pending_reconciliation() == Pending("a@4", None, (again,))


def test_letters_of_a_commit_that_never_was_are_due(tables):
    tables.append("table")
    stale = tables.append("letters", staged_with=17)
    assert tables.pending_reconciliation() == Pending("published without its rows@1", None, (), (stale,))
    marked = tables.append("table", unreconciled="a")
    assert tables.pending_reconciliation() == Pending("a@2", None, (marked,), (stale,))
    tables.append("letters", reconciled="a@2")
    assert tables.pending_reconciliation() is None
    newer = tables.append("letters", staged_with=18)
    assert tables.pending_reconciliation() == Pending("published without its rows@2", None, (), (newer,)), (
        "the older one is reconciled"
    )


@pytest.mark.parametrize("keeps_parent", [True, False])
@pytest.mark.parametrize(("later_ms", "is_due"), [(1, False), (0, True)])
def test_letters_before_the_oldest_snapshot_are_not_due(later_ms, is_due, keeps_parent, tables):
    """PyIceberg takes a parent that expires out of its child."""
    first = tables.append("table")
    letters = tables.append("letters", staged_with=first)
    published_ms = tables.load("letters").metadata.snapshot_by_id(letters).timestamp_ms
    tables.append("table")
    table = tables.load("table")
    newest = table.metadata.snapshots[-1].model_copy(update={"timestamp_ms": published_ms + later_ms})
    if not keeps_parent:
        newest = newest.model_copy(update={"parent_snapshot_id": None})
    table.metadata = table.metadata.model_copy(update={"snapshots": [newest]})
    pending = pending_reconciliation(read_state(table), read_state(tables.load("letters")))
    assert pending == (Pending("published without its rows@2", None, (), (letters,)) if is_due else None)


def test_dead_letters_come_back_after_a_rollback_of_their_rows(tables):
    first = tables.append("table")
    with_letters = tables.append("letters")
    tables.append("table", unreconciled="a")
    tables.append("letters")
    tables.append("letters", reconciled="a@2", reconciled_from=with_letters)
    tables.load("table").manage_snapshots().rollback_to_snapshot(first).commit()
    assert tables.pending_reconciliation() == Pending("rolled back: a@1", with_letters)
    tables.append("letters", reconciled="rolled back: a@1")
    assert tables.pending_reconciliation() is None, "once"
    marked = tables.append("table", unreconciled="b")
    assert tables.pending_reconciliation() == Pending("b@3", None, (marked,))


def test_dead_letters_come_back_again_after_a_second_rollback(tables):
    first, second = tables.append("table"), tables.append("table")
    before = tables.append("letters")
    tables.append("table", unreconciled="a")
    tables.append("letters", reconciled="a@3", reconciled_from=before)
    tables.load("table").manage_snapshots().rollback_to_snapshot(second).commit()
    tables.append("letters", reconciled="rolled back: a@2")
    assert tables.pending_reconciliation() is None
    tables.load("table").manage_snapshots().rollback_to_snapshot(first).commit()
    assert tables.pending_reconciliation() == Pending("rolled back: a@1", before)


def test_dead_letters_of_a_table_without_snapshots_are_stale(tables):
    stale = tables.append("letters", staged_with=17)
    assert tables.pending_reconciliation() == Pending("published without its rows@0", None, (), (stale,))
    tables.append("letters", reconciled="a@1")
    assert tables.pending_reconciliation() is None


def test_dead_letters_come_back_from_the_oldest_snapshot_that_is_there(tables: Tables) -> None:
    first = tables.append("table")
    before = tables.append("letters")
    tables.append("table", unreconciled="a")
    tables.append("letters", reconciled="a@2", reconciled_from=before)
    between = tables.append("letters")
    tables.append("table", unreconciled="b")
    tables.append("letters", reconciled="b@3", reconciled_from=between)
    tables.load("table").manage_snapshots().rollback_to_snapshot(first).commit()
    assert tables.pending_reconciliation() == Pending("rolled back: a@1", before)
    tables.load("letters").maintenance.expire_snapshots().by_id(before).commit()
    assert tables.pending_reconciliation() == Pending("rolled back: a@1", between)


def test_the_newest_open_mark_is_told_by_its_number_and_not_by_its_text(tables):
    for _ in range(8):
        tables.append("table")
    tables.append("letters")
    nine = tables.append("table", unreconciled="z@z")
    ten = tables.append("table", unreconciled="a@a")
    assert tables.pending_reconciliation() == Pending("a@a@10", None, (ten, nine))
    tables.append("letters", reconciled="z@z@9")
    assert tables.pending_reconciliation() == Pending("a@a@10", None, (ten,))


def test_a_rollback_has_everything_looked_at_that_was_open_too(tables):
    first = tables.append("table")
    before = tables.append("letters")
    stale = tables.append("letters", staged_with=17)
    tables.append("table", unreconciled="a@b")
    tables.append("letters", reconciled="a@b@2", reconciled_from=before)
    tables.load("table").manage_snapshots().rollback_to_snapshot(first).commit()
    newer = tables.append("letters", staged_with=18)
    assert tables.pending_reconciliation() == Pending("rolled back: a@b@1", before, (), (newer,)), (
        f"{stale} was reconciled"
    )


def test_letters_are_counted_by_the_summary_where_that_can_tell(tables):
    first, second = tables.append("letters"), tables.append("letters")
    table = tables.load("letters")
    assert (dead_letters_in(table, first), dead_letters_in(table, second)) == (1, 2)
    assert dead_letters_in(table, 17) is None
    assert dead_letters_in(None, first) is None
    reported = {"total-records": "5"}
    summary = SimpleNamespace(additional_properties=reported)
    one: Any = SimpleNamespace(metadata=SimpleNamespace(snapshot_by_id=lambda _: SimpleNamespace(summary=summary)))
    assert dead_letters_in(one, 1) == 5
    reported["total-delete-files"] = "1"
    assert dead_letters_in(one, 1) is None, "files of deletes may be about files that are gone"
    without_totals(tables.catalog, SPEC.dead_letter_table)
    bare = tables.load("letters")
    assert "total-records" not in summary_of(bare.current_snapshot())
    assert dead_letters_in(bare, second) is None


@pytest.mark.parametrize(
    ("taken", "given", "right"), [(0, 1, True), (1, 2, True), (0, 0, False), (1, 1, False), (0, 2, False)]
)
def test_what_is_left_is_counted_before_it_is_visible(taken, given, right, tables):
    before, after = tables.append("letters"), tables.append("letters")
    connections = SimpleNamespace(catalog=tables.catalog, spark=lambda: None)
    if right:
        reconcile.check_counts(context(connections), (before, after), taken, given)
        return
    reported = f"orders__dead_letters: it has 1 rows, {taken} are removed and {given} added, but 2 were staged"
    with pytest.raises(AuditFailedError, match=reported):
        reconcile.check_counts(context(connections), (before, after), taken, given)


def test_dead_letters_are_counted_by_spark_without_a_summary(tables):
    before, after = tables.append("letters"), tables.append("letters")
    without_totals(tables.catalog, SPEC.dead_letter_table)
    name = tables.catalog.spark_name(SPEC.dead_letter_table)
    counts = {f"SELECT * FROM {name} VERSION AS OF {snapshot}": n for snapshot, n in ((before, 5), (after, 7))}
    spark = SimpleNamespace(sql=lambda text: SimpleNamespace(count=lambda: counts[text]))
    connections = SimpleNamespace(catalog=tables.catalog, spark=lambda: spark)
    reconcile.check_counts(context(connections), (before, after), 1, 3)
    with pytest.raises(AuditFailedError, match="it has 5 rows, 1 are removed and 2 added, but 7 were staged"):
        reconcile.check_counts(context(connections), (before, after), 1, 2)


def test_ranges_near_each_other_are_one():
    ranges = [OffsetRange(1, 0, 5), OffsetRange(0, 20, 30), OffsetRange(0, 0, 10), OffsetRange(0, 5, 8)]
    apart = [OffsetRange(0, 0, 10), OffsetRange(0, 20, 30), OffsetRange(1, 0, 5)]
    assert joined_ranges(ranges, 10) == apart
    assert joined_ranges(ranges, 11) == [OffsetRange(0, 0, 30), OffsetRange(1, 0, 5)]
    assert joined_ranges(ranges, None) == [OffsetRange(0, 0, 30), OffsetRange(1, 0, 5)]
    assert joined_ranges([], None) == []


class Session:
    """Notes what is read of which table, by Iceberg's read options, and which columns name the records of it."""

    def __init__(self):
        self.read = self
        self.reported: dict[str, Any] = {}

    def format(self, name):
        self.reported["format"] = name
        return self

    def option(self, key, value):
        self.reported[key] = value
        return self

    def load(self, name):
        return {**self.reported, "table": name}

    def keys(self, rows, column):
        return rows, column


def added(tables, which, snapshot, spec=SPEC):
    session = Session()
    connections: Any = SimpleNamespace(spark=lambda: session, catalog=tables.catalog, frames=session)
    return added_keys(context(connections, spec), tables.names[which], tables.load(which), snapshot)


@pytest.mark.parametrize(("which", "column"), [("table", "_kafka"), ("letters", None)])
def test_of_a_snapshot_that_appends_only_its_own_files_are_read(tables, which, column):
    parent, snapshot = tables.append(which), tables.append(which)
    rows = {
        "format": "iceberg",
        "start-snapshot-id": str(parent),
        "end-snapshot-id": str(snapshot),
        "table": tables.catalog.spark_name(tables.names[which]),
    }
    assert added(tables, which, snapshot) == (rows, column)


def test_all_is_read_where_a_snapshot_cannot_tell_what_it_added(tables):
    first = tables.append("table")
    assert added(tables, "table", first) is None, "it has no parent to read from"
    assert added(tables, "table", first + 1) is None, "the table doesn't know it"
    tables.append("table")
    table = tables.load("table")
    table.overwrite(ROW)
    replaced = head_of(tables.load("table"))
    assert added(tables, "table", replaced) is not None, "PyIceberg deletes first, and appends then"
    deleted = tables.load("table").metadata.snapshot_by_id(replaced).parent_snapshot_id
    assert added(tables, "table", deleted) is None, "it adds nothing"


def test_all_is_read_where_the_parent_has_expired(tables):
    first, second = tables.append("table"), tables.append("table")
    tables.load("table").maintenance.expire_snapshots().by_id(first).commit()
    assert added(tables, "table", second) is None


def untouched(catalog, spec=SPEC, **asked):
    """Reconcile with a session that nobody may ask for."""

    def no_session():
        raise AssertionError("Spark was touched")

    connections: Any = SimpleNamespace(spark=no_session, catalog=catalog)
    reconcile.reconcile(context(connections, spec), **asked)


def test_nothing_is_reconciled_without_both_tables_or_without_what_names_the_records(catalog):
    untouched(catalog, forced=True)
    catalog.ensure_namespace("pizza")
    catalog.pyiceberg.create_table(SPEC.dead_letter_table, ROW.schema).append(ROW)
    # Letters alone.
    untouched(catalog, forced=True)
    catalog.pyiceberg.create_table(SPEC.identifier, ROW.schema)
    # A table without a snapshot has none of their records.
    untouched(catalog, forced=True)
    catalog.pyiceberg.load_table(SPEC.identifier).append(ROW)
    # Nothing is due.
    untouched(catalog)
    with pytest.raises(AssertionError, match="Spark was touched"):
        untouched(catalog, forced=True)
