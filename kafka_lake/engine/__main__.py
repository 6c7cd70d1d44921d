"""Runs a Spark Connect server that knows the deployment's catalog: ``python -m kafka_lake.engine --work-dir …``."""

import argparse
import signal
import sys
import time
from pathlib import Path

from dotenv import load_dotenv

from kafka_lake.catalog.lake_catalog import configured_catalog
from kafka_lake.common import environment
from kafka_lake.engine.jars import spark_jars
from kafka_lake.engine.server import ConnectMemory, ConnectServer
from kafka_lake.engine.settings import local_conf
from kafka_lake.errors import KafkaLakeError


def main() -> None:
    """Run a Spark Connect server until SIGTERM or SIGINT, or until it dies: let a process manager start it again.

    Its memory is that of KAFKA_LAKE_CONNECT_HEAP, _DIRECT and _METASPACE.
    """
    parser = argparse.ArgumentParser(prog="python -m kafka_lake.engine", description=main.__doc__)
    parser.add_argument("--work-dir", type=Path, required=True, help="folder of its log and scratch files")
    parser.add_argument(
        "--port", type=int, default=int(environment.CONNECT_PORT.default), help="port of 127.0.0.1 (%(default)s)"
    )
    parser.add_argument("--master", default="local[*]", help="where the work is done (%(default)s)")
    parser.add_argument("--conf", action="append", default=[], metavar="KEY=VALUE", help="a Spark property")
    options = parser.parse_args()
    if malformed := [setting for setting in options.conf if "=" not in setting]:
        parser.error(f"--conf {malformed[0]}: write KEY=VALUE")
    load_dotenv(".env")
    try:
        memory = ConnectMemory.from_env()
        extra = dict(setting.split("=", 1) for setting in options.conf)
        conf = local_conf(configured_catalog().for_spark(), options.master, spark_jars(), extra)
    except KafkaLakeError as error:
        raise SystemExit(str(error)) from None
    run(ConnectServer(options.work_dir, options.port, conf, memory))


def run(server: ConnectServer) -> None:
    """Run a server until SIGTERM or SIGINT; raises SystemExit with the reason if it ends unexpectedly."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit())
    try:
        with server:
            print(
                f"Spark Connect listens on {server.address}; its token is in {server.token_file}, "
                f"its log is {server.log}",
                flush=True,
            )
            while server.alive():
                time.sleep(0.5)
    except KafkaLakeError as error:
        raise SystemExit(str(error)) from None
    raise SystemExit(f"Spark Connect ended unexpectedly; see {server.log}")


if __name__ == "__main__":
    main()
