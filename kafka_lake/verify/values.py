"""A sample of values, compared with an independent decoding: json, fastavro, and Protobuf's own parser.

Rows are read by DuckDB. Nothing of kafka_lake's decoders is used.
"""

import base64
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from math import isnan
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
from confluent_kafka import Message
from pyiceberg import types as I

from kafka_lake.catalog.positions import TableState
from kafka_lake.catalog.tables import sources_of
from kafka_lake.engine.task import METADATA_COLUMN
from kafka_lake.formats.base import Part
from kafka_lake.formats.registered import FromFile, Registered
from kafka_lake.formats.rows import change_columns
from kafka_lake.runtime.context import Connections
from kafka_lake.runtime.snapshot_rows import Database, quoted
from kafka_lake.spec.topic_table import TopicTable
from kafka_lake.verify.report import Report
from kafka_lake.verify.window import Window

_LEAST = 1_000
MOST_AT_ONCE = 200_000
"""Sampled records that are in memory at a time."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROS = timedelta(microseconds=1)
_UNITS: Mapping[str | None, int] = {"s": 1_000_000, "ms": 1_000, "us": 1}


class Comparison:
    """Compares a sample of a topic's records with the table's rows and dead letters."""

    def __init__(
        self, spec: TopicTable, state: TableState, connections: Connections, share: float, *, report: Report
    ) -> None:
        self._spec, self._share, self._report = spec, share, report
        own = {METADATA_COLUMN, spec.key_column, *(field.name for field in change_columns(spec))}
        columns = [field for field in state.table.schema().fields if field.name not in own]
        self._fields = fields_of(columns, sources_of(state.table), spec.renames)
        self._seed = state.head or 0
        self._chosen = np.zeros(0, dtype=bool)
        self._records: dict[int, Message] = {}
        self._read: Callable[[bytes, Any], Any] | None = None
        reasons = {
            f"transform {spec.transform} makes the rows": spec.transform is not None,
            f"envelope {spec.envelope} has the rows": spec.has_envelope,
            "a null leaves a column as it was": spec.is_partial,
        }
        if reason := next((reason for reason, applies in reasons.items() if applies), ""):
            report.note(f"values: {reason}")
        elif share:
            self._read = reader_of(Part(spec, "value", state=state, registry=connections.registry))

    def choose(self, window: Window) -> None:
        """Choose offsets of a window, the same for the same snapshot."""
        size = max(len(window), 1)
        share = min(max(self._share, _LEAST / size), MOST_AT_ONCE / size) if self._share else 0.0
        if share < self._share:
            self._report.note(f"values of more than {MOST_AT_ONCE:,} records of each {size:,} offsets")
        self._chosen = np.random.default_rng(self._seed).random(len(window), dtype=np.float32) < share
        self._records = {}

    def keep(self, cells: np.ndarray, messages: Sequence[Message]) -> None:
        """Keep the chosen records."""
        if len(self._chosen):
            for number in np.flatnonzero((cells >= 0) & self._chosen[cells]).tolist():
                self._records[int(cells[number])] = messages[number]

    def compare(
        self, window: Window, database: Database, rows: str, live: Callable[[str], str], *, dead_letters: str | None
    ) -> None:
        """Compare the kept records with the rows and dead letters that are there once.

        Args:
            rows: A query for the table's rows; ``live`` returns the query for places and ``content`` of a query's rows.
        """
        if not self._records:
            return
        chosen = np.zeros(len(window), dtype=bool)
        chosen[list(self._records)] = True
        kafka, offset = quoted(METADATA_COLUMN), quoted("offset")
        same = f"r.{kafka}.partition = s.p AND r.{kafka}.{offset} = s.o"
        near = f"SELECT r.* FROM ({rows}) AS r SEMI JOIN sampled AS s ON {same}"
        row = f"SELECT p, o, content FROM ({live(near)}) WHERE code = 0 AND NOT mark"
        queries = [(window.rows == 1, row, self._row)]
        if dead_letters is not None:
            here = "SEMI JOIN sampled AS s ON r.partition = s.p AND r.offset = s.o"
            letter = f"SELECT partition AS p, {offset} AS o, r AS content FROM ({dead_letters}) AS r {here}"
            queries.append((window.dead_letters == 1, letter, self._dead_letter))
        for once, query, compare in queries:
            partitions, offsets = window.places(chosen & once)
            database.register("sampled", pa.table({"p": partitions, "o": offsets}))
            for batch in database.sql(query).to_arrow_reader(10_000):
                cells = window.cells(batch.column("p").to_numpy(), batch.column("o").to_numpy())
                for cell, content in zip(cells.tolist(), batch.column("content").to_pylist(), strict=True):
                    compare(self._records[cell], content)
            database.unregister("sampled")

    def _row(self, record: Message, row: Mapping[str, Any]) -> None:
        origin = row[METADATA_COLUMN]
        different = self._compare_origin(record, origin)
        stamp = origin["timestamp"]
        if stamp is not None and _micros(stamp) != record.timestamp()[1] * 1000:
            different.add("timestamp")
        value = record.value()
        if self._read is not None and value is not None:
            try:
                decoded = self._read(value, record.headers())
            except Exception:
                # Each library has errors of its own.
                different.add("the record can't be decoded")
            else:
                different |= set(differences(decoded, row, self._fields, self._spec))
            self._report.counts["compared_rows"] += 1
        self._add_different(record, different)

    def _dead_letter(self, record: Message, row: Mapping[str, Any]) -> None:
        different = self._compare_origin(record, row)
        self._report.counts["compared_dead_letters"] += 1
        if row["value"] != record.value():
            different.add("value")
        self._add_different(record, different)

    def _compare_origin(self, record: Message, origin: Mapping[str, Any]) -> set[str]:
        """Report another key, and return whether the headers differ."""
        if origin["key"] != record.key():
            self._report.add("key_differs", self._spec.topic, record.partition(), [record.offset()])
        headers = [(header["key"], header["value"]) for header in origin["headers"] or ()]
        return {"headers"} if headers != (record.headers() or []) else set()

    def _add_different(self, record: Message, columns: set[str]) -> None:
        if columns:
            self._report.add("value_differs", self._spec.topic, record.partition(), [record.offset()], columns=columns)


Fields = Mapping[str, tuple[Any, tuple[str, ...], Any]]
"""By column: its type, the names of the fields that feed it, and the columns of a struct in it."""


def fields_of(columns: Iterable[Any], sources: Mapping[str, str], renames: Mapping[str, str]) -> Fields:
    """Return the fields that feed columns of Iceberg's types; ``sources`` are by path, ``renames`` are old to new."""
    before: dict[str, list[str]] = {}
    for old, new in renames.items():
        parent, dot, last = old.rpartition(".")
        before.setdefault(f"{parent}{dot}{new}", []).append(last)

    def fields(within: Iterable[Any], prefix: str) -> Fields:
        paths = {column.name: f"{prefix}{column.name}" for column in within}
        names = {name: (sources.get(path, name), *before.get(path, ())) for name, path in paths.items()}
        return {c.name: (c.field_type, names[c.name], inner(c.field_type, paths[c.name])) for c in within}

    def inner(kind: Any, path: str) -> Any:
        if isinstance(kind, I.StructType):
            return fields(kind.fields, f"{path}.")
        if isinstance(kind, I.ListType):
            return inner(kind.element_type, f"{path}.element")
        return inner(kind.value_type, f"{path}.value") if isinstance(kind, I.MapType) else None

    return fields(columns, "")


def differences(value: Any, row: Mapping[str, Any], fields: Mapping[str, Any], spec: TopicTable) -> Iterator[str]:
    """Yield the columns of a row that don't hold what a decoded record has for them."""
    if not isinstance(value, dict):
        value = {"value": value}
    by_field: dict[str, list[str]] = {}
    for column, (_, names, _) in fields.items():
        by_field.setdefault(names[0], []).append(column)
    for field, columns in by_field.items():
        present = [key for key in fields[columns[0]][1] if key in value]
        if not present and (spec.format in ("protobuf", "confluent") or _in_another_case(field, value)):
            # Fields without presence, and parts of a timestamp; which name in another case feeds a column depends.
            continue
        given = value[present[0]] if present else None
        # Of several columns for one field, one has the value.
        if not any(_same(given, row[column], fields[column][0], fields[column][2], spec=spec) for column in columns):
            yield columns[0]


def _in_another_case(field: str, value: Mapping[str, Any]) -> bool:
    return any(key.lower() == field.lower() for key in value)


def _same(value: Any, stored: Any, kind: Any, inner: Any, *, spec: TopicTable) -> bool:
    """Return whether a column of a type holds a decoded value."""
    if stored is None or value is None:
        return stored is None and _is_empty(value)
    if isinstance(kind, I.StructType):
        if isinstance(value, dict) and not list(differences(value, stored, inner, spec)):
            return True
        # A union is a struct with one field that isn't null.
        members = [n for n, member in stored.items() if member is not None]
        return len(members) == 1 and _same(value, stored[members[0]], *inner[members[0]][::2], spec=spec)
    if isinstance(kind, I.ListType):
        pairs = zip(value, stored, strict=False)
        return len(value) == len(stored) and all(_same(a, b, kind.element_type, inner, spec=spec) for a, b in pairs)
    if isinstance(kind, I.MapType):
        held = {str(key): entry for key, entry in (stored.items() if isinstance(stored, dict) else stored)}
        return {*map(str, value)} == held.keys() and all(
            _same(entry, held[str(key)], kind.value_type, inner, spec=spec) for key, entry in value.items()
        )
    try:
        return _scalar(value, stored, kind, spec)
    except (ValueError, ArithmeticError, TypeError):
        # A value that its column can't hold.
        return False


def _is_empty(value: Any) -> bool:
    """Return whether a value has only brackets and nulls: such a field may have had no column yet."""
    if isinstance(value, dict | list):
        return all(map(_is_empty, value.values() if isinstance(value, dict) else value))
    return value is None


def _scalar(value: Any, stored: Any, kind: Any, spec: TopicTable) -> bool:
    expected = value
    if isinstance(kind, I.BooleanType) or isinstance(value, bool):
        return value is stored or (isinstance(kind, I.StringType) and stored == json.dumps(value))
    if isinstance(kind, I.FloatType | I.DoubleType):
        expected = np.float32(float(value)) if isinstance(kind, I.FloatType) else float(value)
        return bool(expected == stored) or (isnan(expected) and isnan(stored))
    if isinstance(kind, I.IntegerType | I.LongType | I.DecimalType):
        # Protobuf's JSON has long numbers, and durations, as text.
        expected = Decimal(value.removesuffix("s") if isinstance(value, str) else value)
    elif isinstance(kind, I.TimestampType | I.TimestamptzType):
        expected, stored = _micros(value, spec.timestamp_unit), _micros(stored)
    elif isinstance(value, str) and isinstance(kind, I.DateType):
        expected = date.fromisoformat(value[:10])
    elif isinstance(value, str) and isinstance(kind, I.BinaryType):
        expected = base64.b64decode(value)
    elif isinstance(kind, I.StringType) and not isinstance(value, str):
        if isinstance(value, time | UUID):
            expected = str(value) if isinstance(value, UUID) else value.isoformat(timespec="microseconds")
        else:
            stored = json.loads(stored, parse_float=Decimal)
    return bool(expected == stored)


def _micros(moment: Any, unit: str | None = None) -> int:
    """Return microseconds since the epoch; without a time zone a moment is in UTC."""
    if isinstance(moment, int | Decimal):
        return int(moment * _UNITS[unit]) if unit in _UNITS else int(moment) // 1000
    if isinstance(moment, str):
        moment = datetime.fromisoformat(moment.upper())
    since: timedelta = moment.replace(tzinfo=moment.tzinfo or UTC) - _EPOCH
    return since // _MICROS


def reader_of(part: Part) -> Callable[[bytes, Any], Any]:
    """Return the function that decodes a value by a library that isn't kafka_lake's; raises ValueError if it can't.

    Its arguments are the value and the record's headers.
    """
    kind = part.spec.format
    if kind in ("string", "bytes"):
        return lambda value, _: {"value": value.decode() if kind == "string" else value}
    decoder = part.format.decoder(part)
    if isinstance(decoder, FromFile):
        of_file = reader_of_schema(decoder.writer)
        return lambda value, _: of_file(value)
    if not isinstance(decoder, Registered):
        return lambda value, _: decode_json(value)
    by_id = {key: reader_of_schema(writer) for key, writer in decoder.writers.items()}

    def read(value: bytes, headers: Any) -> Any:
        id_, content = decoder.framed(value, headers)
        for (known, prefix), reader in by_id.items():
            if known == id_ and content.startswith(prefix):
                return reader(content[len(prefix) :])
        raise ValueError(f"schema id {id_} is unknown")

    return read


def decode_json(value: bytes) -> Any:
    """Return the value of a JSON text, fractions as decimal numbers."""
    return json.loads(value, parse_float=Decimal)


def reader_of_schema(writer: Any) -> Callable[[bytes], Any]:
    """Return the function that decodes values of a schema."""
    schema = writer.schema
    if schema.kind == "JSON":
        return decode_json
    return _protobuf(writer.message) if schema.kind == "PROTOBUF" else _avro(schema.text, schema.references.values())


def _avro(text: str, references: Iterable[str]) -> Callable[[bytes], Any]:
    import fastavro

    named: dict[str, Any] = {}
    for reference in references:
        fastavro.parse_schema(json.loads(reference), named_schemas=named)
    schema = fastavro.parse_schema(json.loads(text), named_schemas=named)
    return lambda value: fastavro.schemaless_reader(io.BytesIO(value), schema, None)


def _protobuf(message: Any) -> Callable[[bytes], Any]:
    from google.protobuf import descriptor_pb2, descriptor_pool, json_format  # type: ignore[import-untyped]
    from google.protobuf.message_factory import GetMessageClass  # type: ignore[import-untyped]

    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(message.files).file:
        pool.AddSerializedFile(file.SerializeToString())
    make = GetMessageClass(pool.FindMessageTypeByName(message.name))
    return lambda value: json_format.MessageToDict(
        make.FromString(value),
        preserving_proto_field_name=True,
        always_print_fields_with_no_presence=True,
        descriptor_pool=pool,
    )
