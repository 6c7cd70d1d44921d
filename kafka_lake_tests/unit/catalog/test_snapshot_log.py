"""What a table's snapshots tell an auditor: who, when, what, which offsets, how many rows."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Summary
from pyiceberg.types import LongType
from rich.console import Console

from kafka_lake.catalog.history import Consumed, oldest_are_gone, snapshot_log
from kafka_lake.catalog.lake_catalog import LakeCatalog
from kafka_lake.catalog.positions import (
    HOST,
    KEEPS,
    LOSSES,
    POSITION,
    RUN_ID,
    USER,
    author_summary,
    offsets_of,
    removes_property,
)
from kafka_lake.cli.commands.history import commit_table, history_json, history_of, identifier_of, last_lines
from kafka_lake.common.offsets import Loss, OffsetRange, Position, TopicIdentity, losses_to_json
from kafka_lake.errors import ConfigurationError, TableError
from kafka_lake.spec.topic_table import TopicTable

ME = TopicIdentity("c", "t", "pizzas")
SPARK = {"app-id": "local-1", "engine-name": "spark", "engine-version": "4.1.3"}
Commit = Callable[..., None]


@pytest.fixture
def catalog(tmp_path: Path) -> LakeCatalog:
    made = LakeCatalog(
        "lake", {"type": "sql", "uri": f"sqlite:///{tmp_path}/c.db", "warehouse": f"file://{tmp_path}/w"}
    )
    made.ensure_namespace("pizza")
    return made


@pytest.fixture
def table(catalog: LakeCatalog) -> Table:
    return catalog.pyiceberg.create_table(("pizza", "orders"), pa.schema([pa.field("id", pa.int32())]))


@pytest.fixture
def commit(table: Table) -> Commit:
    def append(rows: int = 0, run: str = "", kind: str = "", offsets: Any = None, **more: str) -> None:
        summary = {key.replace("__", "-"): value for key, value in more.items()}
        if run:
            summary |= author_summary(run, kind) if kind else {RUN_ID: run}
        if offsets is not None:
            summary[POSITION] = Position(ME, offsets).to_json()
        table.append(pa.table({"id": pa.array(range(rows), table.schema().as_arrow().field("id").type)}), summary)
        table.refresh()

    return append


def test_each_commit_tells_who_and_what_and_which_offsets(table: Table, commit: Commit) -> None:
    commit()
    commit(5, "run-1", "append", {0: 3, 1: 2})
    commit(2, "run-2", "append", {0: 5, 1: 2, 2: 4})
    commit(1, "run-3", "dead_letter_replay", {0: 5, 1: 2, 2: 4})
    commit(0, "run-4", "reset", {0: 1, 1: 2, 2: 4})
    commit(7, **SPARK)
    found = snapshot_log(table)
    assert [(entry.what, entry.managed, entry.run_id, entry.rows_added) for entry in found] == [
        ("append", False, "", 7),
        ("reset", True, "run-4", 0),
        ("dead-letter replay", True, "run-3", 1),
        ("append", True, "run-2", 2),
        ("append", True, "run-1", 5),
        ("table created", None, "", 0),
    ]
    reported = [entry.offsets for entry in found]
    assert reported[1] == (Consumed(0, 5, 1),)
    assert reported[2] == ()
    assert reported[3] == (Consumed(0, 3, 5), Consumed(2, 0, 4))
    assert reported[4] == (Consumed(0, None, 3), Consumed(1, None, 2))
    assert found[0].engine == "spark 4.1.3, local-1"
    assert found[1].host == author_summary("", "")[HOST] != ""
    assert found[1].user == author_summary("", "")[USER] != ""
    assert [entry.snapshot_id for entry in found] == [snapshot.snapshot_id for snapshot in reversed(table.snapshots())]
    assert not oldest_are_gone(table)


def test_a_replay_tells_its_offsets_and_its_removal_of_rows_is_a_part_of_it(table: Table, commit: Commit) -> None:
    commit(3, "run-1", "append", {0: 3})
    # As Spark deletes: with its own properties alone.
    table.delete("id >= 1", {"app-id": "local-1"})
    deleting = table.refresh().current_snapshot()
    assert deleting is not None
    again = author_summary("run-2", "replace", [OffsetRange(0, 1, 3), OffsetRange(1, 4, 4)])
    again |= {**removes_property(deleting.snapshot_id), POSITION: Position(ME, {0: 3}).to_json()}
    table.append(pa.table({"id": pa.array([7, 8], pa.int32())}), again)
    # Rows that Kafka no longer has are put back, behind the position.
    replayed = table.refresh().current_snapshot()
    assert replayed is not None
    commit(1, **SPARK, **{KEEPS: str(replayed.snapshot_id)})
    table.delete("id = 8", {"app-id": "local-2"})
    # PyIceberg rewrites a file of which some rows go as a removal of it and an addition.
    others, kept, replay, *parts, _first = snapshot_log(table.refresh())
    assert (others.what, others.managed) == ("overwrite", False)
    assert (kept.what, kept.run_id, kept.rows_added) == ("part of the replay", "run-2", 1)
    assert (replay.what, replay.offsets, replay.rows_added) == ("replay", (Consumed(0, 1, 3),), 2)
    assert [(part.what, part.run_id, part.managed) for part in parts] == [("part of the replay", "run-2", True)]
    assert parts[0].rows_deleted - parts[0].rows_added == 2


def test_what_others_took_away_just_before_a_commit_of_ours_is_theirs(table: Table, commit: Commit) -> None:
    commit(3, "run-1", "append", {0: 3})
    table.delete("id = 1", {"app-id": "local-2"})
    commit(3, "run-2", "append", {0: 6}, **SPARK)
    table.delete("id = 1")
    commit(3, "run-3", "append", {0: 9})
    found = snapshot_log(table)
    assert [entry.managed for entry in found] == [True, False, True, False, True]


def test_maintenance_changes_no_rows_and_tells_nobody(table: Table, commit: Commit) -> None:
    commit(3, "run-1", "append", {0: 3})
    commit(3, **SPARK)
    commit(3, **SPARK)
    first, second, third = table.snapshots()
    replaced = {"added-records": "3", "deleted-records": "3", **SPARK}
    compacted = second.model_copy(
        update={"summary": Summary(Operation.REPLACE, **replaced, **{"deleted-data-files": "2"})}
    )
    rewritten = third.model_copy(update={"summary": Summary(Operation.REPLACE, **SPARK)})
    table.metadata = table.metadata.model_copy(update={"snapshots": [first, compacted, rewritten]})
    found = snapshot_log(table)
    assert [entry.what for entry in found] == ["rewrite", "compaction", "append"]
    assert [(entry.managed, entry.rows_added, entry.rows_deleted) for entry in found[:2]] == [(None, 0, 0)] * 2


def test_an_expired_parent_that_its_child_no_longer_names_is_known_by_the_sequence_number(
    table: Table, commit: Commit
) -> None:
    commit(1, "run-1", "append", {0: 1})
    commit(1, "run-2", "append", {0: 2})
    newest = table.snapshots()[1].model_copy(update={"parent_snapshot_id": None})
    table.metadata = table.metadata.model_copy(update={"snapshots": [newest]})
    assert oldest_are_gone(table)


def test_what_became_of_columns_and_what_was_lost_stands_beside_its_commit(table: Table, commit: Commit) -> None:
    lost = Loss(0, 5, 9, "retention")
    commit(1, "run-1", "append", {0: 5})
    with table.update_schema() as update:
        update.update_column("id", LongType())
    table.refresh()
    commit(1, "run-2", "append", {0: 12}, **{LOSSES: losses_to_json([lost])})
    commit(0, "run-3", "append", None, **{POSITION: "not a position"})
    broken, newest, first = snapshot_log(table)
    assert [str(change.kind) for change in newest.schema_changes] == ["widened"]
    assert (newest.losses, newest.note) == ((lost,), "")
    assert first.schema_changes == ()
    assert (broken.managed, broken.offsets, broken.note) == (True, (), "The snapshot's position can't be read.")


def test_what_has_expired_is_told_of(catalog: LakeCatalog, table: Table, commit: Commit) -> None:
    for number in range(5):
        commit(1, f"run-{number}", "append", {0: number + 1})
    oldest = table.snapshots()[0].snapshot_id
    all_there = history_of(catalog, ("pizza", "orders"), 3)
    assert (len(all_there.commits), all_there.older, all_there.expired) == (3, 2, False)
    assert last_lines(all_there) == [
        "2 older commits are known: --limit shows more.",
        "No snapshot of this table has expired.",
    ]
    table.maintenance.expire_snapshots().by_id(oldest).commit()
    known, gone = Loss(2, 5, 6, "retention"), Loss(1, 0, 7, "skipped")
    commit(1, "run-5", "append", {0: 9}, **{LOSSES: losses_to_json([known])})
    with table.transaction() as transaction:
        transaction.set_properties({LOSSES: losses_to_json([known, gone])})
    rest = history_of(catalog, ("pizza", "orders"), 10)
    assert (len(rest.commits), rest.older, rest.expired) == (5, 0, True)
    assert last_lines(rest) == [
        "From a commit whose snapshot has expired: partition 1 skipped offsets 0 to 6 by a reset",
        "Older snapshots have expired, so their commits are unknown.",
    ]
    assert rest.commits[-1].offsets == (Consumed(0, None, 2),)


def test_it_is_shown_and_told_to_programs(catalog: LakeCatalog, table: Table, commit: Commit) -> None:
    commit(1200, "[bold]ru\x1b[2J", "append", dict.fromkeys(range(9), 5))
    commit(3, **SPARK)
    found = history_of(catalog, ("pizza", "orders"), 10)
    console = Console(width=120, record=True)
    console.print(commit_table(found))
    text = console.export_text()
    assert "run [bold]ru" in text
    assert "\x1b[2J" not in text
    assert "another program" in " ".join(text.split())
    assert "spark 4.1.3, local-1" in " ".join(text.split())
    assert "+1,200" in text
    assert "… 3 partitions more" in text
    reported = json.loads(json.dumps(history_json(found)))
    assert reported["table"] == "pizza.orders"
    assert reported["commits"][1]["offsets"][8] == {"partition": 8, "start": None, "end": 5}
    assert [entry["what"] for entry in reported["commits"]] == ["append", "append"]
    assert reported["commits"][1]["run_id"] == "[bold]ru\x1b[2J"
    assert last_lines(found) == ["No snapshot of this table has expired."]


def test_a_table_is_found_by_its_topic_or_its_own_name() -> None:
    eu = TopicTable("orders", "shop", "orders", cluster="eu")
    us = TopicTable("orders", "shop_us", "orders", cluster="us")
    pizzas = TopicTable("pizzas", "shop", "baked", write="upsert")
    called_baked = TopicTable("baked", "shop", "fresh")
    assert identifier_of("baked", [pizzas, called_baked]) == ("shop", "fresh"), "a topic comes first"
    specs = [eu, us, pizzas]
    assert identifier_of("pizzas", specs) == identifier_of("baked", specs) == ("shop", "baked")
    assert identifier_of("shop.baked", specs) == ("shop", "baked")
    assert identifier_of("us/orders", specs) == ("shop_us", "orders")
    assert identifier_of("baked__deletes", specs) == ("shop", "baked__deletes")
    assert identifier_of("elsewhere.any", specs) == ("elsewhere", "any")
    with pytest.raises(ConfigurationError, match=r"shop\.orders or shop_us\.orders"):
        identifier_of("orders", specs)
    with pytest.raises(ConfigurationError, match=r"nothing is neither a topic .*eu/orders, us/orders, pizzas"):
        identifier_of("nothing", specs)


def test_a_table_that_is_not_there_is_an_error(catalog: LakeCatalog) -> None:
    with pytest.raises(TableError, match=r"Table pizza\.none doesn't exist"):
        history_of(catalog, ("pizza", "none"), 1)


def test_offsets_are_read_as_they_were_written() -> None:
    ranges = [OffsetRange(0, 5, 10), OffsetRange(3, 0, 1)]
    assert offsets_of(author_summary("r", "replace", ranges)["kafka-lake.offsets"]) == ranges
    assert "kafka-lake.offsets" not in author_summary("r", "append")
    with pytest.raises(ValueError):
        offsets_of("nonsense")
