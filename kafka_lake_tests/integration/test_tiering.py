"""Old files move to another location while a topic is ingested: both engines read them there, nothing brings them back.

With tables in S3, that is a second bucket. What needs no Spark is in `unit/test_tiering.py`.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import boto3
import duckdb
import pytest

from kafka_lake.ingest.connections import Connections
from kafka_lake.ingest.maintenance.maintain import maintain
from kafka_lake.ingest.maintenance.needed import due
from kafka_lake.ingest.run import ingest
from kafka_lake.ingest.topic_table import TopicTable
from kafka_lake.lake.maintenance.cold_place import within
from kafka_lake.lake.maintenance.compact import compact
from kafka_lake.lake.maintenance.leftovers import dangling_deletes
from kafka_lake.lake.maintenance.settings import Maintenance, Tier
from kafka_lake.lake.maintenance.tier import OldFilesGo, move_old_files
from kafka_lake.lake.maintenance.tiered import tier_limit_ms, tiered_of
from kafka_lake_tests.conftest import Topic, View

pytestmark = [pytest.mark.integration, pytest.mark.contract, pytest.mark.in_contract]

NewTopic = Callable[..., Topic]
NewConnections = Callable[[], Connections]
NewView = Callable[[TopicTable], View]

DAY = 86_400_000
BUCKET = "cold"


def days_ago(days: float) -> int:
    return int(time.time() * 1000 - days * DAY)


@pytest.fixture
def cold(connections: NewConnections, tmp_path: Path) -> str:
    """The other location: a folder, or a second bucket where the tables are in one."""
    properties = connections().catalog.properties
    if "s3.endpoint" not in properties:
        return f"file://{tmp_path}/cold"
    store(properties).create_bucket(Bucket=BUCKET)
    return f"s3://{BUCKET}/lake"


def store(properties: Mapping[str, str]) -> "boto3.client":
    return boto3.client(
        "s3",
        endpoint_url=properties["s3.endpoint"],
        aws_access_key_id=properties["s3.access-key-id"],
        aws_secret_access_key=properties["s3.secret-access-key"],
        region_name=properties["s3.region"],
    )


def there(properties: Mapping[str, str], place: str) -> set[str]:
    """Return the names of the data files in a folder of the other location, as the storage has them."""
    if not place.startswith("s3://"):
        return {path.name for path in Path(place.removeprefix("file://")).rglob("*.parquet")}
    prefix = place.removeprefix(f"s3://{BUCKET}/")
    listed = store(properties).list_objects_v2(Bucket=BUCKET, Prefix=prefix).get("Contents", [])
    return {each["Key"].rpartition("/")[2] for each in listed}


def names(paths: set[str]) -> set[str]:
    return {each.rpartition("/")[2] for each in paths}


def files(view: View) -> set[str]:
    return {each.file.file_path for each in view.table.scan().plan_files()}


def test_old_files_move_and_nothing_brings_them_back(
    new_topic: NewTopic, connections: NewConnections, view: NewView, cold: str
) -> None:
    topic = new_topic(2)
    properties = connections().catalog.properties
    policy = Maintenance(tier=Tier(after="30d", location=cold), compact_every=None, expire_after=None)
    spec = topic.spec(
        "id bigint", maintenance=policy, table_properties={"write.delete.mode": "merge-on-read"}, arrow=True
    )
    for number, days in enumerate((60, 50, 1, 1)):
        topic.send({"id": number}, number % 2, timestamp_ms=days_ago(days))
        if number == 1:
            topic.send(b"junk", timestamp_ms=days_ago(days))
            topic.send({"id": 10}, timestamp_ms=days_ago(45))
        ingest(spec, connections(), f"commit-{number}")
    see = view(spec)
    # A row of one old file is deleted by a file of its own: that one stays, and is told.
    connections().spark().sql(f"DELETE FROM {see.sql_name()} WHERE id = 10")
    before, rows, position = files(see), see.rows(), see.position()
    assert len(before) == 4

    done = {each.identifier: each.moved for each in maintain(spec, connections())}
    assert {name: each and (each.files, each.with_deletes) for name, each in done.items()} == {
        spec.identifier: (1, 1),
        spec.dead_letter_table: (1, 0),
    }
    moved = {each for each in files(see) if within(each, cold)}
    assert len(moved) == 1
    (place,) = tiered_of(see.table).places
    assert there(properties, place) == names(moved)
    by_id = {each["id"]: each for each in rows}
    assert {each["id"]: each for each in see.rows()} == by_id
    assert see.position() == position
    assert len(see.dead_letters()) == 1
    # By engines that aren't ours.
    found = connections().spark().sql(f"SELECT id, _kafka.offset FROM {see.sql_name()} ORDER BY id").collect()
    assert [tuple(each) for each in found] == [(each, by_id[each]["_kafka"]["offset"]) for each in sorted(by_id)]
    shown = see.table.scan().to_duckdb("held", connection=duckdb.connect())
    assert shown.sql("SELECT id FROM held ORDER BY id").fetchall() == [(each,) for each in sorted(by_id)]
    assert [each.needs.reasons for each in due(spec, connections())] == [(), ()]

    # Compaction leaves it alone, and takes the others; the one with a deleted row without that row, so that it moves.
    compact(connections().spark(), connections().catalog, spec.identifier)
    assert moved < files(see)
    assert len(files(see)) == 3
    assert dangling_deletes(see.table) == 0
    limit = tier_limit_ms(policy, int(time.time() * 1000))
    asked = OldFilesGo("_kafka.timestamp", limit, cold)
    again = move_old_files(connections().spark, connections().catalog, spec.identifier, asked, run_id="again")
    assert (again.files, again.with_deletes) == (1, 0)
    assert {each["id"]: each for each in see.rows()} == by_id
    # Ingestion goes on, and new files are where new files go.
    topic.send({"id": 9}, timestamp_ms=days_ago(0))
    ingest(spec, connections(), "new")
    moved = {each for each in files(see) if within(each, cold)}
    assert len(moved) == 2
    assert len(files(see)) == 4

    # The files as they were go with their snapshots, and those that were moved when their rows expire.
    gone = replace(spec, maintenance=Maintenance(expire_after="1ms", keep_snapshots=1, compact_every=None))
    maintain(gone, connections())
    assert see.ids() == [0, 1, 2, 3, 9]
    assert there(properties, place) == names(moved)
    folder = see.table.location()
    assert not any(see.table.io.new_input(each).exists() for each in before if within(each, folder))
    expire = replace(gone, maintenance=replace(gone.maintenance, keep_rows="30d"))
    maintain(expire, connections())
    assert see.ids() == [2, 3, 9]
    maintain(gone, connections())
    assert there(properties, place) == set()
