"""The trust store of Spark's driver: a private CA beside everybody's."""

from pathlib import Path

import certifi
import pytest
from cryptography.hazmat.primitives.serialization.pkcs12 import load_pkcs12

from kafka_lake.common.environment import SparkCatalog
from kafka_lake.engine.java import network_trust_options, trust_options
from kafka_lake.engine.settings import local_conf
from kafka_lake.errors import ConfigurationError
from kafka_lake_tests.contract.kafka_security.certificates import Authority


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("KAFKA_LAKE_CACHE", str(tmp_path / "cache"))


def catalog(ca_bundle):
    return SparkCatalog("lake", {}, {}, str(ca_bundle))


@pytest.mark.filterwarnings("ignore:Parsed a serial number")
def test_it_has_the_private_ca_and_everybodys(tmp_path):
    authority = Authority(tmp_path)
    options = trust_options(catalog(authority.file))
    (store,) = (tmp_path / "cache" / "truststores").iterdir()
    assert str(store) in options
    held = [cert.certificate for cert in load_pkcs12(store.read_bytes(), None).additional_certs]
    everybodys = Path(certifi.where()).read_text().count("BEGIN CERTIFICATE")
    assert authority.identity.certificate in held
    assert len(held) == everybodys + 1
    assert trust_options(catalog(authority.file)) == options


def test_the_driver_gets_it_beside_its_other_options(tmp_path):
    conf = local_conf(catalog(Authority(tmp_path).file), "local[1]", "", {})
    options = conf["spark.driver.defaultJavaOptions"]
    assert "javax.net.ssl.trustStore=" in options
    assert "-XX:+ExitOnOutOfMemoryError" in options
    assert "trustStore" not in local_conf(catalog(""), "local[1]", "", {})["spark.driver.defaultJavaOptions"]


@pytest.mark.parametrize(("content", "reason"), [(None, "No such file"), (b"nonsense", "no certificates as PEM")])
def test_a_file_that_is_none_is_named_with_its_setting(tmp_path, content, reason):
    file = tmp_path / "ca.pem"
    if content:
        file.write_bytes(content)
    with pytest.raises(ConfigurationError, match=rf"ca\.pem can't be read: .*{reason}.*LAKE__SSL__CABUNDLE"):
        trust_options(catalog(file))


@pytest.mark.filterwarnings("ignore:Parsed a serial number")
def test_the_network_s_ca_is_that_of_openssl_s_variable(tmp_path, monkeypatch):
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    assert network_trust_options() == []
    authority = Authority(tmp_path)
    # Everybody's are in such a file too, as a rule, and none counts twice.
    (tmp_path / "all.pem").write_bytes(Path(authority.file).read_bytes() + Path(certifi.where()).read_bytes())
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "all.pem"))
    monkeypatch.setenv("KAFKA_LAKE_CACHE", str(tmp_path / "a folder"))
    option, kind = network_trust_options()
    store = Path(option.removeprefix("-Djavax.net.ssl.trustStore="))
    assert kind == "-Djavax.net.ssl.trustStoreType=PKCS12"
    held = [cert.certificate for cert in load_pkcs12(store.read_bytes(), None).additional_certs]
    assert authority.identity.certificate in held
    assert len(held) == Path(certifi.where()).read_text().count("BEGIN CERTIFICATE") + 1
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "gone.pem"))
    with pytest.raises(ConfigurationError, match=r"gone\.pem can't be read: No such file.*SSL_CERT_FILE"):
        network_trust_options()
