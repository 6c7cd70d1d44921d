"""What works without each private part of another package, and that each is there in the version that is installed."""

import logging
import pickle
import sys
import tomllib
from collections.abc import Iterator
from importlib import import_module, reload
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pyiceberg.io.pyarrow
import pyspark
import pyspark.sql.pandas.types
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from dagster import DefaultRunLauncher
from packaging.requirements import Requirement
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io import load_file_io
from pyiceberg.io.pyarrow import ParquetFormatWriter
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from pyspark.sql import types as T
from pyspark.sql.connect.client import DefaultChannelBuilder
from pyspark.sql.connect.session import SparkSession

from kafka_lake import launcher
from kafka_lake.common.tested_versions import TESTED, is_tested
from kafka_lake.errors import ConfigurationError
from kafka_lake.executors.pyiceberg_compat import partitions_of, use_dictionary
from kafka_lake.executors.writing.task import decode_and_write
from kafka_lake.kafka.registry import http_errors
from kafka_lake.lake.catalog import LakeCatalog
from kafka_lake.lake.tables import ensure_table, schema_of
from kafka_lake.spark.compat import arrow_types
from kafka_lake.spark.compat.by_value import packed
from kafka_lake.spark.compat.connect import make_default, open_session

NAME = ("it", "orders")
ROWS = pa.table({"id": [1, 2, 3], "city": ["Rome", "Rome", "Oslo"]})
LATER = ("99.0", "99.1")


@pytest.fixture(autouse=True)
def asked_anew() -> Iterator[None]:
    is_tested.cache_clear()
    yield
    is_tested.cache_clear()


@pytest.fixture(params=["with", "without"])
def with_pyiceberg(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Each test runs twice: with PyIceberg's private parts, and without."""
    if request.param == "without":
        monkeypatch.setitem(TESTED, "pyiceberg", LATER)
    return bool(request.param == "with")


def made(catalog: LakeCatalog, **settings: Any) -> Table:
    return ensure_table(catalog, NAME, schema_of(ROWS.schema), **settings)


def test_the_installed_versions_are_tested_ones() -> None:
    assert [package for package in TESTED if not is_tested(package)] == []


def test_packages_are_required_in_the_versions_that_are_tested() -> None:
    root = Path(__file__).parents[2]
    required = tomllib.loads((root / "pyproject.toml").read_text())["project"]["dependencies"]
    bounds = {each.name: each.specifier for each in map(Requirement, required)}
    for package, (first, beyond) in TESTED.items():
        assert f"{first}.99" in bounds[package], package
        assert beyond not in bounds[package], package
        major, minor = map(int, first.split("."))
        assert f"{major}.{minor - 1}.99" not in bounds[package], package


def test_another_version_is_named_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setitem(TESTED, "pyiceberg", LATER)
    with caplog.at_level(logging.WARNING):
        assert not is_tested("pyiceberg")
        assert not is_tested("pyiceberg")
    (record,) = caplog.records
    assert record.message.startswith("pyiceberg 0.")
    assert "tested with 99.0 and later, before 99.1" in record.message


# PyIceberg


def test_tables_are_loaded_by_pyiceberg_itself_otherwise(catalog: LakeCatalog, with_pyiceberg: bool) -> None:
    made(catalog).append(ROWS)
    table = catalog.table(NAME)
    assert table is not None
    assert (type(table.current_snapshot()) is not Snapshot) == with_pyiceberg
    assert table.scan().to_arrow().num_rows == 3


@pytest.mark.parametrize("without", ["_convert_orm_to_iceberg", "_write_metadata"])
def test_a_catalog_that_lacks_a_replaced_method_works(
    catalog: LakeCatalog, without: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = hasattr
    for module in ("loading", "writing"):
        path = f"kafka_lake.lake.pyiceberg_compat.{module}.hasattr"
        monkeypatch.setattr(path, lambda each, name: name != without and whole(each, name), raising=False)
    made(catalog).append(ROWS)
    assert without not in vars(catalog.pyiceberg)
    table = catalog.table(NAME)
    assert table is not None
    assert table.scan().to_arrow().num_rows == 3


@pytest.mark.parametrize(
    ("module", "method"),
    [
        ("sql", "_convert_orm_to_iceberg"),
        ("glue", "_convert_glue_to_iceberg"),
        ("hive", "_convert_hive_into_iceberg"),
        ("rest", "_response_to_table"),
    ],
)
def test_every_catalog_has_the_method_that_is_replaced(module: str, method: str) -> None:
    # Read, not imported: those of Glue and Hive need packages that aren't here.
    spec = find_spec("pyiceberg.catalog")
    assert spec is not None
    assert spec.submodule_search_locations
    found = [*Path(spec.submodule_search_locations[0]).glob(f"{module}.py")]
    found += Path(spec.submodule_search_locations[0]).glob(f"{module}/__init__.py")
    assert f"self.{method}(" in found[0].read_text()


def test_metadata_are_written_by_pyiceberg_itself_otherwise(catalog: LakeCatalog, with_pyiceberg: bool) -> None:
    assert ("_write_metadata" in vars(catalog.pyiceberg)) == with_pyiceberg
    assert callable(SqlCatalog._write_metadata)
    made(catalog, properties={"format-version": "2"}).append(ROWS)


def test_rows_are_told_apart_by_partition(catalog: LakeCatalog) -> None:
    metadata = made(catalog, partition_by=("city",)).metadata
    found = {key.partition[0]: rows.column("id").to_pylist() for key, rows in partitions_of(metadata, ROWS)}
    assert found == {"Rome": [1, 2], "Oslo": [3]}


def test_a_task_fails_if_it_can_not_tell_partitions_apart_so_that_spark_writes(
    catalog: LakeCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    metadata = made(catalog, partition_by=("city",)).metadata
    monkeypatch.delattr(pyiceberg.io.pyarrow, "_determine_partitions")
    with pytest.raises(ImportError, match="_determine_partitions"):
        next(partitions_of(metadata, ROWS))


@pytest.mark.parametrize("without", [False, True])
def test_columns_have_dictionaries_as_asked_or_all_have(tmp_path: Path, without: bool) -> None:
    file = load_file_io().new_output(f"file://{tmp_path}/{uuid4()}.parquet")
    writer = ParquetFormatWriter(file, schema_of(ROWS.schema), {})
    if without:
        options, writer._parquet_writer_kwargs = writer._parquet_writer_kwargs, None
    use_dictionary(writer, ["city"])
    if without:
        writer._parquet_writer_kwargs = options
    writer.write(ROWS)
    writer.close()
    group = pq.read_metadata(file.location.removeprefix("file://")).row_group(0)
    has = {group.column(n).path_in_schema: group.column(n).has_dictionary_page for n in range(2)}
    assert has == {"id": without, "city": True}


# PySpark; its JVM's parts are in `integration/test_without_private_parts.py`.


@pytest.mark.parametrize("untested", [False, True])
@pytest.mark.parametrize("absent", [False, True])
def test_a_connect_session_is_the_default_one(untested: bool, absent: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SparkSession, "_default_session", None)
    monkeypatch.setattr(SparkSession._active_session, "session", None, raising=False)
    if untested:
        monkeypatch.setitem(TESTED, "pyspark", LATER)
    if absent:
        whole, name = hasattr, "_set_default_and_active_session"
        path = "kafka_lake.spark.compat.connect.hasattr"
        monkeypatch.setattr(path, lambda each, asked: asked != name and whole(each, asked), raising=False)
    # Nobody listens there: opening a session asks the server nothing.
    session = open_session(DefaultChannelBuilder("sc://127.0.0.1:1"))
    make_default(session)
    assert SparkSession.getActiveSession() is session
    assert (type(session) is SparkSession) == (untested or absent)
    session.release_session_on_close = False
    session.stop()
    assert SparkSession.getActiveSession() is None


def test_functions_travel_by_name_without_cloudpickle(monkeypatch: pytest.MonkeyPatch) -> None:
    by_value = packed(decode_and_write)
    monkeypatch.setitem(sys.modules, "pyspark.cloudpickle", None)
    monkeypatch.delattr(pyspark, "cloudpickle")
    by_name = packed(decode_and_write)
    assert len(by_name) < 200 < len(by_value)
    assert pickle.loads(by_name) is decode_and_write


def test_arrow_types_are_sparks() -> None:
    columns = T.StructType([T.StructField("at", T.TimestampNTZType()), T.StructField("n", T.LongType(), False)])
    arrow = arrow_types.to_arrow_schema(columns)
    assert arrow_types.from_arrow_schema(arrow, prefer_timestamp_ntz=True) == columns
    assert arrow_types.from_arrow_type(pa.binary()) == T.BinaryType()


def test_a_pyspark_without_arrow_types_is_refused_with_the_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(pyspark.sql.pandas.types, "from_arrow_type")
    with pytest.raises(ConfigurationError, match=r"PySpark \d.*from_arrow_type") as refused:
        reload(arrow_types)
    assert f"pyspark>={TESTED['pyspark'][0]},<{TESTED['pyspark'][1]}" in refused.value.remedy


# Dagster and confluent-kafka


def test_runs_are_started_by_dagster_itself_with_a_version_that_was_not_tested(monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        assert reload(launcher).ForkingRunLauncher is not DefaultRunLauncher
        monkeypatch.setitem(TESTED, "dagster", LATER)
        is_tested.cache_clear()
        assert reload(launcher).ForkingRunLauncher is DefaultRunLauncher
    finally:
        monkeypatch.undo()
        is_tested.cache_clear()
        reload(launcher)


def test_runs_are_started_by_dagster_itself_if_a_private_part_is_gone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    forking = import_module("kafka_lake.dagster_runtime.launcher")
    try:
        monkeypatch.delitem(sys.modules, forking.__name__)
        monkeypatch.delattr("kafka_lake.dagster_runtime.launcher")
        monkeypatch.setitem(sys.modules, "dagster._grpc.types", None)
        with caplog.at_level(logging.WARNING):
            assert reload(launcher).ForkingRunLauncher is DefaultRunLauncher
        assert "dagster._grpc.types" in caplog.text
    finally:
        monkeypatch.undo()
        assert reload(launcher).ForkingRunLauncher is forking.ForkingRunLauncher


def test_the_launcher_has_what_it_uses_of_dagsters_own() -> None:
    assert hasattr(DefaultRunLauncher, "_instance")
    assert DefaultRunLauncher()._run_ids == set()


def test_the_registrys_client_has_imported_a_library_whose_errors_are_known() -> None:
    SchemaRegistryClient({"url": "http://127.0.0.1:1"})
    for name in ("HTTPError", "HTTPStatusError", "InvalidURL", "TimeoutException", "TransportError"):
        assert http_errors(name), name


def test_a_client_with_another_library_has_no_errors_of_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for library in ("httpx", "httpx2"):
        monkeypatch.delitem(sys.modules, library, raising=False)
    assert http_errors("HTTPError") == ()
