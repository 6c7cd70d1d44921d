"""`make dev S3=1`: tables in S3 with a REST catalog, and nothing stays behind."""

import json
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kafka_lake.catalog.catalog_properties import properties_from_environment
from kafka_lake.catalog.lake_catalog import LakeCatalog
from kafka_lake_tests.e2e.test_demo import COMMAND, PROJECT, deployment_in, kafka_lake, processes_of

pytestmark = [pytest.mark.contract, pytest.mark.e2e, pytest.mark.timeout(1800)]

_TABLE = ("pizza", "completed_pizzas")


def until(condition: Callable[[], bool], stack: "subprocess.Popen[bytes]", log: Path, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert stack.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(1)


def test_the_local_stack_with_s3_fills_a_table_there(tmp_path: Path) -> None:
    environment = deployment_in(tmp_path / "home")
    log = tmp_path / "up.log"
    with log.open("w") as output:
        command = [*COMMAND, "live", "--s3"]
        stack = subprocess.Popen(command, cwd=PROJECT, env=environment, stdout=output, stderr=output)
    try:
        until(lambda: "All is up" in log.read_text(), stack, log, 600)
        reported = kafka_lake(environment, "env", "--secrets")
        assert reported.returncode == 0, reported.stderr
        catalog = LakeCatalog("lake", _properties(reported.stdout))
        assert catalog.type == "rest"

        def has_rows() -> bool:
            table = catalog.table(_TABLE)
            return table is not None and table.scan().count() > 0

        until(has_rows, stack, log, 900)
        table = catalog.table(_TABLE)
        assert table is not None
        assert table.location().startswith("s3://")
        assert all(task.file.file_path.startswith("s3://") for task in table.scan().plan_files())
        asked = kafka_lake(environment, "status", "completed-pizzas", "--json")
        assert asked.returncode == 0, asked.stderr
        assert json.loads(asked.stdout)[0]["rows"] > 0
        assert not list(Path(environment["KAFKA_LAKE_HOME"]).rglob("catalog.db"))
        stack.send_signal(signal.SIGINT)
        assert stack.wait(120) == 128 + signal.SIGINT
    finally:
        stack.kill()
        stack.wait()
    assert processes_of(environment) == []


def _properties(exports: str) -> dict[str, str]:
    """Return the catalog's properties, as PyIceberg finds them in a shell with these exports."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("PYICEBERG_")]:
            patch.delenv(name)
        for part in shlex.split(exports):
            if part.startswith("PYICEBERG_"):
                patch.setenv(*part.split("=", 1))
        return properties_from_environment("lake")
