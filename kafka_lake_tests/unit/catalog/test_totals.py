"""What runs did to a table, in numbers: with the commit that publishes, never ahead of it, never twice."""

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitStateUnknownException

from kafka_lake.catalog.branches import StagingBranch, branch_name
from kafka_lake.catalog.lake_catalog import LakeCatalog
from kafka_lake.catalog.positions import head_of
from kafka_lake.catalog.tables import TOTALS, Totals, totals_of
from kafka_lake.errors import PublishRefusedError
from kafka_lake.runtime.context import Timings

NAME = ("lake", "pizzas")
ROWS = pa.table({"id": [1]})


@pytest.fixture
def catalog(catalog: LakeCatalog) -> LakeCatalog:
    catalog.ensure_namespace("lake")
    catalog.pyiceberg.create_table(NAME, ROWS.schema, properties={"theirs": "kept"}).append(ROWS)
    return catalog


def staged(catalog: LakeCatalog) -> tuple[StagingBranch, int]:
    head = head_of(catalog.pyiceberg.load_table(NAME))
    assert head is not None
    branch = StagingBranch(None, catalog, NAME, branch_name("run", head), head)
    branch.create()
    branch.append([], {"by": "us"})
    return branch, branch.written(branch.head).snapshot_id


def plus_one(before: Any) -> dict[str, str]:
    return {TOTALS: (totals_of(before) or Totals()).plus(Totals(commits=1, rows=2, seconds={"stage": 0.5})).to_json()}


def found(catalog: LakeCatalog) -> Totals | None:
    return totals_of(catalog.pyiceberg.load_table(NAME))


def test_a_publication_goes_on_with_them_in_its_own_commit(catalog: LakeCatalog) -> None:
    assert found(catalog) is None
    for commits in (1, 2):
        branch, snapshot = staged(catalog)
        versions = len(catalog.pyiceberg.load_table(NAME).metadata.metadata_log)
        branch.publish(snapshot, plus_one)
        table = catalog.pyiceberg.load_table(NAME)
        assert (head_of(table), set(table.metadata.refs)) == (snapshot, {"main"})
        assert len(table.metadata.metadata_log) == versions + 1
        assert totals_of(table) == Totals(commits=commits, rows=2 * commits, seconds={"stage": 0.5 * commits})
        assert table.properties["theirs"] == "kept"


def test_who_is_refused_adds_nothing(catalog: LakeCatalog) -> None:
    branch, snapshot = staged(catalog)
    other, theirs = staged(catalog)
    other.publish(theirs, plus_one)
    with pytest.raises(PublishRefusedError):
        branch.publish(snapshot, plus_one)
    assert found(catalog) == Totals(commits=1, rows=2, seconds={"stage": 0.5})


def test_main_and_branch_are_asserted_beside_them(catalog: LakeCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    branch, snapshot = staged(catalog)
    asserted: list[Any] = []
    commit = SqlCatalog.commit_table

    def listening(self: SqlCatalog, table: Any, requirements: Any, updates: Any) -> Any:
        asserted.extend(requirements)
        return commit(self, table, requirements, updates)

    monkeypatch.setattr(SqlCatalog, "commit_table", listening)
    branch.publish(snapshot, plus_one)
    refs = {item.ref: item.snapshot_id for item in asserted if item.type == "assert-ref-snapshot-id"}
    assert refs == {"main": branch.head, branch.name: snapshot}


def test_an_answer_that_is_lost_adds_them_once(catalog: LakeCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    branch, snapshot = staged(catalog)
    commit = SqlCatalog.commit_table

    def unanswered(self: SqlCatalog, *arguments: Any) -> Any:
        monkeypatch.setattr(SqlCatalog, "commit_table", commit)
        commit(self, *arguments)
        raise CommitStateUnknownException("no answer")

    monkeypatch.setattr(SqlCatalog, "commit_table", unanswered)
    branch.publish(snapshot, plus_one)
    assert found(catalog) == Totals(commits=1, rows=2, seconds={"stage": 0.5})


@pytest.mark.parametrize("text", ["", "{", "[]", '{"commits": "many"}', '{"seconds": 1}', "null"])
def test_what_cannot_be_read_begins_again(catalog: LakeCatalog, text: str) -> None:
    with catalog.pyiceberg.load_table(NAME).transaction() as transaction:
        transaction.set_properties({TOTALS: text})
    assert found(catalog) is None
    branch, snapshot = staged(catalog)
    branch.publish(snapshot, plus_one)
    assert found(catalog) == Totals(commits=1, rows=2, seconds={"stage": 0.5})


COUNTS = st.integers(0, 10**15)
SECONDS = st.dictionaries(st.sampled_from(["plan", "stage", "audit"]), st.integers(0, 1000).map(lambda ms: ms / 1000))
TOTALS_ANY = st.builds(
    Totals,
    commits=COUNTS,
    refused=COUNTS,
    records=COUNTS,
    rows=COUNTS,
    dead_letters=COUNTS,
    tombstones=COUNTS,
    bytes_read=COUNTS,
    moved=COUNTS,
    seconds=SECONDS,
)


class Propertied:
    def __init__(self, text: str) -> None:
        self.properties = {TOTALS: text}


@given(TOTALS_ANY, TOTALS_ANY)
def test_they_are_read_as_they_were_written_and_add_up(one: Totals, other: Totals) -> None:
    assert totals_of(Propertied(one.to_json())) == one  # type: ignore[arg-type]
    both = one.plus(other)
    assert both == other.plus(one)
    assert both.records == one.records + other.records
    assert both.seconds.get("stage", 0) == pytest.approx(one.seconds.get("stage", 0) + other.seconds.get("stage", 0))


def test_those_of_a_later_version_are_read_as_far_as_they_are_known() -> None:
    assert totals_of(Propertied('{"commits":3,"new":7}')) == Totals(commits=3)  # type: ignore[arg-type]


def test_the_effort_of_refused_attempts_is_part_of_the_commit() -> None:
    timings = Timings()
    timings.start()
    timings.finish("plan")
    timings.refused += 1
    timings.start()
    timings.finish("plan")
    timings.finish("stage")
    assert timings.seconds.keys() == {"plan", "stage"}
    assert timings.refused == 1
    timings.reset()
    assert (timings.seconds, timings.refused) == ({}, 0)
