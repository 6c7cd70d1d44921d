"""``kafka-lake init``."""

from __future__ import annotations

import keyword
import os
import re
import shlex
from collections.abc import Sequence
from importlib.metadata import version
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from kafka_lake.cli import project
from kafka_lake.cli.commands.discover import discovered_blocks
from kafka_lake.cli.output import Output, working
from kafka_lake.common.environment import BOOTSTRAP_SERVERS, SCHEMA_REGISTRY_URL
from kafka_lake.common.text import counted
from kafka_lake.devstack.running import use_servers
from kafka_lake.errors import ConfigurationError

if TYPE_CHECKING:
    from kafka_lake.discovery.discover import Discovered

_SAMPLE = 20
_PACKAGE = re.compile("[a-z][a-z0-9_]*")


def init(
    folder: Annotated[Path, typer.Argument(help="Folder of the new project, and name of its Python package.")],
    topic: Annotated[
        list[str] | None, typer.Option("--topic", "-t", help="Topic to create a table for; repeatable.")
    ] = None,
    bootstrap_servers: Annotated[
        str, typer.Option(help="Brokers for the project's .env. Default: the environment's.")
    ] = "",
    registry: Annotated[
        str, typer.Option(help="Schema registry for the project's .env. Default: the environment's.")
    ] = "",
) -> None:
    """Create a Dagster project with the cluster and a table for each named topic.

    Existing files are never overwritten.
    """
    from kafka_lake.discovery.discover import documents, write

    path = folder.resolve()
    name = package_name(path.name, path)
    for option, address in (("bootstrap-servers", bootstrap_servers), ("registry", registry)):
        if "@" in address:
            raise ConfigurationError(
                f"--{option} contains a user or a password, and init writes no secrets.",
                "Remove them from the address, and set KAFKA_LAKE_KAFKA_SASL_… or "
                "KAFKA_LAKE_REGISTRY_BASIC_AUTH_USER_INFO.",
            )
    use_servers(bootstrap_servers, registry)
    texts = {path / file: text for file, text in project_files(name, bootstrap_servers, registry).items()}
    _check_absent([*texts, path / name])
    topics = _discover(topic or ())
    planned = {document.path: document.text for document in documents(topics, [], path / name / "defs")}
    if both := sorted(texts.keys() & planned.keys()):
        raise ConfigurationError(
            f"Nothing was written: {both[0]} would be both a topic's document and the cluster's.",
            "Leave the topic out, and write its document by hand in another folder below defs/.",
        )
    write({**texts, **planned})
    # Passwords will be in it.
    (path / ".env").chmod(0o600)
    output = Output()
    output.show(*discovered_blocks(topics))
    output.lines(*_next_steps(folder, len(texts) + len(planned), topics))


def package_name(name: str, folder: Path) -> str:
    """Return the name of the Python package in a project's folder.

    >>> package_name("my-lake", Path("my-lake"))
    'my_lake'
    """
    package = re.sub(r"[^a-z0-9_]+", "_", name.lower()).strip("_")
    is_valid = bool(_PACKAGE.fullmatch(package)) and not keyword.iskeyword(package)
    spec = find_spec(package) if is_valid else None
    is_taken = spec is not None and spec.origin is not None and not Path(spec.origin).is_relative_to(folder)
    if not is_valid or is_taken:
        raise ConfigurationError(
            f"A project in the folder {name!r} would be the Python package {package!r}: "
            f"{'another package has this name' if is_taken else 'not a valid name'}.",
            "Choose another folder, as in `kafka-lake init my_lake`.",
        )
    return package


def project_files(name: str, bootstrap_servers: str = "", registry_url: str = "") -> dict[Path, str]:
    """Return the project's files without its topics, by their paths in its folder."""
    names = {"name": name, "project": name.replace("_", "-"), "version": version("kafka-lake")}
    return {
        Path("pyproject.toml"): _PYPROJECT.format(**names),
        Path("dagster.yaml"): files("kafka_lake.common").joinpath("dagster.yaml").read_text(),
        Path(".env"): _environment(bootstrap_servers, registry_url),
        Path(".gitignore"): _GITIGNORE,
        Path(name, "__init__.py"): "",
        Path(name, "definitions.py"): _DEFINITIONS,
        Path(name, "defs", "__init__.py"): "",
        Path(name, "defs", "cluster", "defs.yaml"): _CLUSTER,
    }


def _check_absent(paths: Sequence[Path]) -> None:
    for path in paths:
        if os.path.lexists(path):
            raise ConfigurationError(
                f"Nothing was written: {path} already exists.",
                "Choose another folder. In an existing project, `kafka-lake discover TOPIC --write` adds topics.",
            )


def _discover(topics: Sequence[str]) -> list[Discovered]:
    from kafka_lake.discovery.discover import discover

    if not topics:
        return []
    with (
        project.open_connections(with_catalog=False, of_project=False) as connections,
        working("Reading topics") as status,
    ):
        return discover(
            list(dict.fromkeys(topics)),
            [],
            connections=connections,
            count=_SAMPLE,
            on_topic=lambda topic, *_: status.update(f"Reading topic {escape(topic)}"),
        )


def _environment(bootstrap_servers: str, registry_url: str) -> str:
    values = {BOOTSTRAP_SERVERS.name: bootstrap_servers, SCHEMA_REGISTRY_URL.name: registry_url}
    lines = [f"{name}={value}" if value else f"#{name}=" for name, value in values.items()]
    return _ENV.format(lines="\n".join(lines))


def _next_steps(folder: Path, files: int, topics: Sequence[Discovered]) -> list[str]:
    steps = [("kafka-lake doctor", "checks every system that a run needs")]
    if not topics:
        steps.append(("kafka-lake discover TOPIC --write", "writes a topic's YAML; without TOPIC it lists all topics"))
    steps += [
        ("kafka-lake up", "Dagster on this machine with a Spark Connect server; or `dg dev`"),
        ("kafka-lake status --wait 5m", "waits until the tables have all records"),
    ]
    if topics:
        steps.append((f"kafka-lake query {topics[0].topic} 'SELECT * FROM this LIMIT 10'", "the rows"))
    width = max(len(command) for command, _ in steps)
    return [
        f"{folder}: {counted(files, 'file')}. Next:",
        f"  cd {shlex.quote(str(folder))}",
        *(f"  {command:{width}}  {text}" for command, text in steps),
    ]


_PYPROJECT = """\
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "{project}"
version = "0.1.0"
requires-python = ">=3.11,<3.14"
dependencies = ["kafka-lake>={version}"]

[tool.setuptools.packages.find]
include = ["{name}*"]

[tool.setuptools.package-data]
{name} = ["**/*.yaml"]

[tool.dg]
directory_type = "project"

[tool.dg.project]
root_module = "{name}"
registry_modules = ["kafka_lake"]
"""

_DEFINITIONS = '''\
"""The code location: loads the documents in `defs/`."""

from pathlib import Path

import dagster as dg
import kafka_lake


@dg.definitions
def defs() -> dg.Definitions:
    return kafka_lake.load_from_defs_folder(path_within_project=Path(__file__).parent)
'''

_CLUSTER = """\
# The brokers, the catalog and Spark are configured by environment variables, see .env.
type: kafka_lake.KafkaCluster

attributes: {}
"""

_GITIGNORE = """\
.env
.kafka_lake/
__pycache__/
*.egg-info/
"""

_ENV = """\
# Loaded by kafka-lake and by Dagster. Set a variable here or in the environment, not in both:
# for kafka-lake the environment wins, for Dagster this file does.
# Every KAFKA_LAKE_KAFKA_* is a property of librdkafka: KAFKA_LAKE_KAFKA_SASL_USERNAME is sasl.username.
{lines}
#KAFKA_LAKE_KAFKA_SECURITY_PROTOCOL=SASL_SSL
#KAFKA_LAKE_KAFKA_SASL_MECHANISM=SCRAM-SHA-512
#KAFKA_LAKE_KAFKA_SASL_USERNAME=
#KAFKA_LAKE_KAFKA_SASL_PASSWORD=

# The Iceberg catalog, in PyIceberg's variables. Without any: SQLite and files in .kafka_lake/.
#PYICEBERG_CATALOG__LAKE__TYPE=rest
#PYICEBERG_CATALOG__LAKE__URI=http://127.0.0.1:8181
#PYICEBERG_CATALOG__LAKE__WAREHOUSE=s3://warehouse
"""
