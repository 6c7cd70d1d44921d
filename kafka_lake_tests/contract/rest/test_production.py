"""A whole ingest, by Arrow and by Spark, with the REST catalogs of companies: one configuration, in the environment."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from kafka_lake.devstack.servers import EmbeddedBroker
from kafka_lake_tests.conftest import Topic
from kafka_lake_tests.contract.kafka_security.certificates import Authority
from kafka_lake_tests.contract.rest.servers import VendingStore, proxied, without_keys

pytestmark = [pytest.mark.integration, pytest.mark.contract, pytest.mark.timeout(600)]

NewTopic = Callable[..., Topic]
Run = Callable[..., tuple[int, str]]

ROWS = [[number, f"n{number}"] for number in range(5)]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VendingStore]:
    with VendingStore(tmp_path_factory.mktemp("store")) as running:
        yield running


@pytest.fixture
def run(broker: EmbeddedBroker, new_topic: NewTopic, tmp_path: Path) -> Run:
    """Return a function that runs a topic into new tables of a catalog, and returns exit code and output."""
    topic = new_topic()
    for number, name in ROWS:
        topic.send({"id": number, "name": name})

    def in_a_process(properties: Mapping[str, str], engines: Sequence[str] = ("arrow", "spark")) -> tuple[int, str]:
        settings = {
            f"PYICEBERG_CATALOG__LAKE__{key.replace('.', '__').replace('-', '_').upper()}": value
            for key, value in properties.items()
        }
        others = {k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "PYICEBERG_", "SPARK_"))}
        # Where these are set, requests takes them instead of what PyIceberg says.
        others = {k: v for k, v in others.items() if not k.endswith("_CA_BUNDLE")}
        environment = {
            **others,
            **settings,
            "KAFKA_LAKE_BOOTSTRAP_SERVERS": broker.bootstrap_servers,
            "KAFKA_LAKE_HOME": str(tmp_path),
            # No keys from the machine that the tests run on.
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        command = [sys.executable, "-m", "kafka_lake_tests.contract.rest.run_ingest", topic.name, *engines]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=500)
        return done.returncode, done.stdout + done.stderr

    return in_a_process


def assert_rows(done: tuple[int, str], secrets: Mapping[str, str]) -> None:
    code, output = done
    assert code == 0, "\n".join(line for line in output.splitlines() if not line.lstrip().startswith("at "))[-6000:]
    found = [json.loads(line.removeprefix("ROWS ")) for line in output.splitlines() if line.startswith("ROWS ")]
    assert found == [["arrow_true", ROWS, ROWS], ["arrow_false", ROWS, ROWS]]
    for name in ("credential", "s3.secret-access-key", "s3.session-token"):
        assert secrets.get(name, "\0") not in output


def cleared(store: VendingStore) -> dict[str, str]:
    """Return the properties of the store's catalog once the tables of earlier tests are gone."""
    from kafka_lake.catalog.lake_catalog import LakeCatalog

    properties = store.catalog_properties()
    catalog = LakeCatalog("lake", properties).pyiceberg
    catalog.create_namespace_if_not_exists("rest")
    for name in catalog.list_tables("rest"):
        catalog.drop_table(name)
    return properties


def test_credentials_come_from_the_catalog(store: VendingStore, run: Run) -> None:
    properties = without_keys(cleared(store))
    assert_rows(run(properties), properties)


def test_without_delegation_there_are_no_keys(store: VendingStore, run: Run) -> None:
    """That the test before this one has no keys from elsewhere."""
    properties = without_keys(cleared(store))
    code, output = run({**properties, "header.x-iceberg-access-delegation": "nothing"})
    assert code != 0
    assert "ROWS" not in output


def test_missing_region_is_reported_with_its_setting(store: VendingStore, run: Run) -> None:
    """PyIceberg does without; and what to set is told at once, since no other attempt finds it."""
    reported = {key: value for key, value in cleared(store).items() if not key.startswith("s3.")}
    code, output = run(reported, ["spark"])
    assert code != 0
    assert "Spark doesn't know the S3 region of its files" in output, output[-3000:]
    assert "Set PYICEBERG_CATALOG__LAKE__S3__REGION" in output
    assert "attempt 2 of" not in output


def test_keys_of_a_session(store: VendingStore, run: Run) -> None:
    cleared(store)
    properties = store.session_properties()
    # The catalog's own must not help.
    reported = {**properties, "header.x-iceberg-access-delegation": "nothing"}
    assert_rows(run(reported), reported)
    code, output = run({key: value for key, value in reported.items() if key != "s3.session-token"})
    assert code != 0
    assert reported["s3.secret-access-key"] not in output


def test_a_private_ca(store: VendingStore, run: Run, tmp_path: Path) -> None:
    properties = cleared(store)
    authority = Authority(tmp_path)
    with proxied(store, authority.issue("catalog")) as proxy:
        address = {"uri": proxy.uri, "oauth2-server-uri": f"{proxy.uri}/v1/oauth/tokens"}
        reported = {**properties, **address, "ssl.cabundle": authority.file}
        assert_rows(run(reported), reported)
        assert any("PyIceberg" in client for client in proxy.clients)
        assert any("Apache-HttpClient" in client for client in proxy.clients), proxy.clients
        foreign = Authority(tmp_path, "foreign")
        code, output = run({**reported, "ssl.cabundle": foreign.file})
        assert code != 0
        assert "isn't trusted" in output
        assert "PYICEBERG_CATALOG__LAKE__SSL__CABUNDLE" in output


def test_requests_signed_by_the_catalog(store: VendingStore, run: Run) -> None:
    properties = cleared(store)
    with proxied(store) as proxy:
        reported = {
            **without_keys(properties),
            "uri": proxy.uri,
            "oauth2-server-uri": f"{proxy.uri}/v1/oauth/tokens",
            "header.x-iceberg-access-delegation": "remote-signing",
            "s3.signer": "S3V4RestSigner",
            "s3.signer.uri": proxy.uri,
            "s3.endpoint": store.endpoint,
            "s3.region": "us-east-1",
        }
        assert_rows(run(reported), reported)
        assert len({client for client, method in proxy.signed if method in ("PUT", "POST")}) == 2, proxy.signed
