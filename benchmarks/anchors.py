"""Figures that can be compared with those of others: records, megabytes and dollars per core, beside what limits them.

Three cases, each with a program to compare with, on the same data in one run: a topic of 29 columns beside a process
without guarantees and beside Flink, the compaction of small files beside a copy of them by Arrow, and an upsert beside
PyIceberg's. What runs in a JVM is warm: its first runs aren't counted.
"""

import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pyarrow as pa
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway
from pyarrow import dataset, parquet

from benchmarks import ours, upsert
from benchmarks.connect_sink import class_path, jdbc_properties
from benchmarks.data import EVENTS, Topic, fill, values
from benchmarks.limits import arrow_schema, limit, parsed
from benchmarks.ours import NAMESPACE, Asked, Engine, Moment, asked, catalog_in, measured, task_of, verified
from benchmarks.results import Repeat, Series, as_json, document, is_exact
from benchmarks.throughput import ONE_PROCESS, OURS, scratch
from benchmarks.verify import BY_ORDER
from kafka_lake.catalog.lake_catalog import LakeCatalog
from kafka_lake.devstack.servers import BUCKET, EmbeddedBroker, EmbeddedObjectStore
from kafka_lake.engine.java import find_java
from kafka_lake.errors import KafkaLakeError
from kafka_lake.maintenance.maintain import Tables, maintain
from kafka_lake.orchestration.resources import CatalogResource
from kafka_lake.spec.topic_table import TopicTable

DOLLARS_PER_CORE_HOUR = 0.0504
"""A virtual core of an m7i at AWS, on demand, in us-east-1."""
HEADER = (
    "case",
    "program",
    "records/s per core",
    "records per CPU-s",
    "MB per CPU-s",
    "US$ per TB",
    "CPU-s",
    "s",
    "CPU beside the first program",
)
_WARM_UP = 2
_FILE_BYTES = 100_000
_MICROS = pa.timestamp("us", "UTC")
_ZSTD = {"write.parquet.compression-codec": "zstd", "write.parquet.compression-level": "1"}
_FLINK = {
    # One at the end: if one comes between the ends of two writers, Iceberg 1.11's sink loses what the first had.
    "execution.checkpointing.interval": "10 min",
    "pipeline.object-reuse": "true",
    "restart-strategy.type": "disable",
}
_OPENED = ("lang", "net", "io", "nio", "text", "time", "util", "util.concurrent")
"""Packages of Java that Flink looks into."""


@dataclass(frozen=True)
class Settings:
    """What is measured.

    Args:
        records: Of the topic; rows of the table that is changed; a thousand for each small file.
    """

    records: int
    repeats: int = 3
    engine: Engine = field(default_factory=Engine)


def measure(settings: Settings, tell_user: Callable[[str], None]) -> dict[str, Any]:
    """Measure all programs of each case, and return the result as JSON has it."""
    made, series = document("anchors", asdict(settings)), list[Series]()

    def add(case: str, program: str, repeats: Sequence[Repeat]) -> None:
        if not all(map(is_exact, map(asdict, repeats))):
            raise KafkaLakeError(f"{case}, {program}: rows are missing or there twice.", str(repeats))
        series.append(Series(program, case, "limit" if program == ONE_PROCESS else "warm", tuple(repeats)))
        median = series[-1].median()
        tell_user(f"{case}, {program}: {median['cpu_seconds']:.1f} CPU-s, {median['seconds']:.1f} s")

    with scratch() as folder, EmbeddedBroker(folder / "broker", heap="512m") as broker:
        tell_user(f"producing {settings.records:,} records")
        assert broker.pid is not None
        topic = fill(broker.bootstrap_servers, EVENTS, settings.records)
        contest = _Contest(settings, broker.bootstrap_servers, broker.pid, topic, folder)
        case = f"JSON, {len(arrow_schema(EVENTS))} columns, {topic.size / topic.records:.0f} B"
        add(case, ONE_PROCESS, contest.limit())
        add(case, OURS, contest.ours(None))
        with EmbeddedObjectStore(folder / "store") as store:
            sqlite = {"type": "sql", "uri": f"sqlite:///{folder}/s3.db", "warehouse": f"s3://{BUCKET}/bench"}
            place = CatalogResource(name="lake", properties={**sqlite, **store.s3_properties()})
            add(case, f"{OURS}, files in S3", contest.ours(place))
        add(case, "Flink", contest.flink())
        tell_user("writing small files")
        files = _small_files(folder / "small", settings.records // 1000)
        case = f"compaction, {files.count:,} files of {files.size / files.count / 1000:.0f} kB"
        add(case, "Arrow", contest.rewrite(files))
        add(case, OURS, contest.compact(files))
    case = f"upsert, random keys of {settings.records:,}"
    changes = max(100, settings.records // 100)
    found = upsert.measure(
        upsert.Settings(settings.records, changes, settings.repeats, settings.engine, peer=True), tell_user
    )
    if found["differing"]:
        raise KafkaLakeError(f"The rows of {found['differing']:,} keys are not what was produced.")
    for program, kind in (("PyIceberg", "random, by PyIceberg"), (OURS, "random")):
        batches = [batch for batch in found["batches"] if batch["keys"] == kind]
        add(case, program, [Repeat(changes, 0, b["seconds"], b["cpu_seconds"], 0, rows=changes) for b in batches])
    return {**made, "series": as_json(series)}


def rows(result: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return the table's rows: medians, and CPU per record beside that of the case's first program."""
    first: dict[str, float] = {}
    made: list[tuple[str, ...]] = []
    for item in result["series"]:
        median = item["median"]
        rate, megabytes = median["records_per_cpu_second"], median["size"] / 1e6 / median["cpu_seconds"]
        made.append(
            (
                item["topic"],
                item["contender"],
                # Others use as many cores as there are.
                f"{median['records_per_second'] / result['settings']['engine']['cores']:,.0f}"
                if item["contender"].startswith((OURS, "Flink"))
                else "",
                f"{rate:,.0f}",
                f"{megabytes:.1f}" if megabytes else "",
                f"{DOLLARS_PER_CORE_HOUR * 1e6 / megabytes / 3600:.2f}" if megabytes else "",
                f"{median['cpu_seconds']:.2f}",
                f"{median['seconds']:.2f}",
                f"{first.setdefault(item['topic'], rate) / rate:.2f}",
            )
        )
    return made


@dataclass(frozen=True)
class _Files:
    """Small files of the topic's rows, in a folder."""

    folder: Path
    count: int
    rows: int
    size: int


def _small_files(folder: Path, count: int) -> _Files:
    """Write rows as the topic has them into files of about the same size."""
    folder.mkdir()
    schema = arrow_schema(EVENTS)
    # Iceberg has no milliseconds.
    stored = pa.schema([(f.name, _MICROS if pa.types.is_timestamp(f.type) else f.type) for f in schema])

    def write(number: int, found: list[bytes]) -> int:
        path = folder / f"{number:06d}.parquet"
        parquet.write_table(parsed(found, schema).cast(stored), path, compression="zstd", compression_level=1)
        return path.stat().st_size

    each = 1000 * _FILE_BYTES // write(0, list(values(EVENTS, 1000)))
    given = values(EVENTS, each * count)
    return _Files(folder, count, each * count, sum(write(number, list(islice(given, each))) for number in range(count)))


@dataclass(frozen=True)
class _Contest:
    """The programs, each in a process of its own.

    Args:
        bootstrap: The brokers, ``host:port``.
        broker: Process id of the broker.
        topic: What is read.
        folder: For all that is written.
    """

    settings: Settings
    bootstrap: str
    broker: int
    topic: Topic
    folder: Path

    def limit(self) -> list[Repeat]:
        """Consume, decode and write a file, by a process without guarantees."""
        make = partial(limit, self.bootstrap, self.broker, self.topic, self.folder / "limit", write=True)
        return [make() for _ in range(self.settings.repeats)]

    def ours(self, catalog: CatalogResource | None) -> list[Repeat]:
        """Ingest the topic, into local files or a catalog's."""
        folder, warm = self.folder / f"ours-{catalog is not None}", _WARM_UP - 1 + self.settings.repeats
        engine = self.settings.engine
        return ours.cold_and_warm(
            self.bootstrap, self.broker, self.topic, engine=engine, folder=folder, warm=warm, catalog=catalog
        )[_WARM_UP:]

    def flink(self) -> list[Repeat]:
        """Ingest the topic by Flink SQL."""
        catalog = self._catalog("flink")
        for name in self._tables():
            catalog.pyiceberg.create_table((NAMESPACE, name), arrow_schema(EVENTS), properties=_ZSTD)
        class_path("flink")
        repeats = self._measured("flink", self.topic, {"jdbc": jdbc_properties(catalog)})
        return [verified(repeat, catalog, name, BY_ORDER) for repeat, name in self._counted(repeats)]

    def rewrite(self, files: _Files) -> list[Repeat]:
        """Copy files into one by Arrow."""
        found = self._measured("rewrite", Topic(EVENTS, files.rows, files.size), {"files": str(files.folder)})
        written = (self.folder / "rewrite" / name / "part-0.parquet" for _, name in self._counted(found))
        return [
            replace(repeat, rows=parquet.read_metadata(path).num_rows, files=1, bytes=path.stat().st_size)
            for repeat, path in zip(found[_WARM_UP:], written, strict=True)
        ]

    def compact(self, files: _Files) -> list[Repeat]:
        """Let our maintenance compact tables of the files."""
        catalog, schema = self._catalog("compact"), parquet.read_schema(files.folder / "000000.parquet")
        for name in self._tables():
            # A table may remove its files.
            linked = shutil.copytree(files.folder, self.folder / "compact" / f"{name}-files", copy_function=os.link)
            made = catalog.pyiceberg.create_table((NAMESPACE, name), schema, properties=_ZSTD)
            made.add_files([f"file://{path}" for path in sorted(linked.iterdir())], check_duplicate_files=False)
        repeats = self._measured("compact", Topic(EVENTS, files.rows, files.size))
        done = [verified(repeat, catalog, name, BY_ORDER) for repeat, name in self._counted(repeats)]
        if any(repeat.files > files.count / 5 for repeat in done):
            raise KafkaLakeError("The small files were not compacted.", str(done))
        return done

    def _tables(self) -> list[str]:
        return [f"t{number}" for number in range(_WARM_UP + self.settings.repeats)]

    def _counted(self, repeats: list[Repeat]) -> list[tuple[Repeat, str]]:
        return list(zip(repeats, self._tables(), strict=True))[_WARM_UP:]

    def _catalog(self, kind: str) -> LakeCatalog:
        (self.folder / kind).mkdir()
        catalog = catalog_in(self.folder / kind).open()
        catalog.ensure_namespace(NAMESPACE)
        return catalog

    def _measured(self, kind: str, topic: Topic, more: Mapping[str, Any] = MappingProxyType({})) -> list[Repeat]:
        folder, engine = self.folder / kind, self.settings.engine
        folder.mkdir(exist_ok=True)
        task = task_of(self.bootstrap, self.broker, topic, engine=engine, folder=folder)
        task |= {"kind": kind, "tables": self._tables(), "engine": asdict(engine), **more}
        return measured("benchmarks.anchors", task, folder / "program.log", len(self._tables()), f"{kind} failed.")


def _by_flink(it: Asked) -> Callable[[str], object]:
    """Return what reads the topic into a table, by a local cluster of Flink in a JVM that ends with this process."""
    task = it.task
    opened = [f"--add-opens=java.base/java.{package}=ALL-UNNAMED" for package in _OPENED]
    port, token = launch_gateway(
        jarpath=str(next(jar for jar in class_path("flink") if jar.name.startswith("py4j-"))),
        classpath=os.pathsep.join(map(str, class_path("flink"))),
        javaopts=[f"-Xmx{task['engine']['heap']}", "-XX:+UseParallelGC", "-Dlog4j2.level=WARN", *opened],
        die_on_exit=True,
        redirect_stdout=sys.stderr,
        redirect_stderr=sys.stderr,
        java_path=str(find_java() / "bin" / "java"),
        enable_auth=True,
    )
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auth_token=token))
    flink = gateway.jvm.org.apache.flink
    settings = flink.configuration.Configuration()
    for name, value in {**_FLINK, "parallelism.default": str(task["engine"]["cores"])}.items():
        settings.setString(name, value)
    environment = flink.table.api.EnvironmentSettings.newInstance().inStreamingMode().withConfiguration(settings)
    tables = flink.table.api.TableEnvironment.create(environment.build())
    tables.executeSql(f"CREATE CATALOG lake WITH ({_options({'type': 'iceberg', **task['jdbc']})})")
    source = {
        "connector": "kafka",
        "topic": EVENTS.name,
        "properties.bootstrap.servers": task["bootstrap"],
        "properties.max.poll.records": "20000",
        "properties.max.partition.fetch.bytes": "16777216",
        "properties.fetch.max.bytes": "67108864",
        "scan.startup.mode": "earliest-offset",
        "scan.bounded.mode": "latest-offset",
        "format": "json",
        "json.timestamp-format.standard": "ISO-8601",
    }
    columns = (column.split() for column in EVENTS.ddl.replace("timestamp", "timestamp_ltz(6)").split(", "))
    declared = ", ".join(f"`{name}` {kind}" for name, kind in columns)
    tables.executeSql(f"CREATE TEMPORARY TABLE source ({declared}) WITH ({_options(source)})")

    def insert(name: str) -> None:
        done = tables.executeSql(f"INSERT INTO lake.{NAMESPACE}.{name} SELECT * FROM source")
        # A word of Python's.
        getattr(done, "await")()

    return insert


def _options(options: Mapping[str, str]) -> str:
    return ", ".join(f"'{name}' = '{value}'" for name, value in options.items())


def _by_arrow(it: Asked) -> Callable[[str], object]:
    """Return what copies the small files into one."""
    written = dataset.ParquetFileFormat().make_write_options(compression="zstd", compression_level=1)
    return lambda name: dataset.write_dataset(
        dataset.dataset(it.task["files"]),
        Path(it.task["folder"], name),
        format="parquet",
        file_options=written,
        min_rows_per_group=100_000,
        max_rows_per_group=1_000_000,
    )


def _by_maintenance(it: Asked) -> Callable[[str], object]:
    """Return what compacts a table."""
    tables = Tables(it.connections.catalog, it.connections.spark)
    return lambda name: maintain(TopicTable(EVENTS.name, NAMESPACE, name), tables, everything=True)


_WORK = {"flink": _by_flink, "rewrite": _by_arrow, "compact": _by_maintenance}


def main() -> None:
    """Do what the one argument says, a repeat's JSON a line; the process that is measured."""
    with asked() as it:
        topic, work = Topic(EVENTS, it.task["records"], it.task["size"]), _WORK[it.task["kind"]](it)
        for name in it.task["tables"]:
            begin = Moment.now(os.getpid(), it.task["broker"])
            work(name)
            it.tell(Moment.now(os.getpid(), it.task["broker"]).since(begin, topic))


if __name__ == "__main__":
    main()
