"""DuckDB's own reader of Iceberg tables, `iceberg_scan`, reads a topic's table value by value, after deletes too.

The reader is an extension of one version of DuckDB, older than the one that the tests have. `Table.to_duckdb` is
something else: PyIceberg reads, and hands over Arrow.
"""

import json
import subprocess
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from pyiceberg.manifest import DataFileContent
from pyiceberg.table import Table

from kafka_lake.ingest.run import ingest
from kafka_lake.runtime.context import Connections
from kafka_lake.spec.topic_table import TopicTable
from kafka_lake_tests.conftest import Topic, View
from kafka_lake_tests.contract.readers import readers_python
from kafka_lake_tests.written_by import by

pytestmark = [
    pytest.mark.integration,
    pytest.mark.contract,
    pytest.mark.in_contract,
    pytest.mark.pairs("sqlite_files", "postgres_s3", "rest_s3"),
]

_VERSION = "1.5.5"
_EXTENSIONS = ("avro", "httpfs", "iceberg")
_READ = """
import importlib.util, json, sys
from pathlib import Path
import duckdb
asked = json.load(sys.stdin)
connection = duckdb.connect(config={"autoinstall_known_extensions": False})
for name in asked["extensions"]:
    (folder,) = importlib.util.find_spec(f"duckdb_extension_{name}").submodule_search_locations
    (file,) = Path(folder).glob("extensions/*/*.duckdb_extension")
    connection.execute(f"LOAD '{file}'")
if asked["secret"]:
    options = ", ".join(f"{name} '{value}'" for name, value in asked["secret"].items())
    connection.execute(f"CREATE SECRET (TYPE s3, URL_STYLE 'path', USE_SSL false, {options})")
query = f"SELECT {asked['columns']} FROM iceberg_scan('{asked['metadata']}') WHERE {asked['condition']}"
print(json.dumps([connection.sql("SELECT version()").fetchall()[0][0], connection.sql(query).fetchall()], default=str))
"""
_BEGIN = datetime(2025, 12, 31, 22, 0, 0, 123456, tzinfo=UTC)
_COLUMNS = "id bigint, store int, city string, price decimal(9,2), day date, moment timestamp, tags array<string>"
_ASKED = "id, store, city, price, day, epoch_us(moment), tags, _kafka.partition, _kafka.offset"


def _scan(table: Table, condition: str = "true", columns: str = _ASKED) -> list[list[Any]]:
    """Return what DuckDB finds in a table, sorted."""
    properties: Mapping[str, str] = table.io.properties
    secret = {}
    if "s3.endpoint" in properties:
        names = {"KEY_ID": "access-key-id", "SECRET": "secret-access-key", "REGION": "region"}
        secret = {name: properties[f"s3.{key}"] for name, key in names.items()}
        secret["ENDPOINT"] = properties["s3.endpoint"].removeprefix("http://")
    asked = {
        "extensions": _EXTENSIONS,
        "secret": secret,
        "columns": columns,
        "metadata": table.metadata_location,
        "condition": condition,
    }
    done = subprocess.run(
        [readers_python(), "-I", "-c", _READ], input=json.dumps(asked), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    version, rows = json.loads(done.stdout)
    assert version == f"v{_VERSION}"
    return sorted(rows)


def _send(topic: Topic, ids: Sequence[int]) -> dict[int, list[Any]]:
    """Produce a record for each id, and return the rows that they shall be."""
    rows = {}
    for number in ids:
        at = _BEGIN + timedelta(minutes=37 * number, microseconds=number)
        price, tags = Decimal(number * 101 - 500) / 100, ["ä", ""][: number % 3]
        value = {"id": number, "store": number % 7 - 3, "city": ["Zürich", "Rom", None][number % 3]}
        times = {"day": at.date().isoformat(), "moment": at.isoformat()}
        sent = topic.send({**value, **times, "price": float(price), "tags": tags}, number % 2)
        microseconds = (at - datetime.fromtimestamp(0, UTC)) // timedelta(microseconds=1)
        cells = [*value.values(), f"{price:.2f}", times["day"], microseconds, tags]
        rows[number] = [*cells, sent.partition, sent.offset]
    return rows


@pytest.mark.parametrize("arrow", [True, False], ids=["by Arrow", "by Spark"])
@pytest.mark.parametrize("partition_by", [(), ("day(moment)", "bucket(4, id)")], ids=["unpartitioned", "partitioned"])
def test_iceberg_scan_finds_each_value_before_and_after_deletes(
    new_topic: Callable[..., Topic],
    connections: Callable[[], Connections],
    view: Callable[[TopicTable], View],
    partition_by: tuple[str, ...],
    arrow: bool,
) -> None:
    topic = new_topic(2)
    properties = {"write.delete.mode": "merge-on-read"}
    spec = topic.spec(_COLUMNS, partition_by=partition_by, **by(arrow), table_properties=properties)
    rows = _send(topic, range(60))
    ingest(spec, connections(), "run-1")
    rows |= _send(topic, range(60, 80))
    ingest(spec, connections(), "run-2")
    assert _scan(view(spec).table) == sorted(rows.values())
    late = [row for row in rows.values() if row[4] >= "2026-01-01"]
    assert 0 < len(late) < len(rows)
    assert _scan(view(spec).table, "day >= DATE '2026-01-01'") == sorted(late)

    connections().spark().sql(f"DELETE FROM {view(spec).sql_name()} WHERE id % 5 = 1")
    table = view(spec).table
    deletes = [file.content for task in table.scan().plan_files() for file in task.delete_files]
    assert set(deletes) == {DataFileContent.POSITION_DELETES}
    assert _scan(table) == sorted(row for number, row in rows.items() if number % 5 != 1)


def test_iceberg_scan_reads_history_and_current_versions(
    new_topic: Callable[..., Topic],
    connections: Callable[[], Connections],
    view: Callable[[TopicTable], View],
) -> None:
    topic = new_topic(2)
    spec = topic.spec("id bigint, at bigint, v string", write="history", key=("id",), order_by=("at",),
                      delete_when="v = 'gone'")  # fmt: skip
    # The second batch comes late: it splits and rewrites what the first one left.
    for number, start in enumerate((0, 1)):
        for at in range(start, 40, 2):
            for key in range(5):
                value = {"id": key, "at": at, "v": "gone" if at == 39 and key == 4 else f"v {at // 3}"}
                topic.send(value, number)
        ingest(spec, connections(), f"run-{number}")
    table = view(spec).table
    assert {file.content for task in table.scan().plan_files() for file in task.delete_files} == {
        DataFileContent.POSITION_DELETES
    }
    columns = "id, v, valid_from, valid_to"
    current = [[key, "v 13", 39, None] for key in range(4)]
    assert _scan(table, "valid_to IS NULL", columns) == current
    ended = [[key, f"v {at // 3}", at, at + 1] for key in range(5) for at in range(39)]
    assert _scan(table, "valid_to IS NULL OR valid_from < valid_to", columns) == sorted(ended + current)
    assert _scan(table, "valid_from <= 20 AND valid_to > 20", columns) == [[key, "v 6", 20, 21] for key in range(5)]
