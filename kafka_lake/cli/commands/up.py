"""``kafka-lake up``."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event
from typing import TYPE_CHECKING, Annotated

import typer

from kafka_lake.cli import project
from kafka_lake.cli.commands.topics import refresh_unknown
from kafka_lake.cli.find_project import code_locations, dagster_folder, other_locations, targets
from kafka_lake.cli.output import note
from kafka_lake.common.processes import port_open
from kafka_lake.devstack.running import Ports, check_alone, check_free
from kafka_lake.errors import KafkaLakeError

if TYPE_CHECKING:
    from kafka_lake.catalog.lake_catalog import LakeCatalog
    from kafka_lake.devstack.stack import Stack

Task = Callable[[Event], None]
"""Work beside the servers until the event is set. It is called again after an error, as when a server is away."""

_PAUSE_SECONDS = 5.0


def up(
    s3: Annotated[
        bool, typer.Option("--s3", help="Store the tables in an embedded S3 store with a REST catalog.")
    ] = False,
) -> None:
    """Run Dagster and a Spark Connect server until Ctrl-C; also an embedded broker, if no brokers are configured."""
    stay_up(Ports.from_env(), note, s3=s3)


def stay_up(
    ports: Ports,
    tell_user: Callable[[str], None],
    demo: Callable[[Stack], list[Task]] | None = None,
    s3: bool = False,
) -> None:
    """Run the local stack until a signal, or until one of its servers ends too often; then stop all of it.

    The embedded broker is started if neither the project nor the environment names brokers. A Spark Connect server is
    started unless ``SPARK_REMOTE`` names another one. A server that ends is restarted alone.
    """
    from kafka_lake.devstack.stack import Stack, interruptible, needs_connect

    locations = targets()
    check_alone()
    connect = needs_connect(ports)
    check_free(*([ports.broker, ports.registry] if demo else []), ports.ui, *([ports.connect] if connect else []))
    with interruptible(), Stack(ports, tell_user) as stack, _announce_stop(tell_user):
        tasks = demo(stack) if demo else []
        if s3:
            stack.start_object_store()
        if not demo and _needs_broker(ports):
            stack.start_broker()
        if connect:
            stack.start_connect(_catalog(tell_user))
        refresh_unknown(tell_user)
        url = stack.start_dagster(code_locations(locations), dagster_folder(locations), other_locations(locations))
        tasks.append(lambda _stop: _register_topics(tell_user))
        tell_user(f"All is up: {url} (Ctrl-C ends it; logs are in {stack.log_dir})")
        with _started([repeated(task, tell_user) for task in tasks]) as futures:
            while True:
                stack.check()
                for future in futures:
                    if future.done():
                        future.result()
                time.sleep(1)


def _needs_broker(ports: Ports) -> bool:
    """Return whether the embedded broker is the configured cluster, and isn't up yet."""
    from kafka_lake.devstack.running import is_embedded

    if not is_embedded(ports):
        return False
    try:
        named = [kafka.names_brokers for kafka, _ in project.configured_clusters().values()]
    except KafkaLakeError:
        # `_register_topics` reports it.
        return False
    return not all(named) and not port_open(ports.broker.number)


def _catalog(tell_user: Callable[[str], None]) -> LakeCatalog:
    from kafka_lake.config.systems import Catalog

    try:
        resource = project.configured_catalog()
    except KafkaLakeError as error:
        # As below. Runs with another catalog than this one are refused.
        tell_user(str(error))
        resource = Catalog()
    return resource.open()


def _register_topics(tell_user: Callable[[str], None]) -> None:
    from kafka_lake.orchestration.partitions import register_topics

    try:
        specs = project.topic_tables()
        clusters = {name: kafka.cluster() for name, (kafka, _) in project.configured_clusters().items()}
    except KafkaLakeError as error:
        # Dagster's pages show the error too, and load the definitions again once they are corrected.
        tell_user(str(error))
        return
    for name, cluster in clusters.items():
        register_topics([spec for spec in specs if spec.cluster == name], cluster, tell_user)


def repeated(task: Task, tell_user: Callable[[str], None], pause: float = _PAUSE_SECONDS) -> Task:
    """Return a task that is called again after an error that a user can fix."""

    def run(stop: Event) -> None:
        shown = ""
        while not stop.is_set():
            try:
                return task(stop)
            except KafkaLakeError as error:
                if str(error) != shown and not stop.is_set():
                    shown = str(error)
                    tell_user(f"{shown} Retrying every {pause:.0f} s.")
            stop.wait(pause)

    return run


@contextmanager
def _announce_stop(tell_user: Callable[[str], None]) -> Iterator[None]:
    try:
        yield
    finally:
        tell_user("Stopping… Waiting for runs in progress.")


@contextmanager
def _started(tasks: list[Task]) -> Iterator[list[Future[None]]]:
    stop = Event()
    with ThreadPoolExecutor(max(len(tasks), 1)) as pool:
        try:
            yield [pool.submit(task, stop) for task in tasks]
        finally:
            stop.set()
