"""Reads members of JSON objects as columns, and removes the schema that Kafka Connect writes around objects.

DuckDB reads the members. Records whose numbers it would change are read one by one.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from json import JSONDecoder
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kafka_lake.cdc.task.change import Columns, Errors, mask_of, only, where
from kafka_lake.formats.json.task.json_texts import REWRITTEN, JsonTexts
from kafka_lake.formats.json.task.text import NotJsonError, TooDeepError, dumps, parse_object
from kafka_lake.formats.json.task.types import as_text
from kafka_lake.formats.task.error_classes import NOT_JSON, TOO_DEEP

_MAY_CHANGE = rf"{REWRITTEN}|[0-9]{{8}}\.[0-9]|\.[0-9]{{9}}"
"""Numbers that DuckDB rewrites, or may round."""
_WRAPPED = r'^\s*\{\s*"schema"\s*:'
_BEFORE_SCHEMA = re.compile(r'\s*\{\s*"schema"\s*:\s*')
_BEFORE_PAYLOAD = re.compile(r'\s*,\s*"payload"\s*:\s*')
_FEW = 200
_ARROW = {"VARCHAR": pa.string(), "JSON": pa.string(), "BIGINT": pa.int64()}

Shape = Mapping[str, Any]
"""Member → a type of DuckDB (``JSON`` for JSON text), a shape, or a list with the type of its elements."""


class JsonMembers:
    """Reads members of JSON objects."""

    def __init__(self, shape: Shape, texts: JsonTexts) -> None:
        self._shape, self._kind, self._texts = shape, _kind(shape), texts

    def read(self, texts: pa.Array, errors: Errors) -> tuple[Columns, np.ndarray]:
        """Return members by name, null for records without them; and which records were read one by one."""
        if is_few(texts, self._texts):
            nothing = pa.nulls(len(texts), self._kind)
            one_by_one = mask_of(texts)
            made = self._with_single(nothing, texts, one_by_one, errors)
            return dict(zip(self._shape, made.flatten(), strict=True)), one_by_one
        one_by_one = where(pc.invert(pc.starts_with(texts, "{")))
        made = self._texts.transformed(only(texts, ~one_by_one), self._shape)
        if made is None:
            one_by_one |= mask_of(texts) & ~self._texts.valid(texts)
            made = self._texts.transformed(only(texts, ~one_by_one), self._shape)
            assert made is not None, "it is JSON"
        suspects = np.flatnonzero(where(pc.match_substring_regex(texts, _MAY_CHANGE)) & ~one_by_one)
        one_by_one[suspects] = self._are_changed(made.take(pa.array(suspects)), texts.take(pa.array(suspects)))
        if one_by_one.any():
            made = self._with_single(made, texts, one_by_one, errors)
        return dict(zip(self._shape, made.flatten(), strict=True)), one_by_one

    def _are_changed(self, made: pa.StructArray, texts: pa.Array) -> np.ndarray:
        """Return which objects don't contain their members word for word: DuckDB may have changed a number."""
        changed = np.zeros(len(texts), dtype=bool)
        whole = texts.to_pylist()
        for (name, kind), values in zip(self._shape.items(), made.flatten(), strict=True):
            if kind in ("JSON", ["JSON"]):
                for number, value in enumerate(values.to_pylist()):
                    changed[number] |= value is not None and f'"{name}":{value}' not in whole[number]
        return changed

    def _with_single(self, made: pa.Array, texts: pa.Array, one_by_one: np.ndarray, errors: Errors) -> pa.Array:
        rows: list[Any] = []
        places = np.arange(len(texts))
        for number in np.flatnonzero(one_by_one).tolist():
            places[number] = len(texts) + len(rows)
            try:
                rows.append(_picked(parse_object(texts[number].as_py().encode()), self._shape))
            except (NotJsonError, TooDeepError) as error:
                rows.append(None)
                errors.add({number: (NOT_JSON if isinstance(error, NotJsonError) else TOO_DEEP, str(error))})
        return pa.concat_arrays([made.cast(self._kind), pa.array(rows, self._kind)]).take(pa.array(places))


@dataclass(frozen=True)
class Wrapped:
    """A schema of Kafka Connect, and the numbers of the records that have it."""

    schema: Any
    places: np.ndarray


def unwrapped(texts: pa.Array) -> tuple[pa.Array, list[Wrapped]]:
    """Return objects without the schemas that Connect's JSON converter writes before them, and these schemas.

    A schema is parsed once for all records that begin with the same text.
    """
    rest = np.flatnonzero(where(pc.match_substring_regex(texts, _WRAPPED)) & where(pc.ends_with(texts, "}")))
    groups: list[Wrapped] = []
    while len(rest):
        prefix, schema = _prefix(texts[int(rest[0])].as_py())
        if prefix is None:
            rest = rest[1:]
            continue
        same = where(pc.starts_with(texts.take(pa.array(rest)), prefix))
        places = rest[same]
        whole = texts.take(pa.array(places)).cast(pa.binary())
        inner = pc.binary_slice(whole, len(prefix.encode()), -1).cast(pa.string())
        texts = replaced(texts, places, inner)
        groups.append(Wrapped(schema, places))
        rest = rest[~same]
    return texts, groups


def replaced(texts: pa.Array, places: np.ndarray, new: pa.Array) -> pa.Array:
    """Return texts with new ones at some ascending places."""
    mask = np.zeros(len(texts), dtype=bool)
    mask[places] = True
    return pc.replace_with_mask(texts, pa.array(mask), new)


def is_few(texts: pa.Array, duck: JsonTexts) -> bool:
    """Return whether reading texts one by one is faster than starting DuckDB."""
    return len(texts) - texts.null_count < _FEW and not duck.begun


def field_names(texts: pa.Array, duck: JsonTexts) -> tuple[np.ndarray, list[list[str]]]:
    """Return the lists of names that JSON objects have, and the index of each object's list; -1 for other texts."""
    texts = only(texts, where(pc.starts_with(texts, "{")))
    if is_few(texts, duck):
        keys = pa.array([_names(text) for text in texts.to_pylist()], pa.list_(pa.string()))
    elif (keys := duck.names(texts)) is None:
        keys = duck.names(only(texts, duck.valid(texts)))
    encoded = pc.binary_join(keys, "\n").dictionary_encode()
    names = [names.split("\n") if names else [] for names in encoded.dictionary.to_pylist()]
    return pc.fill_null(encoded.indices, -1).to_numpy(zero_copy_only=False), names


def _names(text: str | None) -> list[str] | None:
    try:
        return None if text is None else list(parse_object(text.encode()))
    except (NotJsonError, TooDeepError):
        return None


def utf8(values: pa.Array, errors: Errors | None = None) -> pa.Array:
    """Return bytes as text, null for what isn't UTF-8."""
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        texts = [None if value is None else value.decode("utf-8", "replace") for value in values.to_pylist()]
        same = [None if t is None else t.encode() == v for t, v in zip(texts, values.to_pylist(), strict=True)]
        if errors is not None:
            error = NOT_JSON, "The value is not UTF-8."
            errors.add({number: error for number, is_same in enumerate(same) if is_same is False})
        return pa.array([text if ok else None for text, ok in zip(texts, same, strict=True)], pa.string())


def map_distinct(texts: pa.Array, change: Callable[[str], str | None]) -> pa.Array:
    """Apply a function to texts, once for each distinct text."""
    encoded = texts.dictionary_encode()
    made = pa.array([change(text) for text in encoded.dictionary.to_pylist()], pa.string())
    return made.take(encoded.indices)


def _prefix(text: str) -> tuple[str | None, Any]:
    """Return the text before the payload, and the schema in it; None if there is no payload."""
    start = _BEFORE_SCHEMA.match(text)
    assert start is not None, "it begins so"
    try:
        schema, end = JSONDecoder().raw_decode(text, start.end())
    except (ValueError, RecursionError):
        return None, None
    payload = _BEFORE_PAYLOAD.match(text, end)
    return (text[: payload.end()], schema) if payload is not None else (None, None)


def _kind(shape: Any) -> Any:
    if isinstance(shape, Mapping):
        return pa.struct([pa.field(name, _kind(part)) for name, part in shape.items()])
    return pa.list_(_kind(shape[0])) if isinstance(shape, list) else _ARROW[shape]


def _picked(value: Any, shape: Any) -> Any:
    if isinstance(shape, Mapping):
        return (
            {name: _picked(value.get(name), kind) for name, kind in shape.items()} if isinstance(value, dict) else None
        )
    if isinstance(shape, list):
        return [_picked(element, shape[0]) for element in value] if isinstance(value, list) else None
    if value is None or shape == "JSON":
        return None if value is None else dumps(value)
    text = as_text(value)
    if shape == "BIGINT":
        return int(text) if re.fullmatch(r"-?[0-9]{1,18}", text) else None
    return text
