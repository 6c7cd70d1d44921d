"""Placeholders: what Debezium writes for a value that PostgreSQL hasn't sent, in each type that it has one for.

A long value is stored beside its row (TOAST), and an update of other columns doesn't send it. A column of a type that
isn't here (``numeric``, arrays of times, fractions or booleans) is null then, which nothing tells from a real null.
https://debezium.io/documentation/reference/stable/connectors/postgresql.html#postgresql-toasted-values
"""

import json
from base64 import b64decode, b64encode
from datetime import date, timedelta
from hashlib import md5
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kafka_lake.cdc.task.change import where

DEFAULT_PLACEHOLDER = "__debezium_unavailable_value"
_HEX = "hex:"
_SHAPES = ("AQEAACDmEAAAAAAA/IPXl8EAAAD8g9eXwQ==", "AQEAACDmEAAADCHn/f9/ZkAYQs77/39WQA==")
"""The points that stand for a geometry and a geography, in well-known binary, whatever the setting is."""


class Placeholders:
    """Knows values that weren't sent.

    Raises:
        ValueError: If the setting begins with ``hex:`` and no bytes of UTF-8 follow.
    """

    def __init__(self, setting: str = DEFAULT_PLACEHOLDER) -> None:
        raw = bytes.fromhex(setting.removeprefix(_HEX)) if setting.startswith(_HEX) else setting.encode()
        text, encoded = raw.decode(), b64encode(raw).decode()
        id_ = str(UUID(bytes=md5(raw, usedforsecurity=False).digest(), version=3))
        # Java's bytes have a sign.
        numbers = [byte - 256 if byte > 127 else byte for byte in raw]
        as_text = json.dumps({text: text}, ensure_ascii=False, separators=(",", ":"))
        self._texts = [text, encoded, raw.hex(), as_text]
        days = [date(1970, 1, 1) + timedelta(days=number) for number in numbers]
        lists: list[Any] = [[text], [encoded], [id_], [raw], numbers, days, [(text, text)]]
        self._values: list[Any] = [*self._texts, raw, *lists, {text: text}]
        self._shapes = [*_SHAPES, *map(b64decode, _SHAPES)]
        self._bytes, self._sizes = pa.array([raw]), (1, len(numbers))
        marks = [text, json.dumps(text)[1:-1], encoded, raw.hex(), id_, ",".join(map(str, numbers)), *_SHAPES]
        self._marks = tuple(dict.fromkeys(marks))

    def is_one(self, value: Any) -> bool:
        """Return whether a value of a column, as JSON or Arrow has it in Python, is a placeholder."""
        if isinstance(value, dict) and "wkb" in value:
            return value["wkb"] in self._shapes
        return value in self._values

    def may_be_in(self, texts: pa.Array) -> np.ndarray:
        """Return which compact JSON texts may have a placeholder; few records have any."""
        found = np.zeros(len(texts), dtype=bool)
        for mark in self._marks:
            found |= where(pc.match_substring(texts, mark))
        return found

    def in_column(self, values: pa.Array) -> np.ndarray:
        """Return which values of a column are placeholders."""
        kind = values.type
        if pa.types.is_string(kind):
            return where(pc.is_in(values, pa.array(self._texts)))
        if pa.types.is_binary(kind):
            return where(pc.is_in(values, self._bytes))
        if pa.types.is_list(kind) or pa.types.is_map(kind):
            some = np.isin(np.diff(values.offsets), self._sizes) & values.is_valid().to_numpy(zero_copy_only=False)
        elif pa.types.is_struct(kind) and kind.get_field_index("wkb") >= 0:
            some = values.is_valid().to_numpy(zero_copy_only=False)
        else:
            return np.zeros(len(values), dtype=bool)
        for number in np.flatnonzero(some).tolist():
            some[number] = self.is_one(values[number].as_py())
        found: np.ndarray = some
        return found


def may_be_unavailable(kind: pa.DataType) -> bool:
    """Return whether a column's values may be stored beside their row in PostgreSQL, so that some aren't sent."""
    return not (pa.types.is_primitive(kind) or pa.types.is_decimal(kind) or pa.types.is_null(kind))
