"""``kafka-lake doctor``: one check of each system that a run needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING
from uuid import uuid4

import typer
from rich.markup import escape
from rich.table import Table

from kafka_lake.cli import project
from kafka_lake.cli.arguments import AsJson
from kafka_lake.cli.output import Output, working
from kafka_lake.common import environment
from kafka_lake.common.environment import KAFKA, REGISTRY, own_prefix
from kafka_lake.common.text import counted
from kafka_lake.devstack.running import Ports, check_embedded_broker
from kafka_lake.engine.jars import ensure_jars, jars_root
from kafka_lake.engine.java import find_java
from kafka_lake.errors import EmbeddedBrokerStoppedError, KafkaLakeError
from kafka_lake.kafka.registry import properties_from_env

if TYPE_CHECKING:
    from kafka_lake.catalog.lake_catalog import LakeCatalog
    from kafka_lake.config.systems import Catalog, Kafka, Registry

    Cluster = tuple[Kafka, Registry]

Check = tuple[str, Callable[[], str], str]
"""A part, the function that checks it, and what to do if it fails."""


def doctor(as_json: AsJson = False) -> None:
    """Check every system that a run needs.

    Exit code 1 if a check fails.
    """
    with working("Checking") as status:
        results = check_all(status.update, clusters=project.configured_clusters, catalog=project.configured_catalog)
    output = Output(as_json)
    output.json([asdict(result) for result in results])
    output.show(_results_table(results))
    if not all(result.passed for result in results):
        raise typer.Exit(1)


@dataclass(frozen=True)
class CheckResult:
    """The result of one check.

    Args:
        part: The system that was checked.
        passed: Whether a run can use it.
        message: What was found, or the error.
        remedy: What to do if it didn't pass.
    """

    part: str
    passed: bool
    message: str
    remedy: str = ""


def check_all(
    tell_user: Callable[[str], None],
    clusters: Callable[[], Mapping[str | None, Cluster]] = lambda: {},
    catalog: Callable[[], Catalog] | None = None,
) -> list[CheckResult]:
    """Check every part, also after one has failed."""
    from kafka_lake.config.systems import Catalog, Kafka, Registry

    try:
        configured = clusters()
        named = {name: cluster for name, cluster in configured.items() if name}
        kafka, registry = configured.get(None) or (Kafka(), Registry())
        lake = catalog() if catalog else Catalog()
    except Exception as error:
        failed = _failed("Project", error, "Correct the project's definitions; `dg check defs` loads them too.")
        return [failed, *check_all(tell_user)]

    def brokers() -> str:
        try:
            if not kafka.names_brokers:
                check_embedded_broker(Ports.from_env())
            return check_brokers(kafka)
        except EmbeddedBrokerStoppedError as stopped:
            # `kafka-lake up` starts it.
            return str(stopped)

    checks: list[Check] = [
        ("Java", lambda: check_java(), "Install Java 17 or 21 and set JAVA_HOME, or install the requirements again."),
        (
            "Jars",
            lambda: check_jars(tell_user),
            "Check the network, or name your mirror's settings in KAFKA_LAKE_IVY_SETTINGS.",
        ),
        *(
            _checks_of_clusters(named)
            or [("Brokers", brokers, "Check KAFKA_LAKE_BOOTSTRAP_SERVERS and KAFKA_LAKE_KAFKA_*.")]
        ),
    ]
    # Most deployments have no registry.
    if not named and "url" in {**properties_from_env(), **registry.properties}:
        remedy = "Check KAFKA_LAKE_SCHEMA_REGISTRY_URL and KAFKA_LAKE_REGISTRY_*."
        checks.append(("Schema registry", lambda: check_registry(registry), remedy))
    checks += [
        ("Catalog", lambda: check_catalog(lake), "Check PYICEBERG_CATALOG__* and that the catalog's server runs."),
        (
            "Warehouse",
            lambda: check_warehouse(lake),
            "Check the warehouse's address, its credentials and its permissions.",
        ),
        (
            "Spark",
            lambda: check_spark(lake),
            "Fix what is red above, then check SPARK_REMOTE or KAFKA_LAKE_SPARK_MASTER.",
        ),
    ]
    return [_run(check, tell_user) for check in checks]


def _checks_of_clusters(clusters: Mapping[str, Cluster]) -> list[Check]:
    checks: list[Check] = []
    for name, (kafka, registry) in clusters.items():
        remedy = f"Check {own_prefix(KAFKA, name)}* and kafka_properties: in its YAML document."
        checks.append((f"Brokers {name}", partial(check_brokers, kafka), remedy))
        remedy = f"Check {own_prefix(REGISTRY, name)}* and registry_properties: in its YAML document."
        checks.append((f"Schema registry {name}", partial(check_registry, registry), remedy))
    return checks


def _run(check: Check, tell_user: Callable[[str], None]) -> CheckResult:
    part, function, remedy = check
    tell_user(part)
    try:
        return CheckResult(part, True, function())
    except Exception as error:
        # Every library below raises its own errors.
        return _failed(part, error, remedy)


def _failed(part: str, error: Exception, remedy: str) -> CheckResult:
    from kafka_lake.error_classification import headline

    if isinstance(error, KafkaLakeError):
        return CheckResult(part, False, error.message, error.remedy or remedy)
    return CheckResult(part, False, headline(error), remedy)


def _results_table(results: Sequence[CheckResult]) -> Table:
    table = Table("", "part", "result")
    for result in results:
        mark, message = "[green]✓[/]" if result.passed else "[red]✗[/]", escape(result.message)
        table.add_row(mark, result.part, message if result.passed else f"{message}\n[bold]{escape(result.remedy)}[/]")
    return table


def check_java() -> str:
    """Return the folder of Java."""
    return str(find_java())


def check_jars(tell_user: Callable[[str], None]) -> str:
    """Return the number of jars, after a download of those that are missing."""
    return f"{len(ensure_jars('spark', tell_user))} for Spark in {jars_root()}"


def check_brokers(resource: Kafka) -> str:
    """Return the brokers' address and the number of topics."""
    cluster = resource.cluster()
    # Finds settings that Spark's client doesn't have.
    resource.spark_options()
    return f"{counted(len(cluster.topics()), 'topic')} at {cluster.bootstrap_servers}"


def check_registry(resource: Registry) -> str:
    """Return the registry's address and the number of subjects."""
    registry = resource.registry()
    if registry is None:
        return "not configured; needed only for schema ids"
    return registry.state()


def check_catalog(resource: Catalog) -> str:
    """Return the catalog's name, and whether it refuses stale commits."""
    catalog = resource.open()
    found = f"{catalog.name} ({catalog.type}), {counted(catalog.check(), 'namespace')}"
    return f"{found}, {_stale_commits(catalog)}" if catalog.backend.may_ignore_requirements else found


def _stale_commits(catalog: LakeCatalog) -> str:
    """Try a stale commit on a table of the catalog."""
    from kafka_lake.catalog.lake_catalog import check_commit_requirements

    table = next(catalog.tables(), None)
    if table is None:
        return "refusal of stale commits not tested: it has no table, and the run that creates one tests it"
    check_commit_requirements(catalog, table)
    return f"refuses stale commits (tested on {'.'.join(table.name())})"


def check_warehouse(resource: Catalog) -> str:
    """Return whether a file can be written to the warehouse."""
    from pyiceberg.io import load_file_io

    catalog = resource.open()
    warehouse = catalog.properties.get("warehouse", "")
    if "://" not in warehouse:
        return f"{warehouse or 'not set here'}: only the catalog's server knows the location, so it isn't tested"
    # Opening the catalog makes the folder of a local warehouse.
    properties = catalog.pyiceberg.properties
    probe = f"{warehouse.rstrip('/')}/.kafka-lake-doctor-{uuid4().hex}"
    file_io = load_file_io(properties, probe)
    with file_io.new_output(probe).create() as stream:
        stream.write(b"written by kafka-lake doctor")
    file_io.delete(probe)
    return f"{warehouse} is writable"


def check_spark(catalog: Catalog) -> str:
    """Return the version and the address of Spark."""
    from kafka_lake.config.systems import Spark
    from kafka_lake.engine.sessions import address_of

    resource = Spark(spark_config={}, catalog=catalog)
    try:
        session = resource.spark_session
        session.sql(f"SHOW NAMESPACES IN `{catalog.name}`").collect()
        remote = environment.SPARK_REMOTE.value()
        return f"{session.version} at {address_of(remote) if remote else session.conf.get('spark.master')}"
    finally:
        resource.stop()
