"""kafka_lake's JSON decoder, asked in this process, in the words of the oracle."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from kafka_lake.formats.json.task.decoder import JsonDecoder
from kafka_lake.formats.json.task.fast import FastReader
from kafka_lake.formats.task.columns import Rules
from kafka_lake_tests.fuzz.oracle import Column, Letter, Reported, Row


def outcomes(
    contents: Sequence[bytes], columns: Sequence[Column], infer: bool, plain: bool
) -> Iterator[tuple[bytes, Row | Letter, Reported]]:
    """Decode a batch and give what became of each record, and what the batch's report names.

    Args:
        contents: The records.
        columns: Those of the rows.
        infer: Whether fields without a column are reported.
        plain: Whether the fast path takes what it can.
    """
    done = decoder_of(columns, Rules(infer=infer), plain).decode(pa.array(contents, pa.binary()))
    reported = Reported(
        lambda path, _: _names(done.seen.new_fields, path) or ".".join(path) in done.seen.empty,
        lambda path: ".".join(path) in done.seen.truncated,
        infer,
        lambda path: ".".join(path) in done.seen.rounded,
    )
    rows, classes = instants(done.rows).to_pylist(maps_as_pydicts=None), done.error_class.to_pylist()
    for content, row, error_class in zip(contents, rows, classes, strict=True):
        assert (row is None) == (error_class is not None), content
        yield content, Row(row) if error_class is None else Letter(error_class), reported


def decoder_of(columns: Sequence[Column], rules: Rules, plain: bool) -> JsonDecoder:
    """Return a decoder.

    Args:
        columns: The oracle's.
        rules: The topic's.
        plain: Whether the fast path takes what it can.
    """
    return JsonDecoder([_asked(column) for column in columns], rules, fast=plain)


def taken_fast(contents: Sequence[bytes], columns: Sequence[Column], infer: bool) -> int:
    """Return how many records of a batch the fast path takes."""
    reader = FastReader([_asked(column) for column in columns], Rules(infer=infer))
    return int(reader.read(pa.array(contents, pa.binary())).taken.sum())


def instants(array: Any) -> Any:
    """Return an array with its times as microseconds, which Python can compare."""
    return array.cast(_numbers(array.type))


def _numbers(kind: Any) -> Any:
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _numbers(field.type)) for field in kind])
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(_numbers(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, _numbers(kind.item_type))
    return pa.int64() if pa.types.is_timestamp(kind) else kind


def _asked(column: Column) -> tuple[str, Any, tuple[str, ...], bool, str]:
    return column.name, _kind(column.kind), column.sources, False, str(column.kind)


def _kind(kind: Any) -> Any:
    if isinstance(kind, str):
        return (kind,)
    if kind[0] == "struct":
        return "struct", tuple(_asked(field) for field in kind[1])
    return kind if kind[0] == "decimal" else (kind[0], _kind(kind[1]))


def _names(new_fields: Mapping[str, Any], path: tuple[str, ...]) -> bool:
    """Return whether a report of new fields names one: a level for each struct and list above it."""
    for step in path[:-1]:
        new_fields = new_fields.get("in", {}).get(step, {})
    return path[-1] in new_fields.get("new", {})
