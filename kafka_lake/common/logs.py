"""What runs log: the format of their lines, and texts and errors without secrets."""

import json
import logging
import os
import re
import sys
import traceback
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, TextIO

from kafka_lake.common.environment import LOG
from kafka_lake.errors import ConfigurationError

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


FORMATS = ("text", "json")
_FIELDS = "kafka_lake_fields"
RUNS = "kafka_lake.run"
"""The logger of runs; a command writes other loggers to its own log."""


def with_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `extra` of a log call, with fields for JSON."""
    return {_FIELDS: dict(fields)}


class JsonFormatter(logging.Formatter):
    """Formats a line as JSON: `time`, `level`, `logger`, `message`, its fields, and `trace` of an error."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, _FIELDS, {}),
        }
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


def formatter(name: str) -> logging.Formatter:
    """Return the formatter of a setting's value."""
    if name not in FORMATS:
        raise ConfigurationError(f"{LOG.name}={name} is neither text nor json.", "Write text or json, or unset it.")
    return JsonFormatter() if name == "json" else logging.Formatter("%(asctime)s %(levelname)s %(message)s")


def log_to(stream: TextIO, name: str) -> None:
    """Write the log of runs to a stream from now on. Further calls do nothing."""
    logger = logging.getLogger(RUNS)
    if any(existing.get_name() == RUNS for existing in logger.handlers):
        return
    handler = logging.StreamHandler(stream)
    handler.set_name(RUNS)
    handler.setFormatter(formatter(name))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    # Dagster and a command's log have handlers of their own for these lines.
    logger.propagate = False


def log_as_the_environment_says() -> None:
    """Write the log of runs to standard error, if `KAFKA_LAKE_LOG` has a format."""
    if name := LOG.value():
        log_to(sys.stderr, name)
