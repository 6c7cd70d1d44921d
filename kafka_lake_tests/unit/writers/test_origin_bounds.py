"""Data files tell the least and the greatest partition, offset and time of their records, as other writers' do."""

from pathlib import Path
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.conversions import from_bytes
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.types import IntegerType, LongType, NestedField, StringType, StructType, TimestamptzType

from kafka_lake.writers.task.files import Files, OriginBounds

ORIGIN = StructType(
    NestedField(11, "topic", StringType()),
    NestedField(12, "topic_id", StringType()),
    NestedField(13, "partition", IntegerType()),
    NestedField(14, "offset", LongType()),
    NestedField(15, "timestamp", TimestamptzType()),
)
SCHEMA = Schema(NestedField(1, "id", LongType()), NestedField(2, "_kafka", ORIGIN))
KINDS = {13: IntegerType(), 14: LongType(), 15: TimestamptzType()}
FIELDS = {13: "partition", 14: "offset", 15: "timestamp"}
Origin = dict[str, Any] | None


@given(
    st.lists(
        st.lists(
            st.one_of(
                st.none(),
                st.fixed_dictionaries(
                    {
                        "topic": st.just("t"),
                        "topic_id": st.none(),
                        "partition": st.integers(0, 5),
                        "offset": st.integers(0, 2**62),
                        "timestamp": st.one_of(st.none(), st.integers(-(2**50), 2**50)),
                    }
                ),
            ),
            max_size=4,
        ),
        min_size=1,
        max_size=3,
    ),
    st.integers(0, 2),
)
def test_bounds_are_those_of_the_rows_that_were_added(batches: list[list[Origin]], left_out: int) -> None:
    found, seen = OriginBounds(SCHEMA), list[Origin]()
    for batch in batches:
        rows = pa.Table.from_pylist([{"id": 1, "_kafka": origin} for origin in batch], schema=schema_to_pyarrow(SCHEMA))
        # Parts of what was read have offsets into the same buffers.
        found.add(rows.slice(left_out))
        seen += batch[left_out:]
    reported = found.added_to({"lower_bounds": {1: b"1"}, "upper_bounds": {}, "record_count": 5})
    assert (reported["record_count"], reported["lower_bounds"].pop(1)) == (5, b"1")
    for key, name in FIELDS.items():
        values = [origin[name] for origin in seen if origin is not None and origin[name] is not None]
        for side, ends in (("lower_bounds", min), ("upper_bounds", max)):
            raw = reported[side].pop(key, None)
            assert (None if raw is None else from_bytes(KINDS[key], raw)) == (ends(values) if values else None)
        assert key not in reported["lower_bounds"]
    assert reported["lower_bounds"] == reported["upper_bounds"] == {}


def test_a_table_without_metadata_column_has_none() -> None:
    plain = Schema(
        NestedField(1, "id", LongType()), NestedField(2, "inner", StructType(NestedField(3, "x", LongType())))
    )
    found = OriginBounds(plain)
    found.add(pa.Table.from_pylist([{"id": 1, "inner": {"x": 5}}], schema=schema_to_pyarrow(plain)))
    assert found.added_to({"lower_bounds": None}) == {"lower_bounds": {}, "upper_bounds": {}}


def test_text_without_a_bound_in_utf_8_is_written(tmp_path: Path) -> None:
    # The upper bound of the cut text would end in U+D800, a surrogate.
    name, city = "n" * 15 + "\ud7ffx", "c" * 20
    schema = Schema(NestedField(1, "name", StringType()), NestedField(2, "city", StringType()))
    metadata = new_table_metadata(schema, UNPARTITIONED_PARTITION_SPEC, UNSORTED_SORT_ORDER, tmp_path.as_uri())
    files = Files(metadata.model_dump_json(), {})
    files.add(pa.table({"name": [name], "city": [city]}))
    (file,) = files.close()
    assert file.lower_bounds == {1: name[:16].encode(), 2: city[:16].encode()}
    assert file.upper_bounds == {2: b"c" * 15 + b"d"}
