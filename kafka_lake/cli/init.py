"""``kafka-lake init``: a Dagster project with the cluster, some topics of it, and nothing else."""

import keyword
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from kafka_lake.cli.discover import chosen, discovered_blocks
from kafka_lake.cli.project import connections_at_hand
from kafka_lake.common.environment import BOOTSTRAP_SERVERS, SCHEMA_REGISTRY_URL
from kafka_lake.common.errors import ConfigurationError
from kafka_lake.discovery.discover import Discovered, discover, documents, topics_of

_SAMPLE = 20


@dataclass(frozen=True)
class Request:
    """What the command was asked for.

    Args:
        folder: Where the project shall be.
        topics: Topics whose tables it has from the start.
        bootstrap_servers: The brokers, for its ``.env``; empty if the environment or the local stack has them.
        registry_url: The schema registry, likewise.
    """

    folder: Path
    topics: Sequence[str] = ()
    bootstrap_servers: str = ""
    registry_url: str = ""


def run(request: Request, out: Console, err: Console) -> None:
    """Make the project, or nothing.

    Args:
        request: What was asked for.
        out: Gets what was made, and what to do next.
        err: Gets progress and questions.

    Raises:
        KafkaLakeError: If a topic can't be looked at, or something is in the folder already. Nothing is written.
    """
    folder = request.folder.resolve()
    name = package_name(folder.name)
    _refuse_what_is_there(folder, name)
    found = _topics(request, err)
    written = {**project_files(name, request), **_documents(found, Path(name, "defs"))}
    for path, text in written.items():
        place = folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        with place.open("x", encoding="utf-8") as file:
            # Passwords will be in it.
            if place.name == ".env":
                place.chmod(0o600)
            file.write(text)
    if found:
        out.print(*discovered_blocks(found))
    out.print(*_next_steps(request.folder, written, found), sep="\n", soft_wrap=True, highlight=False, markup=False)


def package_name(folder: str) -> str:
    """Return the name of the Python package in a project's folder.

    Raises:
        ConfigurationError: If none can be made of it.

    >>> package_name("my-lake")
    'my_lake'
    """
    name = re.sub(r"\W+", "_", folder.lower()).strip("_")
    if not name.isidentifier() or keyword.iskeyword(name) or name in sys.stdlib_module_names or name == "kafka_lake":
        raise ConfigurationError(
            f"A project in a folder of the name {folder!r} would be a Python package of the name {name!r}.",
            "Choose another folder, as in `kafka-lake init my_lake`.",
        )
    return name


def project_files(name: str, request: Request) -> dict[Path, str]:
    """Return the project's files but for its topics, by their paths in its folder.

    Args:
        name: Its Python package.
        request: What was asked for.
    """
    names = {"name": name, "project": name.replace("_", "-"), "version": version("kafka-lake")}
    return {
        Path("pyproject.toml"): _PYPROJECT.format(**names),
        Path("dagster.yaml"): files("kafka_lake.local_stack").joinpath("dagster.yaml").read_text(),
        Path(".env"): _environment(request),
        Path(".gitignore"): _GITIGNORE,
        Path(name, "__init__.py"): "",
        Path(name, "definitions.py"): _DEFINITIONS,
        Path(name, "defs", "__init__.py"): "",
        Path(name, "defs", "cluster", "defs.yaml"): _CLUSTER,
    }


def _refuse_what_is_there(folder: Path, name: str) -> None:
    for each in (*project_files(name, Request(folder)), Path(name)):
        if (folder / each).exists():
            raise ConfigurationError(
                f"Nothing was written: {folder / each} is there already.",
                "Choose another folder. In a project that is there, `kafka-lake discover TOPIC --write` adds topics.",
            )


def _topics(request: Request, err: Console) -> list[Discovered]:
    asks = not request.topics and bool(request.bootstrap_servers) and sys.stdin.isatty()
    if not request.topics and not asks:
        return []
    with ExitStack() as stack:
        connections = stack.enter_context(connections_at_hand(err.print, with_catalog=False))
        working = stack.enter_context(err.status("Looking at topics"))
        topics = list(dict.fromkeys(request.topics)) or topics_of(connections.cluster, False)[0]
        found = discover(
            topics, [], connections, _SAMPLE, lambda topic: working.update(f"Looking at topic {escape(topic)}")
        )
    if asks:
        err.print(*discovered_blocks(found))
        return chosen(found)
    return found


def _documents(found: Sequence[Discovered], folder: Path) -> Mapping[Path, str]:
    return {each.path: each.text for each in documents(found, [], folder)}


def _environment(request: Request) -> str:
    told = [(BOOTSTRAP_SERVERS.name, request.bootstrap_servers), (SCHEMA_REGISTRY_URL.name, request.registry_url)]
    lines = [f"{name}={value}" if value else f"#{name}=" for name, value in told]
    return _ENV.format(lines="\n".join(lines))


def _next_steps(folder: Path, written: Mapping[Path, str], found: Sequence[Discovered]) -> list[str]:
    steps = [("kafka-lake doctor", "is everything there that a run needs?")]
    if not found:
        steps.append(("kafka-lake discover TOPIC --write", "writes a topic's YAML; without TOPIC it lists all topics"))
    steps += [
        ("kafka-lake up", "Dagster on this machine with a Spark that stays warm; or `dg dev`"),
        ("kafka-lake status --wait 5m", "until the tables have what the topics have"),
    ]
    if found:
        steps.append((f"kafka-lake query {found[0].topic} 'SELECT * FROM this LIMIT 10'", "the rows"))
    width = max(len(command) for command, _ in steps)
    return [
        f"{folder}: {len(written)} files. Next:",
        f"  cd {shlex.quote(str(folder))}",
        *(f"  {command:{width}}  {what}" for command, what in steps),
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
"""The code location: loads what `defs/` says."""

from pathlib import Path

import dagster as dg


@dg.definitions
def defs() -> dg.Definitions:
    return dg.load_from_defs_folder(path_within_project=Path(__file__).parent)
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
# Loaded by kafka-lake and by Dagster. What the environment already has comes first.
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
