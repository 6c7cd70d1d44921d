"""The services of deploy/compose.yaml as processes of this machine, since there are no containers to run them in.

Commands, variables and health checks are those of the file and of the Dockerfile. Only names of hosts, ports and
folders are replaced by what this machine has.
"""

import os
import re
import secrets
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from copy import deepcopy
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml

from kafka_lake.common.processes import HOST, ServerProcess, free_port, port_open
from kafka_lake.devstack.sources import Owner
from kafka_lake.engine.jars import jars_classpath
from kafka_lake.engine.java import find_java
from kafka_lake_tests.contract.postgres import database

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"
PORTS = ("3000", "4000", "4001", "5432", "8181", "8333", "9093", "9094")
SECRETS = ("DAGSTER_PG_PASSWORD", "KAFKA_BROKER_PASSWORD", "KAFKA_PASSWORD", "S3_SECRET_KEY")
OURS = ("code", "webserver", "daemon")
# A container has none of the variables of its machine.
_FOREIGN = re.compile(r"DAGSTER_|KAFKA_LAKE_(?!CACHE|IVY)|PYICEBERG_|SPARK_|AWS_|PYTHONPATH")
_IN_A_HOST = ["unshare", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c"]
_BE_HOST = 'hostname "$0" && mount --bind "$1" /etc/hosts && shift && exec "$@"'


def interpolated(text: str, variables: Mapping[str, str]) -> str:
    """Return a Compose file with its ``${NAME:?}`` and ``${NAME:-default}`` replaced."""
    return re.sub(
        r"\$\{(\w+)(?::\?|:-([^}]*))\}", lambda m: variables[m[1]] if m[2] is None else variables.get(m[1], m[2]), text
    )


def healthcheck_of_the_image() -> list[str]:
    """Return the command of the Dockerfile's HEALTHCHECK."""
    found = re.search(r"^HEALTHCHECK [^[]*CMD (\[.*\])$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    assert found
    command: list[str] = yaml.safe_load(found[1])
    return command


class Composed:
    """The deployment; a context manager that starts PostgreSQL, object store, Kafka and its topic.

    Args:
        folder: Of data and logs.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.secrets = {name: secrets.token_hex(12) for name in SECRETS}
        self.ports = {port: str(free_port()) for port in PORTS}
        text = interpolated((DEPLOY / "compose.yaml").read_text(), self.secrets)
        self.services: dict[str, dict[str, Any]] = yaml.safe_load(text)["services"]
        self.workspace: dict[str, Any] = yaml.safe_load((DEPLOY / "workspace.yaml").read_text())
        self.projects = [DEPLOY / "lake_project"]
        self.processes: dict[str, ServerProcess] = {}
        self.home = folder / "home"
        self._opened = ExitStack()
        reported = self.environment("postgres")
        self.owner = Owner(reported["POSTGRES_USER"], reported["POSTGRES_PASSWORD"], reported["POSTGRES_DB"])

    def add_location(self, project: Path) -> None:
        """Let there be a service `second` too, a code location at port 4001; before anything is started.

        Args:
            project: The folder of its package, which has the same name.
        """
        command = ["dagster", "api", "grpc", "-h", "0.0.0.0", "-p", "4001", "-m", f"{project.name}.definitions"]
        health = ["CMD", "dagster", "api", "grpc-health-check", "-p", "4001"]
        self.services["second"] = {**self.services["code"], "command": command, "healthcheck": {"test": health}}
        server = {"host": "code", "port": 4001, "location_name": project.name}
        self.workspace["load_from"].append({"grpc_server": server})
        self.projects.append(project)

    def here(self, text: str) -> str:
        """Return a value of the file as it is on this machine."""
        names = "|".join(self.services)
        for inside, path in (
            ("/opt/dagster/dagster_home", self.home),
            ("/opt/kafka_lake/bin", DEPLOY),
            ("/certificates", self.folder / "certificates"),
            ("/var/lib/kafka/data", self.folder / "kafka" / "data"),
        ):
            text = re.sub(rf"(?<![\w.]){inside}", str(path), text)
        text = re.sub(rf"(?<![\w./-])({'|'.join(PORTS)})(?!\w)", lambda m: self.ports[m[1]], text)
        text = text.replace("0.0.0.0", "localhost" if "://" in text else HOST)
        if text in OURS or text in ("postgres", "objects", "kafka"):
            return HOST
        text = re.sub(r"-ip=\w+", f"-ip={HOST}", text)
        return re.sub(rf"(?<![\w.-])({names})(?=:\d)", "localhost", text)

    def environment(self, service: str) -> dict[str, str]:
        """Return the variables of a service."""
        reported = {name: self.here(value) for name, value in (self.services[service].get("environment") or {}).items()}
        if self.services[service]["image"].startswith("kafka-lake:"):
            reported["DAGSTER_HOME"] = str(self.home)
            reported["PYTHONPATH"] = os.pathsep.join(map(str, [*self.projects, ROOT]))
        return reported

    def command(self, service: str) -> list[str]:
        """Return the command of a service."""
        return [self.here(part) for part in self.services[service]["command"]]

    def run(self, command: list[str], environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        """Run a command of the image to its end."""
        return subprocess.run(
            [self._program(command[0]), *command[1:]],
            env={**self._outside(), **environment},
            cwd=DEPLOY / "lake_project",
            capture_output=True,
            text=True,
            timeout=240,
        )

    def start(self, service: str, host: str = "") -> None:
        """Start a service of ours, and wait until its health check passes.

        Args:
            service: Its name.
            host: Name of a host of its own, with its own process numbers, which ends as a whole; empty for this one.
        """
        check = self.services[service].get("healthcheck", {}).get("test", ["CMD", *healthcheck_of_the_image()])
        assert check[0] == "CMD"
        health = [self.here(part) for part in check[1:]]
        program, *arguments = self.command(service)
        command = [self._program(program), *arguments]
        if host:
            hosts = self.folder / f"{host}.hosts"
            hosts.write_text(f"{HOST} localhost {host}\n")
            command = [*_IN_A_HOST, _BE_HOST, host, str(hosts), *command]
        environment = {name: None for name in os.environ if _FOREIGN.match(name)} | self.environment(service)
        path = os.pathsep.join([sysconfig.get_path("scripts"), os.environ["PATH"]])
        process = ServerProcess(
            command, self.folder / f"{service}.log", {**environment, "PATH": path}, DEPLOY / "lake_project"
        )
        self.processes[service] = process
        self._opened.callback(process.kill)
        process.start(lambda: self.run(health, self.environment(service)).returncode == 0, 180)

    def __enter__(self) -> Self:
        self.home.mkdir()
        shutil.copy(DEPLOY / "dagster.yaml", self.home)
        workspace = deepcopy(self.workspace)
        for location in workspace["load_from"]:
            server = location["grpc_server"]
            server |= {"host": self.here(server["host"]), "port": int(self.here(str(server["port"])))}
        (self.home / "workspace.yaml").write_text(yaml.safe_dump(workspace))
        try:
            self._start_postgres()
            self._start_objects()
            self._start_kafka()
            made = self.run(self.command("topics"), self.environment("topics"))
            assert made.returncode == 0, made.stdout + made.stderr
        except BaseException:
            self._opened.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._opened.close()

    def _start_postgres(self) -> None:
        self._opened.enter_context(database(int(self.ports["5432"]), self.owner))

    def _start_objects(self) -> None:
        data = self.folder / "objects"
        data.mkdir()
        others = [f"{part}.port" for part in ("admin", "master", "filer", "volume")]
        names = [*others, *(f"{name}.grpc" for name in others), "s3.port.grpc"]
        command = [part.replace("/data", str(data)) for part in self.command("objects")]
        command += [*(f"-{name}={free_port()}" for name in names), f"-s3.localSocket={data / 's3.sock'}"]
        self._serve("objects", [self._program("weed"), "-logtostderr=true", *command], ("8333", "8181"))

    def _start_kafka(self) -> None:
        certificates = self.folder / "certificates"
        certificates.mkdir()
        made = self.run(self.command("certificates"), {})
        assert made.returncode == 0, made.stderr
        folder = self.folder / "kafka"
        folder.mkdir()
        properties = folder / "server.properties"
        # As Kafka's own image names them: https://github.com/apache/kafka/blob/trunk/docker/README.md
        lines = [
            f"{_property_name(name)}={value}"
            for name, value in self.environment("kafka").items()
            if name.startswith("KAFKA_")
        ]
        properties.write_text("\n".join(lines))
        java = [str(find_java() / "bin" / "java"), "-Xmx384m", "-cp", jars_classpath("broker")]
        tool = [*java, "kafka.tools.StorageTool", "format", "-t", "a2Fma2FfbGFrZV90ZXN0cw", "-c", str(properties)]
        formatted = subprocess.run(tool, capture_output=True, text=True)
        assert formatted.returncode == 0, formatted.stdout + formatted.stderr
        self._serve("kafka", [*java, "kafka.Kafka", str(properties)], ("9093",))

    def _serve(self, service: str, command: list[str], ports: tuple[str, ...]) -> None:
        environment = {k: v for k, v in self.environment(service).items() if not k.startswith("KAFKA_")}
        process = ServerProcess(command, self.folder / f"{service}.log", environment, self.folder)
        self._opened.callback(process.kill)
        ready: Callable[[], bool] = lambda: all(port_open(int(self.ports[port])) for port in ports)  # noqa: E731
        process.start(ready, 60)

    @staticmethod
    def _outside() -> dict[str, str]:
        path = os.pathsep.join([sysconfig.get_path("scripts"), os.environ["PATH"]])
        return {k: v for k, v in os.environ.items() if not _FOREIGN.match(k)} | {"PATH": path}

    @staticmethod
    def _program(name: str) -> str:
        if name == "python":
            return sys.executable
        found = shutil.which(name, path=f"{sysconfig.get_path('scripts')}{os.pathsep}{os.environ['PATH']}")
        assert found, f"{name} is not installed"
        return found


def _property_name(variable: str) -> str:
    name = variable.removeprefix("KAFKA_").lower()
    return name.replace("___", "-").replace("__", "\0").replace("_", ".").replace("\0", "_")
