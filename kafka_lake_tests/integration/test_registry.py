"""The schema registry client on a real registry; and what one that refuses, dawdles or isn't there looks like."""

import base64
import datetime
import ipaddress
import json
import ssl
import threading
import time
import traceback
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
)
from google.protobuf import descriptor_pb2, wrappers_pb2

from kafka_lake.cli.commands import doctor
from kafka_lake.common.processes import free_port
from kafka_lake.devstack.servers import EmbeddedRegistry
from kafka_lake.errors import (
    ConfigurationError,
    RegistryError,
    RegistryRefusedError,
    ServerStartError,
    UnknownSchemaError,
)
from kafka_lake.kafka.registry import SchemaRegistry

pytestmark = pytest.mark.integration

SECRET = "hush-hush"
QUICK = 5.0

ORDER = {"type": "record", "name": "Order", "namespace": "shop", "fields": [{"name": "id", "type": "long"}]}
ORDER_AS_JSON = {"title": "Order", "type": "object", "properties": {"id": {"type": "integer"}}}


@pytest.fixture
def subject() -> str:
    return f"it/{uuid.uuid4().hex} value"


@pytest.fixture
def client(registry: EmbeddedRegistry) -> SchemaRegistryClient:
    return SchemaRegistryClient({"url": registry.url})


@pytest.fixture
def schemas(registry: EmbeddedRegistry) -> SchemaRegistry:
    return SchemaRegistry({"url": registry.url})


def avro(name: str, **fields: str) -> str:
    declared = [{"name": key, "type": value} for key, value in fields.items()]
    return json.dumps({"type": "record", "name": name, "namespace": "shop", "fields": declared})


def new_name() -> str:
    """Return a name that no other schema of this session has, so that the schema gets an id of its own."""
    return f"R{uuid.uuid4().hex}"


def id_of(record: bytes | None) -> int:
    assert record is not None
    assert record[0] == 0
    return int.from_bytes(record[1:5], "big")


@pytest.mark.parametrize("kind", ["AVRO", "JSON"])
def test_schema_is_found_by_the_id_in_its_record(
    kind: str, client: SchemaRegistryClient, schemas: SchemaRegistry, subject: str
) -> None:
    text = json.dumps(ORDER if kind == "AVRO" else ORDER_AS_JSON)
    serialize = AvroSerializer(client, text) if kind == "AVRO" else JSONSerializer(text, client)
    found = schemas.by_id(id_of(serialize({"id": 7}, SerializationContext(subject, MessageField.VALUE))))
    assert found.kind == kind
    assert json.loads(found.text) == json.loads(text)
    assert (dict(found.references), found.subject, found.version) == ({}, None, None)
    latest = schemas.latest(f"{subject}-value")
    assert latest is not None
    assert (latest.text, latest.id, latest.subject, latest.version) == (found.text, found.id, f"{subject}-value", 1)


def test_protobuf_serializer_schema_is_a_descriptor(
    client: SchemaRegistryClient, schemas: SchemaRegistry, subject: str
) -> None:
    serialize = ProtobufSerializer(wrappers_pb2.Int64Value, client, {"use.deprecated.format": False})
    record = serialize(wrappers_pb2.Int64Value(value=7), SerializationContext(subject, MessageField.VALUE))
    found = schemas.by_id(id_of(record))
    assert found.kind == "PROTOBUF"
    described = descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(found.text))
    assert "Int64Value" in {message.name for message in described.message_type}


def test_protobuf_schema_text_brings_its_imports(
    client: SchemaRegistryClient, schemas: SchemaRegistry, subject: str
) -> None:
    money = 'syntax = "proto3";\npackage shop;\n\nmessage Money {\n  int64 cents = 1;\n}\n'
    order = 'syntax = "proto3";\npackage shop;\n\nimport "money.proto";\n\nmessage Order {\n  Money price = 1;\n}\n'
    client.register_schema(f"{subject}-money", Schema(money, "PROTOBUF"))
    reference = SchemaReference("money.proto", f"{subject}-money", 1)
    found = schemas.by_id(client.register_schema(subject, Schema(order, "PROTOBUF", [reference])))
    assert "message Order" in found.text
    assert list(found.references) == ["money.proto"]
    assert "message Money" in found.references["money.proto"]


def test_schema_references_come_before_their_users(
    client: SchemaRegistryClient, schemas: SchemaRegistry, subject: str
) -> None:
    """Order → Line, Money; Line → Product, Money; Product → Money."""
    texts = {
        "shop.Money": avro("Money", cents="long"),
        "shop.Product": avro("Product", price="shop.Money"),
        "shop.Line": avro("Line", product="shop.Product", discount="shop.Money"),
    }
    needs = {"shop.Money": [], "shop.Product": ["shop.Money"], "shop.Line": ["shop.Product", "shop.Money"]}

    def references(names: list[str]) -> list[SchemaReference]:
        return [SchemaReference(name, f"{subject}-{name}", 1) for name in names]

    for name, text in texts.items():
        client.register_schema(f"{subject}-{name}", Schema(text, "AVRO", references(needs[name])))
    order = Schema(avro("Order", line="shop.Line", total="shop.Money"), "AVRO", references(["shop.Line", "shop.Money"]))
    found = schemas.by_id(client.register_schema(subject, order))
    assert {name: json.loads(text) for name, text in found.references.items()} == {
        name: json.loads(text) for name, text in texts.items()
    }
    assert list(found.references) == ["shop.Money", "shop.Product", "shop.Line"]
    assert schemas.latest(subject).references == found.references  # type: ignore[union-attr]


def test_unknown_schema_id_is_reported_and_retried(
    client: SchemaRegistryClient, schemas: SchemaRegistry, registry: EmbeddedRegistry, subject: str
) -> None:
    next_id = client.register_schema(f"{subject}-before", Schema(avro(new_name(), id="long"), "AVRO")) + 1
    with pytest.raises(UnknownSchemaError, match=f"Schema id {next_id}: .*{registry.url} has no such schema"):
        schemas.by_id(next_id)
    name = new_name()
    assert client.register_schema(subject, Schema(avro(name, id="long"), "AVRO")) == next_id
    assert name in schemas.by_id(next_id).text


@pytest.mark.parametrize("schema_id", [0, 2**31 - 1, 2**31, 2**32 - 1, -1])
def test_random_schema_id_is_at_worst_unknown(schemas: SchemaRegistry, schema_id: int) -> None:
    with pytest.raises(UnknownSchemaError, match=f"Schema id {schema_id}:"):
        schemas.by_id(schema_id)


def test_the_latest_of_a_subject_is_fresh_each_time(
    client: SchemaRegistryClient, schemas: SchemaRegistry, subject: str
) -> None:
    assert schemas.latest(subject) is None
    assert subject not in schemas.subjects()
    for version in (1, 2, 3):
        text = avro("Order", **{f"f{number}": "long" for number in range(version)})
        client.register_schema(subject, Schema(text, "AVRO"))
        latest = schemas.latest(subject)
        assert latest is not None
        assert (json.loads(latest.text), latest.version) == (json.loads(text), version)
    assert subject in schemas.subjects()


def test_another_page_of_the_right_server_is_no_unknown_schema(registry: EmbeddedRegistry) -> None:
    wrong = registry.url.removesuffix("/apis/ccompat/v7")
    for ask in (lambda r: r.by_id(1), lambda r: r.by_id(f"guid {uuid.uuid4()}"), lambda r: r.latest("orders")):
        with pytest.raises(RegistryRefusedError, match="its whole path"):
            ask(SchemaRegistry({"url": wrong}))


@pytest.mark.parametrize("healthy", [True, False])
def test_the_doctor_asks_a_registry_that_is_configured(
    registry: EmbeddedRegistry, monkeypatch: pytest.MonkeyPatch, healthy: bool
) -> None:
    for part in ("check_java", "check_jars", "check_brokers", "check_catalog", "check_warehouse", "check_spark"):
        monkeypatch.setattr(doctor, part, lambda *_: "not examined here")
    monkeypatch.delenv("KAFKA_LAKE_SCHEMA_REGISTRY_URL", raising=False)
    monkeypatch.delenv("KAFKA_LAKE_REGISTRY_URL", raising=False)
    monkeypatch.setenv("KAFKA_LAKE_BOOTSTRAP_SERVERS", "127.0.0.1:9")

    def found() -> dict[str, doctor.CheckResult]:
        return {check.part: check for check in doctor.check_all(lambda _: None)}

    assert "Schema registry" not in found()
    url = registry.url if healthy else f"http://127.0.0.1:{free_port()}"
    monkeypatch.setenv("KAFKA_LAKE_SCHEMA_REGISTRY_URL", url)
    monkeypatch.setenv("KAFKA_LAKE_REGISTRY_BASIC_AUTH_USER_INFO", f"bob:{SECRET}")
    diagnosis = found()["Schema registry"]
    assert diagnosis.passed is healthy
    assert (" at http" if healthy else "Connection refused") in diagnosis.message
    assert SECRET not in str(diagnosis)


@pytest.mark.exhaustive
def test_schemas_survive_kill_and_stopped_registry_is_reported(tmp_path: Path) -> None:
    registry = EmbeddedRegistry(tmp_path / "a folder; with marks")
    with registry:
        schemas = SchemaRegistry({"url": registry.url})
        client = SchemaRegistryClient({"url": registry.url})
        number = client.register_schema("orders-value", Schema(avro("Order", id="long"), "AVRO"))
        kept = schemas.by_id(number)
        with pytest.raises(ServerStartError, match=f"Port {registry.port} .* is in use"):
            EmbeddedRegistry(tmp_path / "other", registry.port).start()

        registry.kill()
        assert not registry.alive()
        began = time.monotonic()
        with pytest.raises(RegistryError, match=f"{registry.url} can't be reached: .*Connection refused") as down:
            schemas.latest("orders-value")
        assert type(down.value) is RegistryError
        assert time.monotonic() - began < QUICK
        assert schemas.by_id(number) is kept

        registry.start()
        assert SchemaRegistry({"url": registry.url}).by_id(number) == kept
    assert registry.pid is None


Headers = dict[str, str]
Answer = tuple[int, str]


@dataclass
class Impostor:
    """An HTTP server of our own that answers as it is told, and keeps what it was asked."""

    answer: Callable[[str, Headers], Answer]
    tls: ssl.SSLContext | None = None
    asked: list[tuple[str, Headers]] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> "Impostor":
        impostor = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                headers = {name.lower(): value for name, value in self.headers.items()}
                impostor.asked.append((self.path, headers))
                self.send(*impostor.answer(self.path, headers))

            def do_POST(self) -> None:
                form = self.rfile.read(int(self.headers["content-length"])).decode()
                impostor.asked.append((self.path, {"form": form}))
                self.send(
                    *impostor.answer(self.path, {**{k.lower(): v for k, v in self.headers.items()}, "form": form})
                )

            def send(self, status: int, text: str) -> None:
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(text.encode())))
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        if self.tls:
            # The handshake is the connection's own thread's business.
            self._server.socket = self.tls.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
        self._server.handle_error = lambda *_: None  # type: ignore[method-assign]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def registered(path: str, _headers: Headers) -> Answer:
    return 200, json.dumps({"schema": '"string"', "id": 1, "subject": "s", "version": 1})


def reported(registry: SchemaRegistry) -> RegistryError:
    """Return the error that a question ends with, of which no part may show a secret."""
    with pytest.raises(RegistryError, match="Schema id 1: the schema registry at http") as failed:
        registry.by_id(1)
    assert SECRET not in "".join(traceback.format_exception(failed.value)) + repr(failed.value) + repr(registry)
    return failed.value


@pytest.mark.parametrize(
    ("status", "body", "error", "said"),
    [
        (
            401,
            '{"error_code": 401, "message": "who?"}',
            RegistryRefusedError,
            "refused user bob: HTTP 401, who?. Check",
        ),
        (
            403,
            '{"error_code": 40301}',
            RegistryRefusedError,
            "doesn't allow this request to user bob: HTTP 403, without a message",
        ),
        (404, '{"error_code": 40403, "message": "no"}', UnknownSchemaError, "has no such schema"),
        (404, '{"error_code": 404, "message": "HTTP 404 Not Found"}', RegistryRefusedError, "its whole path"),
        (404, "<html>not here</html>", RegistryRefusedError, "its whole path"),
        (422, '{"error_code": 42201, "message": "no"}', RegistryRefusedError, "answered HTTP 422, no."),
        (302, "", RegistryRefusedError, "answered HTTP 302"),
        (200, "<html>Please log in</html>", RegistryRefusedError, "a response that isn't from a schema registry"),
        (200, "[]", RegistryRefusedError, "a response that isn't from a schema registry"),
        (200, '{"status": "UP"}', RegistryRefusedError, "a response that isn't from a schema registry"),
        (204, "", RegistryRefusedError, "a response that isn't from a schema registry"),
        (200, '{"schema": "openapi: 3", "schemaType": "OPENAPI"}', UnknownSchemaError, "with type OPENAPI"),
        (408, "", RegistryError, "is temporarily unavailable: HTTP 408"),
        (429, '{"error_code": 429, "message": "slow down"}', RegistryError, "HTTP 429, slow down"),
        (500, '{"error_code": 50001, "message": "store"}', RegistryError, "HTTP 500, store"),
        (503, "<html>" + "x" * 5000, RegistryError, "HTTP 503"),
    ],
)
def test_each_answer_has_its_error(status: int, body: str, error: type[RegistryError], said: str) -> None:
    with Impostor(lambda *_: (status, body)) as server:
        failed = reported(SchemaRegistry({"url": server.url, "basic.auth.user.info": f"bob:{SECRET}"}))
    assert type(failed) is error
    assert said in str(failed)
    assert len(str(failed)) < 1000


def test_a_reference_that_is_gone_is_named() -> None:
    def answer(path: str, _headers: Headers) -> Answer:
        if "subjects" in path:
            return 404, '{"error_code": 40402, "message": "no such version"}'
        reference = {"name": "shop.Money", "subject": "money-value", "version": 3}
        return 200, json.dumps({"schema": "{}", "references": [reference]})

    with Impostor(answer) as server, pytest.raises(UnknownSchemaError) as failed:
        SchemaRegistry({"url": server.url}).by_id(1)
    assert "Schema id 1, reference shop.Money (subject money-value version 3): the schema reg" in str(failed.value)
    assert server.asked[-1][0] == "/subjects/money-value/versions/3?deleted=true"


def test_credentials_repeated_by_server_are_hidden() -> None:
    def repeat(_path: str, headers: Headers) -> Answer:
        return 401, json.dumps({"error_code": 401, "message": f"{headers['authorization']} is not bob:{SECRET}"})

    with Impostor(repeat) as server:
        failed = reported(SchemaRegistry({"url": server.url, "basic.auth.user.info": f"bob:{SECRET}"}))
    assert "HTTP 401, Basic *** is not ***." in str(failed)
    assert base64.b64encode(f"bob:{SECRET}".encode()).decode() not in str(failed)


def test_basic_authentication(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    with Impostor(registered) as server:
        properties = {"url": server.url, "basic.auth.user.info": f"bob:{SECRET}/"}
        assert SchemaRegistry(properties).by_id(1).text == '"string"'
    expected = base64.b64encode(f"bob:{SECRET}/".encode()).decode()
    assert [headers["authorization"] for _, headers in server.asked] == [f"Basic {expected}"]
    assert SECRET not in caplog.text
    assert expected not in caplog.text


def test_a_bearer_token_needs_nothing_else() -> None:
    with Impostor(registered) as server:
        SchemaRegistry({"url": server.url, "bearer.auth.token": SECRET}).by_id(1)
        cloud = {"bearer.auth.logical.cluster": "lsrc-1", "bearer.auth.identity.pool.id": "pool-1"}
        SchemaRegistry({"url": server.url, "bearer.auth.token": SECRET, **cloud}).by_id(1)
    alone, in_the_cloud = (headers for _, headers in server.asked)
    assert alone["authorization"] == in_the_cloud["authorization"] == f"Bearer {SECRET}"
    assert in_the_cloud["target-sr-cluster"] == "lsrc-1"
    assert in_the_cloud["confluent-identity-pool-id"] == "pool-1"


@pytest.mark.parametrize(("status", "error"), [(200, None), (401, RegistryRefusedError), (503, RegistryError)], ids=str)
def test_a_token_from_an_identity_provider(status: int, error: type[RegistryError] | None) -> None:
    def answer(path: str, headers: Headers) -> Answer:
        if path != "/token":
            return registered(path, headers)
        if status == 200:
            return 200, json.dumps({"access_token": "fresh", "token_type": "Bearer", "expires_in": 60})
        return status, json.dumps({"error": "invalid_client", "error_description": f"not {SECRET}"})

    with Impostor(answer) as server:
        settings = {
            "bearer.auth.credentials.source": "OAUTHBEARER",
            "bearer.auth.client.id": "lake",
            "bearer.auth.client.secret": SECRET,
            "bearer.auth.scope": "schemas",
            "bearer.auth.issuer.endpoint.url": f"{server.url}/token",
        }
        registry = SchemaRegistry({"url": server.url, **settings})
        if error:
            failed = reported(registry)
            assert type(failed) is error
            assert "no token could be obtained" in str(failed)
        else:
            assert registry.by_id(1).text == '"string"'
            assert server.asked[-1][1]["authorization"] == "Bearer fresh"


def test_a_registry_that_dawdles_is_given_up() -> None:
    release = threading.Event()

    def dawdle(path: str, headers: Headers) -> Answer:
        release.wait(30)
        return registered(path, headers)

    with Impostor(dawdle) as server:
        began = time.monotonic()
        failed = reported(SchemaRegistry({"url": server.url}, timeout=0.2))
        assert time.monotonic() - began < QUICK
        release.set()
    assert type(failed) is RegistryError
    assert f"{server.url} didn't answer within 0.2 s" in str(failed)


def test_a_hiccup_is_got_over() -> None:
    answers = iter([(503, ""), registered("", {})])
    with Impostor(lambda *_: next(answers)) as server:
        assert SchemaRegistry({"url": server.url}).by_id(1).text == '"string"'


def test_the_second_of_two_addresses_answers_for_the_first() -> None:
    with Impostor(registered) as server:
        registry = SchemaRegistry({"url": f"http://127.0.0.1:{free_port()},{server.url}"})
        assert registry.by_id(1).text == '"string"'


def test_an_id_is_that_of_the_subjects_context() -> None:
    texts = {None: '"string"', ":.eu:": '"long"', ":.us:": '"int"'}

    def answer(path: str, _: Headers) -> Answer:
        asked = urlsplit(path)
        assert asked.path == "/schemas/ids/1"
        return 200, json.dumps({"schema": texts[parse_qs(asked.query).get("subject", [None])[0]]})

    with Impostor(answer) as server:
        schemas = SchemaRegistry({"url": server.url})
        for _ in range(2):
            found = [schemas.by_id(1, subject).text for subject in ("orders", ":.eu:orders", ":.us:orders", None)]
            assert found == ['"string"', '"long"', '"int"', '"string"']
    assert len(server.asked) == 3, "one question for each context"


def test_an_address_may_be_that_of_a_context() -> None:
    with Impostor(registered) as server:
        SchemaRegistry({"url": f"{server.url}/contexts/.eu/"}).by_id(1)
    assert [path.partition("?")[0] for path, _ in server.asked] == ["/contexts/.eu/schemas/ids/1"]


def test_an_id_is_asked_for_once_also_by_many_threads() -> None:
    def answer(path: str, _headers: Headers) -> Answer:
        return 200, json.dumps({"schema": f'"string{path.rpartition("/")[2]}"'})

    with Impostor(answer) as server:
        registry = SchemaRegistry({"url": server.url})
        kept = registry.by_id(1)
        assert len(server.asked) == 1
        with ThreadPoolExecutor(8) as threads:
            found = list(threads.map(registry.by_id, [1, 2, 3, 4] * 25))
        assert len({id(schema) for schema in found}) == 4
        assert [schema.text for schema in found[:4]] == ['"string1"', '"string2"', '"string3"', '"string4"']
        assert found[0] is kept
        asked = len(server.asked)
        registry.by_id(4)
        assert len(server.asked) == asked


@dataclass
class Authority:
    """A certificate authority of our own."""

    folder: Path
    key: ec.EllipticCurvePrivateKey = field(default_factory=lambda: ec.generate_private_key(ec.SECP256R1()))

    @property
    def location(self) -> str:
        path = self.folder / "ca.pem"
        path.write_bytes(self._signed("authority", self.key.public_key(), True).public_bytes(Encoding.PEM))
        return str(path)

    def issue(self, name: str, password: str | None = None) -> tuple[str, str]:
        """Return the files of a certificate for 127.0.0.1 and of its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        certificate, secret = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        certificate.write_bytes(self._signed(name, key.public_key(), False).public_bytes(Encoding.PEM))
        lock: KeySerializationEncryption = BestAvailableEncryption(password.encode()) if password else NoEncryption()
        secret.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, lock))
        return str(certificate), str(secret)

    def _signed(self, name: str, key: ec.EllipticCurvePublicKey, is_ca: bool) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        builder = x509.CertificateBuilder(
            x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "authority")]),
            x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)]),
            key,
            x509.random_serial_number(),
            now - datetime.timedelta(hours=1),
            now + datetime.timedelta(hours=1),
        ).add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
        if not is_ca:
            here = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
            builder = builder.add_extension(x509.SubjectAlternativeName([here]), critical=False)
        return builder.sign(self.key, hashes.SHA256())


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def server_side(authority: Authority, clients_too: bool) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.issue("server"))
    if clients_too:
        context.load_verify_locations(authority.location)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def test_tls_with_certificates_of_both_sides(authority: Authority) -> None:
    certificate, key = authority.issue("client")
    locked_certificate, locked_key = authority.issue("locked", SECRET)
    with Impostor(registered, server_side(authority, True)) as server:
        trusting = {"url": server.url, "ssl.ca.location": authority.location}
        mutual = {**trusting, "ssl.certificate.location": certificate, "ssl.key.location": key}
        assert SchemaRegistry(mutual).by_id(1).text == '"string"'

        locked = {**trusting, "ssl.certificate.location": locked_certificate, "ssl.key.location": locked_key}
        assert SchemaRegistry({**locked, "ssl.key.password": SECRET}).by_id(1).text == '"string"'
        with pytest.raises(ConfigurationError, match="can't be created"):
            SchemaRegistry(locked).by_id(1)

        failed = reported(SchemaRegistry(trusting))
        assert type(failed) is RegistryRefusedError
        assert "KAFKA_LAKE_REGISTRY_SSL_CERTIFICATE_LOCATION" in str(failed)


def test_certificate_of_unknown_authority_is_refused(authority: Authority) -> None:
    with Impostor(registered, server_side(authority, False)) as server:
        failed = reported(SchemaRegistry({"url": server.url, "basic.auth.user.info": f"bob:{SECRET}"}))
        assert type(failed) is RegistryRefusedError
        assert "isn't trusted: [SSL: CERTIFICATE_VERIFY_FAILED]" in str(failed)
        assert "KAFKA_LAKE_REGISTRY_SSL_CA_LOCATION" in str(failed)
        assert server.asked == []


def test_an_address_with_https_of_a_registry_without_is_refused() -> None:
    with Impostor(registered) as server:
        failed = reported(SchemaRegistry({"url": server.url.replace("http:", "https:")}))
    assert type(failed) is RegistryRefusedError
    assert "begins with http" in str(failed)
