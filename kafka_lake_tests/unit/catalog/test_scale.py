"""What a table costs once it is old: five thousand snapshots, as an hour and a half at one commit a second makes."""

import json
import sqlite3
from copy import deepcopy
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata, TableMetadataV2, new_table_metadata
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.sorting import SortOrder

from kafka_lake.catalog.lake_catalog import LakeCatalog
from kafka_lake.catalog.positions import POSITION, ancestors, head_of, read_state
from kafka_lake.catalog.pyiceberg_compat.loading import keep, parse_by
from kafka_lake.catalog.tables import ensure_table, schema_of
from kafka_lake.common import environment
from kafka_lake.common.offsets import Position, TopicIdentity

SNAPSHOTS = 5_000
NAME = ("it", "old")


def add_snapshots(home: Path, table: Table, count: int) -> None:
    """Write metadata in which the table's last snapshot is followed by so many others, and let the catalog know."""
    file = Path(table.metadata_location.removeprefix("file://"))
    metadata = json.loads(file.read_text())
    last = metadata["snapshots"][-1]
    identity = TopicIdentity("c" * 22, "t" * 22, "orders")
    for number in range(1, count + 1):
        position = Position(identity, dict.fromkeys(range(6), number))
        snapshot = {
            **last,
            "snapshot-id": number,
            "parent-snapshot-id": metadata["refs"]["main"]["snapshot-id"],
            "sequence-number": metadata["last-sequence-number"] + 1,
            "timestamp-ms": metadata["last-updated-ms"] + 1,
            "summary": {**last["summary"], POSITION: position.to_json()},
        }
        metadata["snapshots"].append(snapshot)
        metadata["snapshot-log"].append({key: snapshot[key] for key in ("snapshot-id", "timestamp-ms")})
        metadata["last-sequence-number"] += 1
        metadata["last-updated-ms"] += 1
        metadata["refs"]["main"]["snapshot-id"] = metadata["current-snapshot-id"] = number
    grown = file.with_name("grown.metadata.json")
    grown.write_text(json.dumps(metadata))
    with sqlite3.connect(home / "catalog.db") as database:
        database.execute("UPDATE iceberg_tables SET metadata_location = ?", (f"file://{grown}",))


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> LakeCatalog:
    home = tmp_path_factory.mktemp("old")
    uri = f"sqlite:///{home / 'catalog.db'}"
    catalog = LakeCatalog("lake", {"type": "sql", "uri": uri, "warehouse": f"file://{home / 'warehouse'}"})
    table = ensure_table(catalog, NAME, schema_of(pa.schema([("id", pa.int64())])))
    add_snapshots(home, table, SNAPSHOTS)
    return catalog


def loaded(catalog: LakeCatalog) -> Table:
    table = catalog.table(NAME)
    assert table is not None
    return table


@pytest.mark.slow
def test_a_commit_to_an_old_table_copies_none_of_its_snapshots(catalog: LakeCatalog) -> None:
    table = loaded(catalog)
    before, had = head_of(table), table.metadata.snapshots
    table.append(pa.Table.from_pydict({"id": [1]}))
    # PyIceberg by itself copies each of them more than a dozen times.
    assert all(new is old for new, old in zip(table.metadata.snapshots, had, strict=False))
    after = loaded(catalog)
    newest = list(ancestors(after, head_of(after)))
    assert len(newest) == SNAPSHOTS + 2
    assert newest[1].snapshot_id == before


def test_the_whole_history_of_an_old_table_is_walked_without_looking_its_snapshots_up(
    catalog: LakeCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = loaded(catalog)
    asked: list[int] = []
    # Each of PyIceberg's look-ups goes through all.
    monkeypatch.setattr(TableMetadataV2, "snapshot_by_id", lambda _metadata, snapshot: asked.append(snapshot))
    assert len(list(ancestors(table, head_of(table)))) > SNAPSHOTS
    assert not asked


def test_an_unchanged_table_is_parsed_once_and_a_changed_one_again(catalog: LakeCatalog) -> None:
    first, second = loaded(catalog), loaded(catalog)
    assert second.metadata == first.metadata
    assert all(one is other for one, other in zip(first.metadata.snapshots, second.metadata.snapshots, strict=True))
    second.append(pa.Table.from_pydict({"id": [2]}))
    third = loaded(catalog)
    assert head_of(third) == head_of(second) != head_of(first)
    state = read_state(third)
    assert state.position is not None
    assert state.position.offsets[0] == SNAPSHOTS


def test_what_is_changed_on_one_handle_is_in_no_other_and_is_not_committed(catalog: LakeCatalog) -> None:
    one = loaded(catalog)
    one.metadata.properties["mine"] = "yes"
    one.metadata.refs.clear()
    one.metadata.snapshots.clear()
    one.metadata.snapshot_log.clear()
    one.metadata.schemas.clear()
    other = loaded(catalog)
    assert "mine" not in other.metadata.properties
    assert other.metadata.refs
    assert len(other.metadata.snapshots) > SNAPSHOTS
    assert len(other.metadata.snapshot_log) > SNAPSHOTS
    assert other.metadata.schemas
    with other.transaction() as transaction:
        transaction.set_properties({"theirs": "yes"})
    text = Path(loaded(catalog).metadata_location.removeprefix("file://")).read_text()
    assert {"theirs"} == {"mine", "theirs"} & json.loads(text)["properties"].keys()


def test_pyiceberg_itself_stays_as_it_is(catalog: LakeCatalog) -> None:
    assert catalog.table(NAME) is not None
    theirs = load_catalog("lake", **catalog.properties)
    one, other = theirs.load_table(NAME), theirs.load_table(NAME)
    newest, its_twin = one.current_snapshot(), other.current_snapshot()
    assert type(newest) is Snapshot
    assert newest == its_twin
    assert newest is not its_twin
    assert deepcopy(newest) is not newest


@pytest.mark.slow
def test_the_switch_leaves_all_to_pyiceberg(catalog: LakeCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(environment.METADATA_CACHE.name, "off")
    table = loaded(LakeCatalog("lake", catalog.properties))
    assert type(table.metadata.snapshots[0]) is Snapshot
    assert table.metadata == loaded(catalog).metadata
    assert table.metadata.model_dump_json() == loaded(catalog).metadata.model_dump_json()


def test_full_cache_is_emptied_for_the_next_table() -> None:
    schema = pa.schema([("id", pa.int64())])
    metadata = new_table_metadata(schema_of(schema), PartitionSpec(), SortOrder(), "file:///nowhere")
    large = metadata.model_copy(update={"snapshots": [object()] * 30_000})
    newest: dict[tuple[str, ...], tuple[str, TableMetadata]] = {}
    for number in range(3):
        keep(newest, (f"table{number}",), "file:///nowhere/0.metadata.json", large)
    assert list(newest) == [("table2",)]


def test_what_is_known_of_a_table_spares_most_of_the_next_parse(catalog: LakeCatalog) -> None:
    known = loaded(catalog).metadata
    table = loaded(catalog)
    table.append(pa.Table.from_pydict({"id": [3]}))
    text = Path(table.metadata_location.removeprefix("file://")).read_text()
    spared = parse_by(known, text)
    assert spared == TableMetadataV2.model_validate_json(text)
    assert all(new is old for new, old in zip(spared.snapshots, known.snapshots, strict=False))
    assert all(new is old for new, old in zip(spared.snapshot_log, known.snapshot_log, strict=False))


def test_a_snapshot_of_the_same_id_with_other_files_is_not_taken_for_the_known_one(catalog: LakeCatalog) -> None:
    table = loaded(catalog)
    document = json.loads(Path(table.metadata_location.removeprefix("file://")).read_text())
    document["snapshots"][0]["manifest-list"] = "file:///elsewhere.avro"
    other = parse_by(table.metadata, json.dumps(document))
    assert other.snapshots[0].manifest_list == "file:///elsewhere.avro"
    assert other.snapshots[1] is table.metadata.snapshots[1]
