"""The jars of servers that only tests start, retrieved as the project's own are."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest.mock import patch

from kafka_lake.engine import jars


def retrieved(ivy_file: Path, conf: str) -> list[Path]:
    """Return the jars of one configuration of an Ivy file, retrieving what isn't here yet.

    An archive is unpacked beside them.
    """
    # Artifacts may differ by their classifier alone.
    with patch.object(jars, "_ivy_command", _with_classifier(jars._ivy_command)):
        return jars.retrieve_jars(ivy_file, conf)


def of_pyspark(*patterns: str) -> list[Path]:
    """Return jars that PySpark has, by their names."""
    spec = find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    return [jar for pattern in patterns for jar in Path(spec.origin).parent.glob(f"jars/{pattern}")]


def _with_classifier(ivy_command: Any) -> Any:
    def command(*arguments: Any) -> list[str]:
        return [part.replace("[artifact]", "[artifact](-[classifier])") for part in ivy_command(*arguments)]

    return command
