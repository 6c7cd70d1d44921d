"""The registry's client raises errors of the HTTP library that it has imported, which differs by its version."""

import sys

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient

from kafka_lake.kafka.registry import http_errors


def test_the_registrys_client_has_imported_a_library_whose_errors_are_known() -> None:
    SchemaRegistryClient({"url": "http://127.0.0.1:1"})
    for name in ("HTTPError", "HTTPStatusError", "InvalidURL", "TimeoutException", "TransportError"):
        assert http_errors(name), name


def test_a_client_with_another_library_has_no_errors_of_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for library in ("httpx", "httpx2"):
        monkeypatch.delitem(sys.modules, library, raising=False)
    assert http_errors("HTTPError") == ()
