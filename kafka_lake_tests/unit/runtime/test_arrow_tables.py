"""A task that writes several tables: each record to its table, one table after the other, none lost."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.types import LongType, NestedField

from kafka_lake.engine.interop import packed
from kafka_lake.formats.json.task.decoder import json_decoder
from kafka_lake.runtime.task.report import Report, loaded
from kafka_lake.writers.task.writer import decode_and_write_tables
from kafka_lake_tests.unit.formats.test_arrow_worker import batch, work


def work_in(folder: Path, **more: Any) -> dict[str, Any]:
    decoding = {
        "decoder": packed(json_decoder),
        "columns": (("id", ("long",), ("id",), False, "bigint"),),
        "rules": {},
        "max_bytes": 100,
    }
    metadata = new_table_metadata(
        Schema(NestedField(1, "id", LongType())), UNPARTITIONED_PARTITION_SPEC, UNSORTED_SORT_ORDER, folder.as_uri()
    )
    given = {"metadata": metadata.model_dump_json(), "decoding": decoding}
    return vars(work(**given, **more))


def records_of(tables: Sequence[str], values: Sequence[bytes]) -> pa.RecordBatch:
    return batch(values).append_column("table", pa.array(tables, pa.string()))


def run(reported: dict[str, Any], batches: Sequence[pa.RecordBatch]) -> tuple[list[dict[str, Any]], list[Report]]:
    back, reports = [], []
    for made in decode_and_write_tables(reported)(batches):
        for row in made.to_pylist():
            if row["report"] is None:
                # What is given back belongs to the table whose report comes next.
                assert all(row["table"] != report.table for report in reports)
                back.append(row)
            else:
                reports.append(loaded(row["report"]))
    return back, reports


def ids_in(report: Report) -> list[int]:
    return [n for file in report.files for n in pq.read_table(file.file_path.removeprefix("file://"))["id"].to_pylist()]


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["row", "bad"])), max_size=40),
    st.integers(1, 9),
)
def test_each_record_is_written_counted_or_given_back_once(
    tmp_path_factory: pytest.TempPathFactory, kinds: list[tuple[str, str]], size: int
) -> None:
    kinds = sorted(kinds, key=lambda value: value[0])
    values = [b'{"id": %d}' % n if kind != "bad" else b"{bad %d" % n for n, (_, kind) in enumerate(kinds)]
    folder = tmp_path_factory.mktemp("tables")
    works = {name: work_in(folder / name) for name in "ab"}
    whole = records_of([table for table, _ in kinds], values)
    batches = [whole.slice(start, size) for start in range(0, len(whole), size)] if kinds else []
    back, reports = run({"works": works, "unwanted": ()}, batches)
    given_back = {(row["table"], row["value"], row["error_class"]) for row in back}
    assert [item.table for item in reports] == sorted({table for table, _ in kinds})
    assert len(given_back) == len(back)
    for report in reports:
        its = [(n, kind) for n, (table, kind) in enumerate(kinds) if table == report.table]
        assert report.records == len(its)
        bad = {(report.table, values[n], "not_json") for n, kind in its if kind == "bad"}
        mine = {item for item in given_back if item[0] == report.table}
        if report.table == "c":
            assert (mine, report.files) == ({("c", values[n], None) for n, _ in its}, ())
            continue
        assert mine == bad
        assert report.failed == len(bad)
        assert ids_in(report) == [n for n, kind in its if kind != "bad"]
        assert sum(span.rows for span in report.spans) == len(its) - len(bad)
        assert len(report.files) <= 1
        assert all(f"/{report.table}/" in file.file_path for file in report.files)


def test_records_that_no_table_gets_are_counted_alone(tmp_path: Path) -> None:
    given = records_of(["a", "b", "b"], [b'{"id": 0}', b'{"id": 1}', b"bad"])
    back, (written, unwanted) = run(
        {"works": {"a": work_in(tmp_path)}, "unwanted": ("b",)}, [given.slice(0, 2), given.slice(2)]
    )
    assert (back, ids_in(written)) == ([], [0])
    assert (unwanted.table, unwanted.records, unwanted.failed, unwanted.files) == ("b", 2, 0, ())
