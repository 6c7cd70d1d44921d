"""``kafka-lake init``: a Dagster project with the cluster, some topics of it, and nothing else."""

import keyword
import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.metadata import version
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from kafka_lake.cli.discover import chosen, discovered_blocks
from kafka_lake.cli.project import connections_at_hand
from kafka_lake.common.environment import BOOTSTRAP_SERVERS, SCHEMA_REGISTRY_URL
from kafka_lake.common.text import counted
from kafka_lake.discovery.discover import Discovered, discover, documents, topics_of
from kafka_lake.errors import ConfigurationError

_SAMPLE = 20
_PACKAGE = re.compile("[a-z][a-z0-9_]*")


@dataclass(frozen=True)
class Request:
    """What the command was asked for.

    Args:
        folder: Where the project shall be.
        topics: Topics whose tables it has from the start.
        bootstrap_servers: The brokers, for its ``.env``; empty if the environment or the local stack has them.
    """

    folder: Path
    topics: Sequence[str] = ()
    bootstrap_servers: str = ""
    registry_url: str = ""


def run(request: Request, out: Console, err: Console) -> None:
    """Make the project, or nothing."""
    folder = request.folder.resolve()
    name = package_name(folder.name, folder)
    for option, address in (("bootstrap-servers", request.bootstrap_servers), ("registry", request.registry_url)):
        if "@" in address:
            raise ConfigurationError(
                f"--{option} has a user or a password in it, which init writes nowhere.",
                "Leave it out of the address, and set KAFKA_LAKE_KAFKA_SASL_… or "
                "KAFKA_LAKE_REGISTRY_BASIC_AUTH_USER_INFO.",
            )
    own = {folder / path: text for path, text in project_files(name, request).items()}
    _refuse_what_is_there([*own, folder / name])
    found = _topics(request, err)
    topics = {each.path: each.text for each in documents(found, [], folder / name / "defs")}
    if both := sorted(own.keys() & topics.keys()):
        raise ConfigurationError(
            f"Nothing was written: {both[0]} would be a topic's document and the cluster's.",
            "Leave the topic out, and write its document by hand in another folder below defs/.",
        )
    _write({**own, **topics})
    if found:
        out.print(*discovered_blocks(found))
    steps = _next_steps(request.folder, len(own) + len(topics), found)
    out.print(*steps, sep="\n", soft_wrap=True, highlight=False, markup=False)


def package_name(name: str, folder: Path) -> str:
    """Return the name of the Python package in a project's folder.

    >>> package_name("my-lake", Path("my-lake"))
    'my_lake'
    """
    package = re.sub(r"[^a-z0-9_]+", "_", name.lower()).strip("_")
    known = find_spec(package) if _PACKAGE.fullmatch(package) and not keyword.iskeyword(package) else None
    others = known is not None and known.origin is not None and not Path(known.origin).is_relative_to(folder)
    if not _PACKAGE.fullmatch(package) or keyword.iskeyword(package) or others:
        raise ConfigurationError(
            f"A project in a folder of the name {name!r} would be a Python package of the name {package!r}, which "
            f"{'is another one' if others else 'none can have'}.",
            "Choose another folder, as in `kafka-lake init my_lake`.",
        )
    return package


def project_files(name: str, request: Request) -> dict[Path, str]:
    """Return the project's files but for its topics, by their paths in its folder."""
    names = {"name": name, "project": name.replace("_", "-"), "version": version("kafka-lake")}
    return {
        Path("pyproject.toml"): _PYPROJECT.format(**names),
        Path("dagster.yaml"): files("kafka_lake.common").joinpath("dagster.yaml").read_text(),
        Path(".env"): _environment(request),
        Path(".gitignore"): _GITIGNORE,
        Path(name, "__init__.py"): "",
        Path(name, "definitions.py"): _DEFINITIONS,
        Path(name, "defs", "__init__.py"): "",
        Path(name, "defs", "cluster", "defs.yaml"): _CLUSTER,
    }


def _refuse_what_is_there(paths: Sequence[Path]) -> None:
    for each in paths:
        if os.path.lexists(each):
            raise ConfigurationError(
                f"Nothing was written: {each} is there already.",
                "Choose another folder. In a project that is there, `kafka-lake discover TOPIC --write` adds topics.",
            )


def _write(texts: Mapping[Path, str]) -> None:
    """Write all files; none is left behind if one of them can't be written."""
    with ExitStack() as undo:
        for path, text in texts.items():
            try:
                for folder in reversed([each for each in path.parents if not each.exists()]):
                    folder.mkdir()
                    undo.callback(folder.rmdir)
                with path.open("x", encoding="utf-8") as file:
                    undo.callback(path.unlink)
                    # Passwords will be in it.
                    if path.name == ".env":
                        path.chmod(0o600)
                    file.write(text)
            except OSError as error:
                raise ConfigurationError(f"Nothing was written: {path}: {error.strerror}.") from error
        undo.pop_all()


def _topics(request: Request, err: Console) -> list[Discovered]:
    asks = not request.topics and bool(request.bootstrap_servers) and sys.stdin.isatty()
    if not request.topics and not asks:
        return []
    with ExitStack() as stack:
        connections = stack.enter_context(connections_at_hand(err.print, with_catalog=False, of_project=False))
        working = stack.enter_context(err.status("Looking at topics"))
        topics = list(dict.fromkeys(request.topics)) or topics_of(connections.cluster, False)[0]
        found = discover(
            topics,
            [],
            connections=connections,
            count=_SAMPLE,
            on_topic=lambda topic: working.update(f"Looking at topic {escape(topic)}"),
        )
    if asks:
        err.print(*discovered_blocks(found))
        return chosen(found)
    return found


def _environment(request: Request) -> str:
    told = [(BOOTSTRAP_SERVERS.name, request.bootstrap_servers), (SCHEMA_REGISTRY_URL.name, request.registry_url)]
    lines = [f"{name}={value}" if value else f"#{name}=" for name, value in told]
    return _ENV.format(lines="\n".join(lines))


def _next_steps(folder: Path, files: int, found: Sequence[Discovered]) -> list[str]:
    steps = [("kafka-lake doctor", "is everything there that a run needs?")]
    if not found:
        steps.append(("kafka-lake discover TOPIC --write", "writes a topic's YAML; without TOPIC it lists all topics"))
    steps += [
        ("kafka-lake up", "Dagster on this machine with a Spark Connect server; or `dg dev`"),
        ("kafka-lake status --wait 5m", "until the tables have what the topics have"),
    ]
    if found:
        steps.append((f"kafka-lake query {found[0].topic} 'SELECT * FROM this LIMIT 10'", "the rows"))
    width = max(len(command) for command, _ in steps)
    return [
        f"{folder}: {counted(files, 'file')}. Next:",
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
