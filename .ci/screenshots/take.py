"""Fill the demo, let it run, and have the pictures of Dagster's pages taken: see `make screenshots`.

The pictures show what happened: commits, dead letters, a rule that rows broke, a new column, maintenance. Everything is
in a temporary folder, at free ports, and gone at the end.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from confluent_kafka import Producer
from PIL import Image

from kafka_lake.common.processes import free_port

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "docs" / "images"
BIN = Path(sys.executable).parent
LARGEST_KB = 200
LIVE_SECONDS, LONGEST_SECONDS = 150, 1200
DEAD_LETTERS = 60
EXTRAS = ("MANY", "CDC")
"""Parts of the demo that take minutes more: a variable for each. Without it, its pictures stay as they are."""
PROJECT = """[tool.dg]
directory_type = "project"

[tool.dg.project]
root_module = "pizza_shop"
code_location_name = "kafka_lake"
registry_modules = ["kafka_lake"]
"""
RULES = """    rules:
      - accepted_values: {column: sauce, values: [tomato, pesto, bbq, alfredo, none]}
      - range: {column: store_id, min: 1}
        on_failure: warn
"""
BROKEN = (
    b'{"order_id": 4711, "store_id": ',
    b'{"order_id": "twelve", "store_id": 3, "sauce": "pesto"}',
    b'{"store_id": 7, "sauce": "pesto"}',
    b'{"order_id": 4712, "store_id": 9, "sauce": "ketchup", "cheese": "vegan"}',
    b'{"order_id": 4713, "store_id": 11, "sauce": "ketchup", "cheese": "none"}',
)


def main() -> int:
    """Return the exit code: 1 if a picture could not be taken."""
    with tempfile.TemporaryDirectory(prefix="screenshots-") as folder:
        project = _project(Path(folder) / "project")
        environment = _environment(Path(folder) / "home", project)
        if extras := [f"--{name.lower()}" for name in EXTRAS if os.environ.get(name)]:
            _run(environment, "demo", "--records", "5000", *extras)
        up = subprocess.Popen(
            [BIN / "python", "-m", "examples.pizza_shop", "live", "--rate", "20"], cwd=project, env=environment
        )
        try:
            running = _await_up(up, Path(environment["KAFKA_LAKE_HOME"]) / "running.json")
            _send_broken(environment, running["bootstrap_servers"])
            _maintain(environment, running)
            # The pages of tables show no figures while their runs report.
            time.sleep(20)
            return _take(running["ui_url"])
        finally:
            up.send_signal(signal.SIGINT)
            up.wait()


def _project(folder: Path) -> Path:
    """Return a project that is the demo's, with rules."""
    package = folder / "pizza_shop"
    shutil.copytree(ROOT / "kafka_lake" / "defs", package / "defs")
    for name in ("__init__.py", "definitions.py"):
        shutil.copy(ROOT / "deploy" / "lake_project" / "lake_project" / name, package)
    (folder / "pyproject.toml").write_text(PROJECT)
    with (package / "defs" / "pizzas" / "defs.yaml").open("a") as document:
        document.write(RULES)
    return folder


def _environment(home: Path, project: Path) -> dict[str, str]:
    ports = {f"KAFKA_LAKE_{name}_PORT": str(free_port()) for name in ("BROKER", "UI", "CONNECT", "REGISTRY")}
    foreign = ("KAFKA_LAKE_", "SPARK_REMOTE", "DAGSTER_HOME")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    return {
        **kept,
        **ports,
        "KAFKA_LAKE_HOME": str(home),
        "PYTHONPATH": f"{project}:{ROOT}",
    }


def _folder(environment: Mapping[str, str]) -> str:
    return environment["PYTHONPATH"].partition(":")[0]


def _run(environment: Mapping[str, str], *arguments: str) -> None:
    subprocess.run(
        [BIN / "python", "-m", "examples.pizza_shop", *arguments],
        cwd=_folder(environment),
        env=environment,
        check=True,
    )


def _await_up(up: subprocess.Popen[bytes], path: Path) -> dict[str, str]:
    while up.poll() is None:
        if path.exists() and (running := json.loads(path.read_text()))["ui_url"]:
            return running
        time.sleep(1)
    raise SystemExit("kafka-lake up has ended; what it printed says why.")


def _send_broken(environment: Mapping[str, str], bootstrap: str) -> None:
    """Send records that fit no row or break a rule, until enough are dead letters: a busy machine takes longer."""
    producer, began, number = Producer({"bootstrap.servers": bootstrap}), time.monotonic(), 0
    while (past := time.monotonic() - began) < LONGEST_SECONDS:
        for _ in range(20):
            producer.produce("completed-pizzas", BROKEN[number % len(BROKEN)], key=str(number % 12).encode())
            producer.poll(0)
            number += 1
            time.sleep(1.0)
        if past > LIVE_SECONDS and _dead_letters(environment) >= DEAD_LETTERS:
            break
    producer.flush()


def _dead_letters(environment: Mapping[str, str]) -> int:
    command = [BIN / "kafka-lake", "status", "completed-pizzas", "--json"]
    asked = subprocess.run(command, cwd=_folder(environment), env=environment, capture_output=True, check=False)
    return int(json.loads(asked.stdout)[0]["dead_letters"]) if asked.returncode == 0 else 0


def _maintain(environment: Mapping[str, str], running: Mapping[str, str]) -> None:
    home = environment["KAFKA_LAKE_HOME"]
    its = {
        **environment,
        "DAGSTER_HOME": f"{home}/dagster",
        "SPARK_REMOTE": running["spark_remote"],
        "KAFKA_LAKE_BOOTSTRAP_SERVERS": running["bootstrap_servers"],
        "KAFKA_LAKE_SCHEMA_REGISTRY_URL": running["registry_url"],
    }
    command = [BIN / "dagster", "job", "execute", "-m", "pizza_shop.definitions", "-j", "maintain_tables"]
    subprocess.run(
        command,
        cwd=_folder(environment),
        env=its,
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def _take(url: str) -> int:
    pages: dict[str, dict[str, str]] = json.loads(Path(__file__).with_name("pages.json").read_text())
    names = [name for name, page in pages.items() if "needs" not in page or os.environ.get(page["needs"])]
    began = time.time()
    done = subprocess.run(["node", Path(__file__).with_name("take.cjs"), url, IMAGES, *names], check=False)
    for name in names:
        if (path := IMAGES / f"{name}.png").exists() and path.stat().st_mtime >= began:
            _shrink(path)
    return done.returncode


def _shrink(path: Path) -> None:
    """Store a picture with 256 colors, which pages of text and lines don't miss."""
    Image.open(path).convert("RGB").quantize(256, dither=Image.Dither.NONE).save(path, optimize=True)
    if (size := path.stat().st_size // 1024) > LARGEST_KB:
        print(f"{path}: {size} KB, more than {LARGEST_KB}", file=sys.stderr)


if __name__ == "__main__":
    raise SystemExit(main())
