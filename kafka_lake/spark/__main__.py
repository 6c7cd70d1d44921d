"""Runs a Spark Connect server that knows the deployment's catalog: ``python -m kafka_lake.spark --work-dir …``."""

import argparse
from pathlib import Path

from dotenv import load_dotenv

from kafka_lake.common import environment
from kafka_lake.common.server_process import run_in_foreground
from kafka_lake.errors import KafkaLakeError
from kafka_lake.lake.catalog import configured_catalog
from kafka_lake.spark.jars import spark_jars
from kafka_lake.spark.settings import local_conf
from kafka_lake.spark.supervisor import ConnectSettings, ConnectSupervisor


def main() -> None:
    """Run a Spark Connect server until SIGTERM or SIGINT, or until it has died too often.

    Memory and idle time are those of KAFKA_LAKE_CONNECT_HEAP, _DIRECT, _METASPACE and _IDLE.
    """
    parser = argparse.ArgumentParser(prog="python -m kafka_lake.spark", description=main.__doc__)
    parser.add_argument("--work-dir", type=Path, required=True, help="folder of its log and scratch files")
    parser.add_argument(
        "--port", type=int, default=int(environment.CONNECT_PORT.default), help="port of 127.0.0.1 (%(default)s)"
    )
    parser.add_argument("--master", default="local[*]", help="where the work is done (%(default)s)")
    parser.add_argument("--conf", action="append", default=[], metavar="KEY=VALUE", help="a Spark property")
    options = parser.parse_args()
    if malformed := [item for item in options.conf if "=" not in item]:
        parser.error(f"--conf {malformed[0]}: write KEY=VALUE")
    load_dotenv(".env")
    try:
        settings = ConnectSettings.from_env()
        extra = dict(item.split("=", 1) for item in options.conf)
        conf = local_conf(configured_catalog().for_spark(), options.master, spark_jars(), extra)
    except KafkaLakeError as error:
        raise SystemExit(str(error)) from None
    server = ConnectSupervisor(
        settings.server(options.work_dir, options.port, conf),
        settings.idle_seconds,
        lambda line: print(line, flush=True),
    )
    run_in_foreground(
        server,
        f"Spark Connect listens on {server.address}; its token is in {server.token_file}, its log is {server.log}",
        f"Spark Connect is not restarted; see {server.log}",
    )


if __name__ == "__main__":
    main()
