"""The environment variables of a cluster with a name: those of the only cluster, with the name in them."""

import re
from collections.abc import Mapping
from typing import TypeVar

from kafka_lake.common.environment import BOOTSTRAP_SERVERS, KAFKA, REGISTRY, SCHEMA_REGISTRY_URL, Variable
from kafka_lake.errors import KafkaLakeError

E = TypeVar("E", bound=KafkaLakeError)


def own_prefix(variable: Variable, cluster: str | None) -> str:
    """Return how a cluster's variables of a kind begin.

    Args:
        cluster: The cluster's name; None if it has none.

    >>> own_prefix(KAFKA, "eu"), own_prefix(KAFKA, None)
    ('KAFKA_LAKE_KAFKA__EU__', 'KAFKA_LAKE_KAFKA_')
    """
    return f"{variable.name}_{cluster.upper()}__" if cluster else variable.name


def properties(variable: Variable, cluster: str | None, variables: Mapping[str, str]) -> dict[str, str]:
    """Return the properties that a cluster's variables of a kind set.

    Args:
        cluster: The cluster's name; None if it has none.

    >>> found = {"KAFKA_LAKE_KAFKA_CLIENT_ID": "one", "KAFKA_LAKE_KAFKA__EU__CLIENT_ID": "two"}
    >>> properties(KAFKA, "eu", found), properties(KAFKA, None, found)
    ({'client.id': 'two'}, {'client.id': 'one'})
    """
    prefix = own_prefix(variable, cluster)
    names = {name: name.removeprefix(prefix) for name in variables if name.startswith(prefix)}
    # What begins with one more underscore is of a cluster with a name.
    return {own.lower().replace("_", "."): variables[n] for n, own in names.items() if not own.startswith("_")}


def own_variables(error: E, cluster: str | None) -> E:
    """Return an error about a cluster, whose message names that cluster's variables instead of the only one's."""
    if cluster:
        error.message, error.remedy = (_own(text, cluster) for text in (error.message, error.remedy))
        error.args = (f"{error.message} {error.remedy}".strip(),)
    return error


def _own(text: str, cluster: str) -> str:
    text = text.replace(BOOTSTRAP_SERVERS.name, f"{own_prefix(KAFKA, cluster)}BOOTSTRAP_SERVERS")
    text = text.replace(SCHEMA_REGISTRY_URL.name, f"{own_prefix(REGISTRY, cluster)}URL")
    for variable in (KAFKA, REGISTRY):
        text = re.sub(f"{variable.name}(?!_)", own_prefix(variable, cluster), text)
    return text
