"""The environment variables that kafka_lake reads: each with its default and its meaning, declared here and only here.

docs/configuration.md derives from it.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from kafka_lake.errors import ConfigurationError, KafkaLakeError


@dataclass(frozen=True)
class Variable:
    """An environment variable. Where it is unset or empty, its default holds.

    Args:
        name: The variable, or how the names of several begin if it ends with an underscore.
        default: What holds without it; empty for nothing.
        example: A value, for the documentation.
    """

    name: str
    description: str
    default: str = ""
    example: str = ""

    def value(self, environment: Mapping[str, str] | None = None) -> str:
        """Return what the variable says, or its default."""
        return (os.environ if environment is None else environment).get(self.name) or self.default


BOOTSTRAP_SERVERS = Variable(
    "KAFKA_LAKE_BOOTSTRAP_SERVERS",
    "Addresses of the brokers. Default: the embedded broker of the local stack.",
    example="broker-1:9092,broker-2:9092",
)
KAFKA = Variable(
    "KAFKA_LAKE_KAFKA_",
    "Any librdkafka property, in upper case with `_` for each dot. `KAFKA_LAKE_KAFKA_JAVA_…` is only for Spark's "
    "Java client, `KAFKA_LAKE_KAFKA_LIBRDKAFKA_…` only for Python's. A named cluster uses "
    "`KAFKA_LAKE_KAFKA__<NAME>__…`.",
    example="KAFKA_LAKE_KAFKA_SECURITY_PROTOCOL=SASL_SSL",
)
SCHEMA_REGISTRY_URL = Variable(
    "KAFKA_LAKE_SCHEMA_REGISTRY_URL",
    "Address of the schema registry, or `glue://REGION` for AWS Glue.",
    example="https://registry.example.com",
)
REGISTRY = Variable(
    "KAFKA_LAKE_REGISTRY_",
    "Any property of confluent-kafka's `SchemaRegistryClient`, in upper case with `_` for each dot. A named cluster "
    "uses `KAFKA_LAKE_REGISTRY__<NAME>__…`.",
    example="KAFKA_LAKE_REGISTRY_BASIC_AUTH_USER_INFO=user:password",
)
CATALOG = Variable("KAFKA_LAKE_CATALOG", "Name of the Iceberg catalog in Spark and PyIceberg.", "lake")
PYICEBERG_CATALOG = Variable(
    "PYICEBERG_CATALOG__",
    "Catalog properties, by PyIceberg's convention `PYICEBERG_CATALOG__<NAME>__<PROPERTY>`. Spark gets the same "
    "properties. Without any, the catalog is SQLite with files in `KAFKA_LAKE_HOME`.",
    example="PYICEBERG_CATALOG__LAKE__URI=http://127.0.0.1:8181",
)
SPARK_REMOTE = Variable(
    "SPARK_REMOTE",
    "Address of a Spark Connect server that has the catalog. Without it, Spark runs in the run's process.",
    example="sc://host:15002",
)
SPARK_MASTER = Variable("KAFKA_LAKE_SPARK_MASTER", "Spark master, if `SPARK_REMOTE` isn't set.", "local[*]")
SPARK_JARS = Variable(
    "KAFKA_LAKE_SPARK_JARS",
    "Your own jars for Spark: paths, separated by commas. Missing jars of catalog and storage are downloaded.",
    example="/opt/jars/iceberg-aws-bundle-1.12.0.jar",
)
SAMPLES = Variable(
    "KAFKA_LAKE_SAMPLES",
    "Whether Dagster shows values: of dead letters (for tables without `redact:`), and in errors of derived tables.",
    "true",
)
HOME = Variable("KAFKA_LAKE_HOME", "Folder for local state.", ".kafka_lake")
CACHE = Variable(
    "KAFKA_LAKE_CACHE",
    "Folder for downloads. Default: `kafka_lake` in the XDG cache folder.",
    example="~/.cache/kafka_lake",
)
IVY_SETTINGS = Variable(
    "KAFKA_LAKE_IVY_SETTINGS",
    "Ivy settings file with a mirror or an offline folder for jars.",
    example="/etc/ivysettings.xml",
)
WORKSPACE = Variable(
    "KAFKA_LAKE_WORKSPACE", "Dagster's `workspace.yaml`, like the option `-w`.", example="workspace.yaml"
)
LOG = Variable(
    "KAFKA_LAKE_LOG",
    "`text` or `json`: runs log each step to standard error.",
)
VERBOSE = Variable("KAFKA_LAKE_VERBOSE", "`1`: commands show the logs of libraries and servers.")
METADATA_CACHE = Variable("KAFKA_LAKE_METADATA_CACHE", "`off`: parse a table's metadata file at each access.", "on")
CONNECT_HEAP = Variable("KAFKA_LAKE_CONNECT_HEAP", "Heap of the Spark Connect server of `kafka-lake up`.", "1g")
CONNECT_DIRECT = Variable(
    "KAFKA_LAKE_CONNECT_DIRECT", "Direct memory of the Connect server, for network, Arrow and file buffers.", "512m"
)
CONNECT_METASPACE = Variable("KAFKA_LAKE_CONNECT_METASPACE", "Metaspace of the Connect server.", "512m")
BROKER_PORT = Variable("KAFKA_LAKE_BROKER_PORT", "Port of the embedded broker.", "19092")
REGISTRY_PORT = Variable("KAFKA_LAKE_REGISTRY_PORT", "Port of the embedded schema registry.", "19095")
CONNECT_PORT = Variable("KAFKA_LAKE_CONNECT_PORT", "Port of the Spark Connect server of `kafka-lake up`.", "15002")
UI_PORT = Variable("KAFKA_LAKE_UI_PORT", "Port of Dagster's UI under `kafka-lake up`.", "3000")

VARIABLES = tuple(value for value in list(globals().values()) if isinstance(value, Variable))
"""All of them, in the order of their declaration."""


def samples(environment: Mapping[str, str] | None = None) -> bool:
    """Return whether dead letters are quoted for topics that don't say: ``$KAFKA_LAKE_SAMPLES``, or true."""
    text = SAMPLES.value(environment)
    if text.lower() not in ("true", "false"):
        raise ConfigurationError(f"{SAMPLES.name}={text} is neither true nor false.", "Write true or false.")
    return text.lower() == "true"


E = TypeVar("E", bound=KafkaLakeError)


def own_prefix(variable: Variable, cluster: str | None) -> str:
    """Return the prefix of a cluster's variables of a kind; a cluster without a name is None.

    >>> own_prefix(KAFKA, "eu"), own_prefix(KAFKA, None)
    ('KAFKA_LAKE_KAFKA__EU__', 'KAFKA_LAKE_KAFKA_')
    """
    return f"{variable.name}_{cluster.upper()}__" if cluster else variable.name


def properties_of(variable: Variable, cluster: str | None, variables: Mapping[str, str]) -> dict[str, str]:
    """Return the properties that a cluster's variables of a kind set.

    >>> found = {"KAFKA_LAKE_KAFKA_CLIENT_ID": "one", "KAFKA_LAKE_KAFKA__EU__CLIENT_ID": "two"}
    >>> properties_of(KAFKA, "eu", found), properties_of(KAFKA, None, found)
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


@dataclass(frozen=True)
class SparkCatalog:
    """A catalog's settings for Spark.

    Args:
        needed_classes: Java classes beside Iceberg's, each with its artifact.
        ca_bundle: PEM file with the certificates of the catalog's server; empty for public ones.
    """

    name: str
    conf: Mapping[str, str] = field(repr=False)
    needed_classes: Mapping[str, str]
    ca_bundle: str = ""


def catalog_variable(catalog: str, name: str = "") -> str:
    """Return PyIceberg's variable of a catalog's property; without a name, the prefix of all variables.

    >>> catalog_variable("my-lake", "s3.access-key-id"), catalog_variable("lake")
    ('PYICEBERG_CATALOG__MY_LAKE__S3__ACCESS_KEY_ID', 'PYICEBERG_CATALOG__LAKE__')
    """
    parts = (part.upper().replace(".", "__").replace("-", "_") for part in (catalog, name))
    return "__".join(["PYICEBERG_CATALOG", *parts])
