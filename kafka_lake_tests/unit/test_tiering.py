"""Old files move to another location: rows and positions stay as they are, whatever fails. Real tables, no Spark."""

import os
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.table.snapshots import Operation
from pyiceberg.transforms import DayTransform

from kafka_lake.common.errors import TableError
from kafka_lake.common.offsets import Position, TopicIdentity
from kafka_lake.ingest.connections import Connections
from kafka_lake.ingest.maintenance.clean import clean
from kafka_lake.ingest.maintenance.maintain import maintain, sentence
from kafka_lake.ingest.maintenance.needed import due, files_to_move, preview
from kafka_lake.ingest.maintenance.tables import Tables
from kafka_lake.ingest.topic_table import TopicTable
from kafka_lake.lake.branches import StagingBranch
from kafka_lake.lake.maintenance import cold_copies as copies_module
from kafka_lake.lake.maintenance import tier as tier_module
from kafka_lake.lake.maintenance.cold_place import copy_path, place_of, refuse_place, within
from kafka_lake.lake.maintenance.compact import _conditions
from kafka_lake.lake.maintenance.health import commits_since_compaction, compacts
from kafka_lake.lake.maintenance.settings import Maintenance, Tier
from kafka_lake.lake.maintenance.tiered import TIERED, Tiered, tiered_of, why_tier
from kafka_lake.lake.positions import OTHERS, POSITION, summary_of
from kafka_lake.lake.snapshot_log import snapshot_log
from kafka_lake.lake.tables.create import ensure_table, schema_of

SPEC = TopicTable("pizzas", "pizza", "orders")
NOW = datetime.now(UTC).replace(tzinfo=None)
OLD, NEW = NOW - timedelta(days=40), NOW - timedelta(days=1)
POSITIONS = {POSITION: Position(TopicIdentity("c", "id", "pizzas"), {0: 4}).to_json(), OTHERS: "[]"}


def no_spark():
    raise AssertionError("nothing here needs Spark")


class FakeSpark:
    """Where a branch is taken away: what was staged on it stays, which is more than it would be."""

    def sql(self, _statement):
        return self

    def collect(self):
        return []


def rows(*times, first=0):
    ids = pa.array(range(first, first + len(times)), pa.int64())
    return pa.table({"id": ids, "at": pa.array(times, pa.timestamp("us"))})


@pytest.fixture
def lake(catalog, tmp_path):
    """A catalog with a table of three files: all rows old, some, none; and the settings that move the first."""
    catalog.ensure_namespace("pizza")
    tier = Tier(after="30d", location=f"file://{tmp_path}/cold")
    spec = replace(SPEC, maintenance=Maintenance(tier=tier, by="at", compact_every=None, expire_after=None))
    table = ensure_table(catalog, SPEC.identifier, schema_of(rows(OLD).schema))
    table.append(rows(OLD, OLD))
    table.append(rows(OLD, NEW, first=2))
    table.append(rows(NEW, first=4), snapshot_properties=POSITIONS)
    return catalog, spec, table


def moved(lake, spark=no_spark):
    catalog, spec, _ = lake
    return maintain(spec, Tables(catalog, spark, "run-7"))


def moved_again(lake, spark=FakeSpark, before_ms=None):
    """Move what is old, though it may not be due yet."""
    catalog, spec, _ = lake
    asked = files_to_move(spec, spec.identifier, int(time.time() * 1000))
    asked = replace(asked, before_ms=before_ms) if before_ms else asked
    return tier_module.move_old_files(spark, catalog, spec.identifier, asked, "again")


def content(table):
    return sorted(table.refresh().scan().to_arrow().to_pylist(), key=lambda each: each["id"])


def paths(table):
    return sorted(each.file.file_path for each in table.refresh().scan().plan_files())


def local(path):
    return Path(path.removeprefix("file://"))


def test_the_old_file_moves_and_the_table_is_as_it_was(lake, tmp_path):
    catalog, spec, table = lake
    before, files = content(table), paths(table)
    bytes_before = {local(each).name: local(each).read_bytes() for each in files}
    commits = commits_since_compaction(table)
    (shown,) = preview(spec, Tables(catalog, no_spark))
    assert (shown.due.needs.reasons, shown.moved.files) == (("files older than 30d",), 1)
    (done,) = moved(lake)
    assert content(table) == before
    cold = [each for each in paths(table) if within(each, str(tmp_path / "cold"))]
    (there,) = cold
    assert len(paths(table)) == 3
    (gone,) = set(files) - set(paths(table))
    # Byte by byte, below a folder of the table's own, by a name that no earlier copy has.
    assert local(there).read_bytes() == bytes_before[local(gone).name]
    assert f"cold/pizza.orders-{table.metadata.table_uuid}/data/" in there
    assert there.endswith(f"-{local(gone).name}")
    assert local(gone).exists(), "earlier snapshots have it"
    head = table.current_snapshot()
    assert head.summary.operation is Operation.REPLACE
    assert {key: summary_of(head)[key] for key in POSITIONS} == POSITIONS
    # It is no compaction: the next one comes when it would have come.
    assert not compacts(head)
    assert commits_since_compaction(table) == commits + 1
    assert [(each.what, each.run_id, each.rows_added, each.rows_deleted) for each in snapshot_log(table)[:1]] == [
        ("files moved", "run-7", 0, 0)
    ]
    assert set(table.metadata.refs) == {"main"}
    assert (done.moved.files, done.moved.size) == (1, len(bytes_before[local(gone).name]))
    assert "1 file, 0.0 MiB, moved to file://" in sentence(done)
    assert (done.after.tiered_files, done.after.tiered_size) == (1, done.moved.size)
    # Nothing is left to be done, whoever asks.
    assert moved(lake) == []
    assert moved_again(lake, before_ms=10**13).files == 2, "with a later limit, the others follow"
    assert content(table) == before
    assert due(spec, Tables(catalog, no_spark))[0].needs.health.tiered_files == 3


def test_rows_of_a_file_that_was_moved_expire_as_others_do(lake):
    catalog, spec, table = lake
    moved(lake)
    (cold,) = [each for each in paths(table) if "/cold/" in each]
    policy = replace(spec.maintenance, keep_rows="35d")
    table.refresh()
    table.delete("id = 2")
    maintain(replace(spec, maintenance=policy), Tables(catalog, no_spark))
    assert [each["id"] for each in content(table)] == [3, 4]
    assert cold not in paths(table)


def test_orphans_of_both_places_go_and_nothing_that_is_needed(lake, tmp_path, monkeypatch):
    """A run is killed between copying and committing, and a second one moves the file."""
    catalog, spec, table = lake
    before = content(table)

    def killed(*_arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(StagingBranch, "create", killed)
        with pytest.raises(KeyboardInterrupt):
            moved(lake)
    (left,) = (tmp_path / "cold").rglob("*.parquet")
    assert content(table) == before
    moved(lake)
    assert len(list((tmp_path / "cold").rglob("*.parquet"))) == 2
    stray = local(table.location()) / "data" / "stray.parquet"
    stray.write_bytes(b"left")
    # What was moved is as old as what was left.
    for path in (*(tmp_path / "cold").rglob("*"), *local(table.location()).rglob("*")):
        os.utime(path, (time.time() - 9 * 86_400,) * 2)
    files = clean(spec, Connections(None, {}, catalog, no_spark), older_than_seconds=-1).files
    assert sorted(files) == sorted([str(left), str(stray)])
    assert content(table) == before
    for snapshot in table.metadata.snapshots:
        table.scan(snapshot_id=snapshot.snapshot_id).to_arrow()
    # Another table at the place of this one's old files doesn't take them for its own orphans.
    other = catalog.pyiceberg.create_table(("pizza", "other"), rows(OLD).schema, location=str(tmp_path / "cold"))
    other.append(rows(NEW))
    of_other = replace(spec, table="other")
    assert clean(of_other, Connections(None, {}, catalog, no_spark), older_than_seconds=-1).files == ()
    assert content(table) == before


@pytest.mark.parametrize("others", ["append", "replace"])
def test_a_commit_of_others_in_between_has_it_planned_again_without_copying_again(lake, monkeypatch, others):
    catalog, spec, table = lake
    publish, copied = StagingBranch.publish, []
    copy = copies_module._copy

    def counted(*arguments):
        copied.append(arguments[1].file_path)
        return copy(*arguments)

    def raced(self, *arguments):
        if len(copied) == 1 and not raced_already:
            raced_already.append(True)
            now = catalog.table(spec.identifier)
            now.append(rows(NEW, first=9)) if others == "append" else now.delete("id = 1")
        return publish(self, *arguments)

    raced_already: list[bool] = []
    monkeypatch.setattr(copies_module, "_copy", counted)
    monkeypatch.setattr(StagingBranch, "publish", raced)
    (done,) = moved(lake, spark=FakeSpark)
    assert done.moved.files == 1
    if others == "append":
        assert [each["id"] for each in content(table)] == [0, 1, 2, 3, 4, 9]
        assert len(copied) == 1
    else:
        assert [each["id"] for each in content(table)] == [0, 2, 3, 4]
        assert len(copied) == 2, "it is another file"
    assert set(table.metadata.refs) == {"main"}


def test_what_is_committed_while_files_are_copied_costs_no_attempt(lake, monkeypatch):
    catalog, spec, table = lake
    copy, create, made = copies_module._copy, StagingBranch.create, []

    def slow(*arguments):
        catalog.table(spec.identifier).append(rows(NEW, first=9))
        return copy(*arguments)

    monkeypatch.setattr(copies_module, "_copy", slow)
    monkeypatch.setattr(StagingBranch, "create", lambda self: (made.append(self.name), create(self)))
    (done,) = moved(lake)
    assert done.moved.files == 1
    assert len(made) == 1
    assert [each["id"] for each in content(table)] == [0, 1, 2, 3, 4, 9]


def test_copies_that_somebody_took_away_with_their_branch_are_made_again(lake, monkeypatch):
    catalog, spec, table = lake
    before, publish = content(table), StagingBranch.publish
    attempts: list[int] = []

    def swept(self, *arguments):
        attempts.append(1)
        if len(attempts) == 1:
            now = catalog.table(spec.identifier)
            now.append(rows(NEW, first=9))
            staged = now.refresh().metadata.refs[self.name].snapshot_id
            now.manage_snapshots().remove_branch(self.name).commit()
            now.refresh().maintenance.expire_snapshots().by_id(staged).commit()
            for each in Path(spec.maintenance.tier.location.removeprefix("file://")).rglob("*.parquet"):
                each.unlink()
        return publish(self, *arguments)

    monkeypatch.setattr(StagingBranch, "publish", swept)
    (done,) = moved(lake, spark=FakeSpark)
    assert done.moved.files == 1
    assert content(table) == [*before, {"id": 9, "at": NEW}]


@pytest.mark.parametrize("moment", range(6))
def test_a_kill_at_any_moment_leaves_the_table_right_and_the_next_run_does_the_rest(lake, monkeypatch, moment):
    catalog, spec, table = lake
    before, steps = content(table), []

    def dying(of, name, after):
        do = getattr(of, name)

        def step(*arguments, **named):
            at = len(steps)
            steps.append(name)
            if at == moment and not after:
                raise KeyboardInterrupt
            done = do(*arguments, **named)
            if at == moment:
                raise KeyboardInterrupt
            return done

        return step

    with monkeypatch.context() as patch:
        patch.setattr(tier_module._Move, "_remember", dying(tier_module._Move, "_remember", after=True))
        patch.setattr(copies_module, "_copy", dying(copies_module, "_copy", after=True))
        for name in ("create", "replace_by_copies", "publish"):
            patch.setattr(StagingBranch, name, dying(StagingBranch, name, after=True))
        patch.setattr(StagingBranch, "discard", lambda _: None)
        with pytest.raises(KeyboardInterrupt):
            moved(lake)
    assert steps == ["_remember", "_copy", "create", "replace_by_copies", "publish", "_remember"][: moment + 1]
    assert content(table) == before
    moved_again(lake)
    assert content(table) == before
    assert tiered_of(table.refresh()).files == 1
    clean(spec, Connections(None, {}, catalog, FakeSpark), older_than_seconds=-1)
    assert content(table) == before


def test_files_of_others_with_one_name_in_several_folders_are_moved_and_one_that_is_there_twice_stays(lake, tmp_path):
    _, spec, table = lake
    files = [tmp_path / "hive" / f"day={day}" / "part-0.parquet" for day in range(4)]
    for day, file in enumerate(files):
        file.parent.mkdir(parents=True)
        pq.write_table(rows(OLD, first=10 + day), file)
    table.add_files([f"file://{each}" for each in files])
    table.refresh().add_files([f"file://{files[0]}"], check_duplicate_files=False)
    before = content(table)
    (done,) = moved(lake)
    assert done.moved.files == 4
    assert content(table) == before
    assert [each for each in paths(table) if not within(each, spec.maintenance.tier.location)][:2] == [
        f"file://{files[0]}"
    ] * 2


def test_files_of_an_earlier_partitioning_and_files_with_deletes_stay_and_are_told(lake, monkeypatch):
    _, spec, table = lake
    table.append(rows(OLD, first=5))
    (path, *_) = sorted(each.file.file_path for each in table.scan("id = 5").plan_files())
    monkeypatch.setattr("kafka_lake.lake.maintenance.cold_files._with_deletes", lambda _: {path})
    monkeypatch.setattr("kafka_lake.lake.maintenance.cold_files._has_deletes", lambda _: True)
    (done,) = moved(lake)
    assert (done.moved.files, done.moved.with_deletes) == (1, 1)
    assert path in paths(table)
    assert "1 old files stay until a compaction has taken their deleted rows out" in sentence(done)
    monkeypatch.undo()
    with table.refresh().update_spec() as update:
        update.add_field("at", DayTransform(), "day")
    again = moved_again(lake)
    assert (again.files, again.of_other_spec) == (0, 1)
    table.refresh().append(rows(OLD, first=6))
    assert moved_again(lake).files == 1
    (new,) = [each for each in paths(table) if "/day=" in each]
    assert within(new, spec.maintenance.tier.location)


@pytest.mark.parametrize(
    ("location", "said"),
    [
        ("s3://cold/lake", r"is on s3, and the table's files are on file"),
        ("{table}/data/cold", r"is inside .*, where the table's new files go"),
        ("{table}", r"is inside .*, where the table's new files go"),
        ("file://{folder}//{inside}/data", r"isn't plain, because of './/'"),
        ("file://{folder}/x/../{inside}/data", r"isn't plain, because of '/\.\./'"),
        ("file://{folder}/cold?region=eu", r"isn't plain, because of '\?'"),
        ("file://cold/lake", "isn't plain, because of 'file://c'"),
        ("FILE://{folder}/cold", "isn't plain, because of 'FILE:'"),
        ("file:///proc/nothing/here", r"its files can't be copied to file:///proc/nothing/here/pizza"),
    ],
)
def test_a_location_that_can_t_be_is_refused_and_nothing_moves(lake, location, said):
    catalog, spec, table = lake
    folder, name, inside = table.location().removeprefix("file://").partition("warehouse")
    told = location.format(table=table.location(), folder=folder.rstrip("/"), inside=f"{name}{inside}")
    policy = replace(spec.maintenance, tier=Tier(after="30d", location=told))
    before = paths(table)
    with pytest.raises(TableError, match=rf"Table pizza\.orders: .*{said}"):
        maintain(replace(spec, maintenance=policy), Tables(catalog, no_spark))
    assert paths(table) == before


def test_a_location_that_a_link_puts_among_new_files_is_refused(lake, tmp_path):
    catalog, spec, table = lake
    folder, _, inside = table.location().removeprefix("file://").partition("/warehouse")
    (tmp_path / "link").symlink_to(Path(folder) / "warehouse")
    policy = replace(spec.maintenance, tier=Tier(after="30d", location=f"file://{tmp_path}/link{inside}/data"))
    before = paths(table)
    with pytest.raises(TableError, match=r"is inside .*, where the table's new files go"):
        maintain(replace(spec, maintenance=policy), Tables(catalog, no_spark))
    assert paths(table) == before


def test_a_clock_that_was_ahead_stops_neither_moves_nor_compactions(lake):
    _, spec, table = lake
    now = int(time.time() * 1000)
    moved_again(lake, before_ms=now + 365 * 86_400_000)
    assert tiered_of(table.refresh()).before_ms == 0
    table.append(rows(OLD, first=99))
    assert why_tier(table.refresh(), spec.maintenance, now)
    assert "1970-01-01" in _conditions(table)[0]["where"]
    moved_again(lake)
    assert 0 < tiered_of(table.refresh()).before_ms < now
    # What somebody wrote is no date of any calendar.
    with table.transaction() as transaction:
        transaction.set_properties({TIERED: '{"before_ms": 99999999999999999, "field": 2}'})
    assert "99999" not in str(_conditions(table.refresh()))


def test_a_file_that_cant_be_read_stays_and_the_others_move(lake):
    _, _, table = lake
    table.append(rows(OLD, first=20))
    (bad,) = [each.file.file_path for each in table.scan("id = 20").plan_files()]
    local(bad).unlink()
    with pytest.raises(TableError, match=r"1 of its files can't be copied .*; 1 others were moved\.") as refused:
        moved_again(lake)
    assert bad in str(refused.value)
    assert (len([each for each in paths(table) if "/cold/" in each]), bad in paths(table)) == (1, True)


def test_files_of_which_none_can_be_read_are_no_fault_of_the_location(lake):
    _, _, table = lake
    for path in paths(table):
        local(path).unlink()
    with pytest.raises(TableError, match=r"\d of its files can't be copied .*; 0 others were moved\.") as refused:
        moved_again(lake)
    assert "Look whether it is there" in str(refused.value)


def test_copies_that_a_clean_up_took_away_before_they_were_staged_are_made_again(lake, tmp_path, monkeypatch):
    catalog, spec, table = lake
    create, cleaned, before = StagingBranch.create, list[str](), content(table)

    def after_an_hour(self):
        for path in (tmp_path / "cold").rglob("*"):
            os.utime(path, (time.time() - 3700,) * 2)
        if not cleaned:
            cleaned.extend(clean(spec, Connections(None, {}, catalog, FakeSpark), older_than_seconds=3600).files)
        return create(self)

    monkeypatch.setattr(StagingBranch, "create", after_an_hour)
    assert moved_again(lake).files == 1
    assert len(cleaned) == 1
    assert content(table) == before


def test_a_place_that_another_move_tells_of_meanwhile_stays_known(lake, monkeypatch):
    catalog, spec, table = lake
    publish = StagingBranch.publish

    def told_meanwhile(self, *given):
        now = catalog.table(spec.identifier)
        known = tiered_of(now)
        with now.transaction() as transaction:
            transaction.set_properties({TIERED: replace(known, places=(*known.places, "file:///two/t")).to_json()})
        return publish(self, *given)

    monkeypatch.setattr(StagingBranch, "publish", told_meanwhile)
    moved_again(lake)
    assert "file:///two/t" in tiered_of(table.refresh()).places


def test_a_compaction_leaves_what_has_been_moved_alone(lake):
    *_, table = lake
    assert _conditions(table) == ({}, {})
    moved(lake)
    told = tiered_of(table.refresh())
    # Iceberg leaves a file out if, by its statistics, it has no such row: those that were moved have none.
    text = datetime.fromtimestamp(told.before_ms / 1000, UTC).replace(tzinfo=None).isoformat(" ", "milliseconds")
    hot, cold = _conditions(table)
    assert hot == {"where": rf"'`at` IS NULL OR NOT `at` < TIMESTAMP_NTZ \'{text}\''"}
    assert cold == {"where": rf"'`at` < TIMESTAMP_NTZ \'{text}\''"}
    # A column that was renamed is the same one, and of one that was dropped nothing is known.
    with table.update_schema() as update:
        update.rename_column("at", "moment")
    assert _conditions(table.refresh())[0]["where"].startswith("'`moment` IS NULL")
    with table.update_schema() as update:
        update.rename_column("moment", "event.at")
    assert _conditions(table.refresh())[0]["where"].startswith("'`event.at` IS NULL")
    with table.update_schema() as update:
        update.rename_column("event.at", "moment")
    with table.update_schema() as update:
        update.delete_column("moment")
    assert _conditions(table.refresh()) == ({}, {})


def test_version_3_and_credentials_for_one_table_alone_are_refused(lake, monkeypatch):
    *_, table = lake
    table.io.properties["s3.access-key-id"] = "vended"
    with pytest.raises(TableError, match=r"gives credentials \(s3\.access-key-id\) for the table's own location"):
        refuse_place(table, "file:///cold", {"s3.access-key-id": "own"})
    refuse_place(table, "file:///cold", {"s3.access-key-id": "vended"})
    monkeypatch.setattr(type(table), "format_version", 3)
    with pytest.raises(TableError, match="version 2 alone, and this is version 3"):
        moved(lake)


def test_a_table_keeps_its_place_by_whatever_name(lake, tmp_path):
    catalog, spec, table = lake
    moved(lake)
    (place,) = tiered_of(table.refresh()).places
    catalog.pyiceberg.rename_table(spec.identifier, ("pizza", "renamed"))
    table = catalog.table(("pizza", "renamed"))
    location = spec.maintenance.tier.location
    assert place_of(table, location, tiered_of(table).places) == place
    assert place_of(table, f"{location}/", ()) == f"{location}/pizza.renamed-{table.metadata.table_uuid}"
    assert place_of(table, location.rpartition("/")[0], [place]) != place, "the setting was changed to a folder above"
    inside = f"{table.location()}/data/day=2026-01-01/a.parquet"
    assert copy_path(table, inside, "s3://c/t", "x") == "s3://c/t/data/day=2026-01-01/x-a.parquet"
    assert copy_path(table, "s3://elsewhere/b/a.parquet", "s3://c/t", "x") == "s3://c/t/data/x-a.parquet"


@given(
    st.builds(
        Tiered,
        places=st.lists(st.text()).map(tuple),
        before_ms=st.integers(0, 1_700_000_000_000),
        field=st.integers(0, 2**31),
        files=st.integers(0),
        size=st.integers(0),
    )
)
def test_what_a_table_tells_is_read_as_it_was_written(told):
    class Told:
        properties = {TIERED: told.to_json()}  # noqa: RUF012

    assert tiered_of(Told) == told


@pytest.mark.parametrize("text", ["", "null", "[]", "{", '{"places": 3}', '{"files": "many"}', '{"files": null}'])
def test_what_cannot_be_read_tells_of_none(text):
    class Told:
        properties = {TIERED: text}  # noqa: RUF012

    assert tiered_of(Told) == Tiered()
