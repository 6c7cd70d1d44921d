"""Settings of a REST catalog's protocol, in Java's names. Pure."""

from kafka_lake.common.errors import ConfigurationError

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
    return told
