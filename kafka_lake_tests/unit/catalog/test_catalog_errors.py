"""What a catalog that isn't there, or refuses, looks like to the user: one sentence with its address, no password."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from sqlalchemy.exc import OperationalError

from kafka_lake.catalog.catalog_errors import explained, without_secrets
from kafka_lake.catalog.lake_catalog import LakeCatalog
from kafka_lake.common.processes import free_port
from kafka_lake.error_classification import is_transient
from kafka_lake.errors import CatalogError, CatalogRefusedError, ConfigurationError, KafkaLakeError

QUESTIONS: list[Callable[[LakeCatalog], object]] = [
    lambda catalog: catalog.check(),
    lambda catalog: catalog.table(("shop", "orders")),
    lambda catalog: catalog.ensure_namespace("shop"),
]


def refusal(properties: dict[str, str], question: Callable[[LakeCatalog], object] = QUESTIONS[0]) -> KafkaLakeError:
    with pytest.raises(KafkaLakeError) as failed:
        question(LakeCatalog("lake", properties))
    assert "hush" not in str(failed.value)
    assert len(str(failed.value).splitlines()) == 1
    assert "catalog lake" in failed.value.message.lower()
    assert "PYICEBERG_CATALOG__LAKE__" in failed.value.remedy
    return failed.value


@contextmanager
def server(status: int, body: str) -> Iterator[str]:
    """Run a web server that answers everything alike; gives its address."""

    class Alike(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body.encode())

        do_POST = do_HEAD = do_GET

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Alike)
    threading.Thread(target=listening.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listening.server_port}/catalog"
    finally:
        listening.shutdown()
        listening.server_close()


@pytest.mark.processes
@pytest.mark.parametrize("question", QUESTIONS)
def test_a_port_where_nothing_listens(question: Callable[[LakeCatalog], object]) -> None:
    port = free_port()
    error = refusal({"type": "rest", "uri": f"http://bob:hush@127.0.0.1:{port}/cat", "token": "hush"}, question)
    assert type(error) is CatalogError
    assert f"(rest at http://127.0.0.1:{port}/cat) didn't answer: Connection refused." in error.message
    assert is_transient(error)


@pytest.mark.parametrize(
    ("properties", "said"),
    [
        ({"type": "sql", "uri": "nonsense:hush@x", "warehouse": "w"}, "is not a URL"),
        ({"type": "rest", "uri": "127.0.0.1:8181"}, "is not a URL"),
        ({"type": "rest", "uri": "catalog"}, "is not a URL"),
        (
            {"type": "sql", "uri": "oracel://bob:hush@db/x", "warehouse": "w"},
            "a database that SQLAlchemy doesn't support",
        ),
    ],
)
def test_an_address_that_is_none(properties: dict[str, str], said: str) -> None:
    error = refusal(properties)
    assert type(error) is ConfigurationError
    assert said in error.message
    assert not is_transient(error)


@pytest.mark.processes
@pytest.mark.parametrize(
    ("status", "body", "kind", "said"),
    [
        (200, "<html>Sign in</html>", CatalogRefusedError, "isn't from a catalog"),
        (404, "nothing here", CatalogRefusedError, "isn't from a catalog"),
        (401, json.dumps({"error": {"message": "no hush", "type": "x", "code": 401}}), CatalogRefusedError, "refused"),
        (403, json.dumps({"error": {"message": "go", "type": "x", "code": 403}}), CatalogRefusedError, "refused"),
        (503, json.dumps({"error": {"message": "later", "type": "x", "code": 503}}), CatalogError, "didn't answer"),
    ],
)
def test_a_server_that_does_not_serve(status: int, body: str, kind: type[KafkaLakeError], said: str) -> None:
    with server(status, body) as uri:
        error = refusal({"type": "rest", "uri": uri, "token": "hush"})
    assert type(error) is kind
    assert said in error.message
    assert is_transient(error) is (kind is CatalogError)


def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    (tmp_path / "catalog.db").write_text("by hand " * 200)
    error = refusal({"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/w"})
    assert type(error) is CatalogRefusedError
    assert f"sqlite:///{tmp_path}/catalog.db" in error.message


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    error = refusal({"type": "sql", "uri": f"sqlite:///{tmp_path}/file/c.db", "warehouse": f"file://{tmp_path}/w"})
    assert type(error) is CatalogRefusedError
    assert f"folder {tmp_path}/file can't be created" in error.message


def test_a_folder_in_place_of_the_database(tmp_path: Path) -> None:
    (tmp_path / "c.db").mkdir()
    error = refusal({"type": "sql", "uri": f"sqlite:///{tmp_path}/c.db", "warehouse": f"file://{tmp_path}/w"})
    assert type(error) is CatalogRefusedError
    assert "unable to open database file" in error.message


def test_an_absent_table_is_no_error(tmp_path: Path) -> None:
    catalog = LakeCatalog(
        "lake", {"type": "sql", "uri": f"sqlite:///{tmp_path}/c.db", "warehouse": f"file://{tmp_path}"}
    )
    assert catalog.check() == 0
    assert catalog.table(("shop", "orders")) is None


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("http://host:1/path", "http://host:1/path"),
        ("http://bob:a@b/c?d#e@host/path?token=f", "http://host/path"),
        ("bob:secret@host", "host"),
        ("sqlite:////data/me@home/c.db?x=y", "sqlite:////data/me@home/c.db"),
        ("", ""),
    ],
)
def test_addresses_are_shown_without_secrets(uri: str, shown: str) -> None:
    assert without_secrets(uri) == shown


@pytest.mark.parametrize(
    ("uri", "reported"),
    [
        ("postgresql+psycopg2://bob:p%40ss@db/x", 'password "p@ss" of bob:p@ss was not taken'),
        ("postgresql+psycopg2://db/x?user=bob&password=p%40ss", "invalid dsn: user=bob password=p@ss"),
    ],
)
def test_a_password_that_a_driver_tells_decoded_is_masked(uri: str, reported: str) -> None:
    error = OperationalError("SELECT 1", {}, Exception(reported))
    shown = explained("lake", "sql", properties={"uri": uri}, what="Connecting", error=error)
    assert shown is not None
    assert "***" in shown.message
    assert "p@ss" not in shown.message


def test_glue_without_a_region_is_told_where_to_set_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_DEFAULT_REGION", "AWS_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")
    with pytest.raises(ConfigurationError, match=r"catalog lake \(glue\) has no region") as reported:
        LakeCatalog("lake", {"type": "glue", "warehouse": "s3://bucket/lake"}).pyiceberg  # noqa: B018
    assert "PYICEBERG_CATALOG__LAKE__CLIENT__REGION" in reported.value.remedy
