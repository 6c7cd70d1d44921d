"""``kafka-lake env``."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from kafka_lake.cli import project
from kafka_lake.common.environment import SCHEMA_REGISTRY_URL, SPARK_REMOTE, catalog_variable

if TYPE_CHECKING:
    from kafka_lake.catalog.catalog_properties import CatalogSettings


def env(
    secrets: Annotated[bool, typer.Option("--secrets", help="Include passwords, keys and tokens.")] = False,
) -> None:
    """Print the variables that other tools need to find brokers, catalog and Spark.

    In a shell: `eval "$(kafka-lake env --secrets)"`
    """
    brokers = {name: kafka.cluster().bootstrap_servers for name, (kafka, _) in project.configured_clusters().items()}
    for variable in variables(project.configured_catalog().settings(), brokers):
        typer.echo(variable.line(secrets))


@dataclass(frozen=True)
class Variable:
    """An environment variable, and whether its value is a secret."""

    name: str
    value: str
    secret: bool = False

    def line(self, with_secrets: bool) -> str:
        """Return an export for a shell; a comment instead of a secret."""
        if self.secret and not with_secrets:
            return f"# {self.name} is a secret: kafka-lake env --secrets shows it"
        return f"export {self.name}={shlex.quote(self.value)}"


def variables(
    catalog: CatalogSettings, bootstrap_servers: Mapping[str | None, str], environment: Mapping[str, str] = os.environ
) -> Iterator[Variable]:
    """Yield PyIceberg's variables of the catalog, and the addresses of Kafka, the registry and Spark."""
    from kafka_lake.catalog.catalog_properties import is_secret

    for name, value in {"type": catalog.type, **catalog.properties}.items():
        yield Variable(catalog_variable(catalog.name, name), value, is_secret(name, value))
    for cluster, servers in bootstrap_servers.items():
        yield Variable("KAFKA_BOOTSTRAP_SERVERS" + (f"_{cluster.upper()}" if cluster else ""), servers)
    if registry := SCHEMA_REGISTRY_URL.value(environment):
        yield Variable("SCHEMA_REGISTRY_URL", registry, is_secret("url", registry))
    if remote := SPARK_REMOTE.value(environment):
        yield Variable("SPARK_REMOTE", remote, "token=" in remote)
