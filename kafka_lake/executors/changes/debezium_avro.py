"""Debezium's envelope in Avro, by the ids of a registry's schemas: the row is cut out of it as the bytes that it is.

What is cut out begins with a schema id as the record did: the id of the envelope stands for the schema of its rows, and
the id of a record's key for that of the key. https://debezium.io/documentation/reference/stable/configuration/avro.html
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from kafka_lake.executors.changes.avro_spans import Field, Types, branch
from kafka_lake.executors.changes.change import READ, UPSERT, Change, refused
from kafka_lake.executors.changes.debezium import NAMES, Envelope, RecordKey, no_operation, told_by
from kafka_lake.executors.changes.unavailable import Placeholders
from kafka_lake.executors.error_classes import MALFORMED, NOT_A_CHANGE

_HEADER = 5
_ROWS = ("before", "after")
_SOURCE = {
    "ts_ms",
    "connector",
    "sequence",
    "lsn",
    "file",
    "pos",
    "row",
    "commit_lsn",
    "change_lsn",
    "event_serial_no",
    "scn",
    "commit_scn",
    "snapshot",
    *NAMES,
}
"""Members of ``source`` that tell when and where a change was made, and its place in the source's order."""


def row_type(types: Types) -> Any:
    """Return the type of an envelope's rows, as its schema has it.

    Raises:
        ValueError: If the schema is no envelope's; says what it is.
    """
    fields = types.fields(types.root)
    kinds = {field.name: field.kind for field in fields or ()}
    if "op" not in kinds:
        raise ValueError(no_operation(kinds))
    for name in ("after", "before"):
        for each in _branches(types, kinds.get(name)):
            if types.fields(each) is not None:
                return each
    raise ValueError("The envelope has neither a row before nor one after.")


class AvroEnvelopes:
    """Tells what records say, by the schemas that are known.

    Args:
        schemas: As JSON text, by their ids; each named type is written out where it is first used.
        placeholders: Know values that weren't sent.
    """

    def __init__(self, schemas: Mapping[int, str], placeholders: Placeholders | None = None) -> None:
        self._schemas = dict(schemas)
        self._placeholders = placeholders or Placeholders()
        self._envelopes: dict[int, _Reader | Change] = {}
        self._keys: dict[int, tuple[str, ...] | None] = {}

    def change_of(self, key: bytes | None, value: bytes | None, columns: Collection[str], of_record: bool) -> Change:
        """Return what a record says.

        A value whose schema isn't known is handed on as it stands, for the decoder of rows to say so.

        Args:
            value: Its value; null for the tombstones that follow deletes.
            columns: Those of the row's key.
            of_record: Whether they are those of the record's key. If not, deletes must tell the row before.
        """
        told = self._key(key)
        if value is None:
            return told_by(told, None, columns, of_record)
        id_ = schema_id(value)
        if id_ not in self._schemas:
            return Change("", value, None)
        assert id_ is not None
        reader = self._envelope(id_)
        if isinstance(reader, Change):
            return reader
        try:
            envelope: Envelope | Change = reader.opened(value)
        except (ValueError, IndexError):
            envelope = refused(MALFORMED, f"The bytes don't decode by schema id {id_}.")
        change = told_by(told, envelope, columns, of_record)
        lacking = set(columns) - {field.name for field, _ in reader.columns}
        in_key = told is not None and bool(lacking & set(told.columns))
        return replace(change, key=key) if in_key and change.does in (UPSERT, READ) else change

    def key_columns(self, key: bytes) -> tuple[str, ...] | None:
        """Return the columns that a record's key tells; None if it tells none."""
        id_ = schema_id(key)
        if id_ not in self._schemas or id_ is None:
            return None
        if id_ not in self._keys:
            types = Types(json.loads(self._schemas[id_]))
            fields = types.fields(types.root)
            self._keys[id_] = None if fields is None else tuple(field.name for field in fields)
        return self._keys[id_]

    def _key(self, key: bytes | None) -> RecordKey | None:
        columns = None if key is None else self.key_columns(key)
        return None if key is None or columns is None else RecordKey(columns, key)

    def _envelope(self, id_: int) -> "_Reader | Change":
        if id_ not in self._envelopes:
            try:
                self._envelopes[id_] = _reader(Types(json.loads(self._schemas[id_])), self._placeholders)
            except ValueError as error:
                self._envelopes[id_] = refused(NOT_A_CHANGE, str(error))
        return self._envelopes[id_]


def schema_id(data: bytes) -> int | None:
    """Return the id of a schema that bytes begin with; None if they don't."""
    return int.from_bytes(data[1:_HEADER], "big") if len(data) >= _HEADER and data[0] == 0 else None


@dataclass(frozen=True)
class _Reader:
    """Opens the envelopes of one schema."""

    types: Types
    fields: tuple[Field, ...]
    rows: Mapping[str, frozenset[int]]
    source: tuple[Field, ...]
    columns: tuple[tuple[Field, tuple[bytes, ...]], ...]
    """The fields of rows, each with what its value begins with if it wasn't sent."""

    def opened(self, value: bytes) -> Envelope:
        """Return the envelope."""
        at = _HEADER
        found: dict[str, Any] = {}
        for field in self.fields:
            end = field.skip(value, at)
            if end > len(value):
                raise ValueError("cut off")
            if field.name in self.rows:
                found[field.name] = self._row(value, at, end, field)
            elif field.name == "op":
                found["op"] = field.read(value, at)
            elif field.name == "source":
                found["source"] = self._told(value, at)
            at = end
        if at != len(value):
            raise ValueError("goes on")
        after: bytes | None = found.get("after")
        unavailable = () if after is None else self._unavailable(after)
        return Envelope(
            found["op"] or "null", found.get("source") or {}, found.get("before"), after, unavailable=unavailable
        )

    def _unavailable(self, row: bytes) -> tuple[str, ...]:
        """Return the names of fields whose values weren't sent."""
        if not any(form in row for _, forms in self.columns for form in forms):
            return ()
        found, at = [], _HEADER
        for field, forms in self.columns:
            if row.startswith(forms, at):
                found.append(field.name)
            at = field.skip(row, at)
        return tuple(found)

    def _row(self, value: bytes, at: int, end: int, field: Field) -> bytes | None:
        kind = self.types.resolved(field.kind)
        which, begin = branch(value, at, len(kind)) if isinstance(kind, list) else (0, at)
        return value[:_HEADER] + value[begin:end] if which in self.rows[field.name] else None

    def _told(self, value: bytes, at: int) -> dict[str, str]:
        told = {}
        for field in self.source:
            end = field.skip(value, at)
            if field.name in _SOURCE:
                told[field.name] = json.dumps(field.read(value, at))
            at = end
        return told


def _reader(types: Types, placeholders: Placeholders) -> _Reader:
    row = types.resolved(row_type(types))
    fields = tuple(types.fields(types.root) or ())
    rows = {}
    for field in fields:
        if field.name in _ROWS:
            kinds = _branches(types, field.kind)
            rows[field.name] = frozenset(n for n, each in enumerate(kinds) if types.resolved(each) == row)
    source = next((types.fields(each.kind) for each in fields if each.name == "source"), None)
    columns = tuple((field, placeholders.in_avro(types, field.kind)) for field in types.fields(row) or ())
    return _Reader(types, fields, rows, tuple(source or ()), columns=columns)


def _branches(types: Types, kind: Any) -> list[Any]:
    if kind is None:
        return []
    known = types.resolved(kind)
    return known if isinstance(known, list) else [known]
