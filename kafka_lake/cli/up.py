"""``kafka-lake up``: the local stack that stays up, Dagster and a Spark Connect server included."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event

from kafka_lake.catalog.lake_catalog import LakeCatalog
from kafka_lake.cli.find_project import code_locations, dagster_folder, other_locations, targets
from kafka_lake.cli.project import configured_catalog, configured_clusters, topic_tables
from kafka_lake.cli.topics import refresh_unknown
from kafka_lake.common.processes import port_open
from kafka_lake.devstack.running import Ports, check_alone, check_free
from kafka_lake.devstack.stack import Stack, interruptible, is_embedded, needs_connect
from kafka_lake.errors import KafkaLakeError
from kafka_lake.orchestration.partitions import register_topics
from kafka_lake.orchestration.resources.catalog import CatalogResource

Task = Callable[[Event], None]
"""What goes on beside the servers, until the event is set; called again if it fails, as while a server is away."""

_PAUSE_SECONDS = 5.0


def stay_up(
    ports: Ports,
    tell_user: Callable[[str], None],
    demo: Callable[[Stack], list[Task]] | None = None,
    s3: bool = False,
    metrics: bool = False,
) -> None:
    """Run the local stack until a signal or until one of its servers ends too often; nothing is left behind.

    The embedded broker is among its servers if neither the project nor the environment names brokers.
    A Spark Connect server is started unless ``SPARK_REMOTE`` names one that isn't this stack's own. A server that ends
    is started again, while the other ones go on.
    """
    found = targets()
    check_alone()
    connect = needs_connect(ports)
    more = [*([ports.connect] if connect else []), *([ports.metrics] if metrics else [])]
    check_free(*([ports.broker, ports.registry] if demo else []), ports.ui, *more)
    with interruptible(), Stack(ports, tell_user, shared=True) as stack, _tells_of_its_end(tell_user):
        tasks = demo(stack) if demo else []
        if s3:
            stack.start_object_store()
        if not demo and _needs_broker(ports):
            stack.start_broker()
        if connect:
            stack.start_connect(_catalog(tell_user))
        refresh_unknown(tell_user)
        url = stack.start_dagster(code_locations(found), dagster_folder(found), other_locations(found))
        tasks.append(lambda _stop: _register_topics(tell_user))
        told = f", metrics {stack.start_metrics()}" if metrics else ""
        tell_user(f"All is up: {url}{told} (Ctrl-C ends it; logs are in {stack.log_dir})")
        with _live([repeated(each, tell_user) for each in tasks]) as running:
            while True:
                stack.check()
                for each in running:
                    if each.done():
                        each.result()
                time.sleep(1)


def _needs_broker(ports: Ports) -> bool:
    """Return whether the embedded broker is the configured cluster, and isn't up yet."""
    if not is_embedded(ports):
        return False
    try:
        named = [kafka.names_brokers for kafka, _ in configured_clusters().values()]
    except KafkaLakeError:
        # It is told below.
        return False
    return not all(named) and not port_open(ports.broker.number)


def _catalog(tell_user: Callable[[str], None]) -> LakeCatalog:
    try:
        resource = configured_catalog()
    except KafkaLakeError as error:
        # As below. A run whose catalog is another one than this is refused.
        tell_user(str(error))
        resource = CatalogResource()
    return resource.open()


def _register_topics(tell_user: Callable[[str], None]) -> None:
    try:
        specs = topic_tables()
        clusters = {name: kafka.cluster() for name, (kafka, _) in configured_clusters().items()}
    except KafkaLakeError as error:
        # Dagster's pages say so too, and load the definitions again once they are corrected.
        tell_user(str(error))
        return
    for name, cluster in clusters.items():
        register_topics([spec for spec in specs if spec.cluster == name], cluster, tell_user)


def repeated(task: Task, tell_user: Callable[[str], None], pause: float = _PAUSE_SECONDS) -> Task:
    """Return a task that begins again after an error that a person can fix; one of its servers may be away."""

    def run(stop: Event) -> None:
        told = ""
        while not stop.is_set():
            try:
                return task(stop)
            except KafkaLakeError as error:
                if str(error) != told and not stop.is_set():
                    told = str(error)
                    tell_user(f"{told} Trying again every {pause:.0f} s.")
            stop.wait(pause)

    return run


@contextmanager
def _tells_of_its_end(tell_user: Callable[[str], None]) -> Iterator[None]:
    try:
        yield
    finally:
        tell_user("Stopping… Runs in progress end first.")


@contextmanager
def _live(tasks: list[Task]) -> Iterator[list[Future[None]]]:
    stop = Event()
    with ThreadPoolExecutor(max(len(tasks), 1)) as pool:
        try:
            yield [pool.submit(task, stop) for task in tasks]
        finally:
            stop.set()
