"""Takes secrets out of what is shown or kept of errors: logs, Dagster's events, the terminal."""

import os
import re
import traceback
from collections.abc import Mapping

SECRET_NAME = (
    r"password|passphrase|secret|token|credential|cookie|jaas|authorization|user\.info"
    r"|(?:access|account|api|decryption|encryption|keystore|private|sse|subscription)[._-]?key|connection[._-]?string"
)
"""Regular expression, for Python and for Java, that finds something in lower-case names of secret settings."""

SECRET_ADDRESS = r"://[^\s/@:]*:[^\s@]*@"
"""Regular expression that finds something in an address that has a password in it."""


_SHORTEST = 6
_REPLACEMENT = "***"
_SECRET_NAME = re.compile(SECRET_NAME.replace(r"\.", "[._]"), re.IGNORECASE)
# They say where a secret is.
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
    """An error whose text or trace had a secret; what it was is in the message, without the secret."""


def without_secrets(text: str, environment: Mapping[str, str] | None = None) -> str:
    """Return a text with ``***`` for secrets: the values of variables with such names, and what looks like one.

    >>> without_secrets("FATAL: 'open-sesame' at http://me:you@host", {"DB_PASSWORD": "open-sesame"})
    "FATAL: '***' at http://***@host"
    """
    text = without_secret_values(text, environment)
    for pattern, replacement in _PATTERNS:
        text = pattern.sub(replacement, text)
    return text


def error_without_secrets(error: BaseException) -> BaseException:
    """Return an error whose text, causes and traces have no value of a secret variable: mostly the error itself."""
    shown = "".join(traceback.format_exception(error))
    redacted = without_secret_values(shown)
    return error if redacted == shown else RedactedError(redacted)


def without_secret_values(text: str, environment: Mapping[str, str] | None = None) -> str:
    """Return a text with ``***`` for the values of variables whose names are those of secrets."""
    for value in _secret_values(os.environ if environment is None else environment):
        text = text.replace(value, _REPLACEMENT)
    return text


def _secret_values(environment: Mapping[str, str]) -> list[str]:
    """Return the values that no text may have, the longest first: one may be a part of another."""
    found = set[str]()
    for name, value in environment.items():
        if _SECRET_NAME.search(name) and not _NO_SECRET.search(name):
            found.add(value)
        found.update(_PASSWORD_IN_ADDRESS.findall(value), _TOKEN_IN_ADDRESS.findall(value))
    return sorted((each for each in found if len(each) >= _SHORTEST), key=len, reverse=True)
