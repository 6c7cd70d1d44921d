"""The format of runs' log lines: text for people, or a JSON object per line for programs."""

import json
import logging
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, TextIO

from kafka_lake.common.environment import LOG
from kafka_lake.errors import ConfigurationError

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
        raise ConfigurationError(f"{LOG.name}={name} is neither text nor json.", "Write one of them, or unset it.")
    return JsonFormatter() if name == "json" else logging.Formatter("%(asctime)s %(levelname)s %(message)s")


def log_to(stream: TextIO, name: str) -> None:
    """Write the log of runs to a stream from now on. Further calls do nothing."""
    logger = logging.getLogger(RUNS)
    if any(each.get_name() == RUNS for each in logger.handlers):
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
