"""AWS_MSK_IAM: Java's own mechanism, and for librdkafka a callback that signs tokens. There is no server to try it."""

import sys
import time
from types import ModuleType

import pytest
from confluent_kafka.admin import AdminClient

from kafka_lake.errors import ConfigurationError
from kafka_lake.kafka.auth.properties import client_properties, java_properties

GIVEN = {
    "bootstrap.servers": "b-1.lake.abcdef.c2.kafka.eu-west-1.amazonaws.com:9098",
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "AWS_MSK_IAM",
}


class Signer:
    regions: list[str]

    @classmethod
    def generate_auth_token(cls, region: str) -> tuple[str, int]:
        cls.regions.append(region)
        return "signed", 1_800_000_000_500


@pytest.fixture
def signer(monkeypatch: pytest.MonkeyPatch) -> type[Signer]:
    module = ModuleType("aws_msk_iam_sasl_signer")
    module.MSKAuthTokenProvider = Signer  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "aws_msk_iam_sasl_signer", module)
    Signer.regions = []
    return Signer


def test_java_has_a_mechanism_of_that_name() -> None:
    assert java_properties(GIVEN) == {
        **GIVEN,
        "sasl.jaas.config": "software.amazon.msk.auth.iam.IAMLoginModule required;",
        "sasl.client.callback.handler.class": "software.amazon.msk.auth.iam.IAMClientCallbackHandler",
    }


def test_librdkafka_asks_for_a_signed_token(signer: type[Signer]) -> None:
    found = client_properties(GIVEN)
    assert found["sasl.mechanism"] == "OAUTHBEARER"
    assert found["oauth_cb"]("") == ("signed", 1_800_000_000.5)
    assert signer.regions == ["eu-west-1"]


@pytest.mark.slow
def test_librdkafka_calls_the_callback(signer: type[Signer]) -> None:
    client = AdminClient({**client_properties(GIVEN), "bootstrap.servers": "127.0.0.1:1", "log_level": 0})
    deadline = time.monotonic() + 10
    while not signer.regions:
        assert time.monotonic() < deadline
        client.poll(0.1)
    assert set(signer.regions) == {"eu-west-1"}


def test_the_region_may_be_set(signer: type[Signer]) -> None:
    found = client_properties({**GIVEN, "bootstrap.servers": "msk.internal:9098", "aws.region": "us-east-1"})
    found["oauth_cb"]("")
    assert signer.regions == ["us-east-1"]
    assert "aws.region" not in found
    assert "aws.region" not in java_properties({**GIVEN, "aws.region": "us-east-1"})


def test_a_region_that_is_not_known_is_asked_for(signer: type[Signer]) -> None:
    with pytest.raises(ConfigurationError, match="KAFKA_LAKE_KAFKA_AWS_REGION"):
        client_properties({**GIVEN, "bootstrap.servers": "msk.internal:9098"})


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aws_msk_iam_sasl_signer", None)
    with pytest.raises(ConfigurationError, match=r"aws-msk-iam-sasl-signer-python.*kafka-lake\[msk\]"):
        client_properties(GIVEN)
