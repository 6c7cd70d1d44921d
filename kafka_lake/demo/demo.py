"""The demo: orders into Kafka, and the sensor's own run brings them into the lake. Shows what came of it."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from kafka_lake.demo import orders
from kafka_lake.demo.ports import Ports, check_free
from kafka_lake.demo.runs import DagsterRuns, Run, RunReport
from kafka_lake.demo.stack import Stack, interruptible
from kafka_lake.demo.summary import print_summary
from kafka_lake.errors import KafkaLakeError

TABLE = ("pizza", "completed_pizzas")
TOP_STORES = ("pizza", "top_stores")
SEED = 42
TIMEOUT_S = 300.0


@dataclass(frozen=True)
class Outcome:
    """What the demo's runs did.

    Args:
        loads: Reports of the sensor's runs that filled the topic's table, oldest first.
        seconds: From the start of Dagster until ``top_stores`` had followed.
    """

    loads: tuple[RunReport, ...]
    seconds: float


def run_demo(records: int, ports: Ports, console: Console) -> None:
    """Run the demo from an empty machine to a filled table, and stop everything again.

    Args:
        records: How many orders to produce.
        ports: Where the servers listen.
        console: Gets the progress and the tables.

    Raises:
        KafkaLakeError: If anything fails; names the cause and where the logs are. Nothing keeps running.
        SystemExit: At a signal, with the shell's code for it.
    """
    check_free(ports.broker, ports.ui)
    with interruptible(), Stack(ports, console.print) as stack:
        try:
            bootstrap = stack.start_broker()
            _produce(bootstrap, records, console)
            url = stack.start_dagster()
            with console.status("Waiting for the sensor") as status:
                outcome = follow(DagsterRuns(url), stack.dagster_began, stack.check, status.update)
            print_summary(TABLE, TOP_STORES, outcome.loads, outcome.seconds, ports, console)
            console.print("Stopping what was started")
        except KafkaLakeError as error:
            raise KafkaLakeError(str(error), f"\nLogs: {stack.log_dir}") from error


def _produce(bootstrap: str, records: int, console: Console) -> None:
    created = orders.ensure_topic(bootstrap, orders.TOPIC, orders.PARTITIONS)
    console.print(f"Topic {orders.TOPIC} {'created' if created else 'is there already'}")
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("Producing orders", total=records)
        orders.produce_orders(
            bootstrap, orders.TOPIC, records, SEED, lambda done: progress.update(task, completed=done)
        )


def follow(
    runs: DagsterRuns,
    began: float,
    check: Callable[[], None],
    say: Callable[[str], None],
    timeout: float = TIMEOUT_S,
) -> Outcome:
    """Wait until a run that the sensor asked for has filled the table and ``top_stores`` has followed.

    Args:
        runs: Where to ask.
        began: Runs that ended before count not; seconds since the epoch.
        check: Raises if a server has ended.
        say: Called with what is being waited for.
        timeout: Seconds to wait.

    Raises:
        KafkaLakeError: If a run fails, with its cause; if a server ends; if time is up.
    """
    while True:
        check()
        recent = runs.since(began)
        for run in recent:
            if run.status in ("FAILURE", "CANCELED"):
                raise KafkaLakeError(f"Run {run.run_id} of {', '.join(run.assets)}: {_cause(runs, run)}")
        loads = _done(recent, TABLE, began, by_sensor=True)
        followed = _done(recent, TOP_STORES, max((run.ended for run in loads), default=0.0))
        if loads and followed and all(run.status == "SUCCESS" for run in recent):
            reports = tuple(runs.report(run.run_id) for run in loads)
            return Outcome(reports, followed[-1].ended - began)
        waiting = _waiting(recent, bool(loads))
        if time.time() - began > timeout:
            raise KafkaLakeError(f"The demo wasn't done after {timeout:.0f} s. It was at this: {waiting}.")
        say(waiting)
        time.sleep(1)


def _done(runs: list[Run], asset: tuple[str, str], after: float, by_sensor: bool = False) -> list[Run]:
    found = [run for run in runs if run.status == "SUCCESS" and "/".join(asset) in run.assets and run.ended > after]
    return sorted((run for run in found if run.sensor or not by_sensor), key=lambda run: run.ended)


def _waiting(runs: list[Run], loaded: bool) -> str:
    active = [f"run {run.run_id[:8]} of {', '.join(run.assets)}: {run.status}" for run in runs if not run.ended]
    return (
        "; ".join(active) or f"Waiting for {TOP_STORES[1]} to follow" if loaded or active else "Waiting for the sensor"
    )


def _cause(runs: DagsterRuns, run: Run) -> str:
    return runs.report(run.run_id).failure or f"it ended as {run.status}, and its events name no cause"
