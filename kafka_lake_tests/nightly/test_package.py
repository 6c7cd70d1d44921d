"""A stranger's path: the wheel alone in an empty environment, a project of one's own, a topic, and its table.

Nothing is borrowed from this clone: packages come from the index that pip or uv is set to, jars from where Ivy finds
them, Java from the extra ``[java]``.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from kafka_lake.common.processes import free_port
from kafka_lake.devstack.servers import EmbeddedBroker

ROOT = Path(__file__).parents[2]
# As a stranger's service wrote them, dirt and all.
RECORDS: list[bytes] = [
    b'{"id": 9007199254740993, "who": {"name": "Zo\xc3\xab"}, "total": 10.10, "at": "2026-11-02T09:14:07Z"}',
    b'{"id": 2, "who": null, "total": 1e2, "tags": ["a", "b"]}',
    b"no json",
]
AT = "2026-11-02 09:14:07+00:00"
# By the PyIceberg that came with the wheel; `kafka-lake env` says where the catalog is.
READ = """
import json, sys
from pyiceberg.catalog import load_catalog

rows = load_catalog("lake").load_table(sys.argv[1]).scan().to_arrow().to_pylist()
rows.sort(key=lambda row: row["_kafka"]["offset"])
print(json.dumps([{name: row[name] for name in row if name != "_kafka"} for row in rows], default=str))
"""

pytestmark = [pytest.mark.integration, pytest.mark.timeout(3600)]


@dataclass(frozen=True)
class Stranger:
    """Somebody with the wheel, and an environment that has nothing else.

    Args:
        python: The environment's Python.
        environment: The variables of their shell.
        minutes: How long each step took, by its name.
    """

    python: Path
    environment: dict[str, str]
    minutes: dict[str, float]

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        self.minutes[name] = (time.monotonic() - began) / 60

    def run(self, *arguments: str, folder: Path) -> str:
        """Run a command of the environment, as somebody does who has never seen this repository."""
        done = subprocess.run(arguments, cwd=folder, env=self.environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{arguments}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    @contextmanager
    def dagster(self, folder: Path, log: Path) -> Iterator[str]:
        """Run ``dg dev`` in a project; gives the address of its UI, and ends it by Ctrl-C."""
        port = free_port()
        with log.open("w") as output:
            dev = subprocess.Popen(
                ["dg", "dev", "--port", str(port)],
                cwd=folder,
                env=self.environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                # Ctrl-C in a terminal reaches all of them.
                start_new_session=True,
            )
        try:
            url, deadline = f"http://127.0.0.1:{port}", time.monotonic() + 300
            while not _answers(f"{url}/server_info"):
                assert dev.poll() is None and time.monotonic() < deadline, log.read_text()  # noqa: PT018
                time.sleep(0.5)
            yield url
        except BaseException:
            print(log.read_text())
            raise
        finally:
            os.killpg(dev.pid, signal.SIGINT)
            try:
                dev.wait(120)
            finally:
                if dev.poll() is None:
                    os.killpg(dev.pid, signal.SIGKILL)


def _answers(url: str) -> bool:
    try:
        with urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def _wheel(work: Path) -> Path:
    source = work / "source"
    # What earlier builds left beside it is for no wheel.
    shutil.copytree(ROOT / "kafka_lake", source / "kafka_lake", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(work / "dist"), str(source)]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = (work / "dist").glob("*.whl")
    return wheel


def _shell(work: Path) -> dict[str, str]:
    """Return the variables of a shell that knows nothing of this clone, on a machine whose ``java`` is of no use."""
    ours = ("KAFKA_LAKE_", "PYICEBERG_", "SPARK_", "DAGSTER_", "PYTHONPATH", "VIRTUAL_ENV", "JAVA_HOME")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    useless = work / "bin" / "java"
    useless.parent.mkdir()
    useless.write_text("#!/bin/sh\nexit 1\n")
    useless.chmod(0o755)
    path = os.pathsep.join([str(work / "venv" / "bin"), str(useless.parent), os.environ["PATH"]])
    return {**inherited, "PATH": path, "COLUMNS": "200", "KAFKA_LAKE_CACHE": str(work / "cache")}


def _pythons() -> dict[str, str]:
    """Return this Python and others on the PATH by version: 3.11 to 3.13."""
    found = {f"{sys.version_info.major}.{sys.version_info.minor}": sys.executable}
    for version in ("3.11", "3.12", "3.13"):
        program = shutil.which(f"python{version}")
        if program and subprocess.run([program, "-c", "import venv"], capture_output=True).returncode == 0:
            found.setdefault(version, program)
    return found


_PYTHONS = _pythons()


@pytest.fixture(scope="module", params=_PYTHONS.values(), ids=_PYTHONS)
def stranger(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stranger]:
    """The environment, new and empty, then with the wheel and what the wheel says that it needs."""
    work, python = tmp_path_factory.mktemp("package"), request.param
    venv, wanted = work / "venv", f"{_wheel(work)}[java]"
    found = Stranger(venv / "bin" / "python", _shell(work), {})
    with found.step("install"):
        if uv := shutil.which("uv"):
            found.run(uv, "venv", "--quiet", "--python", python, str(venv), folder=work)
            found.run(uv, "pip", "install", "--quiet", "--python", str(found.python), wanted, folder=work)
        else:
            found.run(python, "-m", "venv", str(venv), folder=work)
            found.run(str(found.python), "-m", "pip", "install", "--quiet", wanted, folder=work)
    yield found
    print("minutes:", {name: round(minutes, 1) for name, minutes in found.minutes.items()})


def test_the_wheel_has_the_library_and_not_the_shop(stranger: Stranger, tmp_path: Path) -> None:
    code = (
        "import json, kafka_lake; from importlib.util import find_spec as find; from pathlib import Path\n"
        "here = Path(kafka_lake.__file__).parent\n"
        "packages = {name: bool(find(f'kafka_lake.{name}')) for name in ('defs', 'definitions', 'ingest')}\n"
        "files = [name for name in ('py.typed', 'engine/ivy.xml', 'devstack/debezium.xml', 'common/dagster.yaml')"
        " if (here / name).is_file()]\n"
        "print(json.dumps([str(here), packages, files, kafka_lake.KafkaTopic.__module__]))"
    )
    here, packages, files, module = json.loads(stranger.run(str(stranger.python), "-c", code, folder=tmp_path))
    assert here.startswith(str(stranger.python.parents[1]))
    assert packages == {"defs": False, "definitions": False, "ingest": True}
    assert files == ["py.typed", "engine/ivy.xml", "devstack/debezium.xml", "common/dagster.yaml"]
    assert module == "kafka_lake.orchestration.components.kafka_topic"
    assert not (Path(here).parent / "kafka_lake_tests").exists()
    assert "demo" not in stranger.run("kafka-lake", "--help", folder=tmp_path)


def test_each_module_of_the_wheel_can_be_imported(stranger: Stranger, tmp_path: Path) -> None:
    """But for the two extras that a module of its own stands for."""
    code = (
        "import importlib, pkgutil, kafka_lake\n"
        "for module in pkgutil.walk_packages(kafka_lake.__path__, 'kafka_lake.'):\n"
        "    if not module.name.endswith('__main__'):\n"
        "        importlib.import_module(module.name)\n"
        "        print(module.name)\n"
    )
    assert len(stranger.run(str(stranger.python), "-c", code, folder=tmp_path).splitlines()) > 250


def test_a_project_of_ones_own_from_the_wheel_to_the_rows(
    stranger: Stranger, broker: EmbeddedBroker, new_topic: Callable[..., Any], tmp_path: Path
) -> None:
    topic = new_topic()
    for record in RECORDS:
        topic.send(record)
    table = f"lake.{topic.name.replace('-', '_').lower()}"
    arguments = ("--topic", topic.name, "--bootstrap-servers", broker.bootstrap_servers)
    with stranger.step("init"):
        made = stranger.run("kafka-lake", "init", "my_lake", *arguments, folder=tmp_path)
    assert "cd my_lake" in made
    project = tmp_path / "my_lake"
    with stranger.step("dg check defs"):
        assert "All component YAML validated" in stranger.run("dg", "check", "yaml", folder=project)
        assert "All definitions loaded" in stranger.run("dg", "check", "defs", folder=project)
    with stranger.step("dg dev, to the rows"), stranger.dagster(project, tmp_path / "dev.log"):
        # The sensor starts the run, whose Spark first retrieves its jars.
        stranger.run("kafka-lake", "status", topic.name, "--wait", "30m", folder=project)
    with stranger.step("queries"):
        shell = 'eval "$(kafka-lake env --secrets)"; python -c "$0" "$1"'
        rows = json.loads(stranger.run("bash", "-euc", shell, READ, table, folder=project))
        assert rows == [
            {"id": 9007199254740993, "who": {"name": "Zoë"}, "total": 10.1, "at": AT, "tags": None},
            {"id": 2, "who": None, "total": 100.0, "at": None, "tags": ["a", "b"]},
        ]
        (status,) = json.loads(stranger.run("kafka-lake", "status", "--json", folder=project))
        assert (status["topic"], status["lag"]) == (topic.name, 0)
        letters = json.loads(stranger.run("kafka-lake", "dead-letters", topic.name, "--json", folder=project))
        assert sum(letter["count"] for letter in letters[0]["classes"]) == 1
