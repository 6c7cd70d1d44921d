"""The wheel alone is a usable package: built, installed elsewhere, imported from there."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    work = tmp_path_factory.mktemp("package")
    source = work / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "kafka_lake", source / "kafka_lake", ignore=shutil.ignore_patterns("__pycache__"))
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(work / "dist"), str(source)]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = (work / "dist").glob("*.whl")
    target = work / "site"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(target), str(wheel)]
    subprocess.run(install, check=True, capture_output=True)
    return target


def run_there(installed: Path, *command: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    done = subprocess.run(
        [sys.executable, *command], cwd=installed, env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_the_wheel_brings_the_jar_list_the_demo_and_its_types(installed):
    for path in ("spark/ivy.xml", "py.typed", "defs/pizzas/defs.yaml", "defs/cluster/defs.yaml"):
        assert (installed / "kafka_lake" / path).is_file(), path
    assert not (installed / "kafka_lake_tests").exists()


def test_the_component_loads_from_the_wheel(installed):
    found = run_there(
        installed, "-c", "import kafka_lake; print(kafka_lake.KafkaTopicTable.__module__, kafka_lake.__file__)"
    )
    assert found.startswith("kafka_lake.components.kafka_topic_table")
    assert str(installed) in found


def test_the_command_runs_from_the_wheel(installed):
    assert "status" in run_there(installed, "-m", "kafka_lake.cli.main", "--help") + run_there(
        installed,
        "-c",
        "from kafka_lake.cli.main import app; print([c.name or c.callback.__name__ for c in app.registered_commands])",
    )
