"""The gates find each problem and name partition and offsets."""

from dataclasses import dataclass

import pyarrow as pa
import pytest

from kafka_lake.ingest.audit import PartitionRows, audit, offset_continuity, row_count, schema_evolution
from kafka_lake.ingest.plan import Plan
from kafka_lake.ingest.stage import Staged, StagedTable
from kafka_lake.ingest.topic_table import TopicTable
from kafka_lake.kafka.offsets import OffsetRange, Position, TopicIdentity
from kafka_lake.lake.branches import StagingBranch, branch_name
from kafka_lake.lake.positions import POSITION, TableState, head_of
from kafka_lake.lake.schema import Change

ROWS = pa.table({"id": [1]})
ME = TopicIdentity("c", "t", "pizzas")
CARRIED = '{"cluster_id":"c","topic_id":"t","topic":"pizzas","offsets":{"0":9,"1":4}}'
SPEC = TopicTable("pizzas", "pizza", "orders")
BEFORE = Position(ME, {0: 5, 1: 2})
PLAN = Plan((OffsetRange(0, 5, 9), OffsetRange(1, 2, 4)), Position(ME, {0: 9, 1: 4}), 0)
HELD = (PartitionRows(0, 4, 5, 8, 4), PartitionRows(1, 1, 3, 3, 1))


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


def continuity(plan=PLAN, before=BEFORE, held=HELD, carried=CARRIED, chain=()):
    return offset_continuity(plan, before, held, carried, chain)


def test_continuity_holds():
    finding = continuity()
    assert finding.passed
    assert finding.facts == {"partition_0": "5..9", "partition_1": "2..4"}
    assert continuity(before=None, held=None).passed
    assert continuity(before=Position(ME, {0: 5})).passed, "partition 1 is new"


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({"before": Position(ME, {0: 4, 1: 2})}, "partition 0 starts at 5, the table's position is 4"),
        ({"carried": ""}, "carries position (none)"),
        ({"carried": BEFORE.to_json()}, "carries position " + BEFORE.to_json()),
        ({"held": [PartitionRows(0, 4, 4, 7, 4)]}, "partition 0 has offsets 4 to 7, planned were 5 to 8"),
        ({"held": [PartitionRows(0, 4, 6, 9, 4)]}, "partition 0 has offsets 6 to 9, planned were 5 to 8"),
        ({"held": [PartitionRows(1, 2, 2, 2, 1)]}, "partition 1 has 2 rows but 1 distinct offsets"),
        ({"held": [PartitionRows(7, 3, 1, 9, 3)]}, "partition 7 has 3 rows (offsets 1 to 9) that nobody planned"),
        ({"chain": ["snapshot 2 does not follow 1"]}, "snapshot 2 does not follow 1"),
    ],
)
def test_a_break_is_found(wrong, problem):
    (found,) = continuity(**wrong).problems
    assert problem in found


def test_schema_evolution():
    safe = [Change("a", "added", "", "string"), Change("b", "widened", "int", "long")]
    assert schema_evolution([]).passed
    assert schema_evolution(safe).passed
    assert schema_evolution(safe).facts == {"a": "added: none → string", "b": "widened: int → long"}
    finding = schema_evolution([*safe, Change("c.d", "type changed", "long", "int")])
    assert finding.problems == ("column c.d: type changed (long → int)",)


@pytest.fixture
def catalog(catalog):
    catalog.ensure_namespace("pizza")
    catalog.pyiceberg.create_table(SPEC.identifier, ROWS.schema).append(ROWS)
    return catalog


@pytest.mark.parametrize("wrong", ["", "another head", "another append", "another tip"])
def test_what_is_staged_must_follow_the_head_and_hold_what_was_appended(wrong, catalog):
    """A branch that was taken away and made anew at the same moment is another one."""
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
    added = elsewhere if wrong == "another append" else appended
    primary = StagedTable(branch, tip, added, TableState(table, head, BEFORE), rows=0, files=0, size=0, spans=())
    staged = Staged(primary, None, records=0, tombstones=0, failed=0, known_failed=0)
    findings, _ = audit(SPEC, None, PLAN, staged, (0, 0))
    [chain] = [f for f in findings if f.check == "offset_continuity"]
    said = [problem for problem in chain.problems if "does not follow" in problem]
    assert said == ([f"the staged snapshot {primary.snapshot} does not follow {branch.head}"] if wrong else [])
