"""deploy/ at work: Dagster with its storage in PostgreSQL; webserver, daemon and code location are processes."""

import json
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import dagster as dg
import pytest
from confluent_kafka import Producer
from pyiceberg.catalog import load_catalog

from kafka_lake.catalog.catalog_properties import properties_from_environment
from kafka_lake.devstack.dagster_runs import DagsterRuns, Run
from kafka_lake.kafka.auth.properties import properties_from_env
from kafka_lake.orchestration.heartbeat import HEARTBEAT_TAG
from kafka_lake_tests.contract.dagster.composed import Composed
from kafka_lake_tests.contract.postgres import execute
from kafka_lake_tests.meta.test_retention_page import code_of_the_page

pytestmark = [pytest.mark.contract, pytest.mark.e2e, pytest.mark.timeout(900)]

TABLE = ("shop", "orders")
ASSET = "shop/orders"


class Deployment(Composed):
    """With what a user does: produce, read, look at runs."""

    def start_all(self, host: str) -> None:
        for service in ("code", "webserver", "daemon"):
            self.start(service, host if service == "code" else "")

    def produce(self, first: int, count: int) -> None:
        producer = Producer({**properties_from_env(self.environment("code")), "log_level": 0})
        for number in range(first, first + count):
            producer.produce("orders", json.dumps({"order_id": number}), partition=number % 3)
        assert producer.flush(30) == 0

    def rows(self, table: tuple[str, str] = TABLE) -> list[int]:
        """Return the order ids of a table, by PyIceberg alone."""
        with pytest.MonkeyPatch.context() as patch:
            for name, value in self.environment("code").items():
                patch.setenv(name, value)
            catalog = load_catalog("lake", **properties_from_environment("lake"))
        if not catalog.table_exists(table):
            return []
        return list(catalog.load_table(table).scan().to_arrow().column("order_id").to_pylist())

    def runs(self) -> list[Run]:
        """Return the table's runs, newest first."""
        return [run for run in self.all_runs() if ASSET in run.assets]

    def all_runs(self) -> list[Run]:
        """Return the runs of all tables, newest first."""
        return DagsterRuns(f"http://127.0.0.1:{self.ports['3000']}").since(0)

    def select(self, query: str) -> list[tuple[Any, ...]]:
        return execute(int(self.ports["5432"]), self.owner, query)

    def instance(self) -> dg.DagsterInstance:
        return dg.DagsterInstance.from_config(str(self.home))

    def logs(self) -> dict[str, str]:
        found = {path.name: path.read_text(errors="replace") for path in self.folder.glob("*.log")}
        printed = {path.name: path.read_text(errors="replace") for path in self.home.rglob("*.out")}
        return found | printed | {path.name: path.read_text(errors="replace") for path in self.home.rglob("*.err")}


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with Deployment(tmp_path_factory.mktemp("deployment")) as running, pytest.MonkeyPatch.context() as patch:
        for name, value in running.environment("code").items():
            if name.startswith("DAGSTER_PG_"):
                patch.setenv(name, value)
        running.start_all("code-1")
        yield running


def until(condition: Callable[[], Any], what: str, timeout: float = 240) -> Any:
    deadline = time.monotonic() + timeout
    while not (found := condition()):
        assert time.monotonic() < deadline, f"waited {timeout} s for {what}"
        time.sleep(0.5)
    return found


def test_the_sensor_starts_runs_that_fill_the_table(deployment: Deployment) -> None:
    deployment.produce(0, 300)
    until(lambda: len(deployment.rows()) >= 300, "300 rows")
    assert Counter(deployment.rows()) == Counter(range(300))
    assert deployment.runs()[0].sensor == "kafka_offsets"


def test_all_that_dagster_keeps_is_in_postgresql(deployment: Deployment) -> None:
    query = "SELECT count(*) FROM event_logs WHERE dagster_event_type = 'ASSET_MATERIALIZATION'"
    # The run tells of its rows after it has published them.
    until(lambda: deployment.select(query)[0][0] >= 3, "an event for each partition", 60)
    assert deployment.select("SELECT count(*) FROM runs")[0][0] >= 1
    assert deployment.select("SELECT count(*) FROM job_ticks")[0][0] >= 1
    assert list(deployment.home.rglob("*.db")) == []


def test_no_password_is_in_a_log_or_in_dagster_s_database(deployment: Deployment) -> None:
    logs = deployment.logs()
    assert {"code.log", "webserver.log", "daemon.log"} <= logs.keys()
    columns = deployment.select(
        "SELECT table_name, column_name FROM information_schema.columns"
        " WHERE table_schema = 'public' AND data_type IN ('text', 'character varying', 'jsonb')"
    )
    stored = {
        f"{table}.{column}": str(deployment.select(f'SELECT string_agg("{column}"::text, \' \') FROM "{table}"'))
        for table, column in columns
    }
    assert "order" in stored["event_logs.event"]
    for where, text in (logs | stored).items():
        for name, secret in deployment.secrets.items():
            assert secret not in text, f"{name} is in {where}"


def test_lost_host_fails_its_run_and_next_run_reads_its_records(deployment: Deployment) -> None:
    earlier = {run.run_id for run in deployment.runs()}
    until(lambda: all(run.ended for run in deployment.runs()), "the earlier runs to end", 400)
    deployment.produce(300, 100)

    def at_work() -> str | None:
        new = [run for run in deployment.runs() if run.run_id not in earlier and run.status == "STARTED"]
        tags = instance.get_run_by_id(new[0].run_id).tags if new else {}
        return new[0].run_id if HEARTBEAT_TAG in tags else None

    with deployment.instance() as instance:
        cut_off = until(at_work, "a run to be at work")
        assert instance.get_run_by_id(cut_off).tags[HEARTBEAT_TAG].startswith("code-1:")
        deployment.processes["code"].kill()
        deployment.produce(400, 100)
        deployment.start("code", "code-2")
        ticks = until(lambda: _ticks_that_say(deployment, "a run is in flight"), "the sensor to wait for the run")
        assert ticks
        assert instance.get_run_by_id(cut_off).status == dg.DagsterRunStatus.STARTED

        # As if it had been silent for more than a quarter of an hour.
        name, _, said = instance.get_run_by_id(cut_off).tags[HEARTBEAT_TAG].rpartition(" ")
        long_ago = datetime.fromisoformat(said) - timedelta(minutes=16)
        assert long_ago < datetime.now(UTC)
        instance.add_run_tags(cut_off, {HEARTBEAT_TAG: f"{name} {long_ago.isoformat()}"})

        until(lambda: instance.get_run_by_id(cut_off).is_finished, "the run to be ended", 60)
        assert instance.get_run_by_id(cut_off).status == dg.DagsterRunStatus.FAILURE
        assert "has been silent for" in _ended_because(instance, cut_off)
    until(lambda: len(deployment.rows()) >= 500, "all rows")
    assert Counter(deployment.rows()) == Counter(range(500))


def test_the_retention_job_deletes_old_runs_and_nothing_else(deployment: Deployment) -> None:
    until(lambda: all(run.ended for run in deployment.runs()), "the runs to end", 400)
    newest, *others = [run.run_id for run in deployment.runs()]
    assert others
    old = others[0]
    deployment.select(f"UPDATE runs SET update_timestamp = now() - interval '31 days' WHERE run_id = '{old}'")
    rows = Counter(deployment.rows())
    with deployment.instance() as instance:
        done = code_of_the_page()["retention"].execute_in_process(instance=instance)
        assert done.success
        assert instance.get_run_by_id(old) is None
        assert instance.get_run_by_id(newest) is not None
    for table in ("runs", "run_tags", "event_logs"):
        counts = dict(deployment.select(f"SELECT run_id, count(*) FROM {table} GROUP BY run_id"))
        assert old not in counts, table
        assert {newest, *others[1:]} <= counts.keys(), table
    # Nothing is read again because of it.
    deployment.produce(500, 1)
    until(lambda: len(deployment.rows()) > rows.total(), "the new row")
    assert Counter(deployment.rows()) == rows + Counter([500])


def _ended_because(instance: dg.DagsterInstance, run_id: str) -> str:
    events = [entry.dagster_event for entry in instance.all_logs(run_id) if entry.dagster_event]
    return str(next(e.message for e in events if e.event_type == dg.DagsterEventType.RUN_FAILURE))


def _ticks_that_say(deployment: Deployment, what: str) -> list[str]:
    bodies = deployment.select("SELECT tick_body FROM job_ticks ORDER BY id DESC LIMIT 3")
    return [body for (body,) in bodies if re.search(what, body)]
