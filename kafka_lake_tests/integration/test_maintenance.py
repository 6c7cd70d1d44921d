"""What others do to a table has a defined outcome: compaction, expiry, rollback, a drop, a rename, a clean-up."""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.expressions import EqualTo
from pyiceberg.table import Table

from kafka_lake.catalog.branches import StagingBranch, branch_name, staging_branches
from kafka_lake.catalog.positions import ancestors, head_of, row_count
from kafka_lake.errors import AuditFailedError, TableError
from kafka_lake.ingest.run import ingest, reset
from kafka_lake.maintenance.clean import clean, sweep
from kafka_lake.runtime.context import Connections, Observer
from kafka_lake.spec.topic_table import TopicTable
from kafka_lake_tests.conftest import Topic, View, data_files, files, in_its_folder, without_totals
from kafka_lake_tests.exhaustive import exhaustive
from kafka_lake_tests.integration.test_exactly_once import at, killed_at, mixed  # noqa: F401

pytestmark = pytest.mark.integration

NewTopic = Callable[..., Topic]
NewConnections = Callable[[], Connections]
NewView = Callable[[TopicTable], View]


@pytest.fixture
def sql(spark_resource: Any) -> Callable[[str], Any]:
    return lambda text: spark_resource.spark_session.sql(text).collect()


def compact_and_expire(sql: Any, see: View, *tables: tuple[str, str]) -> None:
    """Do what a maintenance job with the sharpest settings does: nothing but the newest snapshot stays."""
    for table in tables:
        sql(see.catalog.call("rewrite_data_files", table, options="map('rewrite-all', 'true')"))
        sql(see.catalog.call("expire_snapshots", table, retain_last="1", older_than="TIMESTAMP '2100-01-01 00:00:00'"))


@pytest.mark.in_contract
def test_a_position_that_expired_is_rebuilt_from_the_rows(
    new_topic: NewTopic, connections: NewConnections, view: NewView, sql: Any
) -> None:
    topic = new_topic(3)
    spec = topic.spec()
    mixed(topic, 8, 2)
    topic.send(b"the last of partition 0 is junk", partition=0)
    ingest(spec, connections(), "run-1")
    compact_and_expire(sql, view(spec), spec.identifier, spec.dead_letter_table)
    assert view(spec).position() == {}
    topic.send_ids([20, 21, 22], 3)
    said: list[str] = []
    ingest(spec, connections(), "run-2", observer=Observer(warn=said.append))
    assert any("recovered from the rows" in line for line in said)
    view(spec).assert_exactly_once(topic.ledger)

    # Nothing new: the rebuilt position is written down all the same, so that it is looked for once only.
    compact_and_expire(sql, view(spec), spec.identifier)
    said.clear()
    ingest(spec, connections(), "run-3", observer=Observer(warn=said.append))
    ingest(spec, connections(), "run-4", observer=Observer(warn=said.append))
    assert len([line for line in said if "rebuilt" in line]) == 1
    view(spec).assert_exactly_once(topic.ledger)


@pytest.mark.exhaustive
def test_position_is_not_recovered_from_unpublished_letters(
    new_topic: NewTopic,
    connections: NewConnections,
    view: NewView,
    sql: Any,
    killed_at: Any,  # noqa: F811
) -> None:
    """A run died between its two publications, then all positions expired: the letters reach further than the rows."""
    topic = new_topic()
    spec = topic.spec()
    topic.send_ids([0])
    ingest(spec, connections(), "run-1")
    topic.send_ids([1])
    topic.send(b"junk")
    killed_at(spec, "dead letters published")
    compact_and_expire(sql, view(spec), spec.identifier, spec.dead_letter_table)
    ingest(spec, connections(), "run-2")
    view(spec).assert_exactly_once(topic.ledger)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"start": "latest"}, r"partitions \[1\] have no rows"),
    ],
)
def test_position_that_cannot_be_recovered_is_refused(
    settings: dict[str, Any], problem: str, new_topic: NewTopic, connections: NewConnections, view: NewView, sql: Any
) -> None:
    topic = new_topic(2)
    topic.send_ids([0])
    spec = topic.spec(**{**settings, "start": "earliest"})
    ingest(spec, connections(), "run-1")
    compact_and_expire(sql, view(spec), spec.identifier)
    topic.send_ids([2])
    before = view(spec).fingerprint()
    with pytest.raises(TableError, match=problem) as caught:
        ingest(replace(spec, **settings), connections(), "run-2")
    assert f"kafka-lake reset {topic.name}" in str(caught.value)
    assert view(spec).fingerprint() == before
    assert len(reset(replace(spec, **settings), connections(), "as-told", "latest").commits) == 1
    assert view(spec).position() == {0: 2, 1: 0}


@pytest.mark.parametrize("how", [exhaustive("expired"), "rolled back"])
def test_empty_table_started_at_latest_is_not_restarted(
    how: str, new_topic: NewTopic, connections: NewConnections, view: NewView, sql: Any
) -> None:
    topic = new_topic()
    topic.send_ids([0])
    spec = topic.spec(start="latest")
    said: list[str] = []
    ingest(spec, connections(), "run-1", observer=Observer(warn=said.append))
    assert any("starting_offsets is latest" in line and "starts at {0: 1}" in line for line in said)
    table = view(spec).table
    if how == "expired":
        table.append(table.schema().as_arrow().empty_table())
        sql(view(spec).call("expire_snapshots", retain_last="1", older_than="TIMESTAMP '2100-01-01 00:00:00'"))
    else:
        first = min(table.metadata.snapshots, key=lambda item: item.sequence_number or 0)
        sql(view(spec).call("rollback_to_snapshot", snapshot_id=f"{first.snapshot_id}"))
    assert view(spec).position() == {}
    topic.send_ids([1])
    with pytest.raises(TableError, match="has the position of topic") as caught:
        ingest(spec, connections(), "run-2")
    assert f"kafka-lake reset {topic.name}" in str(caught.value)
    reset(spec, connections(), "run-3", "0:1")
    ingest(spec, connections(), "run-4")
    assert view(spec).ids() == [1]


def test_deleted_rows_and_expiry_by_pyiceberg_stop_start_latest(
    new_topic: NewTopic, connections: NewConnections, view: NewView, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyIceberg takes the parent out of the oldest snapshot that it leaves, which cached metadata still have."""
    monkeypatch.setenv("KAFKA_LAKE_METADATA_CACHE", "off")
    topic = new_topic()
    topic.send_ids([0])
    spec = topic.spec(start="latest")
    ingest(spec, connections(), "run-1")
    topic.send_ids([1])
    ingest(spec, connections(), "run-2")
    table = view(spec).table
    table.delete()
    only_the_head_stays(table)
    assert view(spec).position() == {}
    topic.send_ids([2, 3])
    with pytest.raises(TableError, match="has the position of topic") as caught:
        ingest(spec, connections(), "run-3")
    assert f"kafka-lake reset {topic.name}" in str(caught.value)
    assert view(spec).position() == {}
    reset(spec, connections(), "run-4", "0:2")
    ingest(spec, connections(), "run-5")
    assert view(spec).ids() == [2, 3]


def only_the_head_stays(table: Table) -> None:
    """Expire all other snapshots as PyIceberg does it."""
    head = head_of(table.refresh())
    older = [snapshot.snapshot_id for snapshot in table.metadata.snapshots if snapshot.snapshot_id != head]
    table.maintenance.expire_snapshots().by_ids(older).commit()
    table.refresh()
    assert [snapshot.parent_snapshot_id for snapshot in table.metadata.snapshots] == [None]


@pytest.mark.exhaustive
def test_first_run_killed_with_staged_position_is_completed(
    new_topic: NewTopic,
    connections: NewConnections,
    view: NewView,
    killed_at: Any,  # noqa: F811
) -> None:
    topic = new_topic()
    topic.send_ids([0])
    spec = topic.spec(start="latest")
    killed_at(spec, "audited")
    ingest(spec, connections(), "next")
    topic.send_ids([1])
    ingest(spec, connections(), "last")
    assert view(spec).ids() == [1]


@pytest.mark.in_contract
def test_rows_that_are_rolled_back_are_read_again_exactly_once(
    new_topic: NewTopic, connections: NewConnections, view: NewView, sql: Any
) -> None:
    topic = new_topic()
    spec = topic.spec()
    topic.send_ids([0])
    ingest(spec, connections(), "run-1")
    good = head_of(view(spec).table)
    mixed(topic, 5)
    ingest(spec, connections(), "run-2")
    sql(view(spec).call("rollback_to_snapshot", snapshot_id=f"{good}"))
    assert view(spec).position() == {0: 1}
    topic.send(b"junk after the rollback")
    report = ingest(spec, connections(), "run-3")
    assert report.total("records") == 6
    view(spec).assert_exactly_once(topic.ledger)


@pytest.mark.exhaustive
@pytest.mark.every_pair
@pytest.mark.parametrize("at", [exhaustive("planned"), exhaustive("table staged"), "audited"])
def test_a_rollback_during_a_run_stays(
    at: str, new_topic: NewTopic, connections: NewConnections, view: NewView, sql: Any
) -> None:
    topic = new_topic()
    spec, see = topic.spec(), view(topic.spec())
    topic.send_ids([0])
    ingest(spec, connections(), "run-1")
    good = head_of(see.table)
    topic.send_ids([1])
    ingest(spec, connections(), "run-2")
    bad = head_of(see.table)
    topic.send_ids([2])

    def roll_back(step: str) -> None:
        if step == at and head_of(see.table) == bad:
            sql(see.call("rollback_to_snapshot", snapshot_id=f"{good}"))

    report = ingest(spec, connections(), "run-3", observer=Observer(step_done=roll_back))
    assert report.total("records") == 2
    assert bad not in {snapshot.snapshot_id for snapshot in ancestors(see.table, head_of(see.table))}
    see.assert_exactly_once(topic.ledger)
    see.assert_no_branches()


def test_a_table_that_was_dropped_is_filled_from_the_start(
    new_topic: NewTopic, connections: NewConnections, view: NewView, sql: Any
) -> None:
    """What were dead letters with the old schema are rows with the new one, and in one table only."""
    topic = new_topic()
    strict = topic.spec("id bigint")
    topic.send_ids([0])
    topic.send({"id": "one"})
    topic.send(b"junk")
    ingest(strict, connections(), "run-1")
    assert len(view(strict).dead_letters()) == 2
    sql(f"DROP TABLE {view(strict).sql_name()} PURGE")
    lenient = replace(strict, schema="id string")
    topic.send_ids([3])
    ingest(lenient, connections(), "run-2")
    assert view(lenient).ids() == ["0", "3", "one"]
    assert [letter["value"] for letter in view(lenient).dead_letters()] == [b"junk"]
    view(lenient).assert_exactly_once(topic.ledger)


@pytest.mark.exhaustive
def test_table_dropped_during_staging_is_filled_from_start(
    new_topic: NewTopic, connections: NewConnections, view: NewView, sql: Any
) -> None:
    topic = new_topic()
    spec = topic.spec()
    topic.send_ids([0])
    ingest(spec, connections(), "run-1")
    topic.send_ids([1])
    ingest(
        spec,
        connections(),
        "run-2",
        observer=Observer(step_done=at("audited", lambda: sql(f"DROP TABLE {view(spec).sql_name()}"))),
    )
    view(spec).assert_exactly_once(topic.ledger)


@pytest.mark.in_contract
def test_replaced_table_continues_after_its_last_row(
    new_topic: NewTopic, connections: NewConnections, view: NewView, sql: Any
) -> None:
    topic = new_topic()
    spec = topic.spec()
    topic.send_ids([0, 1])
    ingest(spec, connections(), "run-1")
    name = view(spec).sql_name()
    sql(f"CREATE OR REPLACE TABLE {name} USING iceberg AS SELECT * FROM {name}")
    topic.send_ids([2])
    ingest(spec, connections(), "run-2")
    view(spec).assert_exactly_once(topic.ledger)


def test_column_renamed_by_hand_keeps_values_and_is_added_again(
    new_topic: NewTopic, connections: NewConnections, view: NewView, sql: Any
) -> None:
    topic = new_topic()
    spec = topic.spec("id bigint, name string")
    topic.send({"id": 0, "name": "a"})
    ingest(spec, connections(), "run-1")
    sql(f"ALTER TABLE {view(spec).sql_name()} RENAME COLUMN name TO title")
    topic.send({"id": 1, "name": "b"})
    ingest(spec, connections(), "run-2")
    rows = sorted((r["id"], r["title"], r["name"]) for r in view(spec).rows())
    assert rows == [(0, "a", None), (1, None, "b")]
    view(spec).assert_exactly_once(topic.ledger)


def test_required_column_renamed_by_hand_is_refused(
    new_topic: NewTopic, connections: NewConnections, view: NewView, sql: Any
) -> None:
    topic = new_topic()
    spec = topic.spec("id bigint not null, name string")
    topic.send({"id": 0, "name": "a"})
    ingest(spec, connections(), "run-1")
    sql(f"ALTER TABLE {view(spec).sql_name()} RENAME COLUMN id TO number")
    topic.send({"id": 1, "name": "b"})
    before = view(spec).fingerprint()
    with pytest.raises(AuditFailedError, match="column id: required added"):
        ingest(spec, connections(), "run-2")
    assert view(spec).fingerprint() == before


# Where dropping a table takes its files along, none can be registered as another.
@pytest.mark.exhaustive
@pytest.mark.pairs("sqlite_files", "postgres_files", "postgres_s3", "glue_s3")
def test_table_without_snapshot_totals_is_not_seen_as_empty(
    new_topic: NewTopic, connections: NewConnections, view: NewView, sql: Any
) -> None:
    topic = new_topic()
    spec = topic.spec()
    mixed(topic, 4)
    ingest(spec, connections(), "run-1")
    compact_and_expire(sql, view(spec), spec.identifier, spec.dead_letter_table)
    for name in (spec.identifier, spec.dead_letter_table):
        without_totals(connections().catalog, name)
    topic.send_ids([4, 5])
    ingest(spec, connections(), "run-2")
    view(spec).assert_exactly_once(topic.ledger)
    sql(f"ALTER TABLE {view(spec).sql_name()} SET TBLPROPERTIES ('write.delete.mode' = 'merge-on-read')")
    sql(f"DELETE FROM {view(spec).sql_name()} WHERE id = 4")
    assert view(spec).ids() == [0, 2, 5]
    assert row_count(view(spec).table) == 3


def test_rows_that_a_person_deletes_stay_deleted(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic()
    spec = topic.spec()
    topic.send_ids([0, 1, 2])
    ingest(spec, connections(), "run-1")
    view(spec).table.delete(EqualTo("id", 2))
    topic.send_ids([3])
    ingest(spec, connections(), "run-2")
    assert view(spec).ids() == [0, 1, 3]


def test_the_table_alone_is_enough_to_resume(
    new_topic: NewTopic, connections: NewConnections, view: NewView, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Consumer group, Dagster's home and the local folder are gone: catalog and warehouse are all there is."""
    topic = new_topic(2)
    spec = topic.spec()
    mixed(topic, 6, 2)
    ingest(spec, connections(), "run-1")
    topic.admin.delete_consumer_groups([spec.group])[spec.group].result(20)
    monkeypatch.setenv("KAFKA_LAKE_HOME", str(tmp_path))
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    topic.send_ids([6, 7], 2)
    assert ingest(spec, connections(), "run-2").total("records") == 2
    view(spec).assert_exactly_once(topic.ledger)


@pytest.mark.exhaustive
@pytest.mark.in_contract
@pytest.mark.parametrize("step", ["table staged", "dead letters staged", "dead letters published"])
def test_the_next_run_sweeps_the_branches_of_a_dead_one(
    step: str,
    new_topic: NewTopic,
    connections: NewConnections,
    view: NewView,
    killed_at: Any,  # noqa: F811
) -> None:
    topic = new_topic()
    spec = topic.spec()
    topic.send_ids([0])
    topic.send(b"junk")
    ingest(spec, connections(), "run-1")
    mixed(topic, 4)
    killed_at(spec, step)
    assert staging_branches(view(spec).table)
    ingest(spec, connections(), "run-2")
    view(spec).assert_no_branches()
    view(spec).assert_exactly_once(topic.ledger)
    assert data_files(view(spec).table) == {
        Path(task.file.file_path).name for task in view(spec).table.scan().plan_files()
    }


def test_publishable_branch_is_kept_until_it_is_old(
    new_topic: NewTopic, connections: NewConnections, view: NewView, spark_resource: Any
) -> None:
    topic = new_topic()
    spec = topic.spec()
    topic.send_ids([0])
    ingest(spec, connections(), "run-1")
    head = head_of(view(spec).table)
    assert head is not None
    name = branch_name("live", head)
    StagingBranch(spark_resource.spark_session, connections().catalog, spec.identifier, name, head).create()
    assert sweep(spec, connections()) == ()
    assert clean(spec, connections(), older_than_seconds=3600).branches == ()
    assert clean(spec, connections(), older_than_seconds=0).branches == (f"{'.'.join(spec.identifier)}.{name}",)
    view(spec).assert_no_branches()


@pytest.mark.exhaustive
@pytest.mark.in_contract
def test_a_live_run_survives_a_clean_up_with_the_default_age(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic()
    spec = topic.spec()
    mixed(topic, 4)
    for step in ("table staged", "dead letters staged", "audited", "dead letters published"):
        mixed(topic, 2)
        report = ingest(
            spec, connections(), "live", observer=Observer(step_done=at(step, lambda: clean(spec, connections())))
        )
        assert len(report.commits) == 1, step
    view(spec).assert_exactly_once(topic.ledger)


@pytest.mark.in_contract
def test_clean_removes_only_files_outside_all_snapshots(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic()
    spec = topic.spec()
    for number in range(2):
        topic.send_ids([number])
        ingest(spec, connections(), f"run-{number}")
    see = view(spec)
    location = see.table.location()
    stray = {f"{location}/data/00000-stray.parquet", f"{location}/metadata/stray-m0.avro"}
    for path in stray:
        with see.table.io.new_output(path).create() as file:
            file.write(b"left by a run that was killed in the middle of its write")
    before = files(see.table)
    assert clean(spec, connections()).files == ()
    time.sleep(0.01)
    removed = clean(spec, connections(), older_than_seconds=0).files
    assert set(map(in_its_folder(location), removed)) == set(map(in_its_folder(location), stray))
    assert before - files(see.table) == set(map(in_its_folder(location), stray))
    see.assert_exactly_once(topic.ledger)
    assert len(list(ancestors(see.table, head_of(see.table)))) == 3
    topic.send_ids([2])
    ingest(spec, connections(), "after")
    see.assert_exactly_once(topic.ledger)


@pytest.mark.exhaustive
@pytest.mark.in_contract
def test_only_unpublished_staged_snapshots_are_removed(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic()
    # By default it is five days.
    spec = topic.spec(table_properties={"history.expire.max-snapshot-age-ms": "1"}, dead_letters="fail")
    for number in range(3):
        topic.send_ids([number])
        ingest(spec, connections(), f"run-{number}")
    before = view(spec).fingerprint()
    topic.send_ids([3])
    topic.send(b"broken")
    with pytest.raises(AuditFailedError):
        ingest(spec, connections(), "run-3")
    view(spec).assert_no_branches()
    assert view(spec).fingerprint() == before
