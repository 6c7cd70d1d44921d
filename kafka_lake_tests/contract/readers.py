"""The readers that tables are tested with: those of the project's environment, and those of one of their own."""

import hashlib
import json
import subprocess
import venv
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import polars
from pyiceberg.table import Table

from kafka_lake.common.files import cache

LOCK = Path(__file__).with_name("readers.lock")
_PROGRAM = Path(__file__).with_name("foreign_readers.py")

Rows = list[list[Any]]
Reader = Callable[[Table, str, Any], Rows]
"""Reads columns of a table, given the name that a Spark session knows the table by and the session."""


def readers_python() -> Path:
    """Return the Python of an environment with the packages of `readers.lock`, made once for each version of it."""
    folder = cache() / "readers" / hashlib.sha256(LOCK.read_bytes()).hexdigest()[:12]
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=folder.parent) as scratch:
            made = Path(scratch, "made")
            venv.create(made, with_pip=True)
            pip = [made / "bin" / "python", "-m", "pip", "install", "--quiet", "--no-deps", "--require-hashes", "-r"]
            done = subprocess.run([*pip, LOCK], capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
            with suppress(OSError):
                # Another process was faster.
                made.rename(folder)
    return folder / "bin" / "python"


def _by_spark(table: Table, columns: str, spark: Any) -> Rows:
    name = f"`{table.catalog.name}`.{'.'.join(f'`{part}`' for part in table.name())}"
    return [list(row) for row in spark.sql(f"SELECT {columns} FROM {name}").collect()]


def _by_pyiceberg(table: Table, columns: str, _: Any) -> Rows:
    rows = table.scan(selected_fields=tuple(columns.split(", "))).to_arrow().to_pylist()
    return [[row[name] for name in columns.split(", ")] for row in rows]


def _by_polars(table: Table, columns: str, _: Any) -> Rows:
    frame = polars.scan_iceberg(table).select(columns.split(", "))
    return [list(row) for row in frame.collect().rows()]


def _foreign(reader: str, table: Table, columns: str, _: Any) -> Rows:
    places = {"metadata": table.metadata_location, "location": table.location()}
    asked = {name: place.removeprefix("file://") for name, place in places.items()}
    question = json.dumps({"reader": reader, "columns": columns, **asked})
    command = [readers_python(), "-I", _PROGRAM]
    # ClickHouse reads below the current folder alone.
    done = subprocess.run(command, input=question, capture_output=True, text=True, timeout=240, cwd=asked["location"])
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1] if done.stderr.strip() else f"ended {done.returncode}")
    rows: Rows = json.loads(done.stdout)
    return rows


OWN: Mapping[str, Reader] = {"Spark": _by_spark, "PyIceberg": _by_pyiceberg, "Polars": _by_polars}
FOREIGN: Mapping[str, Reader] = {
    "DuckDB": partial(_foreign, "duckdb"),
    "ClickHouse (chDB)": partial(_foreign, "chdb"),
    "Daft": partial(_foreign, "daft"),
}
