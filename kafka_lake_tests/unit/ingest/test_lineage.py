"""Lineage for OpenLineage: what is sent, by its own client, and what becomes of a run if nobody takes it."""

import json
import logging
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace
from typing import Any

import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType, StructType

from kafka_lake.common.processes import HOST, free_port
from kafka_lake.errors import TableError
from kafka_lake.ingest import lineage
from kafka_lake.ingest.lineage import Lineage
from kafka_lake.spec.topic_table import TopicTable

RUN = "0b0a0c0d-1111-4222-8333-444455556666"
SCHEMA = Schema(
    NestedField(1, "id", LongType(), doc="The order's number."),
    NestedField(2, "to", StructType(NestedField(3, "city", StringType()))),
    NestedField(4, "_kafka", StructType(NestedField(5, "offset", LongType()))),
)


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in [each for each in os.environ if each.startswith("OPENLINEAGE")]:
        monkeypatch.delenv(name)
    lineage.lineage_client.cache_clear()
    yield
    lineage.lineage_client.cache_clear()


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    asked: list[Any] = []

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            asked.append((self.path, self.headers["Authorization"], json.loads(body)))
            self.send_response(201)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    with HTTPServer((HOST, 0), Receiver) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("OPENLINEAGE_URL", f"http://{HOST}:{server.server_port}")
        monkeypatch.setenv("OPENLINEAGE_API_KEY", "hunter2")
        yield asked
        server.shutdown()


def context(spec: TopicTable, run_id: str = RUN) -> Any:
    table = SimpleNamespace(schema=lambda: SCHEMA, location=lambda: "s3a://lake/shop/orders")
    catalog = SimpleNamespace(name="lake", table=lambda _: table)
    cluster = SimpleNamespace(bootstrap_servers="b1:9092,b2:9092")
    connections = SimpleNamespace(catalog=catalog, cluster=cluster)
    return SimpleNamespace(spec=spec, table_name="shop.orders", run_id=run_id, connections=connections)


def commit(rows: int) -> Any:
    return SimpleNamespace(rows=rows, size=10 * rows, files=1, sides={})


def test_a_run_is_told_of_when_it_begins_and_when_it_ends(backend: list[Any]) -> None:
    spec = TopicTable("orders", "shop", "orders")
    with Lineage(context(spec)) as told:
        told.committed(spec, commit(2))
        told.committed(spec, commit(3))
    (path, key, start), (_, _, end) = backend
    assert (path, key) == ("/api/v1/lineage", "Bearer hunter2")
    assert (start["eventType"], end["eventType"]) == ("START", "COMPLETE")
    assert start["run"]["runId"] == end["run"]["runId"] != RUN
    assert end["run"]["facets"]["parent"]["run"]["runId"] == RUN
    assert end["job"] == {"namespace": "kafka_lake", "name": "ingest shop.orders", "facets": {}}
    assert [(each["namespace"], each["name"]) for each in end["inputs"]] == [("kafka://b1:9092", "orders")]
    (table,) = end["outputs"]
    assert (table["namespace"], table["name"]) == ("s3://lake", "shop/orders")
    facets = table["facets"]
    assert [(each["namespace"], each["name"]) for each in facets["symlinks"]["identifiers"]] == [
        ("iceberg://lake", "shop.orders")
    ]
    fields = {each["name"]: each for each in facets["schema"]["fields"]}
    assert (fields["id"]["type"], fields["id"]["description"]) == ("long", "The order's number.")
    assert [each["name"] for each in fields["to"]["fields"]] == ["city"]
    assert {
        name: [(i["name"], i["field"]) for i in each["inputFields"]]
        for name, each in facets["columnLineage"]["fields"].items()
    } == {"id": [("orders", "id")], "to": [("orders", "to")]}
    written = table["outputFacets"]["outputStatistics"]
    assert (written["rowCount"], written["size"], written["fileCount"]) == (5, 50, 2)
    assert "outputStatistics" not in start["outputs"][0].get("outputFacets", {})


def test_a_run_that_fails_says_why_and_quotes_nothing(backend: list[Any]) -> None:
    spec = TopicTable("orders", "shop", "orders", transform="mine:clean")
    for error in (TableError("Not this one.", "Another."), ValueError("hunter2")):
        with pytest.raises(type(error)), Lineage(context(spec, "run-1")):
            raise error
    with pytest.raises(KeyboardInterrupt), Lineage(context(spec, "run-2")):
        raise KeyboardInterrupt
    ends = [event for _, _, event in backend[1::2]]
    assert [each["eventType"] for each in ends] == ["FAIL", "FAIL", "ABORT"]
    said = [each["run"]["facets"].get("errorMessage", {}).get("message") for each in ends]
    assert said == ["Not this one.", "ValueError", None]
    assert all("parent" not in each["run"]["facets"] for each in ends)
    # Nobody knows what a transform makes of which field.
    assert all("columnLineage" not in table["facets"] for each in ends for table in each["outputs"])


def test_a_backend_that_is_not_there_fails_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name, value in {
        "TYPE": "http", "URL": f"http://{HOST}:{free_port()}", "RETRY__TOTAL": "0",
        "AUTH__TYPE": "api_key", "AUTH__APIKEY": "hunter2",
    }.items():  # fmt: skip
        monkeypatch.setenv(f"OPENLINEAGE__TRANSPORT__{name}", value)
    with caplog.at_level(logging.WARNING, lineage.__name__), Lineage(context(TopicTable("orders", "shop", "orders"))):
        pass
    assert [each.message.rpartition(":")[0] for each in caplog.records if each.name == lineage.__name__] == [
        "The OpenLineage event of topic orders was not sent"
    ] * 2
    assert "hunter2" not in caplog.text


def test_nobody_asks_and_nothing_is_sent(monkeypatch: pytest.MonkeyPatch, backend: list[Any]) -> None:
    monkeypatch.setenv("OPENLINEAGE_DISABLED", "true")
    with Lineage(context(TopicTable("orders", "shop", "orders"))):
        pass
    for name in ("OPENLINEAGE_URL", "OPENLINEAGE_API_KEY", "OPENLINEAGE_DISABLED"):
        monkeypatch.delenv(name)
    lineage.lineage_client.cache_clear()
    with Lineage(context(TopicTable("orders", "shop", "orders"))):
        pass
    assert not backend


def test_a_run_without_the_package_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OPENLINEAGE_URL", f"http://{HOST}:{free_port()}")
    monkeypatch.setattr(lineage, "find_spec", lambda _: None)
    with caplog.at_level(logging.WARNING, lineage.__name__):
        assert lineage.lineage_client() is None
    assert "pip install 'kafka-lake[openlineage]'" in caplog.text
