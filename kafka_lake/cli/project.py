"""The topics of this deployment and the systems they are in, as its definitions have them."""

import logging
import re
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import yaml
from dagster import BetaWarning
from dagster.components.resolved.errors import ResolutionException
from dagster_shared.error import DagsterUnresolvableSymbolError
from pydantic import ValidationError
from pyspark.logger import PySparkLogger

import kafka_lake.definitions
from kafka_lake.common.errors import ConfigurationError
from kafka_lake.components.assets import SETTINGS, build_connections, settings_of
from kafka_lake.components.register_partitions import register_topics
from kafka_lake.components.resources.catalog import CatalogResource
from kafka_lake.components.resources.kafka import KafkaResource
from kafka_lake.components.resources.registry import RegistryResource
from kafka_lake.components.resources.spark import SparkResource
from kafka_lake.definitions import defs
from kafka_lake.ingest.connections import Connections
from kafka_lake.ingest.topic_table import TopicTable
from kafka_lake.kafka.cluster import KafkaCluster
from kafka_lake.local_stack.ports import Ports
from kafka_lake.local_stack.stack import broker_at_hand

FOLDER = Path(kafka_lake.definitions.__file__).parent / "defs"

_AT = re.compile(r"^`?(?P<where>.*?) at (?P<file>.+):(?P<line>\d+)`?$")
_COMPONENT = re.compile(r"component (?P<folder>\S+?)\[(?P<document>\d+)\]")
_TEMPLATE = re.compile(
    r"(?P<file>.+):(?P<line>\d+) - attributes\.(?P<where>\S+)\n.*?^\s*\|?\s*\^ (?P<problem>[^\n]+)",
    re.DOTALL | re.MULTILINE,
)
_SETTING = re.compile(r"^(?P<name>\w+):")
_SYMBOL = re.compile(r"`(?P<module>[\w.]+)`(?: has no attribute `(?P<name>\w+)`)?")


def topic_tables(topic: str | None = None) -> list[TopicTable]:
    """Return what the definitions say about topics and their tables, by topic.

    Args:
        topic: Only this topic; None for all.

    Raises:
        ConfigurationError: If no document in ``defs/`` is about that topic, or the definitions can't be loaded.
    """
    with _loading():
        specs = [dict(asset.metadata) for asset in defs().resolve_all_asset_specs()]
    found = sorted((settings_of(each) for each in specs if SETTINGS in each), key=lambda each: each.topic)
    if topic is None:
        return found
    chosen = [each for each in found if each.topic == topic]
    if not chosen:
        known = ", ".join(each.topic for each in found) or "none"
        raise ConfigurationError(
            f"Topic {topic} has no table here; the topics are: {known}.",
            "Add a YAML document of type kafka_lake.KafkaTopicTable to defs/.",
        )
    return chosen


def configured_cluster() -> KafkaCluster:
    """Return the cluster of the definitions.

    Raises:
        ConfigurationError: If the definitions can't be loaded.
    """
    with _loading():
        resources = defs().resources or {}
    kafka: KafkaResource = resources.get("kafka") or KafkaResource()
    return kafka.cluster()


@contextmanager
def connections_at_hand(
    say: Callable[[str], None], with_broker: bool = True, with_catalog: bool = True, with_spark: bool = False
) -> Iterator[Connections]:
    """Run the block with what its runs work with, as the definitions configure it; Spark is stopped behind it.

    What is needed is asked once before, so that a command ends within seconds where one of them isn't there. What
    fails later is tried again as often as in any run. After the block, unless it failed, Dagster knows the partitions
    of all topics that could be asked.

    Args:
        say: Called with a line for the user when an embedded broker is started.
        with_broker: Brokers are needed: the embedded one is started, if that is the configured cluster.
        with_catalog: The catalog is needed.
        with_spark: Spark is needed, and must answer if it is a Connect server.

    Raises:
        KafkaLakeError: If the definitions can't be loaded, or what is needed doesn't answer.
    """
    with _loading():
        resources = defs().resources or {}
    catalog: CatalogResource = resources.get("catalog") or CatalogResource()
    kafka: KafkaResource = resources.get("kafka") or KafkaResource()
    registry: RegistryResource = resources.get("registry") or RegistryResource()
    spark: SparkResource = resources.get("spark") or SparkResource(spark_config={}, catalog=catalog)
    # What Spark refuses becomes an error of ours; PySpark would log the JVM's stack trace before it.
    PySparkLogger.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
    try:
        with broker_at_hand(Ports.from_env(), say) if with_broker else nullcontext():
            connections = build_connections(kafka, catalog, spark, registry)
            if with_broker:
                connections.cluster.check()
            if with_catalog:
                connections.catalog.check()
            if with_spark:
                spark.check()
            yield connections
            if with_broker:
                register_topics(topic_tables(), connections.cluster, say)
    finally:
        spark.stop()


@contextmanager
def _loading() -> Iterator[None]:
    """Run the block, which loads definitions, without Dagster's remarks on itself, its errors explained."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", BetaWarning)
            yield
    except Exception as error:
        explained = explanation(error, FOLDER)
        if explained is None:
            raise
        raise explained from error


def explanation(error: BaseException, folder: Path) -> ConfigurationError | None:
    """Return what is wrong with the definitions, in one line with file and line.

    Args:
        error: What loading them raised; what is wrong is somewhere among its causes.
        folder: Where the definitions are.

    Returns:
        The error for the user; None if the definitions are not what is wrong.
    """
    chain = list(_causes(error))
    document = next(filter(None, (_document(each, folder) for each in chain)), None)
    for each in chain:
        if isinstance(each, yaml.MarkedYAMLError) and (mark := each.problem_mark):
            problem = ": ".join(part for part in (each.context, each.problem) if part)
            return _broken(Path(mark.name), mark.line + 1, f"no YAML: {problem}")
        if isinstance(each, ValidationError) and (found := _refused_settings(each, document)):
            return found
        if isinstance(each, ResolutionException) and (template := _TEMPLATE.match(str(each))):
            file, line = Path(template["file"]), int(template["line"])
            return _broken(file, line, f"{template['where']}: {template['problem'].strip()}")
        if isinstance(each, DagsterUnresolvableSymbolError) and (found := _unknown_type(each, folder)):
            return found
        if isinstance(each, ConfigurationError):
            return each
    return _in_python(chain, folder) or _empty_document(chain, folder)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _document(error: BaseException, folder: Path) -> tuple[Path, int] | None:
    """Return file and first line of the YAML document that Dagster was at."""
    found = _COMPONENT.search(str(error))
    if found is None or not (file := folder / found["folder"] / "defs.yaml").exists():
        return None
    documents = list(yaml.compose_all(file.read_text(), yaml.SafeLoader))
    return file, documents[int(found["document"])].start_mark.line + 1


def _refused_settings(error: ValidationError, document: tuple[Path, int] | None) -> ConfigurationError | None:
    told: dict[tuple[Path, int], str] = {}
    for each in error.errors(include_url=False):
        text = each["msg"].removeprefix("Value error, ")
        if each["type"] == "extra_forbidden":
            text = "there is no such setting"
        place = str(each["loc"][-1]) if each["loc"] else ""
        if at := _AT.match(place):
            name = at["where"].removeprefix("attributes.").split(".")[0]
            # A value that fits no member of a union is refused once for each; the first tells enough.
            told.setdefault((Path(at["file"]), int(at["line"])), f"{name}: {text}")
        elif document:
            file, first = document
            setting = _SETTING.match(text)
            line = _line_of(file, first, setting["name"]) if setting else first
            told.setdefault((file, line), f"{place}: {text}" if place else text)
    if not told:
        return None
    (file, line), text = min(told.items())
    others = [f"line {n}: {other}" for (f, n), other in sorted(told.items()) if (f, n) != (file, line)]
    return _broken(file, line, "; ".join([text.rstrip("."), *others]))


def _line_of(file: Path, first: int, setting: str) -> int:
    lines = file.read_text().splitlines()
    return next(
        (n for n, line in enumerate(lines[first - 1 :], first) if line.strip().startswith(f"{setting}:")), first
    )


def _unknown_type(error: DagsterUnresolvableSymbolError, folder: Path) -> ConfigurationError | None:
    symbol = _SYMBOL.search(str(error))
    if symbol is None:
        return None
    name = f"{symbol['module']}.{symbol['name'] or ''}"
    for file in sorted(folder.rglob("*.yaml")):
        for number, line in enumerate(file.read_text().splitlines(), 1):
            if line.startswith("type:") and name in line:
                return _broken(file, number, f"{line.strip()}: there is no such component")
    return None


def _in_python(chain: list[BaseException], folder: Path) -> ConfigurationError | None:
    for error in chain:
        for frame in reversed(traceback.extract_tb(error.__traceback__)):
            if Path(frame.filename).is_relative_to(folder):
                return _broken(Path(frame.filename), frame.lineno or 0, f"{type(error).__name__}: {error}")
    return None


def _empty_document(chain: list[BaseException], folder: Path) -> ConfigurationError | None:
    if not any("No components found in YAML file" in str(each) for each in chain):
        return None
    empty = (file for file in sorted(folder.rglob("defs.yaml")) if not list(yaml.safe_load_all(file.read_text())))
    return next((_broken(file, 1, "there is no document in it") for file in empty), None)


def _broken(file: Path, line: int, problem: str) -> ConfigurationError:
    shown = file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file
    return ConfigurationError(f"{shown}, line {line}: {problem.rstrip('.')}.")
