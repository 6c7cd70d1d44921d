"""Settings of a REST catalog's protocol, in Java's names. Pure."""

from kafka_lake.common.errors import ConfigurationError
from kafka_lake.lake.java_names.amazon import SERVICE_KEYS

CA_BUNDLE = "ssl.cabundle"
"""The property that names the certificates by which a catalog's server is trusted: a file, as PEM."""

_DELEGATION = "header.X-Iceberg-Access-Delegation"


def rest_properties(name: str, told: dict[str, str]) -> dict[str, str]:
    """Return the properties of a REST catalog with those of its protocol in Java's names."""
    if apart := [key for key in told if key.startswith(("ssl.client", "auth."))]:
        raise ConfigurationError(
            f"Catalog {name}: Spark can't be told {apart[0]}.",
            "Use credential, token or oauth2-server-uri, which both engines take.",
        )
    told.pop(CA_BUNDLE, None)
    if not any(key.lower() == _DELEGATION.lower() for key in told):
        # As PyIceberg does.
        told[_DELEGATION] = "vended-credentials"
    if "s3.signer" in told:
        told.pop("s3.signer")
        told.setdefault("s3.remote-signing-enabled", "true")
    return _signed(name, told) if told.get("rest.sigv4-enabled") == "true" else told


def _signed(name: str, told: dict[str, str]) -> dict[str, str]:
    """Return the properties of a REST catalog whose requests are signed by AWS's rules, with the signer's keys.

    PyIceberg's ``SigV4Adapter`` signs with ``client.access-key-id``, ``…secret-access-key`` and ``…session-token``,
    for ``rest.signing-region`` or else ``client.region``. Java's ``AwsProperties.restCredentialsProvider`` takes
    ``rest.access-key-id`` and so on, or else the provider that is configured for all services, and of regions
    ``rest.signing-region`` alone.
    """
    keys = {f"rest.{key}": told[f"client.{key}"] for key in SERVICE_KEYS if f"client.{key}" in told}
    if told.get("s3.anonymous") == "true" and not {"rest.access-key-id"} & {*keys, *told}:
        raise ConfigurationError(
            f"Catalog {name}: with s3.anonymous, Spark would have no keys for rest.sigv4-enabled either.",
            "Set client.access-key-id and client.secret-access-key, or leave s3.anonymous out.",
        )
    if "rest.access-key-id" not in told:
        told |= keys
    if "client.region" in told:
        told.setdefault("rest.signing-region", told["client.region"])
    return told
