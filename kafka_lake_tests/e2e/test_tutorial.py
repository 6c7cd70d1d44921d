"""The tutorial's lines as they stand, in a copy of the project beside `make dev`."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.table import Table

from kafka_lake.common.processes import free_port

pytestmark = [pytest.mark.e2e, pytest.mark.exhaustive, pytest.mark.timeout(1200)]

PROJECT = Path(__file__).parents[2]
TUTORIAL = (PROJECT / "docs" / "tutorial.md").read_text()
BLOCK = re.compile(r"^```(bash|python)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
COMMAND = [sys.executable, "-m", "examples.pizza_shop"]
EVENTS = """
{
  assetNodeOrError(assetKey: {path: ["lake", "web_orders"]}) {
    ... on AssetNode { assetMaterializations(limit: 1) {
      metadataEntries { label ... on MarkdownMetadataEntry { mdStr } }
    } }
  }
}
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project, since the tutorial adds to its definitions; the environment is set up already."""
    folder = tmp_path_factory.mktemp("clone")
    for package in ("kafka_lake", "examples"):
        shutil.copytree(PROJECT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("dagster.yaml", "workspace.yaml", "pyproject.toml"):
        shutil.copy(PROJECT / name, folder)
    (folder / ".venv").symlink_to(sys.prefix)
    return folder


@pytest.fixture(scope="module")
def environment(project: Path) -> dict[str, str]:
    """What a new terminal has: no word of the stack that runs."""
    ours = ("KAFKA_LAKE_", "PYICEBERG_", "SPARK_REMOTE", "DAGSTER_HOME")
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(ours) or k == "KAFKA_LAKE_CACHE"}
    # The copy, instead of the project that is installed.
    path = os.pathsep.join([str(project), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**inherited, "PYTHONPATH": path, "COLUMNS": "200"}


@pytest.fixture(scope="module")
def running(project: Path, environment: dict[str, str]) -> Iterator[dict[str, Any]]:
    """The first terminal; gives what it wrote down for other terminals."""
    ports = {f"KAFKA_LAKE_{name}_PORT": str(free_port()) for name in ("BROKER", "UI", "CONNECT", "REGISTRY")}
    with subprocess.Popen(
        [*COMMAND, "live"],
        cwd=project,
        env={**environment, **ports},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as up:
        assert up.stdout is not None
        try:
            while "All is up" not in (line := up.stdout.readline()):
                assert line, "kafka-lake up has ended"
                print(line, end="")
            yield json.loads((project / ".kafka_lake" / "running.json").read_text())
        finally:
            up.send_signal(signal.SIGINT)
            up.stdout.read()
            assert up.wait(120) == 128 + signal.SIGINT
    assert not (project / ".kafka_lake" / "running.json").exists()


@pytest.fixture(scope="module")
def output(project: Path, environment: dict[str, str], running: dict[str, Any]) -> str:
    """What the second terminal shows, once all lines of the tutorial are through."""
    (_, first), *blocks = BLOCK.findall(TUTORIAL)
    assert first == "make dev\n"
    lines = [f"python - <<'END OF CODE'\n{text}END OF CODE\n" if kind == "python" else text for kind, text in blocks]
    began = time.monotonic()
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", "\n".join(lines)],
        cwd=project,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # Two cores under other work take twice as long as an idle laptop.
        timeout=840,
    )
    print(done.stdout)
    print(f"{time.monotonic() - began:.0f} s")
    assert done.returncode == 0
    return done.stdout


@pytest.fixture
def table(project: Path, output: str) -> Table:
    home = project / ".kafka_lake"
    properties = {"type": "sql", "uri": f"sqlite:///{home / 'catalog.db'}", "warehouse": f"file://{home / 'warehouse'}"}
    return load_catalog("lake", **properties).load_table("lake.web_orders")


def test_every_value_of_the_records_is_in_the_table(table: Table) -> None:
    columns = "order_id, customer, items, total, paid, epoch_us(ordered_at), note, coupon, _kafka.topic"
    rows = table.scan().to_duckdb("rows").sql(f"SELECT {columns} FROM rows ORDER BY order_id").fetchall()

    def moment(text: str) -> int:
        whole = datetime.fromisoformat(text)
        return int(whole.replace(microsecond=0).astimezone(UTC).timestamp()) * 1_000_000 + whole.microsecond

    lamp = {"sku": "LAMP-01", "quantity": 1}
    ana = {"name": "Ana Souza", "city": "São Paulo"}
    jiri = {"name": "Jiří Novák", "city": None}
    desk = [{"sku": "DESK-07", "quantity": 2}, {"sku": "LAMP-01", "quantity": 4}]
    zoe = {"name": "Zoë O'Neil", "city": "Cork"}
    chair = {"sku": "CHAIR-3", "quantity": 6}
    topic = "web-orders"
    assert rows == [
        (1001, ana, [lamp], 34.9, True, moment("2026-11-02T09:14:07Z"), None, None, topic),
        (1002, jiri, desk, 638.0, False, moment("2026-11-02T09:15:41.250Z"), None, None, topic),
        (1003, None, [], 12.5, True, moment("2026-11-02T11:02:00+01:00"), None, None, topic),
        (1005, zoe, [chair], 449.94, True, moment("2026-11-02T10:31:58Z"), 'ring twice, "blue" door', None, topic),
        (1006, ana, [lamp], 31.41, True, moment("2026-11-03T08:00:00Z"), None, "NOVEMBER", topic),
    ]


def test_tutorial_dead_letters_keep_their_bytes(table: Table, project: Path) -> None:
    letters = load_catalog("lake", **table.catalog.properties).load_table("lake.web_orders__dead_letters")
    values = sorted(letters.scan().to_arrow()["value"].to_pylist())
    assert values == [
        b"2026-11-02 10:31:55 WARN checkout: retrying payment of order 1005",
        b'{"order_id": 1004, "customer": {"name": "Lin',
    ]


def test_tutorial_output_matches_its_text(output: str, running: dict[str, Any]) -> None:
    assert "6 records produced to topic web-orders." in output
    assert "infer_timestamps: true" in output
    assert f"{running['ui_url']}/assets/lake/web_orders" in output
    assert "4 rows" in output
    assert re.search(r"1006 +│ 31.41 +│ NOVEMBER", output)
    assert "Error" not in output


def test_other_commands_use_the_stack_too(
    output: str, project: Path, environment: dict[str, str], running: dict[str, Any]
) -> None:
    def asked(*arguments: str) -> Any:
        done = subprocess.run(
            [*COMMAND, *arguments, "--json"], cwd=project, env=environment, capture_output=True, text=True, timeout=90
        )
        assert done.returncode == 0, done.stderr
        # Nothing is started: neither a broker nor a Java virtual machine is spoken of.
        assert "Starting" not in done.stderr
        return json.loads(done.stdout)

    topics = {topic["topic"] for topic in asked("status")}
    assert topics == {"completed-pizzas", "pizza-deliveries", "web-orders"}
    (schema,) = asked("schema", "pizza-deliveries")
    assert schema["preview"]["refused"] is None or not schema["preview"]["refused"]
    second = subprocess.run(
        [*COMMAND, "up"], cwd=project, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert second.returncode == 1
    assert f"already: process {running['pids']['kafka-lake']} with its UI at {running['ui_url']}" in second.stderr


def test_the_table_s_page_has_code_that_runs(
    output: str, project: Path, environment: dict[str, str], running: dict[str, Any]
) -> None:
    body = json.dumps({"query": EVENTS}).encode()
    with urlopen(Request(f"{running['ui_url']}/graphql", body, {"Content-Type": "application/json"})) as response:
        answer = json.load(response)["data"]["assetNodeOrError"]["assetMaterializations"]
    page = next(entry["mdStr"] for entry in answer[0]["metadataEntries"] if entry["label"] == "how_to_read")
    codes = [code for kind, code in BLOCK.findall(page) if kind == "python"]
    assert len(codes) == 4
    script = 'source .venv/bin/activate\neval "$(kafka-lake env --secrets)"\n' + "".join(
        f"echo NEXT\npython - <<'END OF CODE'\n{code}END OF CODE\n" for code in codes
    )
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=project,
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    # Each shows as many columns as it thinks fit; all five rows have this one's name.
    shown = done.stdout.split("NEXT\n")[1:]
    assert [len(snippet.splitlines()) > 5 for snippet in shown] == [True] * 4
