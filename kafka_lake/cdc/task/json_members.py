"""Members of many JSON objects at once, as JSON text; and objects without the schema that Kafka Connect wraps them in.

DuckDB reads them. It writes some numbers anew, so the few records with such numbers are read one by one.
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
from kafka_lake.formats.json.task.json_texts import JsonTexts
from kafka_lake.formats.json.task.text import NotJsonError, TooDeepError, dumps, parse_object
from kafka_lake.formats.json.task.types import as_text
from kafka_lake.formats.task.error_classes import NOT_JSON, TOO_DEEP

_WRITTEN_ANEW = r"[0-9][eE][-+]?[0-9]|\.[0-9]*[0-9]0[\s,\]}]|[0-9]{8}\.[0-9]|\.[0-9]{9}|-?0\.000|-0[\s,\]}]"
"""Numbers that DuckDB writes otherwise than they were, 1.50 or 1e3, or may round."""
_WRAPPED = r'^\s*\{\s*"schema"\s*:'
_BEFORE_SCHEMA = re.compile(r'\s*\{\s*"schema"\s*:\s*')
_BEFORE_PAYLOAD = re.compile(r'\s*,\s*"payload"\s*:\s*')
_FEW = 200
_ARROW = {"VARCHAR": pa.string(), "JSON": pa.string(), "BIGINT": pa.int64()}

Shape = Mapping[str, Any]
"""Names of members → a type of DuckDB, ``JSON`` for JSON text; or a shape; or a list with the type of elements."""


class JsonMembers:
    """Reads members of JSON objects."""

    def __init__(self, shape: Shape, texts: JsonTexts) -> None:
        self._shape, self._kind, self._texts = shape, _kind(shape), texts

    def read(self, texts: pa.Array, errors: Errors) -> tuple[Columns, np.ndarray]:
        """Return members by their names, null for records without them; and which records were read one by one."""
        if is_few(texts, self._texts):
            nothing = pa.nulls(len(texts), self._kind)
            singly = mask_of(texts)
            made = self._with_single(nothing, texts, singly, errors)
            return dict(zip(self._shape, made.flatten(), strict=True)), singly
        singly = where(pc.match_substring_regex(texts, _WRITTEN_ANEW)) | where(pc.invert(pc.starts_with(texts, "{")))
        many = _but(texts, singly)
        made = self._texts.transformed(many, self._shape)
        if made is None:
            singly |= mask_of(many) & ~self._texts.valid(many)
            made = self._texts.transformed(_but(texts, singly), self._shape)
            assert made is not None, "it is JSON"
        if singly.any():
            made = self._with_single(made, texts, singly, errors)
        return dict(zip(self._shape, made.flatten(), strict=True)), singly

    def _with_single(self, made: pa.Array, texts: pa.Array, singly: np.ndarray, errors: Errors) -> pa.Array:
        rows: list[Any] = []
        places = np.arange(len(texts))
        for number in np.flatnonzero(singly).tolist():
            places[number] = len(texts) + len(rows)
            try:
                rows.append(_picked(parse_object(texts[number].as_py().encode()), self._shape))
            except (NotJsonError, TooDeepError) as error:
                rows.append(None)
                errors.add({number: (NOT_JSON if isinstance(error, NotJsonError) else TOO_DEEP, str(error))})
        return pa.concat_arrays([made.cast(self._kind), pa.array(rows, self._kind)]).take(pa.array(places))


@dataclass(frozen=True)
class Wrapped:
    """The numbers of records whose values have the same schema of Kafka Connect, and that, as JSON has it."""

    schema: Any
    places: np.ndarray


def unwrapped(texts: pa.Array) -> tuple[pa.Array, list[Wrapped]]:
    """Return objects without the schemas that Connect's JSON converter writes before them, and those schemas.

    A schema is parsed once: records that begin with the same text have the same schema.
    """
    rest = np.flatnonzero(where(pc.match_substring_regex(texts, _WRAPPED)) & where(pc.ends_with(texts, "}")))
    groups: list[Wrapped] = []
    while len(rest):
        prefix, schema = _prefix(texts[int(rest[0])].as_py())
        if prefix is None:
            rest = rest[1:]
            continue
        same = where(pc.starts_with(texts.take(pa.array(rest)), prefix))
        mine = rest[same]
        whole = texts.take(pa.array(mine)).cast(pa.binary())
        inner = pc.binary_slice(whole, len(prefix.encode()), -1).cast(pa.string())
        texts = replaced(texts, mine, inner)
        groups.append(Wrapped(schema, mine))
        rest = rest[~same]
    return texts, groups


def replaced(texts: pa.Array, places: np.ndarray, others: pa.Array) -> pa.Array:
    """Return texts with others at some ascending places."""
    mask = np.zeros(len(texts), dtype=bool)
    mask[places] = True
    return pc.replace_with_mask(texts, pa.array(mask), others)


def is_few(texts: pa.Array, duck: JsonTexts) -> bool:
    """Return whether texts are read one by one in less time than DuckDB needs to start."""
    return len(texts) - texts.null_count < _FEW and not duck.begun


def field_names(texts: pa.Array, duck: JsonTexts) -> tuple[np.ndarray, list[list[str]]]:
    """Return the fields of JSON objects: which of several lists of names each has, -1 for what is no object."""
    texts = only(texts, where(pc.starts_with(texts, "{")))
    if is_few(texts, duck):
        found = pa.array([_names(text) for text in texts.to_pylist()], pa.list_(pa.string()))
    elif (found := duck.names(texts)) is None:
        found = duck.names(only(texts, duck.valid(texts)))
    encoded = pc.binary_join(found, "\n").dictionary_encode()
    names = [each.split("\n") if each else [] for each in encoded.dictionary.to_pylist()]
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
        texts = [None if each is None else each.decode("utf-8", "replace") for each in values.to_pylist()]
        same = [None if t is None else t.encode() == v for t, v in zip(texts, values.to_pylist(), strict=True)]
        if errors is not None:
            said = NOT_JSON, "The value is not UTF-8."
            errors.add({number: said for number, is_same in enumerate(same) if is_same is False})
        return pa.array([text if ok else None for text, ok in zip(texts, same, strict=True)], pa.string())


def each_distinct(texts: pa.Array, change: Callable[[str], str | None]) -> pa.Array:
    """Return what a function makes of texts; called once for each that is different."""
    encoded = texts.dictionary_encode()
    made = pa.array([change(text) for text in encoded.dictionary.to_pylist()], pa.string())
    return made.take(encoded.indices)


def _prefix(text: str) -> tuple[str | None, Any]:
    """Return what stands before the payload, and the schema in it; None if there is no payload."""
    start = _BEFORE_SCHEMA.match(text)
    assert start is not None, "it begins so"
    try:
        schema, end = JSONDecoder().raw_decode(text, start.end())
    except (ValueError, RecursionError):
        return None, None
    payload = _BEFORE_PAYLOAD.match(text, end)
    return (text[: payload.end()], schema) if payload is not None else (None, None)


def _but(texts: pa.Array, mask: np.ndarray) -> pa.Array:
    return pc.if_else(pa.array(~mask), texts, pa.scalar(None, texts.type)) if mask.any() else texts


def _kind(shape: Any) -> Any:
    if isinstance(shape, Mapping):
        return pa.struct([pa.field(name, _kind(each)) for name, each in shape.items()])
    return pa.list_(_kind(shape[0])) if isinstance(shape, list) else _ARROW[shape]


def _picked(value: Any, shape: Any) -> Any:
    if isinstance(shape, Mapping):
        return (
            {name: _picked(value.get(name), each) for name, each in shape.items()} if isinstance(value, dict) else None
        )
    if isinstance(shape, list):
        return [_picked(each, shape[0]) for each in value] if isinstance(value, list) else None
    if value is None or shape == "JSON":
        return None if value is None else dumps(value)
    text = as_text(value)
    if shape == "BIGINT":
        return int(text) if re.fullmatch(r"-?[0-9]{1,18}", text) else None
    return text
