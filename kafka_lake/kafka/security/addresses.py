"""The brokers' addresses, in the one form that both clients read alike. Pure."""

import ipaddress
import re

from kafka_lake.common import environment
from kafka_lake.errors import ConfigurationError

NAME = "bootstrap.servers"
"""The property that has the addresses."""

_PORT = 9092
_ADDRESS = re.compile(
    r"(?:\[(?P<ipv6>[0-9A-Fa-f:.]+(?:%[0-9A-Za-z._-]+)?)\]|(?P<host>[0-9A-Za-z._-]+))(?::(?P<port>[0-9]{1,9}))?"
)


def addresses(given: str, protocol: str) -> str:
    """Return addresses as ``host:port``, separated by commas without spaces.

    librdkafka takes each as ``host or host:port`` (CONFIGURATION.md), with port 9092 where there is none. It takes
    ``a:b`` as port 0 and ``a:99999`` as port 34463, and leaves out an address with another protocol than
    ``security.protocol`` with no error but a line of its log. Java's ClientUtils refuses an address without a port
    (``Invalid url in bootstrap.servers``), and takes the last part of ``::1`` for one.

    Args:
        given: As the user wrote them; each may begin with ``PROTOCOL://``.

    Raises:
        ConfigurationError: If there is none, or if one has another protocol, or is not a host and a port.

    >>> addresses("one, PLAINTEXT://two:9093, [::1],", "PLAINTEXT")
    'one:9092,two:9093,[::1]:9092'
    """
    each = [address.strip() for address in given.split(",")]
    if found := [_normal(address, protocol) for address in each if address]:
        return ",".join(found)
    raise ConfigurationError(f"{_setting()} has no address.", "Set it to the brokers' addresses, as host:port.")


def _normal(address: str, protocol: str) -> str:
    prefix, separator, rest = address.rpartition("://")
    # What is no address may be a URL with a password.
    shown = address.rpartition("@")[2]
    if separator and prefix.upper() != protocol:
        raise ConfigurationError(
            f"{_setting()} has the address {shown!r}, and security.protocol is {protocol}.",
            f"Remove the address's prefix, or set {environment.KAFKA.name}SECURITY_PROTOCOL to it.",
        )
    found = _ADDRESS.fullmatch(rest)
    port = int(found["port"] or _PORT) if found else 0
    if found is None or not 1 <= port <= 65535 or (found["ipv6"] and not _is_ipv6(found["ipv6"])):
        raise ConfigurationError(
            f"{_setting()} has the address {shown!r}, which is not host:port.",
            "Correct it. Separate addresses by commas, write an IPv6 address in brackets, as [::1]:9092, and a name "
            "with other letters than a to z in its ASCII form (xn--).",
        )
    return f"[{found['ipv6']}]:{port}" if found["ipv6"] else f"{found['host']}:{port}"


def _setting() -> str:
    return f"Kafka property {NAME} ({environment.BOOTSTRAP_SERVERS.name})"


def _is_ipv6(text: str) -> bool:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True
