"""What a table costs once it is old: five thousand snapshots, as an hour and a half at one commit a second makes."""

import json
import sqlite3
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata, TableMetadataV2

from kafka_lake.kafka.offsets import Position, TopicIdentity
from kafka_lake.lake.catalog import LakeCatalog
from kafka_lake.lake.metadata import ParsedFiles, parse_by
from kafka_lake.lake.positions import POSITION, ancestors, head_of, read_state
from kafka_lake.lake.tables import ensure_table, schema_of

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
    assert second.metadata is first.metadata
    second.append(pa.Table.from_pydict({"id": [2]}))
    third = loaded(catalog)
    assert head_of(third) == head_of(second) != head_of(first)
    state = read_state(third)
    assert state.position is not None
    assert state.position.offsets[0] == SNAPSHOTS


def test_of_the_parsed_files_those_used_last_are_kept_within_bounds(catalog: LakeCatalog) -> None:
    table = loaded(catalog)
    small = table.metadata.model_copy(update={"snapshots": table.metadata.snapshots[:3]})
    parsed: list[str] = []

    def ask(files: ParsedFiles, location: str) -> TableMetadata:
        return files.get(location, lambda: (parsed.append(location), small)[1])

    for files in (ParsedFiles(2, 100), ParsedFiles(100, 6)):
        parsed.clear()
        for location in ("a", "b", "a", "c", "a", "b"):
            assert ask(files, location) is small
        assert parsed == ["a", "b", "c", "b"]


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
