"""Columns in lower case and records in upper case, as SAP and Oracle write them: every value reaches its column."""

from collections.abc import Callable
from typing import Any

import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import DoubleType, NestedField, StringType, StructType

from kafka_lake.ingest.report import RunReport
from kafka_lake.ingest.run import ingest
from kafka_lake.runtime.context import Connections
from kafka_lake.spec.topic_table import TopicTable
from kafka_lake_tests.conftest import Topic, View
from kafka_lake_tests.exhaustive import exhaustive
from kafka_lake_tests.written_by import by

pytestmark = pytest.mark.integration

NewTopic = Callable[..., Topic]
NewConnections = Callable[..., Connections]
NewView = Callable[[TopicTable], View]

DECLARED = "vbeln string, netwr double, partner struct<kunnr: string>"


def values(see: View) -> list[Any]:
    rows = sorted(see.rows(), key=lambda row: row["_kafka"]["offset"])
    return [(row["vbeln"], row["netwr"], row["partner"]["kunnr"]) for row in rows]


def notes(report: RunReport) -> list[tuple[str, str, str]]:
    (finding,) = [f for f in report.findings() if f.check == "schema_evolution"]
    return [(n.column, n.what, n.why) for n in finding.changes]


@pytest.mark.parametrize("arrow", [True, exhaustive(False)])
def test_declared_columns_take_fields_in_another_case(
    arrow: bool, new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic()
    for number in range(3):
        topic.send({"VBELN": f"{number}", "NETWR": 1.5, "PARTNER": {"KUNNR": "k", "Name": "n"}, "MANDT": "100"})
    spec = topic.spec(DECLARED, **by(arrow), rules=[{"not_null": ("vbeln",)}])
    report = ingest(spec, connections(), "run-1")
    see = view(spec)
    see.assert_exactly_once(topic.ledger)
    assert values(see) == [("0", 1.5, "k"), ("1", 1.5, "k"), ("2", 1.5, "k")]
    said = "has no declared column, and had a value 3 times"
    assert notes(report) == [("MANDT", "not kept", said), ("partner.Name", "not kept", said)]


@pytest.mark.exhaustive
def test_a_declared_key_takes_fields_in_another_case(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic()
    for name, price in (("a", 1.0), ("b", 2.0), ("a", 3.0)):
        topic.send({"VBELN": name, "NETWR": price, "PARTNER": {"KUNNR": "k"}}, key=b'{"VBELN": "%s"}' % name.encode())
    topic.send(None, key=b'{"VBELN": "b"}')
    spec = topic.spec(DECLARED, write="upsert", key=("vbeln",), key_format="json", key_schema="vbeln string")
    ingest(spec, connections(), "run-1")
    assert values(view(spec)) == [("a", 3.0, "k")]


@pytest.mark.exhaustive
def test_columns_of_another_tool_take_fields_in_another_case(
    new_topic: NewTopic, connections: NewConnections, view: NewView
) -> None:
    topic = new_topic()
    spec = topic.spec(None)
    partner = StructType(NestedField(4, "kunnr", StringType()))
    made = Schema(
        NestedField(1, "vbeln", StringType(), required=True),
        NestedField(2, "netwr", DoubleType()),
        NestedField(3, "partner", partner),
    )
    connections().catalog.pyiceberg.create_table(spec.identifier, made)
    topic.send({"VBELN": "a", "NETWR": 1.5, "PARTNER": {"KUNNR": "k"}, "MANDT": "100"})
    topic.send({"vbeln": "b", "NETWR": 2.5, "partner": {"KUNNR": "l"}, "MANDT": "100"})
    ingest(spec, connections(), "run-1")
    topic.send({"VBELN": "c", "netwr": 3.5, "PARTNER": {"kunnr": "m"}, "mandt": "100"})
    ingest(spec, connections(), "run-2")
    see = view(spec)
    see.assert_exactly_once(topic.ledger)
    assert values(see) == [("a", 1.5, "k"), ("b", 2.5, "l"), ("c", 3.5, "m")]
    assert [row["MANDT"] for row in sorted(see.rows(), key=lambda row: row["_kafka"]["offset"])] == ["100"] * 3
    names = [field.name for field in see.table.schema().fields]
    assert names == ["vbeln", "netwr", "partner", "_kafka", "MANDT"]
