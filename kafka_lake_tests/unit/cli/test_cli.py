"""The command line without engines: help is quick, errors are one line with a remedy, exit codes tell."""

import io
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import dagster as dg
import pytest
from dagster.components.definitions import LazyDefinitions
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField
from rich.console import Console, RenderableType
from typer.testing import CliRunner, Result

import kafka_lake.cli.commands.doctor
import kafka_lake.cli.commands.maintain
import kafka_lake.cli.commands.status
import kafka_lake.cli.main
import kafka_lake.cli.project
import kafka_lake.definitions
import kafka_lake.maintenance.clean
import kafka_lake.maintenance.maintain
from kafka_lake.catalog.lake_catalog import LakeCatalog
from kafka_lake.catalog.tables import ensure_table
from kafka_lake.cli import documents
from kafka_lake.cli.arguments import parse_partitions
from kafka_lake.cli.commands import init
from kafka_lake.cli.commands import reset as reset_command
from kafka_lake.cli.commands.clean import cleaned_lines
from kafka_lake.cli.commands.dead_letters import (
    DeadLetterClass,
    DeadLetters,
    DeadLetterSample,
    OffsetSpan,
    dead_letter_tables,
)
from kafka_lake.cli.commands.doctor import CheckResult
from kafka_lake.cli.commands.reset import agreed_targets, reset_table, resets_of
from kafka_lake.cli.commands.status import PartitionStatus, TopicStatus
from kafka_lake.cli.main import app
from kafka_lake.cli.progress import run_progress
from kafka_lake.common.offsets import Loss, OffsetRange, Position, TopicIdentity, Watermarks
from kafka_lake.config import systems
from kafka_lake.config.derived_table import DerivedTable
from kafka_lake.config.systems import Cluster
from kafka_lake.devstack import running
from kafka_lake.errors import CatalogError
from kafka_lake.ingest import run as runs
from kafka_lake.ingest.plan import resetting
from kafka_lake.ingest.report import RunReport
from kafka_lake.kafka.cluster import KafkaCluster
from kafka_lake.maintenance.clean import Cleaned
from kafka_lake.maintenance.maintain import HasTables
from kafka_lake.orchestration.resources import CatalogResource, KafkaResource, SparkResource
from kafka_lake.runtime.plan import Plan, ReplayRange
from kafka_lake.spec.topic_table import TopicTable

UP_TO_DATE = TopicStatus(
    "completed-pizzas",
    "pizza.completed_pizzas",
    (PartitionStatus(0, 7, 7, 0),),
    0,
    42,
    "2026-11-21T12:00:00+00:00",
    7,
    0,
)
UNREACHABLE = TopicStatus("gone", "pizza.gone", (), None, None, None, 0, 0, "Topic gone: no such topic.")


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DAGSTER_MODULE_NAME", "kafka_lake.definitions")
    monkeypatch.setenv("KAFKA_LAKE_HOME", str(tmp_path / "home"))
    for name in ("BROKER_PORT", "UI_PORT", "CONNECT_PORT"):
        monkeypatch.delenv(f"KAFKA_LAKE_{name}", raising=False)


@pytest.fixture
def _no_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "check_embedded_broker", lambda *_: None)
    monkeypatch.setattr(KafkaCluster, "check", lambda _: None)


def run(*arguments: str) -> Result:
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, arguments)


def test_help_names_the_commands() -> None:
    result = run("--help")
    assert result.exit_code == 0
    for command in ("up", "ingest", "status", "dead-letters", "replay", "reset", "clean", "maintain", "doctor"):
        assert f" {command} " in result.output


def test_the_version_is_told_without_a_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = run("--version")
    assert (result.exit_code, result.output) == (0, f"kafka-lake {version('kafka-lake')}\n")


def test_help_of_every_command_loads_no_engine() -> None:
    code = (
        "import sys\nfrom typer.testing import CliRunner\nfrom kafka_lake.cli.main import COMMANDS, app\n"
        "codes = {CliRunner().invoke(app, [*c, '--help']).exit_code for c in ([], *([c] for c in COMMANDS))}\n"
        "print(codes, sys.modules.keys() & {'pyspark', 'dagster', 'pyiceberg', 'pyarrow', 'confluent_kafka'})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "{0} set()"


PROJECT = {
    "pyproject.toml": '[tool.dg]\ndirectory_type = "project"\n[tool.dg.project]\nroot_module = "quick_shop"\n',
    "quick_shop/definitions.py": init.project_files("quick_shop")[Path("quick_shop/definitions.py")],
    "quick_shop/defs/cluster/defs.yaml": "type: kafka_lake.KafkaCluster\n",
    "quick_shop/defs/orders/defs.yaml": "type: kafka_lake.KafkaTopic\nattributes: {topic: orders}\n",
}


@pytest.fixture
def quick_project(tmp_path: Path) -> Path:
    for name, text in PROJECT.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def in_shell(folder: Path, code: str, **variables: str) -> str:
    """Return what Python prints in a folder, without the variables of this process that name a project."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("DAGSTER", "KAFKA_LAKE"))}
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=folder, env={**environment, **variables}
    )
    return done.stdout


@pytest.mark.parametrize(("words", "expected"), [("kafka-lake sta", "status"), ("kafka-lake topic ta", "tail")])
def test_shells_complete_commands(quick_project: Path, words: str, expected: str) -> None:
    code = "import sys\nfrom kafka_lake.cli.main import main\nsys.argv = ['kafka-lake']\nmain()"
    variables = {"COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    assert in_shell(quick_project, code, _KAFKA_LAKE_COMPLETE="complete_bash", **variables).split() == [expected]


def test_components_import_no_engine(tmp_path: Path) -> None:
    # dagster-pyspark, whose resource SparkResource is, imports PySpark.
    engines = "confluent_kafka duckdb pandas pyarrow pyiceberg sqlalchemy sqlglot"
    code = f"import sys, kafka_lake.orchestration\nprint(sys.modules.keys() & set('{engines}'.split()))"
    assert in_shell(tmp_path, code) == "set()\n"


def test_status_and_query_import_no_pyspark_before_spark_is_used(quick_project: Path) -> None:
    home = quick_project / ".kafka_lake"
    home.mkdir()
    properties = {"type": "sql", "uri": f"sqlite:///{home / 'catalog.db'}", "warehouse": f"file://{home / 'warehouse'}"}
    ensure_table(LakeCatalog("lake", properties), ("lake", "orders"), Schema(NestedField(1, "id", LongType())))
    code = (
        "import sys\nfrom typer.testing import CliRunner\nfrom kafka_lake.cli import project\n"
        "from kafka_lake.cli.main import app\nimport kafka_lake.cli.commands.query\n"
        "print(CliRunner().invoke(app, ['status', '--json']).stdout.count('committed_at\": \"20'))\n"
        "with project.open_connections(with_broker=False):\n"
        "    print(sys.modules.keys() & {'pyspark', 'dagster', 'pyarrow', 'pandas', 'duckdb', 'sqlglot'})"
    )
    assert in_shell(quick_project, code).splitlines() == ["1", "set()"]


def test_taken_port_ends_up_before_anything_starts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        monkeypatch.setenv("KAFKA_LAKE_UI_PORT", str(port))
        result = run("up")
    assert result.exit_code == 1
    assert f"port {port} for Dagster's UI is taken" in result.output
    assert "set KAFKA_LAKE_UI_PORT" in result.output
    assert "Traceback" not in result.output
    assert not (tmp_path / "home").exists()


def test_dotenv_file_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # Set and deleted by monkeypatch, so that what the file sets is gone after the test.
    monkeypatch.setenv("KAFKA_LAKE_BROKER_PORT", "")
    monkeypatch.delenv("KAFKA_LAKE_BROKER_PORT")
    (tmp_path / ".env").write_text("KAFKA_LAKE_BROKER_PORT=kafka\n")
    result = run("up")
    assert result.exit_code == 1
    assert "KAFKA_LAKE_BROKER_PORT=kafka is not a port" in result.output


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [("ingest",), ("status",), ("dead-letters",), ("replay", "--yes"), ("reset", "--to", "latest"), ("clean",)],
)
def test_unknown_topic_names_the_known_ones(command: tuple[str, ...]) -> None:
    result = run(*command, "pizzaz")
    assert result.exit_code == 1
    assert "Topic pizzaz has no table in this project; the topics are: completed-pizzas" in result.output
    assert "Traceback" not in result.output


@pytest.mark.slow
@pytest.mark.usefixtures("_no_broker")
def test_status_as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_lake.cli.commands.status, "collect", lambda *_: [UP_TO_DATE])
    result = run("status", "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout)[0]["partitions"] == [{"partition": 0, "position": 7, "end": 7, "lag": 0}]


@pytest.mark.slow
@pytest.mark.usefixtures("_no_broker")
def test_status_shows_a_topic_that_failed_and_exits_with_1(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_lake.cli.commands.status, "collect", lambda *_: [UP_TO_DATE, UNREACHABLE])
    result = run("status")
    assert result.exit_code == 1
    assert "completed-pizzas" in result.output
    assert "no such topic" in result.output


@pytest.mark.parametrize("healthy", [True, False])
def test_doctor_shows_remedies_and_exits_by_health(monkeypatch: pytest.MonkeyPatch, healthy: bool) -> None:
    found = [CheckResult("Java", True, "/usr/lib/jvm", ""), CheckResult("Jars", healthy, "none", "Check the network.")]
    monkeypatch.setattr(kafka_lake.cli.commands.doctor, "check_all", lambda *_, **__: found)
    result = run("doctor")
    assert result.exit_code == (0 if healthy else 1)
    assert ("Check the network." in result.output) is not healthy


def test_doctor_tells_where_spark_is_and_not_its_token(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = SimpleNamespace(collect=list)
    session = SimpleNamespace(version="4.1.3", sql=lambda _: answer)
    resource = SimpleNamespace(spark_session=session, stop=lambda: None)
    monkeypatch.setattr(systems, "Spark", lambda **_: resource)
    monkeypatch.setenv("SPARK_REMOTE", "sc://localhost:15002/;token=hush")
    assert kafka_lake.cli.commands.doctor.check_spark(CatalogResource()) == "4.1.3 at localhost:15002"


SPEC = TopicTable("completed-pizzas", "pizza", "completed_pizzas")
HERE = TopicIdentity("cluster", "topic", SPEC.topic)
SKIPPED = Loss(2, 5, 7, "skipped")


@pytest.fixture
def _topic(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def at_hand(*_: object, **__: object) -> Iterator[SimpleNamespace]:
        yield SimpleNamespace(catalog=SimpleNamespace(table=lambda _: None))

    monkeypatch.setattr(kafka_lake.cli.project, "topic_tables", lambda topic=None: [SPEC])
    monkeypatch.setattr(kafka_lake.cli.project, "open_connections", at_hand)


def forbidden(*_: object, **__: object) -> NoReturn:
    raise AssertionError("this changes tables")


def shown(*parts: RenderableType) -> str:
    console = Console(width=100, file=io.StringIO())
    console.print(*parts, sep="\n")
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("text", ["", "24", "h", "-1h", "1w", "1h30m", "inf s", "٣h"])
@pytest.mark.usefixtures("_topic")
def test_no_duration(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(kafka_lake.maintenance.clean, "clean", forbidden)
    result = run("clean", f"--older-than={text}")
    assert result.exit_code == 1
    assert f"{text!r} is not a duration" in result.output


def test_partitions() -> None:
    assert parse_partitions(None) is None
    assert parse_partitions("3") == {3}
    assert parse_partitions("0, 3,3") == {0, 3}


@pytest.mark.parametrize("command", [("replay",), ("reset", "--to", "earliest")])
@pytest.mark.parametrize("text", ["", "a", "0,", "0-3", "-1", "1.5"])
def test_no_partitions(command: tuple[str, ...], text: str) -> None:
    result = run(*command, "completed-pizzas", f"--partitions={text}")
    assert result.exit_code == 1
    assert f"{text!r} is not a list of partitions" in result.output


@pytest.mark.usefixtures("_topic")
@pytest.mark.parametrize("answer", ["n\n", "\n", ""])
def test_nothing_is_read_again_or_reset_without_consent(monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    todo = Plan((), Position(HERE, {0: 3}), 0, "reset", (OffsetRange(0, 3, 9),))
    monkeypatch.setattr(runs, "replay", forbidden)
    monkeypatch.setattr(runs, "reset", forbidden)
    monkeypatch.setattr(runs, "plan_reset", lambda *_: todo)
    for command in (("replay",), ("replay", "--keep-missing"), ("reset", "--to", "3")):
        result = CliRunner(env={"COLUMNS": "200"}).invoke(app, [*command, SPEC.topic], input=answer)
        assert result.exit_code == 1
        assert not isinstance(result.exception, AssertionError)
        assert "Nothing was changed." in result.output or "Aborted" in result.output


@pytest.mark.usefixtures("_topic")
@pytest.mark.parametrize(
    ("arguments", "replay_range"),
    [
        (("--yes",), ReplayRange()),
        (("--from", "7"), ReplayRange("7")),
        (("--to", "0:17,1:4"), ReplayRange("earliest", "0:17,1:4")),
        (("--partitions", "0", "--keep-missing"), ReplayRange("earliest", "latest", frozenset({0}), True)),
    ],
)
def test_replay_asks_only_before_it_reads_everything(
    monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], replay_range: ReplayRange
) -> None:
    asked: list[ReplayRange] = []

    def replay(_spec: object, _connections: object, replay_range: ReplayRange, **_: object) -> RunReport:
        asked.append(replay_range)
        return RunReport("pizza.completed_pizzas", "run")

    monkeypatch.setattr(runs, "replay", replay)
    result = run("replay", SPEC.topic, *arguments)
    assert result.exit_code == 0, result.output
    assert asked == [replay_range]
    assert "the table has no rows of this part" in result.output


@pytest.mark.usefixtures("_topic")
def test_reset_does_what_was_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[object] = []
    before = Position(HERE, {0: 9, 1: 4, 2: 5})
    todo = Plan((), Position(HERE, {0: 3, 1: 4, 2: 7}), 0, "reset", (OffsetRange(0, 3, 9),), losses=(SKIPPED,))
    monkeypatch.setattr(runs, "plan_reset", lambda *_: todo)
    monkeypatch.setattr(reset_command, "position_of", lambda *_: before)

    def reset(_spec: object, _systems: object, _run_id: str, to: str, partitions: object = None, **_: object) -> None:
        done.append((to, partitions))

    monkeypatch.setattr(runs, "reset", reset)
    result = run("reset", SPEC.topic, "--to", "latest", "--yes")
    assert result.exit_code == 0, result.output
    # Partition 1 stays where it is, even if a run takes it further meanwhile.
    assert done == [("0:3,2:7", None)]
    cells = [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in result.output.splitlines()]
    assert ["0", "9", "3", "3 to 8"] in cells
    assert ["1", "4", "4"] in cells
    assert ["2", "5", "7", "5 to 6"] in cells


@pytest.mark.usefixtures("_topic")
def test_a_reset_to_where_the_position_is_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "plan_reset", lambda *_: None)
    monkeypatch.setattr(runs, "reset", forbidden)
    result = run("reset", SPEC.topic, "--to", "latest")
    assert result.exit_code == 0
    assert "nothing to do" in result.output


def test_reset_leaves_out_a_new_partition_that_has_lost_records() -> None:
    before, now = Position(HERE, {0: 9}), Watermarks(HERE, {0: 0, 1: 3}, {0: 9, 1: 7})
    assert agreed_targets(before, resetting(before, now, {0: 4})) == "0:4"


def test_a_reset_of_a_recreated_topic_names_every_partition() -> None:
    recreated = TopicIdentity("cluster", "another", SPEC.topic)
    todo = Plan((), Position(recreated, {0: 0, 1: 4}), 0, "reset", losses=(Loss(0, 9, None, "topic recreated"),))
    assert agreed_targets(Position(HERE, {0: 9, 1: 4}), todo) == "0:0,1:4"
    assert agreed_targets(None, todo) == "0:0,1:4"
    text = shown(reset_table(SPEC, resets_of(Position(HERE, {0: 9, 1: 4, 2: 1}), todo)))
    assert "from 9 on" in text
    assert "topic recreated" in text
    assert "gone" in text


def test_values_of_records_never_reach_the_terminal_as_they_are() -> None:
    sample = DeadLetterSample(
        0, 7, "2026-11-21T12:00:00.000+00:00", "not [red]JSON[/]\x1b[2J", "a\n[b]\x1b]0;x\x07" + 500 * "x"
    )
    offsets = tuple(OffsetSpan(p, 0, p) for p in range(40))
    found = DeadLetters(
        "t", "n.t__dead_letters", (DeadLetterClass("not_json", "No [JSON].", 1234, "", offsets, (sample,)),)
    )
    text = shown(*dead_letter_tables(found))
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "[red]JSON[/]" in text
    assert "a [b]" in text
    assert "No [JSON]." in text
    assert "1,234" in text
    assert "… 34 partitions more" in text
    assert max(map(len, text.splitlines())) <= 100
    assert "no dead letters" in shown(*dead_letter_tables(DeadLetters("t", "n.t__dead_letters", ())))


def test_what_was_cleaned_is_counted_and_its_beginning_named() -> None:
    lines = list(cleaned_lines(SPEC, Cleaned(("n.t.b",), tuple(f"f{n}" for n in range(1234))), True))
    assert lines[:3] == ["pizza.completed_pizzas: 1 branch and 1,234 files removed", "  n.t.b", "  f0"]
    assert lines[-1] == "  … 1,224 files more"
    assert list(cleaned_lines(SPEC, Cleaned(), True)) == ["pizza.completed_pizzas: 0 branches and 0 files removed"]
    assert list(cleaned_lines(SPEC, Cleaned(), False)) == ["pizza.completed_pizzas: 0 branches and 0 files to remove"]


def test_what_a_run_says_and_its_progress_are_not_among_the_results(capsys: pytest.CaptureFixture[str]) -> None:
    with run_progress("pizzas", Console(stderr=True, width=80)) as observer:
        observer.step_done("planned")
        observer.warn("attempt [1] of 6 failed")
    captured = capsys.readouterr()
    assert "attempt [1] of 6 failed" in captured.err
    assert captured.out == ""


_TOPIC = "type: kafka_lake.KafkaTopic\nattributes:\n  topic: pizzas\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        (_TOPIC + "  tobic: a\n", 4, "tobic: there is no such setting. Did you mean topic?"),
        (
            _TOPIC + "  table:\n    rules:\n    - not_null: [a]\n    - range: {column: b, min: 0, on_failure: warn}\n",
            7,
            "line 7: table: rules: number 2: range: on_failure: is a setting of the rule. Write it beside the kind,",
        ),
        (
            _TOPIC + "  read:\n    max_records_per_commit: 0\n",
            5,
            "read: max_records_per_commit: Input should be greater than",
        ),
        (_TOPIC + "  table: {partition_by: [day(]}\n", 4, "table: partition_by: 'day(' is not an Iceberg transform"),
        (
            _TOPIC + "  starting_offsets: latest\n---\n" + _TOPIC + "  starting_offsets: whenever\n",
            9,
            "starting_offsets: 'whenever' is",
        ),
        (_TOPIC + "\towners: []\n", 4, "no YAML: "),
        (_TOPIC.replace("KafkaTopic", "KafkaTopik"), 1, "there is no such component"),
        (_TOPIC.replace("kafka_lake", "kafka_lak"), 1, "there is no such component"),
        ("# " + _TOPIC.replace("\n", "\n# "), 1, "there is no document in it"),
        ("attributes:\n  topic: a\n", 1, "type: Field required"),
        (
            _TOPIC.replace("pizzas", "123"),
            3,
            "topic: YAML reads this value as the number 123. Write the text in quotes.",
        ),
        (
            _TOPIC + "  table: {renames: {1: one}}\n",
            4,
            "table: renames: 1: YAML reads this value as the number 1. Write the text in quo",
        ),
        (
            _TOPIC + "  table: {columns: id bigintt}\n",
            4,
            "table: columns: column 'id bigintt' has unknown type 'bigintt'. Spark's types",
        ),
        (_TOPIC + "  table: {columns: 'id int, tags array<strng>'}\n", 4, "array of 'strng' has unknown type 'strng'"),
        (_TOPIC + "  table:\n    group: '{{ team }}'\n", 5, "table.group: 'team' is undefined"),
    ],
)
def test_broken_definitions_are_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, line: int, problem: str
) -> None:
    broken_project(monkeypatch, tmp_path, {"shop/defs.yaml": text})
    for command in (("status",), ("ingest", "pizzas"), ("clean",)):
        result = run(*command)
        assert result.exit_code == 1
        assert isinstance(result.exception, SystemExit), result.exception
        assert len(result.output.splitlines()) == 1
        assert result.output.startswith(f"Error: broken/defs/shop/defs.yaml, line {line}: ")
        assert problem in result.output


def test_broken_python_definitions_are_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken_project(monkeypatch, tmp_path, {"gold.py": "import dagster as dg\n\nfraction = 1 / 0\n"})
    result = run("status")
    assert result.exit_code == 1
    assert result.output == "Error: broken/defs/gold.py, line 3: ZeroDivisionError: division by zero.\n"


def test_an_error_that_is_no_definition_s_is_not_explained_away(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> NoReturn:
        raise RuntimeError("a bug")

    monkeypatch.setattr(kafka_lake.definitions, "defs", LazyDefinitions(load_fn=broken, has_context_arg=False))
    assert isinstance(run("status").exception, RuntimeError)


def test_systems_are_as_the_definitions_say_and_spark_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    stopped: list[bool] = []

    class Spark(SparkResource):
        def stop(self) -> None:
            stopped.append(True)

    spark = Spark(spark_config={}, catalog=CatalogResource())
    resources = {"kafka": KafkaResource(read_committed=False, retry_attempts=2), "spark": spark}
    monkeypatch.setattr(kafka_lake.definitions, "defs", dg.Definitions(resources=resources))

    def use() -> NoReturn:
        with kafka_lake.cli.project.open_connections(with_broker=False) as connections:
            assert connections.kafka_options["kafka.isolation.level"] == "read_uncommitted"
            assert connections.retry.attempts == 2
            assert not stopped
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        use()
    assert stopped == [True]


def broken_project(monkeypatch: pytest.MonkeyPatch, folder: Path, files: dict[str, str]) -> None:
    """Make the command line load a project of these definitions."""
    package = folder / "broken"
    texts = {"__init__.py": "", "defs/__init__.py": "", **{f"defs/{name}": text for name, text in files.items()}}
    texts["definitions.py"] = init.project_files("broken")[Path("broken/definitions.py")]
    for name, text in texts.items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(text)
    (folder / "pyproject.toml").write_text(
        '[tool.dg]\ndirectory_type = "project"\n[tool.dg.project]\nroot_module = "broken"\n'
    )
    monkeypatch.syspath_prepend(str(folder))
    for name in [name for name in sys.modules if name.partition(".")[0] == "broken"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delenv("DAGSTER_MODULE_NAME")


def test_maintain_looks_at_the_other_tables_if_one_cannot_be_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    specs = [TopicTable("broken"), TopicTable("whole")]
    made = DerivedTable(table="made", sources=("whole",), write="append", sql="SELECT * FROM whole")

    def due(spec: HasTables, _connections: object) -> list[object]:
        if spec.identifier[1] == "broken":
            raise CatalogError("Its metadata are gone.")
        seen.append(spec.identifier[1])
        return []

    seen: list[str] = []

    @contextmanager
    def at_hand(*_arguments: object, **_settings: object) -> Iterator[object]:
        yield SimpleNamespace()

    monkeypatch.setattr(documents, "read", lambda _location: documents.Documents(Cluster(), specs, [made]))
    monkeypatch.setattr(kafka_lake.cli.project, "open_connections", at_hand)
    monkeypatch.setattr(kafka_lake.maintenance.maintain, "due", due)
    for name in ("made", "lake.made"):
        assert run("maintain", name).exit_code == 0
    assert "Topic other has no table in this project" in run("maintain", "other").output
    assert seen == ["made", "made"]
    seen.clear()
    result = run("maintain")
    assert seen == ["whole", "made"]
    assert result.exit_code == 1
    assert "lake.broken: failed, see below." in result.output
    assert "Its metadata are gone." in result.output
