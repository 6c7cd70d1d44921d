"""``kafka-lake env``: the variables by which other tools reach the same brokers, catalog and Spark."""

import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from kafka_lake.catalog.how_to_read import is_secret
from kafka_lake.catalog.lake_catalog import LakeCatalog
from kafka_lake.common.catalog import catalog_variable
from kafka_lake.common.environment import SCHEMA_REGISTRY_URL, SPARK_REMOTE


@dataclass(frozen=True)
class Variable:
    """A variable to set.

    Args:
        value: What it is set to.
        secret: Whether to show it only to those who ask for secrets.
    """

    name: str
    value: str
    secret: bool = False


def variables(
    catalog: LakeCatalog, bootstrap_servers: Mapping[str | None, str], environment: Mapping[str, str] = os.environ
) -> list[Variable]:
    """Return what other tools need: PyIceberg's variables of the catalog, Spark's address, Kafka's, the registry's."""
    properties = {"type": catalog.type, **catalog.properties}
    found = [
        Variable(catalog_variable(catalog.name, name), value, is_secret(name, value))
        for name, value in properties.items()
    ]
    for cluster, servers in bootstrap_servers.items():
        found.append(Variable("KAFKA_BOOTSTRAP_SERVERS" + (f"_{cluster.upper()}" if cluster else ""), servers))
    if registry := SCHEMA_REGISTRY_URL.value(environment):
        found.append(Variable("SCHEMA_REGISTRY_URL", registry, is_secret("url", registry)))
    if remote := SPARK_REMOTE.value(environment):
        found.append(Variable("SPARK_REMOTE", remote, "token=" in remote))
    return found


def lines(found: list[Variable], secrets: bool) -> list[str]:
    """Return lines for a shell: an export for each variable, and a comment for each secret that isn't asked for."""
    return [
        f"# {each.name} is a secret: kafka-lake env --secrets shows it"
        if each.secret and not secrets
        else f"export {each.name}={shlex.quote(each.value)}"
        for each in found
    ]
