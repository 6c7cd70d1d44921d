"""Connects to a broker's port with Python's TLS: whether it speaks TLS, and why its certificate is not trusted.

librdkafka tells neither. Only called once a connection has failed; nothing is sent after the handshake.
"""

import socket
import ssl
from collections.abc import Mapping
from pathlib import Path

from cryptography import x509

from kafka_lake.kafka.security.identity import validity

_SECONDS = 2.0


def speaks_tls(properties: Mapping[str, str]) -> bool:
    """Return whether what listens at the first of the brokers' addresses answers as a TLS server."""
    return _certificate(properties) is not None


def distrust(properties: Mapping[str, str]) -> str:
    """Return why the broker's certificate is not trusted, as a sentence; empty if that can't be told."""
    found = _certificate(properties)
    if found is None:
        return ""
    named = f"The broker's certificate {found.subject.rfc4514_string()}, issued by {found.issuer.rfc4514_string()},"
    if dates := validity(found):
        return f"{named} {dates}."
    try:
        context = ssl.create_default_context()
        if pem := properties.get("ssl.ca.pem"):
            context = ssl.create_default_context(cadata=pem)
        elif (location := properties.get("ssl.ca.location", "probe")) != "probe":
            in_folder = Path(location).is_dir()
            context = ssl.create_default_context(
                cafile=None if in_folder else location, capath=location if in_folder else None
            )
        _shake(properties, context)
    except ssl.SSLCertVerificationError as error:
        return f"{named} is refused: {error.verify_message.rstrip('.')}."
    except (OSError, ValueError):
        return ""
    return ""


def _certificate(properties: Mapping[str, str]) -> x509.Certificate | None:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        encoded = _shake(properties, context)
        return x509.load_der_x509_certificate(encoded) if encoded else None
    except (OSError, ValueError):
        return None


def _shake(properties: Mapping[str, str], context: ssl.SSLContext) -> bytes | None:
    host, _, port = properties["bootstrap.servers"].split(",")[0].strip().rpartition("://")[2].rpartition(":")
    host = host.strip("[]")
    with (
        socket.create_connection((host, int(port)), timeout=_SECONDS) as connection,
        context.wrap_socket(connection, server_hostname=host) as secured,
    ):
        return secured.getpeercert(binary_form=True)
