"""`make demo MANY=1` for real: a run is killed, and each table has what its topics say, twice in a row."""

import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from kafka_lake_tests.e2e.test_demo import COMMAND, PROJECT, deployment_in, processes_of

pytestmark = [pytest.mark.e2e, pytest.mark.exhaustive, pytest.mark.timeout(1500)]

SECONDS = 700
TABLES = 10


def started(environment: dict[str, str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as output:
        return subprocess.Popen(
            [*COMMAND, "demo", "--many", "--records", "2000"],
            cwd=PROJECT,
            env=environment,
            stdout=output,
            stderr=output,
        )


def run_of(environment: dict[str, str], step: str) -> int | None:
    """Return the process of the first run that has begun to fill a table."""
    log = Path(environment["KAFKA_LAKE_HOME"]) / "logs" / "code-server-kafka_lake.log"
    found = re.search(rf"- (\d+) - {step} - STEP_START", log.read_text()) if log.exists() else None
    return int(found[1]) if found else None


def test_many_demo_tables_match_their_topics_after_kills(
    tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    environment = deployment_in(tmp_path_factory.mktemp("many"))
    log = tmp_path / "first.log"
    with started(environment, log) as demo:
        try:
            deadline = time.monotonic() + SECONDS
            while (run := run_of(environment, "events__other_events")) is None:
                assert demo.poll() is None, log.read_text()
                assert time.monotonic() < deadline
                time.sleep(0.1)
            os.kill(run, signal.SIGKILL)
            demo.wait(SECONDS)
        finally:
            demo.kill()
    assert processes_of(environment) == []
    # The first one has said that a run failed; the next one goes on where it was, with more events.
    log = tmp_path / "second.log"
    with started(environment, log) as demo:
        try:
            code = demo.wait(SECONDS)
        finally:
            demo.kill()
    said = log.read_text()
    assert code == 0, said
    assert len(re.findall(r"(?:events\.\w+|kitchens\.\w+|dead letters of events)\s[^\n]* 0 │\n", said)) == TABLES, said
    assert "Every table has exactly the rows that its topics give." in said
    assert processes_of(environment) == []
