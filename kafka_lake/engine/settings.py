"""Spark's settings: defaults, the catalog's and the user's as one dict, which a JVM gets without showing them.

The arguments of a process can be read by every account of the machine. So a JVM gets its settings by a file that its
owner alone can read, and that is removed once it was read.
"""

import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from kafka_lake.common.environment import SparkCatalog
from kafka_lake.common.files import write_atomic
from kafka_lake.common.logs import SECRET_ADDRESS, SECRET_NAME
from kafka_lake.engine import daemon
from kafka_lake.engine.jars import jars_with
from kafka_lake.engine.java import trust_options

JVM_OPTIONS = "-XX:+UseParallelGC -XX:MetaspaceSize=200m " + " ".join(
    f"-XX:Tier4{what}Threshold={ten_times}"
    for what, ten_times in (
        ("Invocation", 50_000),
        ("MinInvocation", 6_000),
        ("Compile", 150_000),
        ("BackEdge", 400_000),
    )
)
"""JVM options for what decodes and plans, which users' own replace.

Spark's classes alone take more than the metaspace from which on Java collects all of the heap.

The thresholds are ten times Java's: of Spark's code a little is called for every record and gets there at once; by the
usual ones the slow compiler takes a fifth of the CPU of a start for what is called a few thousand times.
"""

ROOM_FOR_CODE = {"spark.sql.codegen.cache.maxEntries": "4000"}
"""Each session has generated code of its own, some fifty classes, an upsert table a few hundred. With less room than
the sessions at work need, Spark generates and compiles all of it again for each commit.
"""

FATAL_ERRORS = {"spark.executor.killOnFatalError.depth": "0"}
"""A regular expression of Java's overflows the stack on a long text. By default this ends Spark's JVM, each time that
the record is read; so it fails the task alone. Memory that is used up still ends the JVM (`OUT_OF_MEMORY`).
"""
OUT_OF_MEMORY = "-XX:+ExitOnOutOfMemoryError"

CLASSPATH = "spark.driver.extraClassPath"
_DAEMON = "spark.python.daemon.module"

# As protobuf writes a map's entry. Possessive, since Java's own stack would bound the length of what it matches.
_OPTION = rf'(?i)key: "[^"]*(?:{SECRET_NAME})[^"]*"\s+value: "[^"\\]*+(?:\\.[^"\\]*+)*+"'

REDACTION = {
    # Of names and values in the UI, in event logs, and in what SQL says of options.
    "spark.redaction.regex": f"(?i){SECRET_NAME}|{SECRET_ADDRESS}",
    # A Connect server puts its clients' requests there as they came, a reader's options among them.
    "spark.redaction.string.regex": _OPTION,
}
"""Settings by which Spark shows nothing that is secret."""


_DRIVER_OPTIONS = "spark.driver.defaultJavaOptions"
# Spark's default without Kafka: its older source makes an object of each record, and a row of that.
_V1_SOURCES = "spark.sql.sources.useV1SourceList"

_ARROW_BATCHES = {
    "spark.sql.execution.arrow.maxBytesPerBatch": "4m",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "20000",
}
"""Batches that fit into caches: with 10,000 records, as by default, those of 10 KiB cost half as much again."""

_DEFAULTS = {
    **_ARROW_BATCHES,
    "spark.ui.enabled": "false",
    # Spark keeps the plans of this many queries in memory, even without its UI. With a filter of many keys, a plan has
    # megabytes.
    "spark.sql.ui.retainedExecutions": "20",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.caseSensitive": "false",
    # Spark would put variables of its environment in the place of ${env:…}, even in a column's name from a record.
    "spark.sql.variable.substitute": "false",
    "spark.ui.showConsoleProgress": "false",
    _V1_SOURCES: "avro,csv,json,orc,parquet,text",
    # Otherwise PySpark sends the line that built each column, with some four calls: more than half of all calls.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    # Spark puts these before the user's own extraJavaOptions.
    _DRIVER_OPTIONS: OUT_OF_MEMORY,
    "spark.executor.defaultJavaOptions": OUT_OF_MEMORY,
    "spark.driver.extraJavaOptions": JVM_OPTIONS,
    # An idle consumer keeps what it fetched ahead, and its polls what they had beyond the batch: tens of megabytes for
    # each partition of each batch, for Spark's five minutes. No other batch ever asks for it.
    "spark.kafka.consumer.cache.capacity": "16",
    **{
        f"spark.kafka.consumer.{cache}.{setting}": "5s"
        for cache in ("cache", "fetchedData.cache")
        for setting in ("timeout", "evictorThreadRunInterval")
    },
    **ROOM_FOR_CODE,
    **FATAL_ERRORS,
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    **REDACTION,
}
PARALLELISM = "spark.default.parallelism"
"""Says how many tasks run at once, to sessions of every kind; set by us where the master is local."""

SESSION_DEFAULTS = {
    key: _DEFAULTS[key]
    for key in (
        *_ARROW_BATCHES,
        "spark.sql.session.timeZone",
        "spark.sql.caseSensitive",
        "spark.sql.variable.substitute",
        _V1_SOURCES,
    )
}
"""Those of our settings that are a session's own, which a client of a Connect server sets."""

SNAPSHOT_PROPERTY = "spark.sql.iceberg.snapshot-property."
"""Settings by which Iceberg puts something into the summaries of all snapshots that a session writes."""

MASTER = "spark.master"
_LOCAL_MASTER = re.compile(r"local(?:\[(?P<cores>\*|\d+)(?:\s*,\s*\d+)?\])?")


def local_cores(master: str) -> int | None:
    """Return how many tasks a local master runs at once; None for a cluster.

    >>> local_cores("local[2]"), local_cores("local"), local_cores("spark://host:7077")
    (2, 1, None)
    """
    match = _LOCAL_MASTER.fullmatch(master)
    if match is None:
        return None
    return (os.cpu_count() or 1) if match["cores"] == "*" else int(match["cores"] or 1)


def local_conf(catalog: SparkCatalog, master: str, jars: str, extra: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of a Spark in this process, or of a Connect server that kafka_lake starts.

    A master among the extra settings replaces the other one.
    """
    master = extra.get(MASTER, master)
    needed = _needed(catalog, jars, extra)
    jars = ",".join(filter(None, [jars, *needed]))
    conf = {**_DEFAULTS, **catalog.conf, **extra, MASTER: master}
    if catalog.ca_bundle:
        conf[_DRIVER_OPTIONS] = f"{trust_options(catalog)} {conf[_DRIVER_OPTIONS]}"
    if cores := local_cores(master):
        conf.setdefault(PARALLELISM, str(cores))
        return on_driver(conf, jars)
    # On a cluster, executors must reach the driver: let Spark choose the address.
    for key in ("spark.driver.bindAddress", "spark.driver.host"):
        if key not in extra:
            del conf[key]
    # A user's jars replace kafka_lake's, but the catalog's are always needed.
    return {**conf, "spark.jars": ",".join([extra["spark.jars"], *needed]) if extra.get("spark.jars") else jars}


def _needed(catalog: SparkCatalog, jars: str, extra: Mapping[str, str]) -> list[str]:
    """Return the jars that the catalog needs beside those that are there."""
    elsewhere = ("spark.jars.packages", "spark.jars.ivy", "spark.jars.repositories")
    if any(extra.get(key) for key in elsewhere) or any(map(os.environ.get, ("PYSPARK_SUBMIT_ARGS", "SPARK_CONF_DIR"))):
        # These may bring any jar.
        return []
    there = [*jars.split(","), *extra.get("spark.jars", "").split(","), *extra.get(CLASSPATH, "").split(os.pathsep)]
    return [str(jar) for jar in jars_with(catalog.needed_classes, there)]


def on_driver(conf: Mapping[str, str], jars: str) -> dict[str, str]:
    """Return the settings of a Spark whose driver does all the work, with jars to load.

    They are on the JVM's own class path, and not in ``spark.jars``, which Spark copies and loads at each start for 2 to
    4 CPU-seconds. Python workers come from `daemon`, unless they use another Python than this process.
    """
    if not jars:
        return dict(conf)
    own = jars.replace(",", os.pathsep)
    classpath = os.pathsep.join(filter(None, [conf.get(CLASSPATH), own]))
    whole = {**conf, CLASSPATH: classpath}
    if os.environ.get("PYSPARK_PYTHON", sys.executable) == sys.executable:
        whole.setdefault(_DAEMON, daemon.__name__)
    return whole


@contextmanager
def properties_file(conf: Mapping[str, str]) -> Iterator[Path]:
    """Give a file of Spark's settings, in a folder that its owner alone can open; it is removed after the block."""
    with TemporaryDirectory(prefix="kafka-lake-spark-") as folder:
        file = Path(folder, "spark.properties")
        write_atomic(file, properties_text(conf), owner_only=True)
        yield file


def properties_text(conf: Mapping[str, str]) -> str:
    r"""Write properties in Java's format, one per line.

    >>> properties_text({"spark.x": "a\\b"})
    'spark.x=a\\\\b\n'
    """
    return "".join(f"{_escaped(key)}={_escaped(value)}\n" for key, value in conf.items())


def _escaped(text: str) -> str:
    escapes = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", " ": "\\ ", "=": "\\=", ":": "\\:"}
    return "".join(escapes.get(char, char) for char in text)
