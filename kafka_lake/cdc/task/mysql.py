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
    Changes,
    Columns,
    Errors,
    columns_of,
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
_MAXWELL_DOES = {"insert": UPSERT, "bootstrap-insert": UPSERT, "update": UPSERT, "delete": DELETE}
_CANAL_DOES = {"INSERT": UPSERT, "UPDATE": UPSERT, "DELETE": DELETE, "TRUNCATE": TRUNCATE}
_OF_KEY = "pk."
_WHOLE, _OTHER = {-7, -6, -5, 4, 5}, {2, 3, 6, 7, 8}
"""java.sql.Types of whole numbers, and of decimals and fractions."""
_NUMBER = re.compile(r"(-?)0*([0-9]+)((?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)", re.ASCII)


class _Messages:
    """Opens messages that have the row, what an update has changed of it, and the columns of the source's key."""

    shape: Mapping[str, Any]
    does: Mapping[str, str]
    time: tuple[str, int]
    no_type: str
    no_row: str

    def __init__(self, rows: Any, keys: Any, fields: Sequence[str], of_record: bool) -> None:
        self._rows, self._keys, self._fields, self._of_record = rows, keys, frozenset(fields), of_record
        self._members = JsonMembers(self.shape, JsonTexts())

    def open(self, batch: pa.RecordBatch) -> Changes:
        """Return what records say. One without a value says nothing new: the delete before it did."""
        errors, there = Errors(len(batch)), mask_of(batch.column("value"))
        members, _ = self._members.read(utf8(batch.column("value"), errors), errors)
        kinds = members["type"]
        errors.refuse(there & ~mask_of(kinds), NOT_A_CHANGE, lambda _: self.no_type)
        does = pa.array(list(self.does.values())).take(pc.index_in(kinds, pa.array(list(self.does))))
        errors.refuse(
            there & ~mask_of(does), NOT_A_CHANGE, lambda n: f"The type is {kinds[n]}: {self._what_else(members, n)}."
        )
        acts = there & ~where(pc.equal(does, TRUNCATE))
        row, old = self._row_and_old(members, acts, errors)
        has_row = acts & where(pc.starts_with(row, "{"))
        errors.refuse(acts & ~has_row, NOT_A_CHANGE, lambda n: f"The type is {kinds[n]}, and {self.no_row}.")
        if self._of_record:
            self._check_keys(self._key_names(members, batch.column("key")), acts, errors)
        rows = self._rows.decode(with_value(batch, only(row, has_row & ~errors.failed)))
        errors.add_decoded(rows)
        columns = columns_of(rows)
        updates = where(pc.is_in(kinds, pa.array(["update", "UPDATE"])))
        before, has_old = self._before(with_value(batch, only(old, updates)), columns)
        name, unit = self.time
        at = pc.multiply(only(members[name], where(pc.less_equal(members[name], LAST_MILLISECOND // unit))), unit)
        return Changes(
            does=pc.if_else(pa.array(there), does, NOTHING),
            columns=columns,
            errors=errors,
            old=before,
            has_old=has_old,
            at=only(at, where(pc.greater(at, 0))),
            source=joined_names([members["database"], members["table"]]),
            seen=rows.seen,
        )

    def _before(self, batch: pa.RecordBatch, row: Columns) -> tuple[Decoded, np.ndarray]:
        """Return the row's key before updates, and which of them may have changed it."""
        decoded = self._keys.decode(batch)
        changed = columns_of(decoded)
        has_old = mask_of(decoded.error_class)
        for values in changed.values():
            has_old = has_old | mask_of(values)
        before = [pc.coalesce(values, row[name]) for name, values in changed.items()]
        made = pa.StructArray.from_arrays(before, names=list(changed)) if before else decoded.rows
        return Decoded(made, np.arange(len(batch)), decoded.error_class, error_message=decoded.error_message), has_old

    def _check_keys(self, names: Sequence[Sequence[str] | None], acts: np.ndarray, errors: Errors) -> None:
        differ = np.array([bool(each) and set(each or ()) != self._fields for each in names], dtype=bool)
        errors.refuse(differ & acts, OTHER_KEY, lambda n: other_key("source's", names[n] or (), self._fields))

    def _row_and_old(self, members: Columns, acts: np.ndarray, errors: Errors) -> tuple[pa.Array, pa.Array]:
        raise NotImplementedError

    def _key_names(self, members: Columns, keys: pa.Array) -> Sequence[Sequence[str] | None]:
        raise NotImplementedError

    def _what_else(self, members: Columns, number: int) -> str:
        raise NotImplementedError


class Maxwell(_Messages):
    """Maxwell's messages."""

    shape, does, time = _MAXWELL, _MAXWELL_DOES, ("ts", 1000)
    no_type = "The value has no type: it is no message of Maxwell's."
    no_row = "`data` is no JSON object"

    def _row_and_old(self, members: Columns, acts: np.ndarray, errors: Errors) -> tuple[pa.Array, pa.Array]:
        return members["data"], members["old"]

    def _key_names(self, members: Columns, keys: pa.Array) -> Sequence[Sequence[str] | None]:
        named = members["primary_key_columns"].to_pylist()
        return [each or maxwell_key(key) for each, key in zip(named, keys.to_pylist(), strict=True)]

    def _what_else(self, members: Columns, number: int) -> str:
        kind = members["type"][number].as_py()
        if kind in ("bootstrap-start", "bootstrap-complete"):
            return "it begins or ends a bootstrap"
        if members["sql"][number].is_valid or kind.startswith(("table-", "database-")):
            return "it is a change of the schema; Maxwell writes those to a topic of their own by ddl_kafka_topic"
        return "it is no change of a row"


class Canal(_Messages):
    """Canal's flat messages. Values are text; those of numbers become numbers by the ``sqlType`` of their columns."""

    shape, does, time = _CANAL, _CANAL_DOES, ("es", 1)
    no_type = "The value has no type: it is no flat message of Canal's; set canal.mq.flatMessage."
    no_row = "`data` has no row"

    def _row_and_old(self, members: Columns, acts: np.ndarray, errors: Errors) -> tuple[pa.Array, pa.Array]:
        counts = pc.fill_null(pc.list_value_length(members["data"]), 0).to_numpy(zero_copy_only=False)
        several = "The type is {}, and `data` has {} rows."
        errors.refuse(acts & (counts > 1), SEVERAL_ROWS, lambda n: several.format(members["type"][n], counts[n]))
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
            return "it is a watermark of TiCDC's"
        is_ddl = members["isDdl"][number].as_py() == "true"
        return "it is a change of the schema" if is_ddl else "it is no change of a row"


def maxwell_key(key: bytes | None) -> list[str]:
    """Return the columns of a record's key, as producers write it: a hash, or an array.

    >>> maxwell_key(b'{"database": "d", "table": "t", "pk.id": 1}'), maxwell_key(b'["d", "t", [{"id": 1}, {"c": 2}]]')
    (['id'], ['id', 'c'])
    """
    try:
        found = json.loads(key) if key is not None else None
    except (ValueError, RecursionError):
        return []
    if isinstance(found, dict):
        return [name.removeprefix(_OF_KEY) for name in found if name.startswith(_OF_KEY)]
    if isinstance(found, list) and len(found) == 3 and isinstance(found[2], list):
        return [name for each in found[2] if isinstance(each, dict) for name in each]
    return []


def key_names(envelope: str, key: bytes | None, value: bytes | None) -> tuple[str, ...]:
    """Return the columns of the source's key that a record tells; none if it doesn't."""
    try:
        message = parse_object(value or b"")
    except (NotJsonError, TooDeepError):
        return ()
    does = _MAXWELL_DOES if envelope == "maxwell" else _CANAL_DOES
    if message.get("type") not in does:
        return ()
    named = message.get("primary_key_columns" if envelope == "maxwell" else "pkNames")
    return tuple(map(str, named or (maxwell_key(key) if envelope == "maxwell" else ())))


def _typed(rows: pa.Array, types: pa.Array) -> pa.Array:
    """Return rows whose numbers are numbers."""
    known: dict[str | None, Mapping[str, int]] = {}
    made = []
    for text, kinds in zip(rows.to_pylist(), types.to_pylist(), strict=True):
        if kinds not in known:
            found = json.loads(kinds) if kinds is not None else None
            known[kinds] = found if isinstance(found, dict) else {}
        mine = known[kinds]
        try:
            row = parse_object(text.encode()) if text is not None and mine else None
        except (NotJsonError, TooDeepError):
            row = None
        made.append(text if row is None else dumps({name: _value(each, mine.get(name)) for name, each in row.items()}))
    return pa.array(made, pa.string())


def _value(value: Any, kind: int | None) -> Any:
    """Return a value as the JSON that it means; what is no number stays as it is.

    >>> _value("007", 4), _value("1.50", 3), _value("x", 4), _value("7", 12), _value(None, 4)
    ('7', '1.50', 'x', '7', None)
    """
    if not isinstance(value, str) or kind not in _WHOLE | _OTHER:
        return value
    match = _NUMBER.fullmatch(value)
    if match is None or (kind in _WHOLE and match[3]):
        return value
    return Real("".join(match.groups()))
