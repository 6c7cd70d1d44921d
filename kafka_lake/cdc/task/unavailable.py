"""Placeholders: what Debezium writes for a value that PostgreSQL didn't send.

PostgreSQL stores long values outside of their rows (TOAST) and doesn't send them with an update of other columns. Some
types have no placeholder (``numeric``, arrays of times, fractions or booleans): Debezium writes null for them.
https://debezium.io/documentation/reference/stable/connectors/postgresql.html#postgresql-toasted-values
"""

import json
import re
from base64 import b64decode, b64encode
from datetime import date, timedelta
from hashlib import md5
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kafka_lake.cdc.task.change import where

PLACEHOLDER = "__debezium_unavailable_value"
_POINTS = ("AQEAACDmEAAAAAAA/IPXl8EAAAD8g9eXwQ==", "AQEAACDmEAAADCHn/f9/ZkAYQs77/39WQA==")
"""The placeholders of geometry and geography, in well-known binary."""


class Placeholders:
    """Finds placeholders in rows and columns."""

    def __init__(self) -> None:
        text, raw = PLACEHOLDER, PLACEHOLDER.encode()
        encoded, numbers = b64encode(raw).decode(), list(raw)
        uuid = str(UUID(bytes=md5(raw, usedforsecurity=False).digest(), version=3))
        hstore = json.dumps({text: text}, separators=(",", ":"))
        self._texts = [text, encoded, raw.hex(), hstore]
        days = [date(1970, 1, 1) + timedelta(days=number) for number in numbers]
        lists: list[Any] = [[text], [encoded], [uuid], [raw], numbers, days, [(text, text)]]
        self._values: list[Any] = [*self._texts, raw, *lists, {text: text}]
        self._points = [*_POINTS, *map(b64decode, _POINTS)]
        self._bytes, self._sizes = pa.array([raw]), (1, len(numbers))
        parts = [text, encoded, raw.hex(), uuid, ",".join(map(str, numbers)), *_POINTS]
        self._parts = "|".join(map(re.escape, parts))

    def matches(self, value: Any) -> bool:
        """Return whether a value of a column, converted from JSON or Arrow, is a placeholder."""
        if isinstance(value, dict) and "wkb" in value:
            return value["wkb"] in self._points
        return value in self._values

    def may_be_in(self, texts: pa.Array) -> np.ndarray:
        """Return which compact JSON texts may contain a placeholder; few do."""
        return where(pc.match_substring_regex(texts, self._parts))

    def in_column(self, values: pa.Array) -> np.ndarray:
        """Return which values of a column are placeholders."""
        kind = values.type
        if pa.types.is_string(kind):
            return where(pc.is_in(values, pa.array(self._texts)))
        if pa.types.is_binary(kind):
            return where(pc.is_in(values, self._bytes))
        valid: np.ndarray = values.is_valid().to_numpy(zero_copy_only=False)
        if pa.types.is_list(kind) or pa.types.is_map(kind):
            candidates: np.ndarray = np.isin(np.diff(values.offsets), self._sizes) & valid
        elif pa.types.is_struct(kind) and kind.get_field_index("wkb") >= 0:
            candidates = valid.copy()
        else:
            return np.zeros(len(values), dtype=bool)
        for number in np.flatnonzero(candidates).tolist():
            candidates[number] = self.matches(values[number].as_py())
        return candidates


def may_be_unavailable(kind: pa.DataType) -> bool:
    """Return whether PostgreSQL may store a column's values outside of their rows, so that some aren't sent."""
    return not (pa.types.is_primitive(kind) or pa.types.is_decimal(kind) or pa.types.is_null(kind))
