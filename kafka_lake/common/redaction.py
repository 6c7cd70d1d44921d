"""Removes secrets from errors before they reach logs, Dagster's events or the terminal."""

import os
import re
import traceback
from collections.abc import Mapping

SECRET_NAME = (
    r"password|passphrase|secret|token|credential|cookie|jaas|authorization|user\.info"
    r"|(?:access|account|api|decryption|encryption|keystore|private|sse|subscription)[._-]?key|connection[._-]?string"
)
"""Regular expression, for Python and for Java, that matches lower-case names of secret settings."""

SECRET_ADDRESS = r"://[^\s/@:]*:[^\s@]*@"
"""Regular expression that matches an address with a password."""


_SHORTEST = 6
_REPLACEMENT = "***"
_SECRET_NAME = re.compile(SECRET_NAME.replace(r"\.", "[._]"), re.IGNORECASE)
# Locations of secrets are not secret.
_NO_SECRET = re.compile(r"(?:url|uri|location|file|path)$", re.IGNORECASE)
_PASSWORD_IN_ADDRESS = re.compile(r"://[^\s/@:]*:([^\s@]+)@")
_TOKEN_IN_ADDRESS = re.compile(r"[;?&]token=([^;&\s]+)")
_PATTERNS = (
    (re.compile(r"(://)[^/\s:@]*:[^/\s@]+@"), rf"\1{_REPLACEMENT}@"),
    (
        re.compile(
            r"((?:password|passwd|secret|token|credential|access[-_.]?key)[\w.-]*[\"']?\s*[=:]\s*)"
            r"(?:\"[^\"]*\"|'[^']*'|[^\s,;&]+)",
            re.IGNORECASE,
        ),
        rf"\1{_REPLACEMENT}",
    ),
    (re.compile(r"\b(Bearer|Basic) [\w.+/=-]+"), rf"\1 {_REPLACEMENT}"),
)


class RedactedError(Exception):
    """An error without its secrets. Its message has the redacted trace of the original error."""


def without_secrets(text: str, environment: Mapping[str, str] | None = None) -> str:
    """Return a text with ``***`` for values of secret variables and for patterns of secrets.

    >>> without_secrets("FATAL: 'open-sesame' at http://me:you@host", {"DB_PASSWORD": "open-sesame"})
    "FATAL: '***' at http://***@host"
    """
    text = without_secret_values(text, environment)
    for pattern, replacement in _PATTERNS:
        text = pattern.sub(replacement, text)
    return text


def error_without_secrets(error: BaseException) -> BaseException:
    """Return an error without values of secret variables: the same error if it has none."""
    shown = "".join(traceback.format_exception(error))
    redacted = without_secret_values(shown)
    return error if redacted == shown else RedactedError(redacted)


def without_secret_values(text: str, environment: Mapping[str, str] | None = None) -> str:
    """Return a text with ``***`` for values of secret variables."""
    for value in _secret_values(os.environ if environment is None else environment):
        text = text.replace(value, _REPLACEMENT)
    return text


def _secret_values(environment: Mapping[str, str]) -> list[str]:
    """Return the secret values, the longest first, since one may contain another."""
    secrets = set[str]()
    for name, value in environment.items():
        if _SECRET_NAME.search(name) and not _NO_SECRET.search(name):
            secrets.add(value)
        secrets.update(_PASSWORD_IN_ADDRESS.findall(value), _TOKEN_IN_ADDRESS.findall(value))
    return sorted((secret for secret in secrets if len(secret) >= _SHORTEST), key=len, reverse=True)
