"""Maxwell's messages and the flat messages of Canal, also TiCDC's, in JSON: what a record says of a row.

Their order is that of Kafka: by default they have no position, and two changes may have the same time.
https://maxwells-daemon.io/dataformat/
https://github.com/alibaba/canal/blob/master/protocol/src/main/java/com/alibaba/otter/canal/protocol/FlatMessage.java
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kafka_lake.cdc.task.change import (
    DELETE,
    NOTHING,
    TRUNCATE,
    UPSERT,
    ChangeEvents,
    Columns,
    Errors,
    fields_of,
    mask_of,
    only,
    where,
    with_value,
)
from kafka_lake.cdc.task.debezium import LAST_MILLISECOND, joined_names, other_key
from kafka_lake.cdc.task.json_members import JsonMembers, utf8
from kafka_lake.formats.json.task.json_texts import JsonTexts
from kafka_lake.formats.json.task.text import NotJsonError, Real, TooDeepError, dumps, parse_object
from kafka_lake.formats.task.decoded import Decoded
from kafka_lake.formats.task.error_classes import NOT_A_CHANGE, OTHER_KEY, SEVERAL_ROWS

_TEXTS = dict.fromkeys(("type", "database", "table"), "VARCHAR")
_MAXWELL = {
    **_TEXTS,
    "data": "JSON",
    "old": "JSON",
    "primary_key_columns": ["VARCHAR"],
    "ts": "BIGINT",
    "sql": "VARCHAR",
}
_CANAL_ROWS = {"data": ["JSON"], "old": ["JSON"], "sqlType": "JSON"}
_CANAL = {**_TEXTS, **_CANAL_ROWS, "pkNames": ["VARCHAR"], "es": "BIGINT", "isDdl": "VARCHAR"}
_MAXWELL_OPERATIONS = {"insert": UPSERT, "bootstrap-insert": UPSERT, "update": UPSERT, "delete": DELETE}
_CANAL_OPERATIONS = {"INSERT": UPSERT, "UPDATE": UPSERT, "DELETE": DELETE, "TRUNCATE": TRUNCATE}
_KEY_PREFIX = "pk."
_INTEGERS, _FRACTIONS = {-7, -6, -5, 4, 5}, {2, 3, 6, 7, 8}
"""java.sql.Types of integers, and of decimals and floats."""
_NUMBER = re.compile(r"(-?)0*([0-9]+)((?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)", re.ASCII)


class _Messages:
    """Reads messages with the row, the values before an update, and the columns of the source's key."""

    shape: Mapping[str, Any]
    operations: Mapping[str, str]
    time: tuple[str, int]
    no_type: str
    no_row: str

    def __init__(self, rows: Any, keys: Any, fields: Sequence[str], of_record: bool) -> None:
        self._rows, self._keys, self._fields, self._of_record = rows, keys, frozenset(fields), of_record
        self._members = JsonMembers(self.shape, JsonTexts())

    def open(self, batch: pa.RecordBatch) -> ChangeEvents:
        """Return the change events of records. One without a value is the tombstone after a delete."""
        errors, has_value = Errors(len(batch)), mask_of(batch.column("value"))
        members, _ = self._members.read(utf8(batch.column("value"), errors), errors)
        kinds = members["type"]
        errors.reject(has_value & ~mask_of(kinds), NOT_A_CHANGE, lambda _: self.no_type)
        operations = pa.array(list(self.operations.values())).take(pc.index_in(kinds, pa.array(list(self.operations))))
        errors.reject(
            has_value & ~mask_of(operations),
            NOT_A_CHANGE,
            lambda n: f"The type is {kinds[n]}: {self._what_else(members, n)}.",
        )
        of_rows = has_value & ~where(pc.equal(operations, TRUNCATE))
        row, old = self._row_and_old(members, of_rows, errors)
        has_row = of_rows & where(pc.starts_with(row, "{"))
        errors.reject(of_rows & ~has_row, NOT_A_CHANGE, lambda n: f"The type is {kinds[n]}, and {self.no_row}.")
        if self._of_record:
            self._check_keys(self._key_names(members, batch.column("key")), of_rows, errors)
        rows = self._rows.decode_records(with_value(batch, only(row, has_row & ~errors.failed)))
        errors.add_decoded(rows)
        columns = fields_of(rows.rows)
        updates = where(pc.is_in(kinds, pa.array(["update", "UPDATE"])))
        old_key, has_old_key = self._old_key(with_value(batch, only(old, updates)), columns)
        name, unit = self.time
        at = pc.multiply(only(members[name], where(pc.less_equal(members[name], LAST_MILLISECOND // unit))), unit)
        return ChangeEvents(
            operations=pc.if_else(pa.array(has_value), operations, NOTHING),
            columns=columns,
            errors=errors,
            old_key=old_key,
            has_old_key=has_old_key,
            at=only(at, where(pc.greater(at, 0))),
            source=joined_names([members["database"], members["table"]]),
            observed=rows.seen,
        )

    def _old_key(self, batch: pa.RecordBatch, row: Columns) -> tuple[Decoded, np.ndarray]:
        """Return the row's key before updates, and which updates may have changed it."""
        decoded = self._keys.decode_records(batch)
        changed = fields_of(decoded.rows)
        has_old = mask_of(decoded.error_class)
        for values in changed.values():
            has_old = has_old | mask_of(values)
        before = [pc.coalesce(values, row[name]) for name, values in changed.items()]
        made = pa.StructArray.from_arrays(before, names=list(changed)) if before else decoded.rows
        return Decoded(made, np.arange(len(batch)), decoded.error_class, error_message=decoded.error_message), has_old

    def _check_keys(self, names: Sequence[Sequence[str] | None], of_rows: np.ndarray, errors: Errors) -> None:
        differ = np.array([bool(key) and set(key or ()) != self._fields for key in names], dtype=bool)
        errors.reject(differ & of_rows, OTHER_KEY, lambda n: other_key("source's", names[n] or (), self._fields))

    def _row_and_old(self, members: Columns, of_rows: np.ndarray, errors: Errors) -> tuple[pa.Array, pa.Array]:
        raise NotImplementedError

    def _key_names(self, members: Columns, keys: pa.Array) -> Sequence[Sequence[str] | None]:
        raise NotImplementedError

    def _what_else(self, members: Columns, number: int) -> str:
        raise NotImplementedError


class Maxwell(_Messages):
    """Maxwell's messages."""

    shape, operations, time = _MAXWELL, _MAXWELL_OPERATIONS, ("ts", 1000)
    no_type = "The value has no type: it is not a message of Maxwell."
    no_row = "`data` is not a JSON object"

    def _row_and_old(self, members: Columns, of_rows: np.ndarray, errors: Errors) -> tuple[pa.Array, pa.Array]:
        return members["data"], members["old"]

    def _key_names(self, members: Columns, keys: pa.Array) -> Sequence[Sequence[str] | None]:
        named = members["primary_key_columns"].to_pylist()
        return [names or maxwell_key(key) for names, key in zip(named, keys.to_pylist(), strict=True)]

    def _what_else(self, members: Columns, number: int) -> str:
        kind = members["type"][number].as_py()
        if kind in ("bootstrap-start", "bootstrap-complete"):
            return "it begins or ends a bootstrap"
        if members["sql"][number].is_valid or kind.startswith(("table-", "database-")):
            return "it is a change of the schema; set ddl_kafka_topic, and Maxwell writes those to another topic"
        return "it is not a change of a row"


class Canal(_Messages):
    """Canal's flat messages. Values are text; ``sqlType`` says which are numbers."""

    shape, operations, time = _CANAL, _CANAL_OPERATIONS, ("es", 1)
    no_type = "The value has no type: it is not a flat message of Canal; set canal.mq.flatMessage."
    no_row = "`data` has no row"

    def _row_and_old(self, members: Columns, of_rows: np.ndarray, errors: Errors) -> tuple[pa.Array, pa.Array]:
        counts = pc.fill_null(pc.list_value_length(members["data"]), 0).to_numpy(zero_copy_only=False)
        several = "The type is {}, and `data` has {} rows."
        errors.reject(of_rows & (counts > 1), SEVERAL_ROWS, lambda n: several.format(members["type"][n], counts[n]))
        row, old = (
            pc.list_element(pc.list_slice(members[name], 0, 1, return_fixed_size_list=True), 0)
            for name in ("data", "old")
        )
        return _typed(row, members["sqlType"]), _typed(old, members["sqlType"])

    def _key_names(self, members: Columns, keys: pa.Array) -> Sequence[Sequence[str] | None]:
        names: list[list[str] | None] = members["pkNames"].to_pylist()
        return names

    def _what_else(self, members: Columns, number: int) -> str:
        if members["type"][number].as_py() == "TIDB_WATERMARK":
            return "it is a watermark of TiCDC"
        is_ddl = members["isDdl"][number].as_py() == "true"
        return "it is a change of the schema" if is_ddl else "it is not a change of a row"


def maxwell_key(key: bytes | None) -> list[str]:
    """Return the columns of a record's key, in Maxwell's formats ``hash`` and ``array``; empty for other keys.

    >>> maxwell_key(b'{"database": "d", "table": "t", "pk.id": 1}'), maxwell_key(b'["d", "t", [{"id": 1}, {"c": 2}]]')
    (['id'], ['id', 'c'])
    """
    try:
        parsed = json.loads(key) if key is not None else None
    except (ValueError, RecursionError):
        return []
    if isinstance(parsed, dict):
        return [name.removeprefix(_KEY_PREFIX) for name in parsed if name.startswith(_KEY_PREFIX)]
    if isinstance(parsed, list) and len(parsed) == 3 and isinstance(parsed[2], list):
        return [name for column in parsed[2] if isinstance(column, dict) for name in column]
    return []


def key_names(envelope: str, key: bytes | None, value: bytes | None) -> tuple[str, ...]:
    """Return the columns of the source's key by one record; empty if it doesn't name them."""
    try:
        message = parse_object(value or b"")
    except (NotJsonError, TooDeepError):
        return ()
    if message.get("type") not in (_MAXWELL_OPERATIONS if envelope == "maxwell" else _CANAL_OPERATIONS):
        return ()
    named = message.get("primary_key_columns" if envelope == "maxwell" else "pkNames")
    return tuple(map(str, named or (maxwell_key(key) if envelope == "maxwell" else ())))


def _typed(rows: pa.Array, types: pa.Array) -> pa.Array:
    """Write the numbers of rows as JSON numbers."""
    cached: dict[str | None, Mapping[str, int]] = {}
    made = []
    for text, kinds in zip(rows.to_pylist(), types.to_pylist(), strict=True):
        if kinds not in cached:
            parsed = json.loads(kinds) if kinds is not None else None
            cached[kinds] = parsed if isinstance(parsed, dict) else {}
        by_column = cached[kinds]
        try:
            row = parse_object(text.encode()) if text is not None and by_column else None
        except (NotJsonError, TooDeepError):
            row = None
        typed = row and {name: _value(value, by_column.get(name)) for name, value in row.items()}
        made.append(text if typed is None else dumps(typed))
    return pa.array(made, pa.string())


def _value(value: Any, kind: int | None) -> Any:
    """Return a number in text as a JSON number; other values stay.

    >>> _value("007", 4), _value("1.50", 3), _value("x", 4), _value("7", 12), _value(None, 4)
    ('7', '1.50', 'x', '7', None)
    """
    if not isinstance(value, str) or kind not in _INTEGERS | _FRACTIONS:
        return value
    match = _NUMBER.fullmatch(value)
    if match is None or (kind in _INTEGERS and match[3]):
        return value
    return Real("".join(match.groups()))
