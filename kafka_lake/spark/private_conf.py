"""Keeps Spark's settings, some of which are secret, out of command lines, logs, event logs and Spark's UI.

The arguments of a process can be read by every account of the machine. So a JVM is given its settings by a file that
its owner alone can read, and that is there only until it was read.
"""

import logging
import os
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from kafka_lake.common.redaction import SECRET_ADDRESS, SECRET_NAME
from kafka_lake.common.whole_file import write_private
from kafka_lake.spark.compat.jvm import ensure_jvm

_SUBMIT_ARGUMENTS = "PYSPARK_SUBMIT_ARGS"

# As protobuf writes a map's entry. Possessive, since Java's own stack would bound the length of what it matches.
_OPTION = rf'(?i)key: "[^"]*(?:{SECRET_NAME})[^"]*"\s+value: "[^"\\]*+(?:\\.[^"\\]*+)*+"'

REDACTION = {
    # Of names and values in the UI, in event logs, and in what SQL says of options.
    "spark.redaction.regex": f"(?i){SECRET_NAME}|{SECRET_ADDRESS}",
    # A Connect server puts its clients' requests there as they came, a reader's options among them.
    "spark.redaction.string.regex": _OPTION,
}
"""Settings by which Spark shows nothing that is secret."""


def start_jvm(conf: Mapping[str, str]) -> None:
    """Start the JVM of a Spark in this process with its settings; does nothing if this process has a JVM already.

    PySpark alone would give it each setting as an argument.

    Args:
        conf: Spark settings, secrets among them.
    """
    # At DEBUG it logs each command with its arguments, so a reader's password too, and Dagster's logs may be at DEBUG.
    logging.getLogger("py4j").setLevel(logging.INFO)
    with properties_file(conf) as file:
        before = os.environ.get(_SUBMIT_ARGUMENTS)
        ours = shlex.join(["--load-spark-defaults", "--properties-file", str(file)])
        os.environ[_SUBMIT_ARGUMENTS] = f"{ours} {before or 'pyspark-shell'}"
        try:
            ensure_jvm()
        finally:
            if before is None:
                del os.environ[_SUBMIT_ARGUMENTS]
            else:
                os.environ[_SUBMIT_ARGUMENTS] = before


@contextmanager
def properties_file(conf: Mapping[str, str]) -> Iterator[Path]:
    """Give a file of Spark's settings, in a folder that its owner alone can open; it is removed after the block."""
    with TemporaryDirectory(prefix="kafka-lake-spark-") as folder:
        file = Path(folder, "spark.properties")
        write_private(file, properties_text(conf))
        yield file


def properties_text(conf: Mapping[str, str]) -> str:
    r"""Write properties in Java's format, one per line.

    >>> properties_text({"spark.x": "a\\b"})
    'spark.x=a\\\\b\n'
    """
    return "".join(f"{_escaped(key)}={_escaped(value)}\n" for key, value in conf.items())


def _escaped(text: str) -> str:
    escapes = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", " ": "\\ ", "=": "\\=", ":": "\\:"}
    return "".join(escapes.get(char, char) for char in text)
