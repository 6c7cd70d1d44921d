"""Batches of JSON records become Arrow columns: on the fast path what surely fits, all else record by record.

The strict path defines the result of a record. The fast path takes only records on which both agree.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from kafka_lake.formats.json.task.fast import FastReader, FastResult
from kafka_lake.formats.json.task.rows import Converter, TypeMismatchError
from kafka_lake.formats.json.task.text import NotJsonError, TooDeepError, parse_object
from kafka_lake.formats.json.task.types import Kind, empty_fields, kind_of, merged, merged_into, settled
from kafka_lake.formats.json.task.values import Path
from kafka_lake.formats.task.columns import Column, Rules, arrow_type
from kafka_lake.formats.task.decoded import MESSAGE, Decoded, Errors, Observed, added, failed_at, in_order, small_enough
from kafka_lake.formats.task.decoders import ValueDecoder
from kafka_lake.formats.task.error_classes import NOT_JSON, NULL_IN_REQUIRED_COLUMN, TOO_DEEP, UNDECODABLE, WRONG_TYPE


def json_decoder(columns: Sequence[Column], rules: Mapping[str, Any], max_bytes: int | None) -> "JsonDecoder":
    """Return the decoder for a task's data."""
    return JsonDecoder(columns, Rules(**rules), max_bytes)


class JsonDecoder(ValueDecoder):
    """Decodes batches of JSON records.

    Args:
        fast: Whether the fast path takes what it can; without it every record is decoded alone.
    """

    def __init__(
        self, columns: Sequence[Column], rules: Rules, max_bytes: int | None = None, fast: bool = True
    ) -> None:
        self._kind = arrow_type(("struct", tuple(columns)))
        self._rules, self._max_bytes = rules, max_bytes
        self._converter = Converter(columns, rules)
        self._reader = FastReader(columns, rules) if fast else None

    def decode(self, values: pa.Array) -> Decoded:
        """Decode values."""
        errors: Errors = {}
        todo = small_enough(values, self._max_bytes, errors)
        parts: list[pa.StructArray] = []
        places: list[np.ndarray] = []
        fast: FastResult | None = None
        if self._reader is not None and len(todo):
            fast = self._reader.read(values if len(todo) == len(values) else values.take(pa.array(todo)))
            parts.append(fast.rows)
            places.append(todo[fast.taken])
            todo = todo[~fast.taken]
        type_errors: Kind = None
        if len(todo):
            rows, at, type_errors = self._one_by_one(values, todo, errors)
            parts.append(rows)
            places.append(at)
        rows, at = in_order(parts, places, self._kind)
        return Decoded(rows, at, *failed_at(errors, len(values)), self._observed(type_errors, fast))

    def _observed(self, type_errors: Kind, fast: FastResult | None) -> Observed:
        """Return what no column has, of all values."""
        notes = self._converter.notes
        by_path, rounded = (fast.new_counts, fast.rounded) if fast else ({}, {})
        unmapped = added(by_path, Counter(".".join((*path, name)) for path, name, _ in notes.new_fields))
        new_fields, empty = self._inferred(dict(fast.types) if fast else {}) if self._rules.infer else ({}, frozenset())
        observed = Observed(
            new_fields,
            type_errors,
            truncated=dict(Counter(map(".".join, notes.truncated))),
            empty=empty,
            unmapped={path: count for path, count in unmapped.items() if path not in self._rules.unwanted},
            rounded=added(rounded, Counter(map(".".join, notes.rounded))),
            slow=fast.slow if fast else {},
        )
        notes.undo((0, 0, 0))
        # One more than fit shows that they don't.
        return observed.within(self._rules.max_columns + 1)

    def _inferred(self, types: dict[tuple[Path, str], Kind]) -> tuple[dict[str, Any], frozenset[str]]:
        """Return the types of fields without a column, and the paths of those that are empty."""
        new_fields: dict[str, Any] = {}
        empty: frozenset[str] = frozenset()
        for path, name, value in self._converter.notes.new_fields:
            types[path, name] = merged_into(types.get((path, name)), kind_of(value))
        for (path, name), kind in types.items():
            if not path and name in self._rules.unwanted:
                continue
            whole = ".".join((*path, name))
            empty |= {f"{whole}.{inner}" if inner else whole for inner in empty_fields(kind)}
            if settled(kind, False) is None:
                continue
            node = new_fields
            for step in path:
                node = node.setdefault("in", {}).setdefault(step, {})
            node.setdefault("new", {})[name] = kind
        return new_fields, empty

    def _one_by_one(
        self, values: pa.Array, todo: np.ndarray, errors: Errors
    ) -> tuple[pa.StructArray, np.ndarray, Kind]:
        """Return the rows of the values at these places, their places, and what type errors look like."""
        converter = self._converter
        rows: list[list[Any]] = []
        good: list[int] = []
        type_errors: Kind = None
        for place, content in zip(todo.tolist(), values.take(pa.array(todo)).to_pylist(), strict=True):
            mark = converter.notes.mark()
            try:
                value = parse_object(content)
                row = converter.row(value)
                if not (missing := converter.missing(row)):
                    rows.append(row)
                    good.append(place)
                    continue
                error = NULL_IN_REQUIRED_COLUMN, f"Required, but null or missing: {', '.join(missing)}."
            except NotJsonError as reason:
                error = NOT_JSON, str(reason)
            except TooDeepError as reason:
                error = TOO_DEEP, str(reason)
            except TypeMismatchError as reason:
                type_errors = merged(type_errors, reason.kind)
                error = WRONG_TYPE, converter.message(value, reason.kind[1])
            except Exception as reason:
                # One record must not stop the others.
                error = UNDECODABLE, f"{type(reason).__name__}: {reason}"
            converter.notes.undo(mark)
            errors[place] = error[0], error[1][:MESSAGE]
        return _structs(rows, self._kind), np.array(good, dtype=np.int64), type_errors


def _structs(rows: Sequence[Sequence[Any]], kind: pa.StructType) -> pa.StructArray:
    """Return rows, each a list of its columns' values, as an array of structs."""
    columns = zip(*rows, strict=True) if rows else [()] * kind.num_fields
    arrays = [pa.array(column, field.type) for column, field in zip(columns, kind, strict=True)]
    return pa.StructArray.from_arrays(arrays, fields=list(kind)) if arrays else pa.array([{}] * len(rows), kind)
