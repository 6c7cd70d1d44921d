"""AWS_MSK_IAM: the account of AWS is the identity. Java has a mechanism of that name, librdkafka gets signed tokens."""

import re
from collections.abc import Mapping
from typing import Any

from kafka_lake.errors import ConfigurationError
from kafka_lake.kafka.security.settings import setting

MECHANISM = "AWS_MSK_IAM"
"""The mechanism, by its name in the Java client."""

REGION = "aws.region"
"""Property of ours: the region of the cluster where its address doesn't tell."""

_ADDRESS = re.compile(r"\.kafka(?:-serverless)?\.([a-z0-9-]+)\.amazonaws\.com")
_IAM = "software.amazon.msk.auth.iam"


def for_java(given: Mapping[str, str]) -> dict[str, str]:
    """Return the Java client's properties; its classes are in the jar ``aws-msk-iam-auth``."""
    return {
        "sasl.mechanism": MECHANISM,
        "sasl.jaas.config": f"{_IAM}.IAMLoginModule required;",
        "sasl.client.callback.handler.class": f"{_IAM}.IAMClientCallbackHandler",
    }


def for_librdkafka(given: Mapping[str, str]) -> dict[str, Any]:
    """Return librdkafka's properties: OAUTHBEARER, with a callback that signs a token by AWS's usual credentials.

    Raises:
        ConfigurationError: If the package that signs is missing, or the region is not known.
    """
    try:
        from aws_msk_iam_sasl_signer import MSKAuthTokenProvider
    except ImportError as error:
        raise ConfigurationError(
            f"SASL {MECHANISM} needs the Python package aws-msk-iam-sasl-signer-python.",
            "Install it: pip install 'kafka-lake[msk]'.",
        ) from error
    region = region_of(given)

    def token(_: str) -> tuple[str, float]:
        signed, expires_ms = MSKAuthTokenProvider.generate_auth_token(region)
        return signed, expires_ms / 1000

    own = {name: value for name, value in given.items() if name != REGION}
    return {**own, "sasl.mechanism": "OAUTHBEARER", "oauth_cb": token}


def region_of(given: Mapping[str, str]) -> str:
    """Return the region of the cluster.

    Raises:
        ConfigurationError: If neither the property nor the brokers' address tells.

    >>> region_of({"bootstrap.servers": "b-1.lake.abcdef.c2.kafka.eu-west-1.amazonaws.com:9098"})
    'eu-west-1'
    """
    if region := given.get(REGION):
        return region
    if found := _ADDRESS.search(given.get("bootstrap.servers", "")):
        return found[1]
    raise ConfigurationError(
        f"SASL {MECHANISM}: the address {given.get('bootstrap.servers')} doesn't tell the region.",
        f"Set {setting(REGION)}, to eu-west-1 for instance.",
    )
