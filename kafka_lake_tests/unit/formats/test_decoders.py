"""Decoders of records without Spark: values as they are, keys beside values, and a table's sort order."""

from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import NullOrder, SortDirection, SortField, SortOrder
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import DoubleType, LongType, NestedField, StringType, StructType

from kafka_lake.engine.interop import packed
from kafka_lake.formats.json.task.decoder import json_decoder
from kafka_lake.formats.task.decoders import RejectAll, unpack_decoder
from kafka_lake.formats.task.key import KeyDecoder
from kafka_lake.formats.task.plain import PlainDecoder
from kafka_lake.writers.task.files import in_order

ID = (("id", ("long",), ("id",), False, "bigint"),)
STORE = (("store", ("string",), ("store",), False, "string"),)


def json(columns: Any) -> dict[str, Any]:
    return {"decoder": packed(json_decoder), "columns": columns, "rules": {}, "max_bytes": None}


def plain(kind: str, max_bytes: int | None = None) -> dict[str, Any]:
    return {"decoder": packed(PlainDecoder), "kind": kind, "max_bytes": max_bytes}


def records(*pairs: tuple[bytes | None, bytes | None]) -> pa.RecordBatch:
    keys, values = zip(*pairs, strict=True)
    return pa.RecordBatch.from_pydict({"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())})


def with_key(key: Any, whole: bool, of_tombstones: bool = False) -> Any:
    names = ["key", "id"] if key else ["id"]
    settings = {"names": names, "column": "key", "whole": whole, "of_tombstones": of_tombstones}
    return unpack_decoder({"decoder": packed(KeyDecoder), "values": json(ID), "keys": key, **settings})


@pytest.mark.parametrize("max_bytes", [None, 8])
def test_text_that_is_not_utf8_is_set_apart_with_its_first_bytes(max_bytes: int | None) -> None:
    decoder = unpack_decoder(plain("string", max_bytes))
    decoded = decoder.decode_records(
        records((None, b"one"), (None, b"\xff\xfe"), (None, None), (None, "zwölf Euro".encode()))
    )
    long = max_bytes is not None
    assert decoded.rows.to_pylist() == [{"value": "one"}, None, None, None if long else {"value": "zwölf Euro"}]
    assert decoded.error_class.to_pylist() == [None, "not_text", None, "too_large" if long else None]
    assert decoded.error_message[1].as_py() == "The value is not UTF-8; it begins with 0xFFFE."


def test_bytes_are_taken_as_they_are() -> None:
    decoded = unpack_decoder(plain("bytes")).decode_records(records((None, b"\xff")))
    assert decoded.rows.to_pylist() == [{"value": b"\xff"}]


def test_a_key_is_a_column_and_a_bad_one_fails_its_record() -> None:
    decoder = with_key(json(STORE), whole=True)
    decoded = decoder.decode_records(
        records((b'{"store": "a"}', b'{"id": 1}'), (b"no", b'{"id": 2}'), (None, b'{"id": 3}'), (b"no", None))
    )
    rows = [{"key": {"store": "a"}, "id": 1}, None, {"key": None, "id": 3}, None]
    assert decoded.rows.to_pylist() == rows
    assert decoded.error_class.to_pylist() == [None, "bad_key", None, None]
    assert decoded.error_message[1].as_py().startswith("The key: ")


def test_a_key_of_a_tombstone_makes_a_row_where_it_says_what_goes() -> None:
    decoder = with_key(plain("string"), whole=False, of_tombstones=True)
    decoded = decoder.decode_records(records((b"a", None), (b"\xff", None), (b"c", b"no"), (b"d", b'{"id": 4}')))
    assert decoded.rows.to_pylist() == [{"key": "a", "id": None}, None, None, {"key": "d", "id": 4}]
    assert decoded.error_class.to_pylist() == [None, "bad_key", "not_json", None]


def test_values_are_decoded_while_a_table_has_no_column_of_keys() -> None:
    decoder = with_key(None, whole=False)
    assert decoder.decode_records(records((b"\xff", b'{"id": 1}'))).rows.to_pylist() == [{"id": 1}]


def test_a_refusing_decoder_gives_each_value_its_reason() -> None:
    batch = records((None, b"x"), (None, None))
    decoded = RejectAll(ID, "undecodable", "Why.", tombstones=False).decode_records(batch)
    assert (decoded.error_class.to_pylist(), len(decoded.made)) == (["undecodable", None], 0)
    also = RejectAll(ID, "undecodable", "Why.", tombstones=True).decode_records(batch)
    assert also.error_class.to_pylist() == ["undecodable"] * 2


def test_rows_are_in_the_tables_order_nulls_where_each_key_wants_them() -> None:
    inner = StructType(NestedField(4, "n", LongType()))
    schema = Schema(
        NestedField(1, "a", StringType()), NestedField(2, "b", DoubleType()), NestedField(3, "c", inner)
    )  # fmt: skip
    ascending, descending = SortDirection.ASC, SortDirection.DESC
    order = SortOrder(
        SortField(1, IdentityTransform(), ascending, NullOrder.NULLS_LAST),
        SortField(4, IdentityTransform(), descending, NullOrder.NULLS_FIRST),
    )
    rows = pa.table(
        {"a": ["y", None, "x", "x", "x"], "b": [1.0, 2, 3, 4, 5], "c": [{"n": n} for n in (1, 1, 1, 9, None)]}
    )
    assert in_order(rows, order, schema).column("b").to_pylist() == [5, 4, 3, 1, 2]


def test_rows_are_ordered_by_what_a_transform_makes_of_them() -> None:
    schema = Schema(NestedField(1, "id", LongType()))
    order = SortOrder(SortField(1, BucketTransform(4)))
    rows = pa.table({"id": list(range(50))})
    made = in_order(rows, order, schema).column("id").to_pylist()
    buckets = BucketTransform(4).transform(LongType())
    assert sorted(made) == list(range(50))
    assert made != sorted(made)
    assert [buckets(n) for n in made] == sorted(buckets(n) for n in made)
