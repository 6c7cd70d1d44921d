"""What a task does with batches of records: rows with where they came from, failed records given back, files."""

import subprocess
import sys
from ast import literal_eval
from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.types import LongType, NestedField
from pyspark import cloudpickle

from kafka_lake.catalog.append import append_files
from kafka_lake.catalog.lake_catalog import LakeCatalog
from kafka_lake.catalog.tables import ensure_table, schema_of
from kafka_lake.engine.interop import packed, task_function
from kafka_lake.formats.json.task.decoder import JsonDecoder, json_decoder
from kafka_lake.formats.task import batches as task_of_records
from kafka_lake.formats.task.columns import Rules
from kafka_lake.formats.task.shapes import shaped
from kafka_lake.ingest.audit import partitions_of
from kafka_lake.runtime.task.report import (
    DeadLetterClass,
    Report,
    Span,
    Spans,
    classes_of_batch,
    dumped_report,
    loaded,
    merged_classes,
)
from kafka_lake.writers.append import table_of_work
from kafka_lake.writers.task.files import _repetitive
from kafka_lake.writers.task.writer import Work, bytes_of, decode, decode_and_write, write_rows


def work(**settings: Any) -> Work:
    given = {"metadata": "", "io": {}, "decoding": {}, "topic": "orders"}
    return Work(**{**given, "topic_id": "T", **settings})


def decoder(required: bool = False, limit: int | None = None) -> JsonDecoder:
    return JsonDecoder((("id", ("long",), ("id",), required, "bigint"),), Rules(), limit)


def batch(values: Sequence[bytes | None], headers: Sequence[Any] | None = None) -> pa.RecordBatch:
    count = len(values)
    header = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    return pa.RecordBatch.from_pydict(
        {
            "key": pa.array([None, b"k"] * count, pa.binary())[:count],
            "value": pa.array(values, pa.binary()),
            "partition": pa.array([3] * count, pa.int32()),
            "offset": pa.array(range(10, 10 + count), pa.int64()),
            "timestamp": pa.array([1_000_000 + n for n in range(count)], pa.timestamp("us", "UTC")),
            "timestampType": pa.array([0, 1, 7] * count, pa.int32())[:count],
            "headers": pa.array(headers or [[]] * count, header),
        }
    )


def test_the_bytes_of_records_are_those_of_keys_values_and_headers() -> None:
    given = batch([b"12345", None, b"7"], [[], [{"key": "head", "value": None}], [{"key": "h", "value": b"va"}]])
    # The second record has a key of one byte.
    assert bytes_of(given) == len("12345") + len("k") + len("head") + len("7") + len("h") + len("va")
    assert bytes_of(given.slice(2)) == len("7") + len("h") + len("va")
    assert bytes_of(given.slice(0, 0)) == 0


def test_rows_carry_where_they_came_from() -> None:
    given = batch([b'{"id": 1}', None, b'{"id": 2}'], [[], [], [{"key": "h", "value": b"v"}]])
    rows, kept, failed, _ = decode(given, work(), decoder())
    assert (len(kept), len(failed)) == (2, 0)
    first, last = rows.column("_kafka").to_pylist()
    assert (first["topic"], first["topic_id"], first["partition"], first["offset"]) == ("orders", "T", 3, 10)
    assert (first["key"], first["headers"], first["timestamp_type"]) == (None, None, "CreateTime")
    assert (last["offset"], last["timestamp_type"]) == (12, None)
    assert last["headers"] == [{"key": "h", "value": b"v"}]


def test_records_that_fail_are_given_back_and_say_why() -> None:
    given = batch([b'{"id": 1}', b'{"id": null}', b"{}", b'{"id": 4, "name": "long enough"}', None, b'{"id": 6}'])
    rows, kept, failed, _ = decode(given, work(), decoder(required=True, limit=20))
    assert rows.column("id").to_pylist() == [1, 6]
    assert kept.column("offset").to_pylist() == [10, 15]
    assert failed.column("offset").to_pylist() == [11, 12, 13]
    assert failed.column("error_class").to_pylist() == ["null_in_required_column"] * 2 + ["too_large"]
    assert failed.column("error_message")[2].as_py() == "The value has 32 bytes, the limit is 20."


def test_a_batch_of_tombstones_is_no_row() -> None:
    rows, kept, failed, _ = decode(batch([None, None]), work(), decoder(limit=5))
    assert (len(rows), len(kept), len(failed)) == (0, 0, 0)


def test_a_report_arrives_as_it_was_sent() -> None:
    failure = DeadLetterClass("not_json", 3, 0, 6, "Broken.", "{")
    report = Report((), 7, 2, 3, 4, (failure,), None, None, (Span(0, 4, 5, 9),), ("seen",))
    assert loaded(dumped_report(report)) == report


def test_failed_records_are_counted_by_class_with_the_first_of_each() -> None:
    rows = [(1, 7, "not_json", b"a"), (0, 9, "not_json", b"\xff" + b"b" * 300), (0, 3, "wrong_type", b"c"),
            (0, 10, "not_json", b"d"), (1, 2, "wrong_type", b"e")]  # fmt: skip
    failed = pa.RecordBatch.from_pylist(
        [
            {"partition": p, "offset": o, "error_class": name, "error_message": f"{p}/{o}", "value": value}
            for p, o, name, value in rows
        ]
    )
    not_json = DeadLetterClass("not_json", 3, 0, 9, "0/9", "\ufffd" + "b" * 199)
    wrong_type = DeadLetterClass("wrong_type", 2, 0, 3, "0/3", "c")
    assert list(classes_of_batch(failed)) == [not_json, wrong_type]
    parts = [failure for n in range(5) for failure in classes_of_batch(failed.slice(n, 1))]
    assert sorted(merged_classes(parts), key=lambda item: item.name) == [not_json, wrong_type]
    assert list(classes_of_batch(failed.slice(0, 0))) == []


@pytest.mark.slow
@given(st.lists(st.tuples(st.integers(0, 2), st.lists(st.integers(0, 60_000), min_size=1, max_size=8)), max_size=8))
def test_spans_find_every_repetition(batches: list[tuple[int, list[int]]]) -> None:
    spans = Spans()
    for partition, offsets in batches:
        spans.add(
            pa.RecordBatch.from_pydict(
                {"partition": pa.array([partition] * len(offsets), pa.int32()), "offset": pa.array(offsets, pa.int64())}
            )
        )
    everything = [(p, o) for p, offsets in batches for o in offsets]
    found = {rows.partition: rows for rows in partitions_of(spans.all())}
    for partition in {p for p, _ in everything}:
        mine = [o for p, o in everything if p == partition]
        rows = found[partition]
        assert (rows.rows, rows.first, rows.last) == (len(mine), min(mine), max(mine))
        if len(set(mine)) < len(mine):
            assert rows.distinct < rows.rows


def test_spans_of_whole_ranges_are_distinct() -> None:
    spans = Spans()
    for start in (200_000, 0, 5_000):
        offsets = np.arange(start, start + 5_000)
        spans.add(pa.RecordBatch.from_pydict({"partition": pa.array(np.zeros(5_000, np.int32)), "offset": offsets}))
    assert sorted(spans.all(), key=lambda s: s.first) == [Span(0, 10_000, 0, 9_999), Span(0, 5_000, 200_000, 204_999)]
    (rows,) = partitions_of(spans.all())
    assert (rows.rows, rows.distinct) == (15_000, 15_000)


def test_fields_are_matched_by_name_and_nulls_stay_null() -> None:
    have = pa.list_(pa.struct([("a", pa.int64()), ("b", pa.string())]))
    want = pa.list_(pa.struct([("b", pa.string()), ("c", pa.float64()), ("a", pa.int64())]))
    lists = pa.array([[{"a": 9}], None, [], [None, {"a": 1, "b": "x"}]], have)
    expected = [None, [], [None, {"a": 1, "b": "x", "c": None}]]
    assert shaped(lists.slice(1), want).to_pylist() == expected
    structs = pa.StructArray.from_arrays([lists], ["l"], mask=pa.array([False, False, True, False]))
    made = shaped(structs.slice(1), pa.struct([("k", pa.binary()), ("l", want)])).to_pylist()
    assert made == [{"k": None, "l": None}, None, {"k": None, "l": expected[2]}]


@pytest.mark.parametrize("count", [5000, 20_000])
def test_values_that_are_all_different_get_no_dictionary(count: int) -> None:
    numbers = list(range(count))
    rows = pa.table(
        {
            "id": numbers,
            "store": [n % 7 for n in numbers],
            "nothing": pa.nulls(count, pa.string()),
            "tags": [[f"{n}"] for n in numbers],
            "_kafka": [{"offset": n, "topic": "pizzas", "inner": {"key": f"k{n}"}} for n in numbers],
            "pairs": pa.array([[("k", n)] for n in numbers], pa.map_(pa.string(), pa.int64())),
        }
    )
    with_dictionary = {"store", "nothing", "tags.list.element", "_kafka.topic"}
    with_dictionary |= {"pairs.key_value.key", "pairs.key_value.value"}
    assert set(_repetitive(rows) or ()) == with_dictionary
    assert _repetitive(rows.slice(0, 100)) is True


@pytest.mark.parametrize(
    ("stops", "unwanted", "read"), [(True, (), 24_000), (True, ("promo",), 60_000), (False, (), 60_000)]
)
def test_a_task_decodes_few_records_if_the_table_gets_a_column(
    stops: bool, unwanted: tuple[str, ...], read: int, tmp_path: Path
) -> None:
    schema = Schema(NestedField(1, "id", LongType()))
    metadata = new_table_metadata(schema, UNPARTITIONED_PARTITION_SPEC, UNSORTED_SORT_ORDER, tmp_path.as_uri())
    columns, rules = (("id", ("long",), ("id",), False, "bigint"),), {"infer": True, "unwanted": unwanted}
    decoding = {"decoder": packed(json_decoder), "columns": columns, "rules": rules, "max_bytes": None}
    needs = vars(work(metadata=metadata.model_dump_json(), decoding=decoding, stops=stops))
    plain, new = batch([b'{"id": 1}'] * 4000), batch([b'{"id": 1, "promo": "x"}'] * 4000)
    given = iter([plain, new, *[plain] * 13])
    (made,) = decode_and_write(needs)(given)
    assert list(given) == []
    report = loaded(made.column("report")[0].as_py())
    assert (report.records, report.stopped) == (read, read < 60_000)
    assert sum(file.record_count for file in report.files) == read


def test_rows_of_a_transform_become_data_files(catalog: LakeCatalog) -> None:
    inner = pa.map_(pa.string(), pa.struct([("x", pa.int32())]))
    columns = [("at", pa.timestamp("us", "UTC")), ("price", pa.decimal128(10, 2)), ("pairs", inner)]
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), *columns])
    table = ensure_table(catalog, ("it", "rows"), schema_of(schema), partition_by=("bucket(2, id)",))
    at = datetime(2026, 11, 21, tzinfo=UTC)
    given = [{"id": n, "at": at, "price": Decimal("1.50"), "pairs": [("a", {"x": n})]} for n in range(5)]
    # Spark gives every column as nullable.
    rows = pa.RecordBatch.from_pylist(given, pa.schema([field.with_nullable(True) for field in schema]))
    (made,) = task_function(write_rows, table_of_work(table))([rows.slice(0, 3), rows.slice(3, 0), rows.slice(3)])
    report = loaded(made.column("report")[0].as_py())
    assert (report.records, len(report.files)) == (5, 2)
    for file in report.files:
        file.spec_id = table.spec().spec_id
    append_files(table, "main", report.files, {})
    assert sorted(table.scan().to_arrow().to_pylist(), key=lambda row: row["id"]) == given


def test_lists_without_offsets_as_java_writes_them_are_written(catalog: LakeCatalog) -> None:
    kind = pa.list_(pa.list_(pa.int64()))
    table = ensure_table(catalog, ("it", "lists"), schema_of(pa.schema([("lists", kind)])))
    inner = pa.Array.from_buffers(kind.value_type, 0, [None, None], children=[pa.array([], pa.int64())])
    outer = pa.Array.from_buffers(kind, 1, [None, pa.py_buffer(bytes(8))], children=[inner])
    # What Arrow can't read ends this process.
    (made,) = task_function(write_rows, table_of_work(table))([pa.RecordBatch.from_arrays([outer], ["lists"])])
    files = loaded(made.column("report")[0].as_py()).files
    append_files(table, "main", files, {})
    assert table.scan().to_arrow().to_pylist() == [{"lists": []}]


@pytest.mark.processes
@pytest.mark.parametrize(
    ("task", "column", "count"),
    [
        (task_of_records.decode, "error_class", 2),
        (task_of_records.observe, "observed", 1),
        (decode_and_write, "error_class", 2),
    ],
)
def test_tasks_travel_to_machines_without_this_package(task: Any, column: str, count: int, tmp_path: Path) -> None:
    columns = (("id", ("long",), ("id",), False, "bigint"),)
    decoding = {"decoder": packed(json_decoder), "columns": columns, "rules": {}, "max_bytes": 100}
    needs = decoding
    if task is decode_and_write:
        schema = Schema(NestedField(1, "id", LongType()))
        metadata = new_table_metadata(schema, UNPARTITIONED_PARTITION_SPEC, UNSORTED_SORT_ORDER, tmp_path.as_uri())
        needs = vars(work(metadata=metadata.model_dump_json(), decoding=decoding))
    records = batch([b'{"id": 1}', b'{"id": "x"}'])
    program = (
        "import pickle, sys; sys.modules['kafka_lake'] = None\n"
        "does, records, column = pickle.load(sys.stdin.buffer)\n"
        "print([value for made in does([records]) for value in made.column(column).to_pylist()])"
    )
    sent = cloudpickle.dumps((task_function(task, needs), records, column))
    done = subprocess.run([sys.executable, "-c", program], input=sent, capture_output=True, check=True, cwd=tmp_path)
    values = literal_eval(done.stdout.decode())
    assert len(values) == count
    assert any(value is not None for value in values)
