"""What libraries and servers say while a command runs: to a file, so that an error is the one sentence that it is."""

import logging
import os
import sys
from pathlib import Path

from kafka_lake.common.home import ensure_home, home

_LARGEST_BYTES = 5_000_000


def log_file() -> Path:
    """Return the file that takes what is said beside a command's own output."""
    return home() / "logs" / "command.log"


def log_to_file() -> None:
    """Send what loggers report, and what the JVM and C libraries write to standard error, to `log_file` from now on.

    Python's own ``sys.stderr`` stays where it was. Where the file can't be written they are silenced.
    """
    sys.stderr = os.fdopen(os.dup(2), "w", buffering=1, encoding=sys.stderr.encoding, errors="backslashreplace")
    path = log_file()
    try:
        ensure_home()
        path.parent.mkdir(exist_ok=True)
        fresh = path.exists() and path.stat().st_size > _LARGEST_BYTES
        log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | (os.O_TRUNC if fresh else 0), 0o600)
    except OSError:
        log = os.open(os.devnull, os.O_WRONLY)
    os.dup2(log, 2)
    logging.basicConfig(
        stream=os.fdopen(log, "w", buffering=1, errors="backslashreplace"),
        level=logging.WARNING,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )


def log_to_terminal() -> None:
    """Show what loggers report, from their information level on."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
