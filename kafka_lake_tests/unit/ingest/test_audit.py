"""The gates find each problem and name partition and offsets."""

from dataclasses import dataclass, replace
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.types import StringType

from kafka_lake.catalog.branches import StagingBranch, branch_name
from kafka_lake.catalog.lake_catalog import LakeCatalog
from kafka_lake.catalog.positions import POSITION, TableState, head_of
from kafka_lake.catalog.tables import Totals
from kafka_lake.common.offsets import Loss, OffsetRange, Position, Positions, TopicIdentity, positions_to_json
from kafka_lake.ingest.audit import (
    Audited,
    PartitionRows,
    audit,
    check,
    data_loss,
    dead_letters,
    noted,
    offset_continuity,
    partitions_of,
    row_count,
    schema_evolution,
    schema_refused,
)
from kafka_lake.ingest.publish import totals_of_commit
from kafka_lake.quality.result import RuleResult
from kafka_lake.runtime.commit import RULES_REMEDY, CheckFailedError, ColumnNote, Finding
from kafka_lake.runtime.context import Context, Observer
from kafka_lake.runtime.plan import Plan, Share
from kafka_lake.runtime.task.report import DeadLetterClass, Span
from kafka_lake.schema.evolution.model import Conflict
from kafka_lake.schema.rules import Change
from kafka_lake.spec.rule import RuleEntry, rules_of
from kafka_lake.spec.topic_table import TopicTable
from kafka_lake.writers.history.versions import HistoryResult
from kafka_lake.writers.schema_changes import SchemaRefusedError
from kafka_lake.writers.staged import Staged, StagedTable, Vanished
from kafka_lake.writers.upsert.merge import MergeCounts, UpsertResult

ROWS = pa.table({"id": [1]})
ME = TopicIdentity("c", "t", "pizzas")
CARRIED = '{"pizzas":{"cluster_id":"c","topic_id":"t","offsets":{"0":9,"1":4}}}'
SPEC = TopicTable("pizzas", "pizza", "orders")
BEFORE = Position(ME, {0: 5, 1: 2})
PLAN = Plan((OffsetRange(0, 5, 9), OffsetRange(1, 2, 4)), Position(ME, {0: 9, 1: 4}), 0)
HELD = (PartitionRows(0, 4, 5, 8, 4), PartitionRows(1, 1, 3, 3, 1))


def context(spec: TopicTable = SPEC, connections: Any = None) -> Context:
    nothing: Any = None
    return Context(spec, connections, "run", decoding=nothing)


PLANNED = TableState(table=None, head=1, position=None)  # type: ignore[arg-type]


@dataclass
class Rows:
    rows: int
    state: TableState = PLANNED


@dataclass
class Counted:
    """What `row_count` looks at of a staged commit."""

    records: int
    primary: Rows
    failed: int = 0
    tombstones: int = 0
    known_failed: int = 0
    dead_letters: Rows | None = None
    merge_result: UpsertResult | None = None
    rules: tuple[RuleResult, ...] = ()


@pytest.mark.parametrize(
    "staged",
    [
        Counted(0, Rows(0)),
        Counted(10, Rows(10)),
        Counted(10, Rows(6), failed=3, tombstones=1, dead_letters=Rows(3)),
        Counted(10, Rows(7), failed=3, known_failed=3),
        Counted(10, Rows(7), failed=3, known_failed=1, dead_letters=Rows(2)),
    ],
)
def test_every_record_is_somewhere(staged):
    assert row_count(SPEC, PLAN, staged).passed


@pytest.mark.parametrize(
    ("staged", "problem"),
    [
        (Counted(10, Rows(9)), "10 records were read, but 9 rows"),
        (Counted(10, Rows(11)), "make 11"),
        (Counted(10, Rows(7), failed=3), "3 records didn't decode, but the dead-letter table has 0"),
        (Counted(10, Rows(7), failed=3, dead_letters=Rows(2)), "has 2 of them"),
        (Counted(10, Rows(7), failed=3, dead_letters=Rows(3), known_failed=1), "has 4 of them"),
    ],
)
def test_a_record_that_is_nowhere_is_found(staged, problem):
    finding = row_count(SPEC, PLAN, staged)
    assert not finding.passed
    assert problem in "; ".join(finding.problems)
    assert finding.facts["records_read"] == 10


def upserted(rows=5, **found):
    """Return the result of ten changes of six keys; it is right without arguments."""
    merged = MergeCounts(**{"inserted": 1, "updated": 3, "deleted": 1, "added": 4, "removed": 4, **found})
    return UpsertResult(changes=10, keys=6, deletes=1, late=0, rows=rows, merged=merged)


OVERLAPPING = HistoryResult(changes=10, overlapping=2)


def test_of_a_keyed_table_each_key_and_each_record_is_accounted_for():
    finding = row_count(SPEC, PLAN, Counted(12, Rows(4), failed=2, dead_letters=Rows(2), merge_result=upserted()))
    assert finding.passed
    facts = ("records_read", "changes", "keys", "rows_inserted", "rows_updated", "rows_deleted", "keys_ignored")
    assert [finding.facts[name] for name in facts] == [12, 10, 6, 1, 3, 1, 1]
    assert finding.facts["dead_letters"] == 2


@pytest.mark.parametrize(
    ("records", "batch", "problem"),
    [
        (11, upserted(), "11 records were read, but 10 changes + 0 dead letters make 10"),
        (10, upserted(rows=3), "4 rows were inserted or updated, but only 3 keys have a change with a row"),
        (10, upserted(deleted=3, removed=6), "7 rows were changed by the changes of 6 keys: a key has several rows"),
        (10, upserted(added=3), "1 rows were inserted and 3 updated, but the new files have 3"),
        (10, upserted(removed=3), "3 rows were updated and 1 deleted, but the delete files have 3"),
        (10, OVERLAPPING, "2 versions overlap the next one"),
    ],
)
def test_a_key_that_is_not_as_its_change_left_it_is_found(records, batch, problem):
    finding = row_count(SPEC, PLAN, Counted(records, Rows(4), merge_result=batch))
    assert problem in finding.problems
    assert finding.refuses


MERGED = {f"spark.merge-into.num-target-rows-{name}": str(count) for name, count in
          (("inserted", 1), ("updated", 3), ("deleted", 1), ("copied", 0))}  # fmt: skip


@pytest.mark.parametrize(
    ("summary", "merged"),
    [
        ({**MERGED, "added-records": "4", "added-position-deletes": "4"}, MergeCounts(1, 3, 1, added=4, removed=4)),
        # A deletion vector has what the one before it had.
        (
            {**MERGED, "added-records": "4", "added-position-deletes": "11", "removed-position-deletes": "7"},
            MergeCounts(1, 3, 1, added=4, removed=4),
        ),
        # Data files are written again, with the rows that no change is about.
        (
            {
                **MERGED,
                "spark.merge-into.num-target-rows-copied": "90",
                "added-records": "94",
                "deleted-data-files": "1",
            },
            MergeCounts(1, 3, 1, added=4, removed=None),
        ),
        ({}, MergeCounts()),
    ],
)
def test_what_a_merge_did_is_what_its_snapshot_says(summary, merged):
    assert MergeCounts.of(summary) == merged
    assert merged.problems(keys=5, rows=4) == ()


def continuity(plan=PLAN, before=BEFORE, held=HELD, carried=CARRIED, chain=()):
    return offset_continuity(plan, before, held, carried, chain)


def test_continuity_holds():
    finding = continuity()
    assert finding.passed
    assert finding.facts == {"offsets_compared": 6, "pizzas/0": "5..9", "pizzas/1": "2..4"}
    assert continuity(before=None, held=None).passed
    assert continuity(before=Position(ME, {0: 5})).passed, "partition 1 is new"


def test_commit_that_loses_position_of_another_topic_is_refused() -> None:
    other = Position(TopicIdentity("c", "u", "drinks"), {0: 7})
    both = positions_to_json([PLAN.after, other])
    assert offset_continuity(PLAN, BEFORE, HELD, both, others={"drinks": other}).passed
    (problem,) = offset_continuity(PLAN, BEFORE, HELD, CARRIED, others={"drinks": other}).problems
    assert problem == f"the staged snapshot has position {CARRIED}, not {both}"


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({"before": Position(ME, {0: 4, 1: 2})}, "topic pizzas partition 0 starts at 5, the table's position is 4"),
        ({"carried": None}, "the staged snapshot has position (none)"),
        ({"carried": BEFORE.to_json()}, "the staged snapshot has position " + BEFORE.to_json()),
        ({"held": [PartitionRows(0, 4, 4, 7, 4)]}, "topic pizzas partition 0 has offsets 4 to 7, planned were 5 to 8"),
        ({"held": [PartitionRows(0, 4, 6, 9, 4)]}, "topic pizzas partition 0 has offsets 6 to 9, planned were 5 to 8"),
        ({"held": [PartitionRows(1, 2, 2, 2, 1)]}, "topic pizzas partition 1 has 2 rows but 1 distinct offsets"),
        (
            {"held": [PartitionRows(7, 3, 1, 9, 3)]},
            "topic pizzas partition 7 has 3 rows (offsets 1 to 9) that",
        ),
        ({"chain": ["snapshot 2 does not follow 1"]}, "snapshot 2 does not follow 1"),
    ],
)
def test_a_break_is_found(wrong, problem):
    (found,) = continuity(**wrong).problems
    assert found.startswith(problem)


REQUIRED = Change("f", "required added", "", "long")


def test_schema_evolution():
    safe = [Change("a", "added", "", "string"), Change("b", "widened", "int", "long")]
    assert schema_evolution([]) == Finding("schema_evolution", (), {})
    assert schema_evolution(safe).passed
    assert schema_evolution(safe).facts == {"a": "added: none → string", "b": "widened: int → long"}
    unsafe = Change("c.d", "type changed", "long", "int"), Change("e", "removed", "long", ""), REQUIRED
    assert schema_evolution([*safe, *unsafe]).problems == (
        "column c.d: type changed (long → int)",
        "column e: removed (long → none)",
        "column f: required added (none → long)",
    )
    assert schema_evolution([unsafe[1]]).facts == {"e": "removed: long → none"}


@pytest.fixture
def catalog(catalog):
    catalog.ensure_namespace("pizza")
    catalog.pyiceberg.create_table(SPEC.identifier, ROWS.schema).append(ROWS)
    return catalog


@pytest.mark.parametrize("wrong", ["", "another head", "another append", "an expired append", "another tip"])
def test_what_is_staged_must_follow_the_head_and_hold_what_was_appended(wrong, catalog):
    """A branch that was removed and recreated at the same moment is another one."""
    table = catalog.pyiceberg.load_table(SPEC.identifier)
    head = head_of(table)
    branch = StagingBranch(None, catalog, SPEC.identifier, branch_name("run", head), head)
    branch.create()
    branch.append([], {POSITION: CARRIED})
    appended = branch.staged_snapshot()
    catalog.pyiceberg.load_table(SPEC.identifier).append(ROWS)
    elsewhere = head_of(catalog.pyiceberg.load_table(SPEC.identifier))
    branch.head = elsewhere if wrong == "another head" else head
    tip = elsewhere if wrong == "another tip" else appended
    added = {"another append": elsewhere, "an expired append": 17}.get(wrong, appended)
    primary = StagedTable(branch, tip, added, TableState(table, head, BEFORE), rows=0, files=0, size=0, spans=())
    staged = Staged(primary, None, records=0, tombstones=0, failed=0, known_failed=0)
    findings, _ = check(context(), PLAN, staged, (0, 0))
    [chain] = [f for f in findings if f.check == "offset_continuity"]
    said = [problem for problem in chain.problems if "does not follow" in problem]
    assert said == ([f"the staged snapshot {primary.snapshot} does not follow {branch.head}"] if wrong else [])


@pytest.mark.parametrize(
    ("spans", "held"),
    [
        ([], []),
        ([Span(0, 4, 5, 8)], [PartitionRows(0, 4, 5, 8, 4)]),
        ([Span(0, 1, 5, 5), Span(0, 3, 6, 9)], [PartitionRows(0, 4, 5, 9, 4)]),
        # As tasks end in any order.
        (
            [Span(1, 2, 0, 3), Span(0, 3, 6, 9), Span(0, 1, 5, 5)],
            [PartitionRows(0, 4, 5, 9, 4), PartitionRows(1, 2, 0, 3, 2)],
        ),
        # A record that two tasks wrote.
        ([Span(0, 4, 5, 8), Span(0, 3, 8, 10)], [PartitionRows(0, 7, 5, 10, 6)]),
        ([Span(0, 4, 5, 8), Span(0, 2, 6, 7)], [PartitionRows(0, 6, 5, 8, 4)]),
        ([Span(0, 4, 5, 8), Span(0, 4, 5, 8), Span(0, 1, 9, 9)], [PartitionRows(0, 9, 5, 9, 5)]),
    ],
)
def test_what_tasks_wrote_makes_up_what_a_partition_has(spans, held):
    assert partitions_of(spans) == held


def staged_with(*classes, failed=0, records=10, known=0, **more):
    primary = StagedTable(None, 2, 2, PLANNED, rows=records - failed, files=1, size=1, spans=())  # type: ignore[arg-type]
    return Staged(primary, None, records, 0, failed, known, classes, **more)


BAD = DeadLetterClass("bad_json", 2, 1, 7, "no value", "{")
FIRST = "(2 bad_json, the first in partition 1 at offset 7: no value)"
WRONG = DeadLetterClass("wrong_type", 1, 0, 5, "", "x")


def test_dead_letters_are_told_by_class():
    finding = dead_letters(SPEC, staged_with(BAD, WRONG, failed=3))
    assert finding.passed
    assert finding.facts == {
        "dead_letters": 3,
        "policy": "table",
        "bad_json": 2,
        "sample_bad_json": "partition 1 offset 7: no value Value: {",
        "wrong_type": 1,
        "sample_wrong_type": "partition 0 offset 5 Value: x",
    }
    of_topic = dead_letters(SPEC, staged_with(replace(WRONG, topic="pizzas"), failed=1))
    assert of_topic.facts["sample_wrong_type"] == "topic pizzas partition 0 offset 5 Value: x"
    silent = TopicTable("pizzas", "pizza", "orders", samples=False)
    assert dead_letters(silent, staged_with(WRONG, failed=1)).facts["sample_wrong_type"] == "partition 0 offset 5"


@pytest.mark.parametrize(
    ("settings", "failed", "earlier", "problem"),
    [
        (
            {"dead_letters": "fail"},
            3,
            (0, 0),
            f"dead_letters is fail, and 3 of 10 records can't become rows {FIRST}",
        ),
        ({"dead_letters": "fail"}, 0, (3, 10), ""),
        ({"max_dead_letters": 3}, 3, (0, 0), ""),
        (
            {"max_dead_letters": 3},
            3,
            (1, 10),
            f"4 dead letters of 20 records, the limit is 3 {FIRST}",
        ),
        ({"max_dead_letters": 3}, 0, (4, 10), ""),
        ({"max_dead_letters": "20%"}, 3, (1, 10), ""),
        (
            {"max_dead_letters": "20%"},
            3,
            (1, 9),
            f"4 dead letters of 19 records, the limit is 20% {FIRST}",
        ),
    ],
)
def test_a_limit_of_dead_letters_is_for_the_whole_run(settings, failed, earlier, problem):
    spec = TopicTable("pizzas", "pizza", "orders", **settings)
    assert dead_letters(spec, staged_with(BAD, failed=failed), earlier).problems == ((problem,) if problem else ())


def test_limit_of_dead_letters_names_each_class():
    (problem,) = dead_letters(replace(SPEC, max_dead_letters=2), staged_with(BAD, WRONG, failed=3)).problems
    assert problem.endswith("at offset 7: no value; 1 wrong_type, the first in partition 0 at offset 5)")


def test_losses_are_told_and_refuse_nothing():
    assert data_loss(()) == Finding("data_loss", (), {})
    finding = data_loss([Loss(3, 5, 9, "retention", "pizzas")])
    assert finding.problems == ("topic pizzas partition 3 lost offsets 5 to 8 to retention",)
    assert finding.facts == {"pizzas/3": finding.problems[0]}
    assert not finding.refuses
    assert Finding("row_count", ("wrong",), {}).refuses


ADDED = Change("a", "added", "", "string")


def test_what_happened_to_columns_is_told_in_lines():
    taken = Conflict("n", "long", "string", "version 2", "n_string")
    apart = Conflict("m", "long", "string", "a record")
    many = [Change(f"c{number}", "added", "", "string") for number in range(101)]
    assert noted(SPEC, [ADDED], [], [taken, apart], {"x.y": "is a list of nothing"}) == (
        ColumnNote("a", "added", "", "string"),
        ColumnNote("n", "not changed", "long", "string", "version 2: such values go to n_string"),
        ColumnNote(
            "m",
            "not changed",
            "long",
            "string",
            "a record: records with such values are dead letters; on_incompatible: new_column stores them in "
            "another column",
        ),
        ColumnNote("x.y", "not kept", "", "", "is a list of nothing"),
    )
    left = noted(SPEC, [], many, [], {})
    assert left[0] == ColumnNote("c0", "not added", "", "string", "evolution is evolve")
    assert left[99].column == "c99"
    assert left[100:] == (ColumnNote("…", "1 more not added", "", "", "evolution is evolve"),)
    without_column = noted(SPEC, [], [], [], {f"u{number}": "is empty" for number in range(102)})
    assert [note.column for note in without_column[:100]] == [f"u{number}" for number in range(100)]
    assert without_column[100:] == (ColumnNote("…", "2 more not kept", "", "", ""),)
    assert len(noted(SPEC, [], [], [], {f"u{number}": "" for number in range(100)})) == 100
    assert len(noted(SPEC, [], many[:100], [], {})) == 100


def test_records_of_other_tables_are_counted_apart() -> None:
    shared = replace(PLAN, share=Share(records=5, elsewhere=1))
    finding = row_count(SPEC, shared, Counted(5, Rows(3), failed=1, tombstones=1, dead_letters=Rows(1)))
    assert finding.problems == ()
    assert (finding.facts["records_of_other_tables"], finding.facts["invisible_offsets"]) == (1, 0)
    finding = row_count(SPEC, shared, Counted(4, Rows(4)))
    assert finding.problems == ("5 records are routed to this table, but 4 were read for it",)
    finding = row_count(SPEC, PLAN, Counted(9, Rows(4), failed=1, tombstones=1, dead_letters=Rows(1)))
    assert finding.problems == ("9 records were read, but 4 rows + 1 dead letters + 1 tombstones make 6",)


def test_a_schema_that_a_policy_refuses_is_told():
    error = SchemaRefusedError(SPEC, ["column a is new"], "Allow it.", [ADDED])
    assert schema_refused(error) == Finding(
        "schema_evolution", ("column a is new",), {}, (ColumnNote("a", "added", "", "string"),)
    )


def test_records_of_wrong_types_can_be_refused():
    strict = TopicTable("pizzas", "pizza", "orders", on_incompatible="fail")
    staged = staged_with(BAD, WRONG, failed=3, schemas={"schema 7": 10}, ignored=(ADDED,))
    assert len(schema_evolution([REQUIRED], strict, staged).problems) == 2
    finding = schema_evolution([ADDED], strict, staged)
    assert finding.problems == (
        "on_incompatible is fail, and 1 records don't fit their column, the first in partition 0 at offset 5",
    )
    assert finding.facts == {"a": "added: none → string", "records of schema 7": 10}
    assert [note.what for note in finding.changes] == ["added", "not added"]
    assert schema_evolution([ADDED], SPEC, staged).passed
    assert schema_evolution([ADDED]).changes == (ColumnNote("a", "added", "", "string"),)


def test_the_position_stays_where_rows_are_replaced_or_delivered():
    for kind in ("replace", "dead_letter_replay"):
        moved = Plan(PLAN.ranges, PLAN.after, 0, kind)
        (problem,) = continuity(plan=moved).problems
        assert problem == f"a {kind} must not move the position, which was {BEFORE.to_json()}"
        assert continuity(plan=moved, before=PLAN.after).passed
    anywhere = [PartitionRows(7, 1, 99, 99, 1)]
    assert continuity(plan=Plan((), PLAN.after, 0, "dead_letter_replay"), before=PLAN.after, held=anywhere).passed
    lossy = Plan(PLAN.ranges, PLAN.after, 0, losses=(Loss(0, 4, 5, "retention"),))
    assert continuity(plan=lossy, before=Position(ME, {0: 4, 1: 2})).passed


def test_what_was_read_and_not_seen_is_told():
    facts = row_count(SPEC, PLAN, Counted(4, Rows(2), failed=1, tombstones=1, known_failed=1)).facts
    assert facts == {"records_read": 4, "rows_added": 2, "dead_letters": 1, "tombstones": 1, "invisible_offsets": 2}
    assert row_count(SPEC, PLAN, Counted(9, Rows(9))).facts["invisible_offsets"] == 0
    adopted = TableState(table=None, head=1, position=None, adopted=5)  # type: ignore[arg-type]
    assert row_count(SPEC, PLAN, Counted(1, Rows(1, adopted))).facts["rows_of_others_before"] == 5


def test_letters_that_come_back_or_are_asked_to_fail_need_not_be_in_the_dead_letter_table():
    failed = Counted(2, Rows(1), failed=1)
    (rule,) = rules_of([RuleEntry(not_null=("id",), fail_above=1)])
    for broken, passed in ((2, True), (1, False)):
        assert row_count(SPEC, PLAN, replace(failed, rules=(RuleResult(rule, 2, broken),))).passed is passed
    assert not row_count(SPEC, PLAN, failed).passed
    assert row_count(SPEC, Plan((), PLAN.after, 0, "dead_letter_replay"), failed).passed
    assert row_count(TopicTable("pizzas", "pizza", "orders", dead_letters="fail"), PLAN, failed).passed


def test_an_audit_has_all_findings_and_the_rows_of_each_partition(catalog):
    table = catalog.pyiceberg.load_table(SPEC.identifier)
    head = head_of(table)
    branch = StagingBranch(None, catalog, SPEC.identifier, branch_name("run", head), head)
    branch.create()
    branch.append([], {POSITION: CARRIED})
    tip = branch.staged_snapshot()
    spans = (Span(0, 2, 5, 6), Span(0, 2, 7, 8), Span(1, 1, 3, 3))
    primary = StagedTable(branch, tip, tip, TableState(table, head, BEFORE), rows=5, files=0, size=0, spans=spans)
    gone = (Vanished(1, 2, 2),)
    findings, rows = check(context(), PLAN, Staged(primary, None, 5, 0, 0, 0), (0, 0))
    assert [f.check for f in findings] == [
        "row_count",
        "offset_continuity",
        "schema_evolution",
        "dead_letters",
        "data_loss",
    ]
    assert [f.problems for f in findings] == [()] * 5
    assert rows == {0: 4, 1: 1}
    findings, _ = check(context(), PLAN, Staged(primary, None, 5, 0, 0, 0, vanished=gone), (0, 0))
    assert findings[1].problems == (
        "topic pizzas partition 1 has 2 rows that Kafka no longer has, the first at offset 2; "
        "keep them with --keep-missing",
    )


def audited_staged(
    catalog: LakeCatalog,
    spans: tuple[Span, ...],
    before: Position = BEFORE,
    others: Positions = MappingProxyType({}),
    **more: Any,
) -> Staged:
    """Return rows on a branch that carries the plan's position."""
    table = catalog.pyiceberg.load_table(SPEC.identifier)
    head = head_of(table)
    branch = StagingBranch(None, catalog, SPEC.identifier, branch_name("run", head), head)  # type: ignore[arg-type]
    branch.create()
    branch.append([], {POSITION: CARRIED})
    tip = branch.staged_snapshot()
    state = TableState(table, head, before, others=others)
    primary = StagedTable(branch, tip, tip, state, rows=5, files=0, size=0, spans=spans)
    return Staged(primary, None, 5, 0, 0, 0, **more)


def test_audit_that_passes_has_its_findings_and_times(catalog: LakeCatalog) -> None:
    made, steps = context(), list[str]()
    made = replace(made, observer=Observer(step_done=steps.append))
    staged = audited_staged(catalog, (Span(0, 4, 5, 8), Span(1, 1, 3, 3)))
    passed = audit(made, PLAN, staged)
    assert [finding.check for finding in passed.findings][:2] == ["row_count", "offset_continuity"]
    assert (passed.plan, passed.staged, passed.rows_by_partition) == (PLAN, staged, {0: 4, 1: 1})
    assert (steps, [*made.timings.seconds]) == (["audited"], ["audit"])


COMPLETE = (Span(0, 4, 5, 8), Span(1, 1, 3, 3))


@pytest.mark.parametrize(
    ("spans", "state", "problem"),
    [
        (COMPLETE, {"before": Position(ME, {0: 4, 1: 2})}, "partition 0 starts at 5, the table's position is 4"),
        (COMPLETE, {"others": {"drinks": Position(replace(ME, topic="drinks"), {0: 7})}}, f"has position {CARRIED}, "),
        ((*COMPLETE, Span(2, 1, 0, 0)), {}, "partition 2 has 1 rows (offsets 0 to 0) that were not planned"),
    ],
)
def test_audit_compares_positions_and_rows_with_the_plan(catalog, spans, state, problem):
    with pytest.raises(CheckFailedError) as refused:
        audit(context(), PLAN, audited_staged(catalog, spans, **state))
    assert problem in str(refused.value)


def test_audit_counts_dead_letters_of_the_whole_run(catalog):
    limited = context(replace(SPEC, max_dead_letters=3))
    staged = replace(audited_staged(catalog, COMPLETE), records=6, failed=1, known_failed=1)
    with pytest.raises(CheckFailedError, match="4 dead letters of 16 records, the limit is 3"):
        audit(limited, PLAN, staged, (3, 10))


@pytest.mark.parametrize("spans", [None, (Span(0, 4, 5, 8), Span(0, 1, 8, 8))])
def test_rows_are_scanned_where_reports_are_not_enough(catalog, spans):
    asked, scanned = {}, []
    reader = SimpleNamespace(
        format=lambda _: reader,
        option=lambda key, value: asked.update({key: value}) or reader,
        load=lambda name: {**asked, "table": name},
    )
    # A recreated topic has rows of two ids.
    found = [
        {"partition": 0, "topic_id": "t", "rows": 3, "first": 5, "last": 7, "distinct": 3},
        {"partition": 0, "topic_id": "u", "rows": 1, "first": 8, "last": 8, "distinct": 1},
        {"partition": 1, "topic_id": "t", "rows": 2, "first": 3, "last": 3, "distinct": 1},
    ]
    frames = SimpleNamespace(partitions=lambda rows: scanned.append(rows) or found)
    connections = SimpleNamespace(spark=lambda: SimpleNamespace(read=reader), catalog=catalog, frames=frames)
    staged = audited_staged(catalog, spans)
    findings, rows = check(context(connections=connections), PLAN, staged)
    assert rows == {0: 4, 1: 2}
    assert findings[1].problems == ("topic pizzas partition 1 has 2 rows but 1 distinct offsets",)
    between = {"start-snapshot-id": str(staged.primary.branch.head), "end-snapshot-id": str(staged.primary.appended)}
    assert scanned == [{**between, "table": catalog.spark_name(SPEC.identifier)}]


@pytest.mark.parametrize("of_rules", [True, False])
def test_audit_that_refuses_names_table_and_remedy(catalog: LakeCatalog, of_rules: bool) -> None:
    (rule,) = rules_of([RuleEntry(not_null=("id",), on_failure="fail")])
    gone = () if of_rules else (Vanished(1, 2, 2),)
    staged = audited_staged(
        catalog, (Span(0, 4, 5, 8), Span(1, 1, 3, 3)), vanished=gone, rules=(RuleResult(rule, 5, 1),)
    )
    with pytest.raises(CheckFailedError, match=r"^Topic pizzas, table pizza.orders: ") as refused:
        audit(context(), PLAN, staged)
    assert (refused.value.table, len(refused.value.findings)) == (SPEC.identifier, 6)
    assert str(refused.value).endswith(RULES_REMEDY) == of_rules
    assert ("; rule_not_null_id: " in str(refused.value)) != of_rules
    assert "fix the cause and run again" in str(refused.value) or of_rules
    branch = staged.primary.branch.name
    assert branch not in catalog.pyiceberg.load_table(SPEC.identifier).metadata.refs, "what was staged is gone"


def test_totals_of_a_commit() -> None:
    made = context()
    made.timings.refused = 2
    made.timings.finish("read")
    staged = Staged(Rows(5), None, 9, 3, 1, 0, bytes_read=77)  # type: ignore[arg-type]
    seconds = made.timings.seconds
    appended = Totals(commits=1, refused=2, records=9, rows=5, dead_letters=1, tombstones=3, bytes_read=77,
                      seconds=seconds)  # fmt: skip

    def totals(plan: Plan, staged: Staged) -> Totals:
        return totals_of_commit(made, Audited(plan, staged, (), {}))

    assert totals(PLAN, staged) == appended
    merged = replace(staged, merge_result=upserted())
    assert totals(PLAN, merged) == replace(appended, rows=7)
    replay = replace(PLAN, kind="dead_letter_replay", ranges=())
    assert totals(replay, staged) == Totals(commits=1, refused=2, moved=5, rewrites=1, seconds=seconds)
    assert totals(replay, merged) == Totals(commits=1, refused=2, moved=10, rewrites=1, seconds=seconds)
    replaced = replace(PLAN, kind="replay", deletes=PLAN.ranges)
    assert totals(replaced, staged) == replace(appended, rewrites=1)


def test_audit_reports_only_columns_removed_since_the_plan(catalog):
    table = catalog.pyiceberg.load_table(SPEC.identifier)
    with table.update_schema() as update:
        update.add_column("before", StringType()).add_column("since", StringType())
    table.append(pa.table({"id": [1], "before": ["a"], "since": ["b"]}))
    with table.update_schema() as update:
        update.delete_column("before")
    staged = audited_staged(catalog, COMPLETE)
    with table.update_schema() as update:
        update.delete_column("since").add_column("note", StringType())
    staged.primary.branch.append([], {POSITION: CARRIED})
    tip = staged.primary.branch.written(staged.primary.appended).snapshot_id
    findings, _ = check(context(), PLAN, replace(staged, primary=replace(staged.primary, snapshot=tip, appended=tip)))
    assert findings[2].facts == {"since": "removed: string → none", "note": "added: none → string"}
    assert findings[2].problems == ("column since: removed (string → none)",)


def test_an_audit_compares_the_schema_of_the_staged_rows_with_the_heads(catalog):
    table = catalog.pyiceberg.load_table(SPEC.identifier)
    head = head_of(table)
    with table.update_schema(allow_incompatible_changes=True) as update:
        update.add_column("note", StringType()).rename_column("id", "order_id")
    branch = StagingBranch(None, catalog, SPEC.identifier, branch_name("run", head), head)
    branch.create()
    branch.append([], {POSITION: CARRIED})
    tip = branch.staged_snapshot()
    primary = StagedTable(branch, tip, tip, TableState(table, head, BEFORE), rows=5, files=0, size=0, spans=())
    classes = (DeadLetterClass("wrong_type", 2, 1, 3, "Column id (long) got text.", ""),)
    staged = Staged(primary, None, 7, 0, 2, 0, classes=classes, schemas={"order v2": 7})
    strict = replace(SPEC, on_incompatible="fail")
    findings, _ = check(context(strict), PLAN, staged, (0, 0))
    evolution = findings[2]
    assert evolution.facts == {
        "note": "added: none → string",
        "id": "renamed: id → order_id",
        "records of order v2": 7,
    }
    assert evolution.problems == (
        "on_incompatible is fail, and 2 records don't fit their column, the first in partition 1 at offset 3: "
        "Column id (long) got text.",
    )
    assert {note.column for note in evolution.changes} == {"id", "note"}
