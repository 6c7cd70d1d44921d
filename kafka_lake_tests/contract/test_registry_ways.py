"""A whole Avro topic for each way to a registry: a front with TLS before a real one lets in who has shown the right."""

import base64
import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient

from kafka_lake.common.processes import free_port
from kafka_lake.devstack.servers import EmbeddedRegistry
from kafka_lake.ingest.run import ingest
from kafka_lake.orchestration.resources import RegistryResource
from kafka_lake.runtime.context import Connections
from kafka_lake.spec.topic_table import TopicTable
from kafka_lake_tests.conftest import Topic, View
from kafka_lake_tests.integration.test_formats import avro, framed, order, register
from kafka_lake_tests.integration.test_registry import SECRET, Answer, Authority, Headers, Impostor, server_side

pytestmark = [pytest.mark.integration, pytest.mark.contract]

BASIC = base64.b64encode(f"bob:{SECRET}".encode()).decode()
WAYS: Mapping[str, dict[str, str]] = {
    "TLS": {},
    "mTLS": {},
    "basic": {"BASIC_AUTH_USER_INFO": f"bob:{SECRET}"},
    "token": {"BEARER_AUTH_TOKEN": SECRET},
    "OAuth": {
        "BEARER_AUTH_CREDENTIALS_SOURCE": "OAUTHBEARER",
        "BEARER_AUTH_CLIENT_ID": "lake",
        "BEARER_AUTH_CLIENT_SECRET": SECRET,
        "BEARER_AUTH_SCOPE": "schemas",
    },
}
LETS_IN = {"basic": f"Basic {BASIC}", "token": f"Bearer {SECRET}", "OAuth": "Bearer fresh"}


@pytest.mark.parametrize("cluster", [None, "eu"])
@pytest.mark.parametrize("way", WAYS)
def test_a_whole_topic_whose_first_registry_is_dead(
    way: str,
    cluster: str | None,
    registry: EmbeddedRegistry,
    new_topic: Callable[..., Topic],
    connections: Callable[..., Connections],
    view: Callable[[TopicTable], View],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("DEBUG")
    topic, schema = new_topic(), order(("id", "long"), ("name", "string"))
    schema_id = register(SchemaRegistryClient({"url": registry.url}), topic, schema)
    for number in range(3):
        topic.send(framed(schema_id, avro(schema, {"id": number, "name": f"order {number}"})))

    def forwarded(path: str, headers: Headers) -> Answer:
        if way in LETS_IN and headers.get("authorization") != LETS_IN[way]:
            return 401, json.dumps({"error_code": 40101, "message": "who?"})
        try:
            with urllib.request.urlopen(f"{registry.url}{path}", timeout=20) as answer:
                return 200, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def token(_: str, headers: Headers) -> Answer:
        right = "client_credentials" in headers["form"] and "scope=schemas" in headers["form"]
        return 200 if right else 400, json.dumps({"access_token": "fresh", "token_type": "Bearer", "expires_in": 60})

    authority = Authority(tmp_path)
    context: ssl.SSLContext = server_side(authority, clients_too=way == "mTLS")
    prefix = f"KAFKA_LAKE_REGISTRY__{cluster.upper()}__" if cluster else "KAFKA_LAKE_REGISTRY_"
    with Impostor(forwarded, context) as front, Impostor(token) as issuer:
        given = {"URL": f"https://127.0.0.1:{free_port()},{front.url}", "SSL_CA_LOCATION": authority.location}
        if way == "mTLS":
            certificate, key = authority.issue("lake", SECRET)
            given |= {"SSL_CERTIFICATE_LOCATION": certificate, "SSL_KEY_LOCATION": key, "SSL_KEY_PASSWORD": SECRET}
        if way == "OAuth":
            given["BEARER_AUTH_ISSUER_ENDPOINT_URL"] = f"{issuer.url}/token"
        for name, value in {**given, **WAYS[way]}.items():
            monkeypatch.setenv(f"{prefix}{name}", value)
        monkeypatch.delenv("KAFKA_LAKE_SCHEMA_REGISTRY_URL", raising=False)
        schemas = RegistryResource(cluster_name=cluster).registry()
        spec = topic.spec(None, format="avro")
        ingest(spec, connections(schemas), "run-1")
    view(spec).assert_exactly_once(topic.ledger)
    rows = {row["id"]: row["name"] for row in view(spec).rows()}
    assert rows == {number: f"order {number}" for number in range(3)}
    assert any(path.startswith(f"/schemas/ids/{schema_id}") for path, _ in front.asked)
    assert SECRET not in caplog.text
    assert BASIC not in caplog.text
