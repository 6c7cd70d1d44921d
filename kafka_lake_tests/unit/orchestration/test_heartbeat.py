"""Runs that say that they live, and what becomes of those that don't."""

import os
import subprocess
import sys
import threading
from datetime import UTC, datetime

import dagster as dg
import pytest

from kafka_lake.common.processes import is_gone, name_of
from kafka_lake.orchestration.heartbeat import HEARTBEAT_TAG, end_dead, heartbeat
from kafka_lake.orchestration.keys import TOPIC_TAG

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.fixture
def instance(tmp_path):
    # In a file, like a user's: SQLite in memory lets no two threads of a process in at once, and waits for none.
    with dg.DagsterInstance.local_temp(str(tmp_path)) as made:
        yield made


@dg.job
def job() -> None: ...


def begun(instance, alive_tag, status=dg.DagsterRunStatus.STARTED):
    return instance.create_run_for_job(job, status=status, tags={HEARTBEAT_TAG: alive_tag} if alive_tag else {})


def status(instance, run):
    return instance.get_run_by_id(run.run_id).status


def said(name, seconds_ago=0):
    return f"{name} {datetime.fromtimestamp(NOW.timestamp() - seconds_ago, UTC).isoformat()}"


@pytest.fixture
def process():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as started:
        yield started
        started.kill()


def test_a_process_is_known_by_its_name_until_it_is_gone(process):
    name = name_of(process.pid)
    assert is_gone(name) is False
    another = f"{name.rpartition(':')[0]}:1"
    assert is_gone(another) is True, "another process with the same number"
    host, boot, space, _, start = name.split(":")
    assert is_gone(f"{host}:another boot:{space}:999999:{start}") is None, "another host of that name"
    assert is_gone(f"{host}:{boot}:another space:999999:{start}") is None, "another container"
    process.kill()
    process.wait()
    assert is_gone(name) is True
    assert name_of(process.pid) is None


@pytest.mark.slow
def test_a_run_says_that_it_lives_again_and_again(instance):
    run, seen, again = begun(instance, None), [], threading.Event()
    add = instance.add_run_tags

    def added(run_id, tags):
        if len(seen) == 1:
            seen.append("fails")
            raise OSError("the database is gone for a moment")
        add(run_id, tags)
        seen.append(tags[HEARTBEAT_TAG])
        if len(seen) > 3:
            again.set()

    instance.add_run_tags = added
    with heartbeat(instance, run.run_id, beat_seconds=0.001):
        assert instance.get_run_by_id(run.run_id).tags[HEARTBEAT_TAG].startswith(name_of(os.getpid()))
        assert again.wait(20)
    assert seen.pop() == "done"
    moments = [datetime.fromisoformat(beat.rpartition(" ")[2]) for beat in seen if beat != "fails"]
    assert moments == sorted(moments)
    assert len(set(moments)) > 1
    assert "alive" not in {thread.name for thread in threading.enumerate()}


def test_a_database_that_is_locked_when_a_run_begins_does_not_end_it(instance, monkeypatch):
    run, done = begun(instance, None), []

    def locked(*_):
        raise OSError("database is locked")

    monkeypatch.setattr(instance, "add_run_tags", locked)
    with heartbeat(instance, run.run_id):
        done.append(True)
    assert done
    assert HEARTBEAT_TAG not in instance.get_run_by_id(run.run_id).tags


def test_runs_of_processes_that_are_gone_are_ended(instance, process):
    living, dead = begun(instance, said(name_of(process.pid), 10_000)), begun(instance, said("x"))
    gone = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    instance.add_run_tags(dead.run_id, {HEARTBEAT_TAG: said(name_of(gone.pid))})
    gone.kill()
    gone.wait()
    found = [instance.get_run_by_id(run.run_id) for run in (living, dead)]
    assert [run.run_id for run in end_dead(instance, found, NOW.timestamp)] == [living.run_id]
    assert status(instance, living) is dg.DagsterRunStatus.STARTED
    assert status(instance, dead) is dg.DagsterRunStatus.FAILURE
    messages = [entry.message for entry in instance.all_logs(dead.run_id)]
    assert any("is gone. Its commits stay." in message for message in messages), messages


@dg.op
def topic_table(context):
    with heartbeat(context.instance, context.run_id):
        return 1


@dg.op
def made_from_it(context, _before):
    runs = context.instance.get_runs(dg.RunsFilter(statuses=[dg.DagsterRunStatus.STARTED]))
    assert end_dead(context.instance, runs) == runs != []


@dg.job(executor_def=dg.multiprocess_executor)
def both():
    made_from_it(topic_table())


@pytest.mark.exhaustive
def test_a_run_with_a_process_for_each_step_lives_after_the_topics_step(tmp_path):
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        assert dg.execute_job(dg.reconstructable(both), instance).success


def test_a_run_that_has_ended_meanwhile_is_left_as_it_is(instance, monkeypatch):
    run = begun(instance, said("elsewhere:boot:1:17:123", 10_000))
    instance.report_dagster_event(dg.DagsterEvent("PIPELINE_SUCCESS", job.name), run.run_id)
    assert end_dead(instance, [run], NOW.timestamp) == [run]
    assert status(instance, run) is dg.DagsterRunStatus.SUCCESS


def test_of_other_hosts_only_silence_tells(instance):
    quiet, silent = (begun(instance, said("elsewhere:boot:1:17:123", seconds)) for seconds in (600, 1200))
    assert [run.run_id for run in end_dead(instance, [quiet, silent], NOW.timestamp)] == [quiet.run_id]
    assert status(instance, silent) is dg.DagsterRunStatus.FAILURE


def test_runs_that_have_not_begun_and_those_of_others_are_left_alone(instance):
    waits = dg.DagsterRunStatus.STARTING
    runs = [begun(instance, said("elsewhere:boot:1:17:123", 10_000), waits), begun(instance, None)]
    assert end_dead(instance, runs, NOW.timestamp) == runs
    assert [status(instance, run) for run in runs] == [waits, dg.DagsterRunStatus.STARTED]


def test_a_run_of_the_sensors_that_died_before_its_step_began_is_ended(instance):
    """It has begun, as Dagster knows, and never said that it lives: what it was launched for takes no such time."""
    asked, others = (instance.create_run_for_job(job, tags=tags) for tags in ({TOPIC_TAG: "pizzas"}, {}))
    for run in (asked, others):
        instance.report_dagster_event(dg.DagsterEvent("PIPELINE_START", job.name), run.run_id)
    runs = [instance.get_run_by_id(item.run_id) for item in (asked, others)]
    began = instance.get_run_record_by_id(asked.run_id).start_time
    assert end_dead(instance, runs, lambda: began + 600) == runs
    assert end_dead(instance, runs, lambda: began + 1200) == runs[1:]
    assert status(instance, asked) is dg.DagsterRunStatus.FAILURE
    assert status(instance, others) is dg.DagsterRunStatus.STARTED
