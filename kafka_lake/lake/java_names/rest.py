"""Settings of a REST catalog's protocol, in Java's names. Pure."""

from kafka_lake.common.errors import ConfigurationError
from kafka_lake.lake.java_names.amazon import SERVICE_KEYS

CA_BUNDLE = "ssl.cabundle"
"""The property that names the certificates by which a catalog's server is trusted: a file, as PEM."""

_BASIC = ("auth.type", "auth.basic.username", "auth.basic.password")
_DELEGATION = "header.X-Iceberg-Access-Delegation"


def rest_properties(name: str, told: dict[str, str]) -> dict[str, str]:
    """Return the properties of a REST catalog with those of its protocol in Java's names."""
    if apart := [key for key in told if key.startswith("ssl.client")]:
        raise ConfigurationError(
            f"Catalog {name}: Spark can't be told {apart[0]}.",
            "Leave it out: Iceberg's Java library has no setting for a client's certificate.",
        )
    told = _logged_in(name, told)
    told.pop(CA_BUNDLE, None)
    if not any(key.lower() == _DELEGATION.lower() for key in told):
        # As PyIceberg does.
        told[_DELEGATION] = "vended-credentials"
    if "s3.signer" in told:
        told.pop("s3.signer")
        told.setdefault("s3.remote-signing-enabled", "true")
    return _signed(name, told) if told.get("rest.sigv4-enabled") == "true" else told


def _logged_in(name: str, told: dict[str, str]) -> dict[str, str]:
    """Return the properties of a REST catalog with those of PyIceberg's ``auth`` in Java's names.

    PyIceberg's `AuthManagerFactory` has noop, basic, legacyoauth2, oauth2, google and entra, and whatever ``auth.impl``
    names. Iceberg's ``AuthProperties`` has ``rest.auth.type``; for basic, ``rest.auth.basic.username`` and
    ``rest.auth.basic.password``; google has other properties than PyIceberg's. Its OAuth2 takes other properties, and
    sends the client's secret in another way.
    """
    auth = {key: told.pop(key) for key in list(told) if key.startswith("auth.")}
    if not auth:
        return told
    # Java signs what another manager has done first, and finds that one under other names.
    kind = auth.get("auth.type", "") if told.get("rest.sigv4-enabled") != "true" else ""
    java = {key.replace("auth.", "rest.auth.", 1): value for key, value in auth.items()}
    if kind == "basic" and set(auth) == set(_BASIC):
        return {**java, **told}
    if kind == "noop" and len(auth) == 1:
        return {"rest.auth.type": "none", **told}
    apart = [key for key in auth if kind != "basic" or key not in _BASIC] or list(auth)
    raise ConfigurationError(
        f"Catalog {name}: Spark can't be told {apart[0]}.",
        "Use credential, token or oauth2-server-uri, which both engines take; or auth.type basic with "
        "auth.basic.username and auth.basic.password.",
    )


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
