"""Batches of JSON records become Arrow columns: on the fast path what surely fits, all else record by record.

The strict path defines what becomes of a record. The fast path takes only records on which both agree.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kafka_lake.formats.json.task.fast import FastReader, FastResult
from kafka_lake.formats.json.task.rows import Converter, MisfitError
from kafka_lake.formats.json.task.text import NotJsonError, TooDeepError, parse_object
from kafka_lake.formats.json.task.types import (
    Kind,
    empty_fields,
    kind_of,
    merged,
    merged_into,
    settled,
)
from kafka_lake.formats.json.task.values import Path
from kafka_lake.formats.task.columns import Column, Rules, arrow_type
from kafka_lake.formats.task.decoded import MESSAGE, Decoded, Observed, added, failed_at, in_order, too_large
from kafka_lake.formats.task.decoders import ValueDecoder
from kafka_lake.formats.task.error_classes import NOT_JSON, NULL_IN_REQUIRED_COLUMN, TOO_DEEP, UNDECODABLE, WRONG_TYPE


def json_decoder(columns: Sequence[Column], rules: Mapping[str, Any], max_bytes: int | None) -> "JsonDecoder":
    """Return the decoder for a task's data."""
    return JsonDecoder(columns, Rules(**rules), max_bytes)


class JsonDecoder(ValueDecoder):
    """Decodes batches of JSON records.

    Args:
        max_bytes: Longer values are ``too_large`` and not parsed; None for no limit.
        plain: Whether the fast path takes what it can; without it every record is decoded alone.
    """

    def __init__(
        self, columns: Sequence[Column], rules: Rules, max_bytes: int | None = None, plain: bool = True
    ) -> None:
        self._kind = arrow_type(("struct", tuple(columns)))
        self._columns, self._rules = tuple(columns), rules
        self._exact = Converter(columns, rules)
        self._max_bytes = max_bytes
        # One more than fit shows that they don't.
        self._most = rules.max_columns + 1
        self._fast = FastReader(columns, rules) if plain else None

    def decode(self, values: pa.Array) -> Decoded:
        """Decode values."""
        open_ = pc.is_valid(values).to_numpy(zero_copy_only=False)
        large = too_large(values, self._max_bytes)
        if large:
            open_ = open_.copy()
            open_[list(large)] = False
        todo = np.flatnonzero(open_)
        parts: list[pa.StructArray] = []
        places: list[np.ndarray] = []
        fast: FastResult | None = None
        if self._fast is not None and len(todo):
            fast = self._fast.read(values if len(todo) == len(values) else values.take(pa.array(todo)))
            parts.append(fast.rows)
            places.append(todo[fast.taken])
            todo = todo[~fast.taken]
        errors: dict[int, tuple[str, str]] = {}
        misfits: Kind = None
        if len(todo):
            made, at, errors, misfits = self._one_by_one(values, todo)
            parts.append(made)
            places.append(at)
        errors |= large
        made, at = in_order(parts, places, self._kind)
        return Decoded(made, at, *failed_at(errors, len(values)), self._seen(misfits, fast))

    def _seen(self, misfits: Kind, fast: FastResult | None) -> Observed:
        """Return what was in no column, of all values."""
        notes = self._exact.notes
        aside, rounded = (dict(fast.new_counts), dict(fast.rounded)) if fast else ({}, {})
        aside = added(aside, Counter(".".join((*path, name)) for path, name, _ in notes.found))
        rounded = added(rounded, Counter(map(".".join, notes.rounded)))
        news, empty = self._inferred(dict(fast.types) if fast else {}) if self._rules.infer else ({}, frozenset())
        cut = dict(Counter(map(".".join, notes.cut)))
        notes.back((0, 0, 0))
        alone = fast.slow if fast else {}
        return Observed(news, misfits, cut, empty, aside=aside, rounded=rounded, singly=alone).within(self._most)

    def _inferred(self, kinds: dict[tuple[Path, str], Kind]) -> tuple[dict[str, Any], frozenset[str]]:
        """Return the types of fields without a column, and the paths of those that are empty."""
        news: dict[str, Any] = {}
        empty: frozenset[str] = frozenset()
        for path, name, value in self._exact.notes.found:
            kinds[path, name] = merged_into(kinds.get((path, name)), kind_of(value))
        for (path, name), kind in kinds.items():
            below = ".".join((*path, name))
            empty |= {below if not inner else f"{below}.{inner}" for inner in empty_fields(kind)}
            if settled(kind, False) is None:
                continue
            node = news
            for step in path:
                node = node.setdefault("in", {}).setdefault(step, {})
            node.setdefault("new", {})[name] = kind
        return news, empty

    def _one_by_one(
        self, values: pa.Array, todo: np.ndarray
    ) -> tuple[pa.StructArray, np.ndarray, dict[int, tuple[str, str]], Kind]:
        """Return the rows of the values at these places, where they are, and why others failed."""
        rows: list[list[Any]] = []
        good: list[int] = []
        errors: dict[int, tuple[str, str]] = {}
        misfits: Kind = None
        for index, content in zip(todo.tolist(), values.take(pa.array(todo)).to_pylist(), strict=True):
            mark = self._exact.notes.mark()
            try:
                value = parse_object(content)
                row = self._exact.row(value)
                if not (missing := self._exact.missing(row)):
                    rows.append(row)
                    good.append(index)
                    continue
                error = NULL_IN_REQUIRED_COLUMN, f"Required, but null or missing: {', '.join(missing)}."
            except NotJsonError as reason:
                error = NOT_JSON, str(reason)
            except TooDeepError as reason:
                error = TOO_DEEP, str(reason)
            except MisfitError as reason:
                misfits = merged(misfits, reason.kind)
                error = WRONG_TYPE, self._exact.message(value, reason.kind[1])
            except Exception as reason:
                # Whatever it is, it is this record's, and must not stop the others.
                error = UNDECODABLE, f"{type(reason).__name__}: {reason}"
            self._exact.notes.back(mark)
            errors[index] = error[0], error[1][:MESSAGE]
        return _structs(rows, self._kind), np.array(good, dtype=np.int64), errors, misfits


def _structs(rows: Sequence[Sequence[Any]], kind: pa.StructType) -> pa.StructArray:
    """Return rows, each a list of its columns' values, as an array of structs."""
    columns = zip(*rows, strict=True) if rows else [()] * kind.num_fields
    arrays = [pa.array(column, field.type) for column, field in zip(columns, kind, strict=True)]
    return pa.StructArray.from_arrays(arrays, fields=list(kind)) if arrays else pa.array([{}] * len(rows), kind)
