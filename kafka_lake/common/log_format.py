"""Log lines as text for people or as JSON for programs: one object a line, with the facts of the line as fields."""

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
    """Return the `extra` of a log call whose line shall have fields of its own in JSON."""
    return {_FIELDS: dict(fields)}


class JsonFormatter(logging.Formatter):
    """Gives a line of JSON: `time`, `level`, `logger`, `message`, the fields of the line, and `trace` of an error."""

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
    """Return what formats lines as a setting says."""
    if name not in FORMATS:
        raise ConfigurationError(f"{LOG.name}={name} is neither text nor json.", "Write one of them, or unset it.")
    return JsonFormatter() if name == "json" else logging.Formatter("%(asctime)s %(levelname)s %(message)s")


def log_to(stream: TextIO, name: str) -> None:
    """Write what runs log to a stream from now on; nothing else changes. Once is enough: further calls do nothing."""
    logger = logging.getLogger(RUNS)
    if any(each.get_name() == RUNS for each in logger.handlers):
        return
    handler = logging.StreamHandler(stream)
    handler.set_name(RUNS)
    handler.setFormatter(formatter(name))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    # Dagster and a command's own log get these lines in another way.
    logger.propagate = False


def log_as_the_environment_says() -> None:
    """Write what runs log to standard error, if `KAFKA_LAKE_LOG` says in which format."""
    if name := LOG.value():
        log_to(sys.stderr, name)
