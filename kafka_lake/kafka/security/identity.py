"""Who a client is to the brokers, and until when its certificate is valid; for messages."""

import datetime as dt
from collections.abc import Mapping

from cryptography import x509

from kafka_lake.errors import ConfigurationError
from kafka_lake.kafka.security import tls


def identity(properties: Mapping[str, str]) -> str:
    """Return who a client is, as the brokers see it.

    >>> identity({"security.protocol": "SASL_SSL", "sasl.username": "bob"})
    'user bob'
    >>> identity({})
    'this client'
    """
    if properties.get("security.protocol", "").upper().startswith("SASL"):
        for name, kind in (
            ("sasl.username", "user"),
            ("sasl.oauthbearer.client.id", "client"),
            ("sasl.kerberos.principal", "principal"),
        ):
            if given := properties.get(name):
                return f"{kind} {given}"
        return "this client"
    own = own_certificate(properties)
    return f"certificate {own.subject.rfc4514_string()}" if own else "this client"


def principal(properties: Mapping[str, str]) -> str:
    """Return a principal as an access rule names it; ``User:NAME`` where the brokers alone know it."""
    kind, _, name = identity(properties).partition(" ")
    return f"User:{name}" if kind in ("user", "client") and name else "User:NAME"


def own_certificate(properties: Mapping[str, str]) -> x509.Certificate | None:
    """Return the client's certificate; None if it has none that can be read without a password."""
    try:
        return x509.load_pem_x509_certificate(tls.certificate_of(properties).encode())
    except (ConfigurationError, ValueError):
        return None


def validity(certificate: x509.Certificate) -> str:
    """Return why a certificate isn't valid now, as the end of a sentence; empty if its dates are right."""
    now = dt.datetime.now(dt.UTC)
    if certificate.not_valid_after_utc < now:
        return f"expired on {certificate.not_valid_after_utc:%Y-%m-%d %H:%M} UTC"
    if certificate.not_valid_before_utc > now:
        return f"is not valid before {certificate.not_valid_before_utc:%Y-%m-%d %H:%M} UTC"
    return ""
