"""Many tables of a REST catalog, over a server that answers when several requests wait."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pyarrow as pa
import pytest

from kafka_lake.catalog.lake_catalog import LakeCatalog
from kafka_lake.catalog.positions import POSITION, all_positions
from kafka_lake.common.offsets import Position, TopicIdentity
from kafka_lake.errors import CatalogError

AT = Position(TopicIdentity("c", "t", "pizzas"), {0: 7})


class Waiting(BaseHTTPRequestHandler):
    """Answers the first load at once, and all others once eight of them wait: one by one they would never end."""

    metadata: dict[str, Any]
    together: threading.Barrier
    first: bool

    def do_GET(self) -> None:
        table = self.path.rpartition("/tables/")[2].partition("?")[0] if "/tables/" in self.path else ""
        if table == "missing":
            return self._answer(404, {"error": {"message": "none", "type": "NoSuchTableException", "code": 404}})
        if table == "broken":
            return self._answer(503, {"error": {"message": "down", "type": "Unavailable", "code": 503}})
        if table and Waiting.first:
            Waiting.first = False
        elif table:
            Waiting.together.wait(20)
        return self._answer(200, {"metadata-location": "file:/m", "metadata": self.metadata} if table else {})

    def _answer(self, status: int, answer: dict[str, Any]) -> None:
        body = json.dumps({"defaults": {}, "overrides": {}, **answer}).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing on standard error."""


@pytest.fixture
def rest(catalog: LakeCatalog) -> Iterator[LakeCatalog]:
    catalog.ensure_namespace("pizza")
    rows = pa.table({"id": [1]})
    table = catalog.pyiceberg.create_table(("pizza", "orders"), rows.schema)
    table.append(rows, snapshot_properties={POSITION: AT.to_json()})
    Waiting.first, Waiting.together = True, threading.Barrier(8)
    Waiting.metadata = json.loads(table.metadata.model_dump_json())
    server = ThreadingHTTPServer(("127.0.0.1", 0), Waiting)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield LakeCatalog("lake", {"type": "rest", "uri": f"http://127.0.0.1:{server.server_address[1]}"})
    server.shutdown()
    server.server_close()


@pytest.mark.slow
def test_tables_of_a_server_are_asked_for_eight_at_a_time(rest: LakeCatalog) -> None:
    asked = [("pizza", f"t{number}") for number in range(17)]
    assert all_positions(rest, asked) == {table: {AT.identity.topic: AT} for table in asked}


def test_what_is_wrong_with_one_table_is_told_of_that_one(rest: LakeCatalog) -> None:
    found = all_positions(rest, [("pizza", "missing"), ("pizza", "broken")])
    assert found["pizza", "missing"] == {}
    assert isinstance(found["pizza", "broken"], CatalogError)


def test_tables_of_a_database_are_asked_for_one_by_one(catalog: LakeCatalog) -> None:
    catalog.ensure_namespace("pizza")
    rows = pa.table({"id": [1]})
    table = catalog.pyiceberg.create_table(("pizza", "orders"), rows.schema)
    table.append(rows, snapshot_properties={POSITION: AT.to_json()})
    names = [("pizza", "orders"), ("pizza", "none")]
    assert all_positions(catalog, names) == {names[0]: {AT.identity.topic: AT}, names[1]: {}}
