"""The wheel alone is a usable library: built, installed into an environment of its own, used from a new project."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import load_catalog

from kafka_lake.local_stack.broker import EmbeddedBroker

ROOT = Path(__file__).parents[2]
# As a stranger's service wrote them, dirt and all.
RECORDS: list[bytes] = [
    b'{"id": 9007199254740993, "who": {"name": "Zo\xc3\xab"}, "total": 10.10, "at": "2026-11-02T09:14:07Z"}',
    b'{"id": 2, "who": null, "total": 1e2, "tags": ["a", "b"]}',
    b"no json",
]

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment that has the wheel, and from this one all but this project."""
    work = tmp_path_factory.mktemp("package")
    source = work / "source"
    # What earlier builds left beside it is for no wheel.
    shutil.copytree(ROOT / "kafka_lake", source / "kafka_lake", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(work / "dist"), str(source)]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = (work / "dist").glob("*.whl")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(work / "venv")], check=True)
    own = Path(sysconfig.get_path("purelib", "venv", {"base": str(work / "venv")}))
    # A folder named so is on the path, and its own .pth files, this project's among them, don't count.
    (own / "others.pth").write_text(sysconfig.get_path("purelib"))
    pip = [sys.executable, "-m", "pip", "--python", str(work / "venv")]
    subprocess.run([*pip, "install", "--quiet", "--no-deps", str(wheel)], check=True, capture_output=True)
    return work / "venv" / "bin" / "python"


@pytest.fixture
def command(python: Path, tmp_path: Path) -> Callable[..., str]:
    """Run a command of the new environment in a folder, as somebody does who has never seen this repository."""
    ours = ("KAFKA_LAKE_", "PYICEBERG_", "SPARK_REMOTE", "DAGSTER_", "PYTHONPATH", "VIRTUAL_ENV")
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(ours) or k == "KAFKA_LAKE_CACHE"}
    environment = {**inherited, "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}", "COLUMNS": "200"}

    def run(*arguments: str, folder: Path = tmp_path) -> str:
        done = subprocess.run(arguments, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        return done.stdout

    return run


def test_the_wheel_has_the_library_and_not_the_shop(python: Path, command: Callable[..., str]) -> None:
    told = json.loads(
        command(
            str(python),
            "-c",
            "import json, kafka_lake; from importlib.util import find_spec as find; from pathlib import Path\n"
            "here = Path(kafka_lake.__file__).parent\n"
            "print(json.dumps([str(here), *[bool(find(f'kafka_lake.{n}')) for n in ('demo', 'defs', 'ingest')],"
            " kafka_lake.KafkaTopicTable.__module__,"
            " *[(here / n).is_file() for n in ('py.typed', 'spark/ivy.xml', 'common/dagster.yaml')]]))",
        )
    )
    assert told[0].startswith(str(python.parents[1]))
    assert told[1:] == [False, False, True, "kafka_lake.components.kafka_topic_table", True, True, True]
    assert not (Path(told[0]).parent / "kafka_lake_tests").exists()


def test_a_project_of_ones_own_from_the_wheel_to_the_rows(
    python: Path, command: Callable[..., str], broker: EmbeddedBroker, new_topic: Callable[..., Any], tmp_path: Path
) -> None:
    topic = new_topic()
    for record in RECORDS:
        topic.send(record)
    assert "demo" not in command("kafka-lake", "--help")
    made = command(
        "kafka-lake", "init", "my_lake", "--topic", topic.name, "--bootstrap-servers", broker.bootstrap_servers
    )
    assert "cd my_lake" in made
    project = tmp_path / "my_lake"
    command(str(python), "-m", "dagster", "definitions", "validate", folder=project)
    command("kafka-lake", "ingest", topic.name, folder=project)
    home = project / ".kafka_lake"
    catalog = load_catalog("lake", uri=f"sqlite:///{home / 'catalog.db'}", warehouse=f"file://{home / 'warehouse'}")
    rows = catalog.load_table(f"lake.{topic.name.replace('-', '_').lower()}").scan().to_arrow().to_pylist()
    rows.sort(key=lambda row: row["_kafka"]["offset"])
    assert [row["id"] for row in rows] == [9007199254740993, 2]
    assert [row["who"] for row in rows] == [{"name": "Zoë"}, None]
    assert [Decimal(str(row["total"])) for row in rows] == [Decimal("10.1"), Decimal(100)]
    assert [row["tags"] for row in rows] == [None, ["a", "b"]]
    (status,) = json.loads(command("kafka-lake", "status", "--json", folder=project))
    assert (status["topic"], status["lag"]) == (topic.name, 0)
    letters = json.loads(command("kafka-lake", "dead-letters", topic.name, "--json", folder=project))
    assert sum(each["count"] for each in letters[0]["classes"]) == 1
