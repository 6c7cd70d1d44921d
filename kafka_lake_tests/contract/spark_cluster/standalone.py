"""A standalone Spark cluster from the pip package."""

import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from kafka_lake.common.processes import HOST, ServerProcess, free_port, port_open
from kafka_lake.engine.server import connect_command, connect_env


@contextmanager
def standalone_cluster(folder: Path, workers: int) -> Iterator[tuple[str, Mapping[str, str | None]]]:
    """Run a master and workers of one core each; give the master's URL and the environment that they run in.

    Args:
        folder: Of logs and scratch files.
        workers: How many.
    """
    port = free_port()
    master = f"spark://{HOST}:{port}"
    spark_class = str(Path(connect_command(folder)[0]).with_name("spark-class"))
    command = ["org.apache.spark.deploy.worker.Worker", "--cores", "1", "--memory", "600m", "--host", HOST]
    environment = {**connect_env(), "SPARK_DAEMON_MEMORY": "256m"}
    with ExitStack() as running:

        def launch(name: str, *command: str) -> ServerProcess:
            process = ServerProcess([spark_class, *command], folder / name / "log", environment, None)
            running.callback(process.kill)
            process.start(lambda: True, 10)
            return process

        launch(
            "master", "org.apache.spark.deploy.master.Master", "--host", HOST, "--port", str(port), "--webui-port", "0"
        )
        deadline = time.monotonic() + 90
        while not port_open(port):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        for name in (f"worker-{number + 1}" for number in range(workers)):
            launch(name, *command, "--webui-port", "0", "--work-dir", str(folder / name), master)
        yield master, environment
