"""Reads a project's documents without Dagster, which takes a second to import, where Dagster would find the same.

That is where a code location is nothing but a folder of documents of kafka_lake's types for one cluster. For any other
project, and for documents with an error, `read` gives None: Dagster loads these, and explains their errors.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar

import yaml

from kafka_lake.cli.find_project import Target, defs_folder
from kafka_lake.errors import ConfigurationError

if TYPE_CHECKING:
    from kafka_lake.config.derived_table import DerivedTable
    from kafka_lake.config.systems import Cluster
    from kafka_lake.spec.topic_table import TopicTable

_YAML = ("defs.yaml", "defs.yml", "component.yaml")
_LOADS_THE_FOLDER = re.compile(r"return (\w+\.)?load_from_defs_folder\(path_within_project=Path\(__file__\)\.parent\)")
_VARIABLE = re.compile(r"\{\{\s*env\.(\w+)\s*\}\}")


class _ForDagster(Exception):
    """Only Dagster can load these documents."""


@dataclass(frozen=True)
class Documents:
    """The settings of a project."""

    cluster: Cluster
    topics: list[TopicTable] = field(default_factory=list)
    derived: list[DerivedTable] = field(default_factory=list)

    @property
    def systems(self) -> dict[str, Any]:
        """Return the systems that the cluster's document configures, by the names of Dagster's resources."""
        from kafka_lake.config.systems import Catalog, Kafka, Registry, Spark, of_cluster

        name, catalog = self.cluster.name, Catalog(properties=self.cluster.catalog_properties)
        return {
            of_cluster("kafka", name): Kafka(**self.cluster.connection()),
            of_cluster("registry", name): Registry(properties=self.cluster.registry_properties, cluster_name=name),
            "catalog": catalog,
            "spark": Spark(spark_config=self.cluster.spark_config, catalog=catalog),
        }


@cache
def read(location: Target) -> Documents | None:
    """Return the settings of a code location; None if Dagster has to load it."""
    try:
        return _read(_folder(location))
    except (_ForDagster, ConfigurationError, yaml.YAMLError, OSError, SyntaxError, TypeError, ValueError):
        return None


def _folder(location: Target) -> Path:
    """Return the folder of a code location's documents."""
    if location.file or location.attribute:
        raise _ForDagster
    parts = location.module.split(".")
    roots = [root for root in (location.folder / "src", location.folder) if (root / parts[0]).is_dir()]
    if len(roots) != 1:
        raise _ForDagster
    place = roots[0].joinpath(*parts)
    file = next((path for path in (place.with_suffix(".py"), place / "__init__.py") if path.exists()), None)
    if file is None:
        raise _ForDagster
    _check_loads_folder(ast.parse(file.read_text()))
    return defs_folder(file)


def _check_loads_folder(module: ast.Module) -> None:
    """Make sure that a module does nothing but load the folder of documents."""
    *before, last = [statement for statement in module.body if not _is_text(statement)]
    for statement in before:
        names = [name.name for name in statement.names] if isinstance(statement, ast.Import) else []
        names += [str(statement.module)] if isinstance(statement, ast.ImportFrom) else []
        if not names or {*names} - {"dagster", "kafka_lake", "pathlib"}:
            raise _ForDagster
    body = [line for line in last.body if not _is_text(line)] if isinstance(last, ast.FunctionDef) else []
    if len(body) != 1 or not _LOADS_THE_FOLDER.fullmatch(ast.unparse(body[0])):
        raise _ForDagster


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _read(folder: Path) -> Documents:
    from kafka_lake.config.derived_table import DerivedTable
    from kafka_lake.config.project import Place, check_derived, check_documents
    from kafka_lake.config.systems import Cluster
    from kafka_lake.config.topic import Topic

    kinds = {"KafkaCluster": Cluster, "KafkaTopic": Topic, "DerivedTable": DerivedTable}
    found: dict[str, list[tuple[Path, Any]]] = {kind: [] for kind in kinds}
    for path, document in _documents(folder):
        package, _, kind = str(document.get("type")).rpartition(".")
        if package != "kafka_lake" or kind not in kinds or document.keys() - {"type", "attributes"}:
            raise _ForDagster
        found[kind].append((path, kinds[kind](**_rendered(document.get("attributes") or {}))))
    # What is known of a pattern and of tables by value is in Dagster's state.
    if any(topic.pattern is not None or topic.tables_by is not None for _, topic in found["KafkaTopic"]):
        raise _ForDagster
    ((file, cluster),) = found["KafkaCluster"]
    places = [
        Place(topic.cluster, path, topic.display_name, topic.checked_table(path, cluster.maintenance))
        for path, topic in found["KafkaTopic"]
    ]
    check_documents([Place(cluster.name, file)], places)
    topics = [place.table for place in places if place.table is not None]
    derived = sorted((table for _, table in found["DerivedTable"]), key=lambda table: table.identifier)
    for table in derived:
        check_derived(table, topics, derived)
    return Documents(cluster, [topic for spec in topics for topic in spec.each_topic], derived)


def _documents(folder: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield each document below a folder, and its file, in Dagster's order."""
    if file := next((path for name in _YAML if (path := folder / name).exists()), None):
        documents = list(yaml.load_all(file.read_text(encoding="utf-8"), _Loader))
        if not documents or not all(isinstance(document, dict) for document in documents):
            raise _ForDagster
        yield from ((file, document) for document in documents)
        return
    for path in sorted(folder.iterdir()):
        if path.name.startswith(".") or path.name == "__pycache__":
            continue
        if path.is_dir():
            yield from _documents(path)
        elif path.suffix == ".py" and not all(map(_is_text, ast.parse(path.read_text()).body)):
            raise _ForDagster


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """YAML as Dagster reads it: dates stay text."""

    yaml_implicit_resolvers: ClassVar = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


def _rendered(value: Any) -> Any:
    """Return settings with variables of the environment in the place of their templates, as components render them."""
    from kafka_lake.spec.settings import is_template

    if isinstance(value, dict):
        return {_rendered(key): _rendered(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_rendered(item) for item in value]
    if not is_template(value):
        return value
    if is_template(_VARIABLE.sub("", value)) or {*_VARIABLE.findall(value)} - {*os.environ}:
        raise _ForDagster
    from jinja2 import Template
    from jinja2.nativetypes import NativeTemplate

    scope = {"env": SimpleNamespace(**os.environ)}
    found = NativeTemplate(value).render(scope)
    return Template(value).render(scope) if isinstance(found, bool | int | float) else found
