"""The command line finds the project as `dg` and `dagster` do."""

import os
import sys
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml
from dagster._cli.workspace.cli_target import WorkspaceOpts, workspace_opts_to_load_target
from dagster._core.workspace.load_target import PyProjectFileTarget
from typer.testing import CliRunner

from kafka_lake.cli import documents, find_project, load_definitions, project
from kafka_lake.cli.commands import init
from kafka_lake.cli.find_project import (
    FILE,
    MODULE,
    WORKSPACE,
    Target,
    code_locations,
    defs_folder,
    other_locations,
    targets,
)
from kafka_lake.cli.main import app
from kafka_lake.common.files import dagster_home
from kafka_lake.discovery import discover
from kafka_lake.discovery.discover import Discovered
from kafka_lake.errors import ConfigurationError, NoProjectError
from kafka_lake.kafka.cluster import KafkaCluster

PROJECT = '[tool.dg]\ndirectory_type = "project"\n[tool.dg.project]\nroot_module = "{root}"\n'
DEFINITIONS = """\
from pathlib import Path
import dagster as dg

@dg.definitions
def {name}():
    return dg.load_from_defs_folder(path_within_project=Path(__file__).parent)
"""
TOPIC = "type: kafka_lake.KafkaTopic\nattributes:\n  topic: {topic}\n"
CLUSTER = "type: kafka_lake.KafkaCluster\nattributes: {}\n"


@pytest.fixture(autouse=True)
def nothing_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in (MODULE, FILE, WORKSPACE, "KAFKA_LAKE_HOME"):
        # Set and deleted, so that what a command sets is undone after the test.
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in [name for name in sys.modules if name.startswith("shop_of_")]:
        monkeypatch.delitem(sys.modules, name)


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def loaded(found: list[Target]) -> list[tuple[str, list[str]]]:
    return [(location.name, list(location.options)) for location in code_locations(found)]


def package(root: str, topic: str) -> dict[str, str]:
    return {
        f"{root}/__init__.py": "",
        f"{root}/definitions.py": DEFINITIONS.format(name="defs"),
        f"{root}/defs/{topic}/defs.yaml": TOPIC.format(topic=topic),
        f"{root}/defs/cluster/defs.yaml": CLUSTER,
    }


@pytest.mark.parametrize(
    ("tool", "expected"),
    [
        ('[tool.dagster]\nmodule_name = "a.b"', "a.b"),
        (PROJECT.format(root="a"), "a.definitions"),
        (PROJECT.format(root="a") + 'code_location_target_module = "a.other"\n', "a.other"),
        ('[tool.dagster]\nmodule_name = "x"\n' + PROJECT.format(root="a"), "x"),
    ],
)
def test_pyproject(tmp_path: Path, tool: str, expected: str) -> None:
    write(tmp_path, {"pyproject.toml": tool, "deeper/still/x.txt": ""})
    assert targets(tmp_path / "deeper" / "still", {}) == [Target(expected, tmp_path)]


def test_a_pyproject_that_is_no_dagster_project_is_passed_by(tmp_path: Path) -> None:
    write(tmp_path, {"pyproject.toml": PROJECT.format(root="a"), "sub/pyproject.toml": '[project]\nname = "x"\n'})
    found = targets(tmp_path / "sub", {})
    assert found == [Target("a.definitions", tmp_path)]
    assert loaded(found) == [("a.definitions", ["-m", "a.definitions", "-d", str(tmp_path)])]


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ("python_module: a.b", Target("a.b", Path())),
        (
            "python_module: {module_name: a, attribute: mine, working_directory: sub}",
            Target("a", Path("sub"), attribute="mine"),
        ),
        ("python_file: x.py", Target("", Path(), Path("x.py"))),
        ("python_file: {relative_path: x.py, attribute: mine}", Target("", Path(), Path("x.py"), "mine")),
    ],
)
def test_workspace(tmp_path: Path, entry: str, expected: Target) -> None:
    write(tmp_path, {"workspace.yaml": f"load_from:\n  - {entry}\n  - grpc_server: {{port: 1}}\n", "x.py": ""})
    (found,) = targets(tmp_path, {})
    assert (found.module, found.attribute) == (expected.module, expected.attribute)
    assert found.folder == tmp_path / expected.folder
    assert found.file == (tmp_path / expected.file if expected.file else None)
    assert other_locations([found]) == [{"grpc_server": {"port": 1}}]


def test_what_is_named_comes_first(tmp_path: Path) -> None:
    write(tmp_path, {"workspace.yaml": "load_from:\n  - python_module: a\n", "x.py": "", "w.yaml": "load_from: []"})
    assert targets(tmp_path, {MODULE: "m"}) == [Target("m", tmp_path)]
    assert targets(tmp_path, {FILE: "x.py"}) == [Target("", tmp_path, tmp_path / "x.py")]
    with pytest.raises(ConfigurationError, match=r"w\.yaml names no Python module"):
        targets(tmp_path, {WORKSPACE: "w.yaml"})


@pytest.mark.parametrize(
    ("target", "options"),
    [
        (Target("m", Path("/p")), ["-m", "m", "-d", "/p"]),
        (Target("m", Path("/p"), attribute="a"), ["-m", "m", "-d", "/p", "-a", "a"]),
        (Target("", Path("/p"), Path("/p/x.py")), ["-f", "/p/x.py", "-d", "/p"]),
    ],
)
def test_dagster_is_told_the_same(target: Target, options: list[str]) -> None:
    assert [options for _, options in loaded([target])] == [options]


@pytest.mark.parametrize(
    ("files", "name"),
    [
        ({"pyproject.toml": '[tool.dagster]\nmodule_name = "a.b"\ncode_location_name = "shop"'}, "shop"),
        ({"pyproject.toml": PROJECT.format(root="a") + 'code_location_name = "shop"\n'}, "shop"),
        ({"pyproject.toml": PROJECT.format(root="a")}, "a.definitions"),
        ({"workspace.yaml": "load_from: [python_module: {module_name: a, location_name: b}]"}, "b"),
        ({"workspace.yaml": "load_from: [python_file: {relative_path: x.py, attribute: y}]", "x.py": ""}, "x.py:y"),
    ],
)
def test_code_location_has_dagsters_own_name(tmp_path: Path, files: dict[str, str], name: str) -> None:
    write(tmp_path, files)
    assert [location for location, _ in loaded(targets(tmp_path, {}))] == [name]
    file = next(item for item in files if "." in item and not item.endswith(".py"))
    options = WorkspaceOpts(workspace=[str(tmp_path / file)]) if file == "workspace.yaml" else None
    target = workspace_opts_to_load_target(options) if options else PyProjectFileTarget(path=str(tmp_path / file))
    assert [origin.location_name for origin in target.create_origins()] == [name]


def test_no_project_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(NoProjectError, match="kafka-lake init"):
        targets(tmp_path, {})
    done = CliRunner().invoke(app, ["schema", "orders"])
    assert done.exit_code == 1
    assert f"No Dagster project is in {tmp_path} or above it" in done.output.replace("\n", " ")


@pytest.mark.parametrize(
    ("files", "error"),
    [
        ({"pyproject.toml": "[tool"}, "pyproject.toml can't be read"),
        ({"workspace.yaml": "{"}, "can't be read as a workspace"),
        ({"workspace.yaml": "load_from: 5"}, "can't be read as a workspace"),
        ({"workspace.yaml": "load_from:\n  - python_module: {attribute: x}\n"}, "can't be read as a workspace"),
        ({"pyproject.toml": '[tool]\ndagster = "x"\ndg = 1\n'}, "can't be read as a Dagster project"),
        ({"workspace.yaml": "load_from:\n  - python_file: none.py\n"}, "There is no file"),
        (
            {"pyproject.toml": '[tool.dg]\ndirectory_type = "workspace"\n[[tool.dg.workspace.projects]]\npath = "a"\n'},
            "a workspace of several projects: a",
        ),
        (
            {"pyproject.toml": '[tool.dg.project]\nroot_module = "shop"\nautoload_defs = true\n'},
            r"has autoload_defs, which kafka-lake's commands don't read\. Remove it",
        ),
    ],
)
def test_what_can_not_be_read_is_named(tmp_path: Path, files: dict[str, str], error: str) -> None:
    write(tmp_path, files)
    with pytest.raises(ConfigurationError, match=error):
        targets(tmp_path, {})


def test_two_options_contradict_each_other(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="Several projects are named"):
        find_project.choose("a", "b.py", None, {})
    variables: dict[str, str] = {}
    find_project.choose(None, "b.py", None, variables)
    assert variables == {FILE: "b.py"}


@pytest.mark.slow
def test_the_topics_are_the_project_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, {"pyproject.toml": PROJECT.format(root="shop_of_one"), **package("shop_of_one", "orders")})
    write(tmp_path, {"deeper/x.txt": ""})
    assert [spec.topic for spec in project.topic_tables()] == ["orders"]
    monkeypatch.chdir(tmp_path / "deeper")
    assert [spec.topic for spec in project.topic_tables()] == ["orders"]
    assert project.defs_of_project() == tmp_path / "shop_of_one" / "defs"


def test_a_project_in_src(tmp_path: Path) -> None:
    files = {f"src/{name}": text for name, text in package("shop_of_src", "orders").items()}
    write(tmp_path, {"pyproject.toml": PROJECT.format(root="shop_of_src"), **files})
    assert [spec.topic for spec in project.topic_tables()] == ["orders"]
    assert project.defs_of_project() == tmp_path / "src" / "shop_of_src" / "defs"


def test_a_file_with_definitions_as_an_object(tmp_path: Path) -> None:
    write(tmp_path, {"pyproject.toml": PROJECT.format(root="shop_of_two"), **package("shop_of_two", "orders")})
    location = "import shop_of_two.definitions\nmine = shop_of_two.definitions.defs()\nalso = mine\n"
    write(tmp_path, {"location.py": location})
    os.environ[FILE] = "location.py"
    assert [spec.topic for spec in project.topic_tables()] == ["orders"]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "has no Definitions"),
        ("import dagster as dg\na, b = dg.Definitions(), dg.Definitions()\n", "has 2 Definitions"),
        ("import nothing_of_that_name\n", "nothing_of_that_name"),
        ("import dagster as dg\n@dg.repository\ndef mine(): return []\n", "has no Definitions"),
    ],
)
def test_definitions_that_are_not_there(tmp_path: Path, text: str, error: str) -> None:
    write(tmp_path, {"location.py": text})
    os.environ[FILE] = "location.py"
    with pytest.raises((ConfigurationError, ModuleNotFoundError), match=error):
        project.topic_tables()


@pytest.mark.slow
def test_of_several_code_locations_the_one_with_the_cluster_counts(tmp_path: Path) -> None:
    other = "import dagster as dg\n@dg.asset\ndef other(): ...\ndefs = dg.Definitions([other])\n"
    write(tmp_path, {"pyproject.toml": PROJECT.format(root="shop_of_more"), **package("shop_of_more", "orders")})
    entries = "load_from:\n  - python_file: other.py\n  - python_module: shop_of_more.definitions\n"
    write(tmp_path, {"other.py": other, "workspace.yaml": entries})
    os.environ[WORKSPACE] = "workspace.yaml"
    assert [spec.topic for spec in project.topic_tables()] == ["orders"]
    write(tmp_path, {"workspace.yaml": "load_from:\n  - python_file: other.py\n  - python_file: again.py\n"})
    write(tmp_path, {"again.py": other})
    with pytest.raises(ConfigurationError, match=r"This project has several code locations: .*other\.py, .*again\.py"):
        project.topic_tables()


@pytest.mark.slow
def test_the_home_and_the_environment_file_are_the_project_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, {"pyproject.toml": PROJECT.format(root="shop_of_env"), **package("shop_of_env", "orders")})
    write(tmp_path, {".env": "KAFKA_LAKE_CATALOG=theirs\n", "deeper/x.txt": ""})
    monkeypatch.setenv("KAFKA_LAKE_CATALOG", "")
    monkeypatch.delenv("KAFKA_LAKE_CATALOG")
    monkeypatch.chdir(tmp_path / "deeper")
    done = CliRunner().invoke(app, ["env"])
    assert done.exit_code == 0, done.output
    assert "PYICEBERG_CATALOG__THEIRS__TYPE" in done.output
    assert f"{tmp_path}/.kafka_lake" in done.output
    assert not (tmp_path / "deeper" / ".kafka_lake").exists()


def test_defs_beside_a_file_without_a_project(tmp_path: Path) -> None:
    assert defs_folder(tmp_path / "a" / "definitions.py") == tmp_path / "a" / "defs"


@pytest.mark.slow
def test_init_makes_a_project_that_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = CliRunner().invoke(app, ["init", "shop-of-init", "--bootstrap-servers", "broker:9092"])
    assert done.exit_code == 0, done.output
    folder = tmp_path / "shop-of-init"
    assert "KAFKA_LAKE_BOOTSTRAP_SERVERS=broker:9092" in (folder / ".env").read_text().splitlines()
    assert (folder / ".env").stat().st_mode & 0o777 == 0o600
    assert (folder / "dagster.yaml").read_text() == (Path(__file__).parents[3] / "dagster.yaml").read_text()
    monkeypatch.chdir(folder)
    assert project.topic_tables() == []
    documents.read.cache_clear()
    assert project.defs_of_project() == folder / "shop_of_init" / "defs"
    write(folder / "shop_of_init" / "defs", {"orders/defs.yaml": TOPIC.format(topic="orders")})
    assert [spec.identifier for spec in project.topic_tables()] == [("lake", "orders")]


def test_commands_leave_out_an_invalid_document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pattern is left out with it: the pattern's table isn't the one of the invalid document."""
    project_files = {Path("pyproject.toml"), Path("shop_of_errors/definitions.py"), Path("shop_of_errors/__init__.py")}
    texts = {str(path): text for path, text in init.project_files("shop_of_errors").items() if path in project_files}
    documents = {
        "cluster": CLUSTER,
        "clicks": TOPIC.format(topic="clicks"),
        "orders": TOPIC.format(topic="orders") + "  tabel: x\n",
        "others": "type: kafka_lake.KafkaTopics\nattributes:\n  topics: .*\n",
    }
    defs = {f"shop_of_errors/defs/{name}/defs.yaml": text for name, text in documents.items()}
    write(tmp_path, {**texts, **defs, "shop_of_errors/defs/__init__.py": ""})
    done = CliRunner().invoke(app, ["topics", "list"])
    assert "Left out: shop_of_errors/defs/orders/defs.yaml, line 4: tabel: there is no such setting." in done.output
    assert "No document in this project has a topic pattern" in done.output
    assert [spec.topic for spec in project.topic_tables()] == ["clicks"]
    module = sys.modules["shop_of_errors.definitions"]
    with pytest.raises(ConfigurationError, match=r"^shop_of_errors/defs/orders/defs.yaml, line 4: tabel: "):
        module.defs()
    write(tmp_path, {"shop_of_errors/defs/cluster/defs.yaml": CLUSTER.replace("{}", "{nam: eu}")})
    load_definitions.evaluated.cache_clear()
    done = CliRunner().invoke(app, ["topics", "list"])
    assert done.exit_code == 1
    assert "Error: shop_of_errors/defs/cluster/defs.yaml, line 2: nam: there is no such setting." in done.output


def test_init_overwrites_nothing(tmp_path: Path) -> None:
    write(tmp_path, {"shop_of_old/pyproject.toml": "mine"})
    done = CliRunner().invoke(app, ["init", "shop_of_old"])
    assert done.exit_code == 1
    assert "Nothing was written" in done.output
    assert [path.name for path in (tmp_path / "shop_of_old").iterdir()] == ["pyproject.toml"]
    assert (tmp_path / "shop_of_old" / "pyproject.toml").read_text() == "mine"


@pytest.mark.parametrize("name", ["1", "class", "json", "kafka_lake", "...", "dagster", "yaml", "数"])
def test_init_refuses_names_that_no_package_can_have(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigurationError, match="Choose another folder"):
        init.package_name(name, tmp_path / name)


def test_init_writes_no_password_and_nothing_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KAFKA_LAKE_BOOTSTRAP_SERVERS", "prod:9092")
    monkeypatch.setenv("KAFKA_LAKE_SCHEMA_REGISTRY_URL", "https://user:hush@registry:8081")
    assert CliRunner().invoke(app, ["init", "shop_of_env"]).exit_code == 0
    assert not [word for word in ("hush", "prod") if word in (tmp_path / "shop_of_env" / ".env").read_text()]
    done = CliRunner().invoke(app, ["init", "shop_of_url", "--registry", "https://user:hush@registry:8081"])
    assert done.exit_code == 1
    assert "hush" not in done.output
    assert not (tmp_path / "shop_of_url").exists()


def test_init_names_what_can_not_be_written(tmp_path: Path) -> None:
    write(tmp_path, {"shop_of_file": "a file"})
    done = CliRunner().invoke(app, ["init", "shop_of_file"])
    assert done.exit_code == 1
    assert "can't be written" in done.output.replace("\n", " ")
    (tmp_path / "shop_of_link").mkdir()
    (tmp_path / "shop_of_link" / ".gitignore").symlink_to(tmp_path / "gone")
    done = CliRunner().invoke(app, ["init", "shop_of_link"])
    assert "Nothing was written" in done.output
    assert [path.name for path in (tmp_path / "shop_of_link").iterdir()] == [".gitignore"]


def test_init_takes_no_cluster_of_a_project_around_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, {"pyproject.toml": PROJECT.format(root="shop_of_out"), **package("shop_of_out", "orders")})
    cluster = "type: kafka_lake.KafkaCluster\nattributes:\n  kafka_properties: {bootstrap.servers: wrong-host}\n"
    write(tmp_path, {"shop_of_out/defs/cluster/defs.yaml": cluster})
    asked: list[str] = []

    def looked_at(topics: list[str], _specs: object, connections: Any, **_: object) -> list[Discovered]:
        asked.append(connections.cluster.bootstrap_servers)
        return [Discovered(topic) for topic in topics]

    monkeypatch.setattr(discover, "discover", looked_at)
    monkeypatch.setattr(KafkaCluster, "check", lambda _: None)
    for name in ("KAFKA_LAKE_BOOTSTRAP_SERVERS", "KAFKA_LAKE_SCHEMA_REGISTRY_URL"):
        monkeypatch.setenv(name, "")
    options = ["--bootstrap-servers", "right:9092"]
    done = CliRunner().invoke(app, ["init", "shop_of_in", "-t", "orders", *options])
    assert done.exit_code == 0, done.output
    assert asked == ["right:9092"]
    assert (tmp_path / "shop_of_in" / "shop_of_in" / "defs" / "orders" / "defs.yaml").is_file()
    done = CliRunner().invoke(app, ["init", "shop_of_both", "-t", "cluster", *options])
    assert done.exit_code == 1
    assert "would be both a topic's document and the cluster's" in done.output.replace("\n", " ")
    assert not (tmp_path / "shop_of_both").exists()


@pytest.mark.slow
def test_a_relative_home_is_the_project_s_wherever_the_command_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, {"pyproject.toml": PROJECT.format(root="shop_of_home"), **package("shop_of_home", "orders")})
    write(
        tmp_path, {".env": "KAFKA_LAKE_HOME=state\n", "deeper/x.txt": "", "dagster.yaml": "telemetry: {enabled: false}"}
    )
    monkeypatch.chdir(tmp_path / "deeper")
    done = CliRunner().invoke(app, ["env"])
    assert f"{tmp_path}/state/" in done.output
    assert yaml.safe_load((dagster_home() / "dagster.yaml").read_text())["telemetry"] == {"enabled": False}


@pytest.mark.parametrize(
    ("settings", "limit"),
    [
        ("telemetry: {enabled: false}", "by cores"),
        ("", "by cores"),
        ("concurrency: {runs: {max_concurrent_runs: 3}}", 3),
        ("run_coordinator: {module: dagster, class: QueuedRunCoordinator, config: {max_concurrent_runs: 7}}", 7),
    ],
)
def test_runs_at_once_are_bounded_by_the_cores_there_are(
    settings: str, limit: int | str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KAFKA_LAKE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("os.cpu_count", lambda: 6)
    write(tmp_path, {"dagster.yaml": settings})
    monkeypatch.chdir(tmp_path)
    with dg.DagsterInstance.from_config(str(dagster_home())) as instance:
        queue = instance.get_concurrency_config().run_queue_config
    assert queue is not None
    assert queue.max_concurrent_runs == (12 if limit == "by cores" else limit)


def test_a_dagster_yaml_that_cannot_be_read_is_left_to_dagster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_LAKE_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    for text in ("a: [", "concurrency: 3", "- 1"):
        write(tmp_path, {"dagster.yaml": text})
        assert (dagster_home() / "dagster.yaml").read_text() == text


@pytest.mark.slow
def test_a_workspace_that_is_named_has_its_own_env_local_state_and_dagster_yaml(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project, elsewhere = tmp_path / "project", tmp_path / "elsewhere"
    write(project, {"pyproject.toml": PROJECT.format(root="shop_of_named"), **package("shop_of_named", "orders")})
    write(project, {"workspace.yaml": "load_from:\n  - python_module: shop_of_named.definitions\n", ".env": "A=1\n"})
    write(project, {"dagster.yaml": "telemetry: {enabled: false}"})
    write(elsewhere, {"pyproject.toml": PROJECT.format(root="shop_of_else"), "dagster.yaml": "telemetry: {}"})
    monkeypatch.chdir(elsewhere)
    monkeypatch.setenv("A", "")
    monkeypatch.delenv("A")
    done = CliRunner().invoke(app, ["-w", "../project/workspace.yaml", "env"])
    assert f"{project}/.kafka_lake/" in done.output
    assert os.environ["A"] == "1"
    assert yaml.safe_load((dagster_home() / "dagster.yaml").read_text())["telemetry"] == {"enabled": False}


def test_entry_of_another_python_is_left_to_dagster(tmp_path: Path) -> None:
    entry = {"python_module": {"module_name": "a", "executable_path": "/c"}}
    write(tmp_path, {"workspace.yaml": yaml.safe_dump({"load_from": [entry, {"python_module": "b"}]})})
    found = targets(tmp_path, {})
    assert [location.module for location in found] == ["b"]
    assert other_locations(found) == [entry]
