"""Staging branches while others write: appended to, published and dropped by PyIceberg alone."""

import re
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import BadRequestError, CommitFailedException, CommitStateUnknownException

from kafka_lake.catalog.branches import StagingBranch, branch_name
from kafka_lake.catalog.positions import head_of
from kafka_lake.catalog.tables import DEFAULTS
from kafka_lake.error_classification import may_be_a_record
from kafka_lake.errors import CatalogRefusedError, PublishRefusedError, TableError

NAME = ("lake", "pizzas")
ROWS = pa.table({"id": [1]})


@pytest.fixture
def catalog(catalog):
    catalog.ensure_namespace("lake")
    catalog.pyiceberg.create_table(NAME, ROWS.schema).append(ROWS)
    return catalog


def begun(catalog):
    """Return a branch at main's head."""
    table = catalog.pyiceberg.load_table(NAME)
    head = head_of(table)
    branch = StagingBranch(None, catalog, NAME, branch_name("run", head), head)
    branch.create()
    return branch


def test_a_snapshot_of_anothers_branch_in_the_same_moment_is_no_harm(catalog, monkeypatch):
    branch, other = begun(catalog), begun(catalog)
    commit, raced = SqlCatalog.commit_table, []

    def commit_after_another(self: SqlCatalog, *arguments: Any) -> Any:
        # The first two attempts find that another branch got the sequence number that they had in mind.
        if len(raced) < 2:
            raced.append(True)
            monkeypatch.setattr(SqlCatalog, "commit_table", commit)
            other.append([], {"by": "another"})
            monkeypatch.setattr(SqlCatalog, "commit_table", commit_after_another)
        return commit(self, *arguments)

    monkeypatch.setattr(SqlCatalog, "commit_table", commit_after_another)
    branch.append([], {"by": "us"})
    assert len(raced) == 2
    snapshot = branch.written(branch.head)
    assert snapshot.summary["by"] == "us"
    assert other.staged_snapshot() not in (None, snapshot.snapshot_id)


def test_catalog_that_forgets_branches_is_refused(catalog, monkeypatch):
    commit = SqlCatalog.commit_table

    def without_branches(self: SqlCatalog, table: Any, requirements: Any, updates: Any) -> Any:
        return commit(self, table, requirements, tuple(u for u in updates if getattr(u, "ref_name", "main") == "main"))

    monkeypatch.setattr(SqlCatalog, "commit_table", without_branches)
    with pytest.raises(CatalogRefusedError, match="doesn't keep branches of Iceberg tables"):
        begun(catalog)


def test_a_server_says_the_same_in_its_own_words(catalog, monkeypatch):
    branch, commit, reported = begun(catalog), SqlCatalog.commit_table, []

    def refuse_first(self: SqlCatalog, *arguments: Any) -> Any:
        if not reported:
            reported.append(True)
            raise BadRequestError(
                "BadRequestException: Failed to apply update: can't add snapshot with sequence number 2, must be > "
                "than last sequence number 2"
            )
        return commit(self, *arguments)

    monkeypatch.setattr(SqlCatalog, "commit_table", refuse_first)
    branch.append([], {"by": "us"})
    assert branch.written(branch.head).summary["by"] == "us"


def test_what_fails_otherwise_is_not_tried_again(catalog, monkeypatch):
    branch, attempts = begun(catalog), []

    def refuse(*_: Any) -> Any:
        attempts.append(True)
        raise ConnectionError("the catalog is gone")

    monkeypatch.setattr(SqlCatalog, "commit_table", refuse)
    with pytest.raises(ConnectionError):
        branch.append([], {})
    assert len(attempts) == 1, "it may have happened all the same"


@pytest.mark.parametrize(("setting", "manifests"), [({}, 3), ({"enabled": "true"}, 1), ({"enabled": "false"}, 3)])
def test_manifests_are_merged_where_the_table_says_so(setting, manifests, catalog):
    properties = {f"commit.manifest-merge.{name}": value for name, value in setting.items()}
    table = catalog.pyiceberg.load_table(NAME)
    table.transaction().set_properties({**properties, "commit.manifest.min-count-to-merge": "2"}).commit_transaction()
    files = [task.file for task in table.scan().plan_files()]
    branch = begun(catalog)
    for _ in range(2):
        branch.append(files, {})
    snapshot = branch.written(
        catalog.pyiceberg.load_table(NAME).metadata.snapshot_by_id(branch.staged_snapshot()).parent_snapshot_id
    )
    assert len(snapshot.manifests(table.io)) == manifests
    assert table.refresh().scan(snapshot_id=snapshot.snapshot_id).to_arrow().to_pylist() == [{"id": 1}] * 3


def test_manifests_of_partitions_whose_column_was_dropped_are_left_as_they_are(catalog):
    """PyIceberg can't write them once more: every append to such a table would fail."""
    rows = pa.table({"id": [1], "old": ["a"]})
    table = catalog.pyiceberg.create_table(("lake", "parted"), rows.schema)
    with table.update_spec() as update:
        update.add_identity("old")
    for _ in range(2):
        table.append(rows)
    with table.update_spec() as update:
        update.remove_field("old")
    with table.update_schema() as schema:
        schema.delete_column("old")
    table.append(ROWS)
    table.transaction().set_properties(DEFAULTS).commit_transaction()
    files = [task.file for task in table.scan().plan_files() if task.file.spec_id == table.spec().spec_id]
    head = head_of(table.refresh())
    branch = StagingBranch(None, catalog, ("lake", "parted"), branch_name("run", head), head)
    branch.create()
    branch.append(files, {})
    staged = branch.written(head)
    assert table.refresh().scan(snapshot_id=staged.snapshot_id).to_arrow().to_pylist() == [{"id": 1}] * 4


def test_what_pyiceberg_cannot_append_is_no_records_fault(catalog, monkeypatch):
    branch = begun(catalog)

    def fail(*_: Any) -> Any:
        raise TypeError("scale does not match unknown")

    monkeypatch.setattr(SqlCatalog, "commit_table", fail)
    with pytest.raises(TableError, match=r"lake\.pizzas.*scale does not match unknown") as refused:
        branch.append([], {})
    assert not may_be_a_record(refused.value)


@pytest.mark.parametrize("what", ["table", "branch"])
def test_nothing_is_appended_to_what_is_gone(what, catalog):
    branch = begun(catalog)
    catalog.pyiceberg.drop_table(NAME) if what == "table" else branch.drop()
    with pytest.raises(PublishRefusedError, match=f"lake.pizzas: branch {branch.name} was removed before a write"):
        branch.append([], {})
    assert branch.staged_snapshot() is None


@pytest.mark.parametrize("what", ["table", "branch", "nothing"])
def test_write_to_what_is_gone_is_refused(what, catalog):
    branch = begun(catalog)
    if what == "table":
        catalog.pyiceberg.drop_table(NAME)
    elif what == "branch":
        branch.drop()
    for before in (branch.head, None):
        with pytest.raises(PublishRefusedError, match=f"lake.pizzas: branch {branch.name} was removed during a write"):
            branch.written(before)
    assert branch.staged is None


def test_written_snapshot_is_that_of_the_branch(catalog):
    branch = begun(catalog)
    # Spark writes by the branch's name.
    catalog.pyiceberg.load_table(NAME).append(ROWS, branch=branch.name)
    assert branch.written(branch.head).snapshot_id == branch.staged_snapshot() == head_of(branch.staged, branch.name)


def test_discarded_branch_expires_its_own_snapshots_only(catalog):
    first = head_of(catalog.table(NAME))
    catalog.table(NAME).append(ROWS)
    head, statements = head_of(catalog.table(NAME)), []
    spark = SimpleNamespace(sql=lambda text: SimpleNamespace(collect=lambda: statements.append(text)))
    branch = StagingBranch(spark, catalog, NAME, branch_name("run", head), head)
    branch.create()
    written = [branch.append([], {}) or branch.staged_snapshot() for _ in range(2)]
    catalog.table(NAME).manage_snapshots().rollback_to_snapshot(first).commit()
    branch.discard()
    ids = f"ARRAY({written[1]}, {written[0]})"
    never = "TIMESTAMP '1970-01-01 00:00:00'"
    assert statements == [catalog.call("expire_snapshots", NAME, snapshot_ids=ids, older_than=never)]
    assert refs_of(catalog) == {"main": first}


def staged(catalog):
    """Return a branch with a snapshot on it, and that snapshot."""
    branch = begun(catalog)
    branch.append([], {"by": "us"})
    return branch, branch.staged_snapshot()


def refs_of(catalog):
    return {name: ref.snapshot_id for name, ref in catalog.table(NAME).metadata.refs.items()}


def test_a_table_that_was_dropped_is_named_by_publication_and_by_what_begins(catalog):
    branch, snapshot = staged(catalog)
    catalog.pyiceberg.drop_table(NAME)
    with pytest.raises(
        PublishRefusedError,
        match=rf"^Table lake\.pizzas: another commit moved main from snapshot {branch.head} to None",
    ):
        branch.publish(snapshot)
    with pytest.raises(PublishRefusedError, match=r"^Table lake\.pizzas no longer exists\."):
        StagingBranch(None, catalog, NAME, branch_name("run", branch.head), branch.head).create()


def test_a_branch_is_named_for_its_moment_head_run_and_purpose(catalog, monkeypatch):
    monkeypatch.setattr("time.time", lambda: 1_764_000_000.9)
    name = branch_name("2f9c-run/1" + "x" * 60, 17, "settle")
    assert re.fullmatch(r"kafka_lake_1764000000_17_2f9c_run_1x{30}_[0-9a-f]{8}_settle", name)
    assert name != branch_name("2f9c-run/1" + "x" * 60, 17, "settle")
    assert branch_name("run", 17).endswith("_stage")


def test_publication_moves_main_and_drops_the_branch(catalog):
    branch, snapshot = staged(catalog)
    catalog.table(NAME).manage_snapshots().create_branch(branch.head, "main", 3, 2, 1).commit()
    branch.publish(snapshot, lambda table: {"rows": str(len(table.metadata.snapshots))})
    assert refs_of(catalog) == {"main": snapshot}
    assert head_of(branch.published) == snapshot
    assert branch.published.properties["rows"] == catalog.table(NAME).properties["rows"] == "2"
    main = catalog.table(NAME).metadata.refs["main"]
    assert (main.max_ref_age_ms, main.max_snapshot_age_ms, main.min_snapshots_to_keep) == (3, 2, 1)


@pytest.mark.parametrize("when", ["before", "in the same moment"])
@pytest.mark.parametrize("back", [True, False])
def test_whoever_moves_main_keeps_a_publication_out(back, when, catalog, monkeypatch):
    table = catalog.table(NAME)
    first = head_of(table)
    table.append(ROWS)
    branch, snapshot = staged(catalog)

    def move() -> None:
        table = catalog.pyiceberg.load_table(NAME)
        if back:
            # What `fast_forward` would undo: main is still an ancestor of what is staged.
            table.manage_snapshots().rollback_to_snapshot(first).commit()
        else:
            table.append(ROWS)

    commit = SqlCatalog.commit_table

    def commit_too_late(self: SqlCatalog, *arguments: Any) -> Any:
        monkeypatch.setattr(SqlCatalog, "commit_table", commit)
        move()
        return commit(self, *arguments)

    if when == "before":
        move()
    else:
        monkeypatch.setattr(SqlCatalog, "commit_table", commit_too_late)
    with pytest.raises(PublishRefusedError, match=rf"another commit moved main from snapshot {branch.head} to \d+"):
        branch.publish(snapshot)
    assert (head_of(catalog.table(NAME)) == first) == back
    assert branch.staged_snapshot() == snapshot


def test_only_what_was_audited_is_published(catalog):
    branch, audited = staged(catalog)
    branch.append([], {"by": "another, after the audit"})
    with pytest.raises(PublishRefusedError, match=f"instead of the audited snapshot {audited}"):
        branch.publish(audited)
    assert head_of(catalog.table(NAME)) == branch.head


@pytest.mark.parametrize("when", ["before", "after"])
def test_an_answer_that_is_lost_is_looked_up(when, catalog, monkeypatch, caplog):
    branch, snapshot = staged(catalog)
    commit, attempts = SqlCatalog.commit_table, []

    def lose(self: SqlCatalog, *arguments: Any) -> Any:
        attempts.append(True)
        if when == "before" and len(attempts) == 1:
            raise CommitStateUnknownException
        done = commit(self, *arguments)
        if when == "after":
            raise CommitStateUnknownException
        return done

    monkeypatch.setattr(SqlCatalog, "commit_table", lose)
    branch.publish(snapshot)
    assert refs_of(catalog) == {"main": snapshot}
    assert len(attempts) == (2 if when == "before" else 1)
    lost = f"The catalog's response was lost, but snapshot {snapshot} is published."
    assert caplog.messages == ([] if when == "before" else [lost])


def test_a_publication_that_was_rolled_back_before_its_answer_came_is_not_repeated(catalog, monkeypatch):
    branch, snapshot = staged(catalog)
    commit = SqlCatalog.commit_table

    def lose_and_roll_back(self: SqlCatalog, *arguments: Any) -> Any:
        monkeypatch.setattr(SqlCatalog, "commit_table", commit)
        commit(self, *arguments)
        catalog.table(NAME).manage_snapshots().rollback_to_snapshot(branch.head).commit()
        raise CommitStateUnknownException

    monkeypatch.setattr(SqlCatalog, "commit_table", lose_and_roll_back)
    with pytest.raises(PublishRefusedError):
        branch.publish(snapshot)
    assert refs_of(catalog) == {"main": branch.head}


def test_branches_of_others_in_the_same_moment_are_no_reason_to_refuse(catalog, monkeypatch):
    branch, snapshot = staged(catalog)
    commit, others = SqlCatalog.commit_table, []

    def commit_after_another(self: SqlCatalog, *arguments: Any) -> Any:
        if len(others) < 2:
            others.append(f"other_{len(others)}")
            table = catalog.pyiceberg.load_table(NAME)
            monkeypatch.setattr(SqlCatalog, "commit_table", commit)
            table.manage_snapshots().create_branch(branch.head, others[-1]).commit()
            monkeypatch.setattr(SqlCatalog, "commit_table", commit_after_another)
            raise CommitFailedException("Table has been updated by another process")
        return commit(self, *arguments)

    monkeypatch.setattr(SqlCatalog, "commit_table", commit_after_another)
    branch.publish(snapshot)
    assert refs_of(catalog) == {"main": snapshot, **dict.fromkeys(others, branch.head)}


@pytest.mark.parametrize(
    ("error", "reported"), [(ConnectionError("it is gone\nfor good"), "it is gone"), (KeyError(), "KeyError()")]
)
def test_a_branch_that_cannot_be_dropped_is_left_behind_with_a_word(error, reported, catalog, monkeypatch, caplog):
    branch = begun(catalog)

    def fail(*_: Any) -> Any:
        raise error

    monkeypatch.setattr(SqlCatalog, "commit_table", fail)
    monkeypatch.setattr("tenacity.nap.time.sleep", lambda _: None)
    branch.discard()
    assert caplog.messages == [f"Branch {branch.name} of table lake.pizzas is left behind: {reported}"]
    monkeypatch.undo()
    branch.discard()
    branch.discard()
    assert set(refs_of(catalog)) == {"main"}
