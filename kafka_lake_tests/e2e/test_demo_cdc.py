"""`make demo CDC=1` for real: others change rows, a run is killed, and the tables are what the database is."""

import os
import re
import signal
import subprocess
import time
from pathlib import Path

import psycopg2
import pytest

from kafka_lake_tests.e2e.test_demo import COMMAND, PROJECT, deployment_in, processes_of

pytestmark = [pytest.mark.e2e, pytest.mark.exhaustive, pytest.mark.timeout(1500)]

SECONDS = 600


@pytest.fixture
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    home = tmp_path_factory.mktemp("cdc")
    # As root, PostgreSQL runs as nobody, who must get there.
    for folder in (home, *home.parents[:2]):
        folder.chmod(0o755)
    return deployment_in(home)


def started(environment: dict[str, str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as output:
        return subprocess.Popen(
            [*COMMAND, "demo", "--cdc", "--records", "200"], cwd=PROJECT, env=environment, stdout=output, stderr=output
        )


def run_of_customers(environment: dict[str, str]) -> int | None:
    """Return the process of the first run that has begun to fill the customers' table."""
    log = Path(environment["KAFKA_LAKE_HOME"]) / "logs" / "code-server-kafka_lake.log"
    found = re.search(r"- (\d+) - shop__customers - STEP_START", log.read_text()) if log.exists() else None
    return int(found[1]) if found else None


def test_cdc_demo_tables_match_the_database_after_kills(environment: dict[str, str], tmp_path: Path) -> None:
    log = tmp_path / "first.log"
    with started(environment, log) as demo:
        try:
            deadline = time.monotonic() + SECONDS
            while (url := re.search(r"psql (postgresql://\S+)", log.read_text())) is None:
                assert demo.poll() is None, log.read_text()
                assert time.monotonic() < deadline
                time.sleep(0.2)
            with psycopg2.connect(url[1]) as connection, connection.cursor() as cursor:
                cursor.execute("UPDATE customers SET street = '1 Test Lane' WHERE points > 0")
                cursor.execute("DELETE FROM orders WHERE order_id % 7 = 0")
            connection.close()
            while (run := run_of_customers(environment)) is None:
                assert demo.poll() is None, log.read_text()
                assert time.monotonic() < deadline
                time.sleep(0.1)
            os.kill(run, signal.SIGKILL)
            demo.wait(SECONDS)
        finally:
            demo.kill()
    assert processes_of(environment) == []
    # The first one has said that a run failed; the next one goes on where it was.
    log = tmp_path / "second.log"
    with started(environment, log) as demo:
        try:
            code = demo.wait(SECONDS)
        finally:
            demo.kill()
    said = log.read_text()
    assert code == 0, said
    assert "Table customers already exists" in said
    assert len(re.findall(r"shop\.\w+[^\n]* 0 │\n", said)) == 2, said
    assert "Every row is the same in PostgreSQL and in Iceberg." in said
    assert processes_of(environment) == []
