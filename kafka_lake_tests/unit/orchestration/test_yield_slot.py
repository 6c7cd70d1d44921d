"""Which catch-up run yields its slot when another run waits, on a real instance of Dagster."""

import time

import dagster as dg
import pytest
from dagster._core.remote_origin import GrpcServerCodeLocationOrigin, RemoteJobOrigin, RemoteRepositoryOrigin
from sqlalchemy.exc import OperationalError

from kafka_lake.orchestration.runs import yields_slot

PIZZAS, PASTA, SALADS = (dg.AssetKey(["lake", name]) for name in ("pizzas", "pasta", "salads"))
STARTED, QUEUED = dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.QUEUED


@pytest.fixture(scope="module")
def limited():
    overrides = {
        "run_coordinator": {"module": "dagster.core.run_coordinator", "class": "QueuedRunCoordinator"},
        "concurrency": {"runs": {"max_concurrent_runs": 2}},
    }
    with dg.DagsterInstance.local_temp(overrides=overrides) as made:
        yield made


@pytest.fixture
def instance(limited):
    yield limited
    for run in limited.get_runs():
        limited.delete_run(run.run_id)


def add(instance, status, table):
    location = GrpcServerCodeLocationOrigin("localhost", location_name="elsewhere")
    origin = RemoteJobOrigin(RemoteRepositoryOrigin(location, "repository"), "job")
    run = dg.DagsterRun("job", status=status, remote_job_origin=origin, asset_selection=frozenset([table]))
    instance.add_run(run)
    return run.run_id


def later(seconds):
    return lambda: time.time() + seconds


@pytest.mark.slow
def test_no_run_yields_while_none_waits(instance):
    first, second = add(instance, STARTED, PIZZAS), add(instance, STARTED, PASTA)
    assert not yields_slot(instance, first, later(3600))
    assert not yields_slot(instance, second, later(3600))


def test_a_run_that_waits_while_a_slot_is_free_waits_for_something_else(instance):
    first = add(instance, STARTED, PIZZAS)
    add(instance, QUEUED, SALADS)
    assert not yields_slot(instance, first, later(3600))


def test_the_run_launched_first_yields_first_and_the_next_one_if_that_is_not_enough(instance):
    first, second = add(instance, STARTED, PIZZAS), add(instance, STARTED, PASTA)
    add(instance, QUEUED, SALADS)
    assert yields_slot(instance, first)
    assert yields_slot(instance, first, later(-60)), "the database's clock is ahead"
    assert not yields_slot(instance, second)
    assert yields_slot(instance, second, later(6))


@pytest.mark.slow
def test_a_waiting_run_for_the_same_table_gets_the_slot_at_once(instance):
    first, second = add(instance, STARTED, PIZZAS), add(instance, STARTED, PASTA)
    add(instance, QUEUED, PASTA)
    assert yields_slot(instance, second)
    add(instance, QUEUED, PIZZAS)
    assert yields_slot(instance, first)


def test_without_a_queue_there_is_no_limit():
    with dg.DagsterInstance.ephemeral() as instance:
        first = add(instance, STARTED, PIZZAS)
        add(instance, STARTED, PASTA)
        add(instance, QUEUED, SALADS)
        assert not yields_slot(instance, first, later(3600))


def test_a_locked_database_counts_as_no_waiting_run(instance, monkeypatch):
    going = add(instance, STARTED, PIZZAS)
    add(instance, QUEUED, PIZZAS)
    assert yields_slot(instance, going)

    def locked(*_, **__):
        raise OperationalError("SELECT", {}, Exception("database is locked"))

    monkeypatch.setattr(type(instance), "get_run_records", locked)
    assert not yields_slot(instance, going)
    monkeypatch.setattr(type(instance), "get_run_records", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        yields_slot(instance, going)
