"""Tables of format version 3, of which PyIceberg writes no metadata and no manifests by itself."""

import io
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import fastavro
import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient

from kafka_lake.catalog.positions import ancestors, head_of
from kafka_lake.devstack.servers import EmbeddedRegistry
from kafka_lake.ingest.run import ingest, replay, replay_dead_letters
from kafka_lake.kafka.registry import SchemaRegistry
from kafka_lake.runtime.context import Connections, Observer
from kafka_lake.runtime.plan import ReplayRange
from kafka_lake.spec.topic_table import TopicTable
from kafka_lake_tests.conftest import Topic, View
from kafka_lake_tests.exhaustive import exhaustive

pytestmark = pytest.mark.integration

NewTopic = Callable[..., Topic]
NewConnections = Callable[..., Connections]
NewView = Callable[[TopicTable], View]

V3 = {"format-version": "3"}
AVRO = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}, {"name": "t", "type": "string"}]}


def as_avro(schema_id: int, value: dict[str, Any]) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(AVRO), value)
    return b"\x00" + struct.pack(">I", schema_id) + out.getvalue()


@pytest.mark.in_contract
@pytest.mark.parametrize(
    ("settings", "broken"),
    [
        pytest.param({"schema": None}, b"{", id="json"),
        exhaustive(
            {"schema": "id bigint, t string", "partition_by": ("bucket(4, id)",), "sort_by": ("t desc",)},
            b"{",
            id="declared",
        ),
        exhaustive({"schema": None, "format": "avro"}, b"\x00no", id="avro"),
        exhaustive({"schema": None, "format": "string"}, b"\xff", id="string"),
        exhaustive({"schema": None, "format": "bytes"}, None, id="bytes"),
    ],
)
def test_every_format_fills_a_table(
    settings: dict[str, Any],
    broken: bytes | None,
    new_topic: NewTopic,
    connections: NewConnections,
    view: NewView,
    registry: EmbeddedRegistry,
) -> None:
    topic, schemas = new_topic(2), SchemaRegistry({"url": registry.url}, 5.0)
    client = SchemaRegistryClient({"url": registry.url})
    schema_id = int(client.register_schema(f"{topic.name}-value", Schema(json.dumps(AVRO), "AVRO")))
    spec = topic.spec(table_properties=V3, **settings)
    for run in range(2):
        for number in range(run * 10, run * 10 + 10):
            value = {"id": number, "t": f"text {number}"}
            sent = as_avro(schema_id, value) if spec.format == "avro" else json.dumps(value).encode()
            topic.send(sent, partition=number % 2)
        if broken is not None:
            topic.send(broken)
        ingest(spec, connections(schemas), f"run-{run}")
    see = view(spec)
    assert see.table.format_version == 3
    see.assert_exactly_once(topic.ledger)
    see.assert_no_branches()
    contents = {row["value"] for row in see.rows()} if spec.format in ("string", "bytes") else set()
    reported = {"string": lambda v: v.decode(), "bytes": lambda v: v}.get(spec.format)
    if reported:
        assert contents == {reported(record.value) for record in topic.ledger if record.value != broken}
    else:
        assert {(row["id"], row["t"]) for row in see.rows()} == {(n, f"text {n}") for n in range(20)}
    assert len(see.dead_letters()) == (2 if broken else 0)


@pytest.mark.exhaustive
def test_format_v3_table_survives_deletes_and_rollback(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic()
    spec = topic.spec(None, table_properties=V3 | {"write.delete.mode": "merge-on-read"})
    topic.send({"id": 1})
    ingest(spec, connections(), "run-1")
    see, made = view(spec), connections()
    first = see.table.metadata
    topic.send({"id": 2, "new": {"field": "ü"}})
    topic.send({"id": "no number"})
    ingest(spec, connections(), "run-2")
    assert {row["id"]: row["new"] for row in see.rows()} == {1: None, 2: {"field": "ü"}}
    # By Spark, with a deletion vector.
    made.spark().sql(f"DELETE FROM {see.sql_name()} WHERE id = 1")
    topic.send({"id": 3})
    ingest(spec, connections(), "run-3")
    assert see.ids() == [2, 3]
    # A rollback during a run stays.
    back, before = see.table.snapshot_by_id(head_of(see.table)).parent_snapshot_id, see.table.metadata
    topic.send({"id": 4})

    def roll_back(step: str) -> None:
        if step == "audited" and head_of(see.table) == before.current_snapshot_id:
            made.spark().sql(see.call("rollback_to_snapshot", snapshot_id=str(back)))

    ingest(spec, connections(), "run-4", observer=Observer(step_done=roll_back))
    assert before.current_snapshot_id not in {s.snapshot_id for s in ancestors(see.table, head_of(see.table))}
    assert see.ids() == [2, 3, 4]
    replay(spec, connections(), "replay", ReplayRange())
    assert see.ids() == [1, 2, 3, 4]
    topic.send({"id": 5})
    assert replay_dead_letters(spec, connections(), "dead_letter_replay").report is not None
    ingest(spec, connections(), "run-5")
    assert see.ids() == [1, 2, 3, 4, 5]
    assert [letter["offset"] for letter in see.dead_letters()] == [2]
    _assert_row_ids_are_single(made, see)
    written = json.loads(Path(urlsplit(see.table.metadata_location).path).read_text())
    assert written["next-row-id"] >= 5
    assert str(first.table_uuid) == written["table-uuid"]


def _assert_row_ids_are_single(connections: Connections, see: View) -> None:
    """Check row lineage, https://iceberg.apache.org/spec/#row-lineage, which only Spark reads."""
    rows = connections.spark().sql(f"SELECT _row_id FROM {see.sql_name()}").collect()
    ids = [row[0] for row in rows]
    assert None not in ids
    assert len(set(ids)) == len(ids)
