"""Is all that a run needs there? One examination per part, each with what it found or what to do."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from functools import partial
from uuid import uuid4

from pyiceberg.exceptions import RESTError

from kafka_lake.catalog.assertions import probe_table, require_assertions
from kafka_lake.catalog.lake_catalog import LakeCatalog
from kafka_lake.common import environment
from kafka_lake.common.environment import KAFKA, REGISTRY, own_prefix
from kafka_lake.common.text import counted
from kafka_lake.engine.jars import ensure_jars, jars_root
from kafka_lake.engine.java import find_java
from kafka_lake.engine.sessions import address_of
from kafka_lake.error_classification import headline
from kafka_lake.errors import EmbeddedBrokerStoppedError, KafkaLakeError
from kafka_lake.kafka.registry import properties_from_env
from kafka_lake.orchestration.resources.catalog import CatalogResource
from kafka_lake.orchestration.resources.kafka import KafkaResource, RegistryResource
from kafka_lake.orchestration.resources.spark import SparkResource
from kafka_lake.spec.topic_table import TopicTable


@dataclass(frozen=True)
class Diagnosis:
    """What was found about one part.

    Args:
        healthy: Whether a run can use it.
        finding: What was found; the error if it isn't healthy.
        remedy: What to do if it isn't.
    """

    part: str
    healthy: bool
    finding: str
    remedy: str


_FORMAT_WITH_VECTORS = 3
_READ_NO_VECTORS = ("Daft", "chDB")

Cluster = tuple[KafkaResource, RegistryResource]
"""A Kafka cluster, and its schema registry."""


def examine(
    brokers_at_hand: Callable[[], AbstractContextManager[None]],
    tell_user: Callable[[str], None],
    clusters: Callable[[], Mapping[str | None, Cluster]] = lambda: {},
    catalog: Callable[[], CatalogResource] = CatalogResource,
    tables: Callable[[], Sequence[TopicTable]] = lambda: (),
) -> list[Diagnosis]:
    """Examine every part; one that is ill doesn't keep the others from being examined."""
    try:
        found = clusters()
        named = {name: cluster for name, cluster in found.items() if name}
        kafka, registry = found.get(None) or (KafkaResource(), RegistryResource())
        lake = catalog()
        keyed = [each for spec in tables() for each in spec.tables if each.is_keyed]
    except Exception as error:
        ill = _ill("Project", error, "Correct the project's definitions; `dg check defs` loads them too.")
        return [ill, *examine(brokers_at_hand, tell_user)]

    def brokers() -> str:
        try:
            with nullcontext() if kafka.names_brokers else brokers_at_hand():
                return _brokers(kafka)
        except EmbeddedBrokerStoppedError as stopped:
            # That is no illness: the stack starts it.
            return str(stopped)

    examinations: list[tuple[str, Callable[[], str], str]] = [
        ("Java", _java, "Install Java 17 or 21 and set JAVA_HOME, or install the requirements again."),
        (
            "Jars",
            lambda: _jars(tell_user),
            "Check the network, or name your mirror's settings in KAFKA_LAKE_IVY_SETTINGS.",
        ),
        *(_of_clusters(named) or [("Brokers", brokers, "Check KAFKA_LAKE_BOOTSTRAP_SERVERS and KAFKA_LAKE_KAFKA_*.")]),
        ("Catalog", partial(_catalog, lake), "Check PYICEBERG_CATALOG__* and that the catalog's server runs."),
        ("Warehouse", partial(_warehouse, lake), "Check the warehouse's address, its credentials and its permissions."),
        *([("Readers", partial(_readers, lake, keyed), "Check the catalog.")] if keyed else []),
        ("Spark", partial(_spark, lake), "Fix what is red above, then check SPARK_REMOTE or KAFKA_LAKE_SPARK_MASTER."),
    ]
    if not named and "url" in {**properties_from_env(), **registry.properties}:
        # Most deployments have none, and need none.
        remedy = "Check KAFKA_LAKE_SCHEMA_REGISTRY_URL and KAFKA_LAKE_REGISTRY_*."
        examinations.insert(3, ("Schema registry", partial(_registry, registry), remedy))
    return [_examine(part, examination, remedy, tell_user) for part, examination, remedy in examinations]


def _of_clusters(clusters: Mapping[str, Cluster]) -> list[tuple[str, Callable[[], str], str]]:
    examinations: list[tuple[str, Callable[[], str], str]] = []
    for name, (kafka, registry) in clusters.items():
        check = f"Check {own_prefix(KAFKA, name)}* and kafka_properties: in its YAML document."
        examinations.append((f"Brokers {name}", partial(_brokers, kafka), check))
        check = f"Check {own_prefix(REGISTRY, name)}* and registry_properties: in its YAML document."
        examinations.append((f"Schema registry {name}", partial(_registry, registry), check))
    return examinations


def _examine(part: str, examination: Callable[[], str], remedy: str, tell_user: Callable[[str], None]) -> Diagnosis:
    tell_user(part)
    try:
        return Diagnosis(part, True, examination(), "")
    except Exception as error:
        # Whatever any of the libraries below raises is a finding, not a failure of the examination.
        return _ill(part, error, remedy)


def _ill(part: str, error: Exception, remedy: str) -> Diagnosis:
    if isinstance(error, KafkaLakeError):
        return Diagnosis(part, False, error.message, error.remedy or remedy)
    return Diagnosis(part, False, headline(error), remedy)


def _java() -> str:
    return str(find_java())


def _jars(tell_user: Callable[[str], None]) -> str:
    return f"{len(ensure_jars('spark', tell_user))} for Spark in {jars_root()}"


def _brokers(resource: KafkaResource) -> str:
    cluster = resource.cluster()
    # What Spark's client can't be told is found here, not by the first run.
    resource.spark_options()
    return f"{counted(len(cluster.topics()), 'topic')} at {cluster.bootstrap_servers}"


def _registry(resource: RegistryResource) -> str:
    registry = resource.registry()
    if registry is None:
        return "none is configured, and none is needed without schema ids"
    return f"{counted(len(registry.subjects()), 'subject')} at {registry.url}"


def _catalog(resource: CatalogResource) -> str:
    catalog = resource.open()
    told = f"{catalog.name} ({catalog.type}), {counted(catalog.check(), 'namespace')}"
    return f"{told}, {_assertions(catalog)}" if catalog.backend.may_ignore_requirements else told


def _assertions(catalog: LakeCatalog) -> str:
    """Return what came of an overtaken commit, on a table of the catalog's or on one that is made for it."""
    with ExitStack() as undo:
        table = next(catalog.tables(), None)
        if table is None:
            try:
                table = undo.enter_context(probe_table(catalog))
            except (RESTError, OSError) as error:
                return f"not tried whether it refuses commits that are overtaken: it has no table ({headline(error)})"
        require_assertions(catalog, table)
        return f"refuses commits that are overtaken (tried on {'.'.join(table.name())})"


def _warehouse(resource: CatalogResource) -> str:
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


def _readers(resource: CatalogResource, keyed: Sequence[TopicTable]) -> str:
    catalog = resource.open()
    found = [
        ".".join(spec.identifier)
        for spec in keyed
        if (table := catalog.table(spec.identifier)) is not None and table.format_version >= _FORMAT_WITH_VECTORS
    ]
    if not found:
        return "no keyed table has deletion vectors"
    return (
        f"deletes are deletion vectors (format version {_FORMAT_WITH_VECTORS}) in {', '.join(found)}: "
        f"Spark, PyIceberg, Polars and DuckDB read them, {' and '.join(_READ_NO_VECTORS)} didn't when they were tried"
    )


def _spark(catalog: CatalogResource) -> str:
    resource = SparkResource(spark_config={}, catalog=catalog)
    try:
        session = resource.spark_session
        session.sql(f"SHOW NAMESPACES IN `{catalog.name}`").collect()
        remote = environment.SPARK_REMOTE.value()
        return f"{session.version} at {address_of(remote) if remote else session.conf.get('spark.master')}"
    finally:
        resource.stop()
