"""Two code locations of a Dagster instance, each with a topic of the same name: neither waits for the other's runs."""

import shutil
import threading
from collections import Counter
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from kafka_lake_tests.contract.dagster.composed import DEPLOY
from kafka_lake_tests.contract.dagster.test_deployment import Deployment, until

pytestmark = [pytest.mark.contract, pytest.mark.e2e, pytest.mark.timeout(1800)]

TABLES = (("shop", "orders"), ("office", "orders"))
IN_FLIGHT = {"STARTED", "STARTING"}


def second_project(folder: Path) -> Path:
    """Return a project as that of deploy/, whose table is another one."""
    project = folder / "office_project"
    shutil.copytree(DEPLOY / "lake_project", project)
    (project / "lake_project").rename(project / project.name)
    topic = project / project.name / "defs" / "orders" / "defs.yaml"
    topic.write_text(topic.read_text().replace("name: shop.orders", "name: office.orders"))
    settings = project / "pyproject.toml"
    settings.write_text(settings.read_text().replace("lake_project", project.name))
    return project


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    composed = Deployment(tmp_path_factory.mktemp("two"))
    composed.add_location(second_project(tmp_path_factory.mktemp("projects")))
    with composed as running:
        for service in ("code", "second", "webserver", "daemon"):
            running.start(service)
        yield running


def test_two_locations_fill_their_tables_at_the_same_time(deployment: Deployment) -> None:
    produced, enough = count(), threading.Event()
    made = 0

    def trickle() -> None:
        # A run goes on while records come.
        nonlocal made
        while not enough.is_set():
            deployment.produce(next(produced) * 3, 3)
            made += 3
            enough.wait(1)

    producing = threading.Thread(target=trickle)
    producing.start()
    try:

        def both_in_flight() -> bool:
            at_work = {asset for run in deployment.all_runs() if run.status in IN_FLIGHT for asset in run.assets}
            return {"/".join(table) for table in TABLES} <= at_work

        until(both_in_flight, "a run of each table at the same time", 600)
        known = {table: len(deployment.rows(table)) for table in TABLES}
        for table in TABLES:
            until(lambda table=table: len(deployment.rows(table)) > known[table], f"more rows in {table}")
    finally:
        enough.set()
        producing.join()
    for table in TABLES:
        until(lambda table=table: len(deployment.rows(table)) >= made, f"all rows in {table}")
        assert Counter(deployment.rows(table)) == Counter(range(made))
    assert {run.sensor for run in deployment.all_runs()} == {"kafka_offsets"}
