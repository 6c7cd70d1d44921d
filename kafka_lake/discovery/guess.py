"""Guesses the format and the columns of records from their bytes. It helps to write a configuration; no run uses it."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from kafka_lake.engine.interop import ddl, ddl_name
from kafka_lake.errors import KafkaLakeError, SchemaNotSupportedError, UnknownSchemaError
from kafka_lake.formats.base import format_named
from kafka_lake.formats.columns import spark_type
from kafka_lake.formats.json.task.text import NotJsonError, TooDeepError, parse, refuse_twice
from kafka_lake.formats.json.task.types import TIMES, kind_of, merged, settled
from kafka_lake.formats.registered import Part, writer_of
from kafka_lake.formats.task.framing import SchemaId, framed, framing_of, prefixed
from kafka_lake.formats.task.registered import by_age, schema_label
from kafka_lake.kafka.registry import SchemaSource, SchemaType, WriterSchema
from kafka_lake.spec.topic_table import Envelope


@dataclass(frozen=True)
class Column:
    """A column of the guessed table.

    Args:
        type: In Spark's DDL.
        time: ``date``, ``timestamp`` or ``timestamp_ntz`` for text that is one in every object; else empty.
    """

    name: str
    type: str
    time: str = ""

    @property
    def ddl(self) -> str:
        """Return the column's DDL."""
        return f"{ddl_name(self.name)} {self.type}"


def json_value(content: bytes) -> Any:
    """Return the JSON value; None if the content isn't one strict JSON value."""
    try:
        value = parse(content)
        refuse_twice(value)
    except (NotJsonError, TooDeepError):
        return None
    return value


def columns_of(objects: Iterable[dict[str, Any]]) -> tuple[Column, ...]:
    """Return the columns of objects that `json_value` gave, in the order in which their fields first appear.

    Fields that are always null or empty have no column. Fields of mixed types become JSON text.
    """
    seen: Any = ["struct", {}]
    for value in objects:
        seen = merged(seen, kind_of(value))
    return tuple(
        Column(name, ddl(spark_type(known)), kind if kind in TIMES else "")
        for name, kind in seen[1].items()
        if (known := settled(kind, False)) is not None
    )


# So few records may be of another format, and become dead letters; with more, another format is more likely.
_STRAY_IN = 10

# Registries count from 1, Confluent's cloud from 100,001. Greater numbers are something else, and so are eight bytes: a
# long, whose first bytes are zero.
_LARGEST_LIKELY_ID = 10_000_000
_LONG_BYTES = 8
_FORMATS: Mapping[SchemaType, str] = {"AVRO": "avro", "PROTOBUF": "protobuf", "JSON": "json_schema"}
_LANGUAGES: Mapping[SchemaType, str] = {"AVRO": "Avro", "PROTOBUF": "Protobuf", "JSON": "JSON Schema"}
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")

_OBJECTS = ("is a JSON object", "are JSON objects")
_ARRAYS = ("is a JSON array", "are JSON arrays")
_TEXT = ("is text", "are text")
_BINARY = ("is binary", "are binary")
_Noun = tuple[str, str]


@dataclass(frozen=True)
class Guess:
    """The guess about values or keys.

    Args:
        format: The format to configure; None without records.
        evidence: The reason in one clause: ``20 of 20 sampled values are JSON objects``.
        columns: Of the table; empty for formats without fields.
        remarks: Further sentences.
        envelope: The setting ``envelope`` for change events; empty for other records.
    """

    format: str | None
    evidence: str
    columns: tuple[Column, ...] = ()
    remarks: tuple[str, ...] = ()
    envelope: Envelope | Literal[""] = ""

    @property
    def is_json(self) -> bool:
        """Return whether the format is JSON text."""
        return self.format is not None and format_named(self.format).is_json

    @property
    def is_decoded(self) -> bool:
        """Return whether the format gives more than the bytes."""
        return self.format not in (None, "bytes")


@dataclass
class Schemas:
    """Schemas of a registry by id. After an error of the registry, it isn't called again.

    Args:
        registry: None if none is configured.

    Attributes:
        trouble: Why the registry isn't used and what to do; empty if it is.
        unsupported: Why the registry can't look up an id, by id.
    """

    registry: SchemaSource | None
    trouble: str = field(init=False)
    unsupported: dict[SchemaId, str] = field(init=False, default_factory=dict)
    _known: dict[SchemaId, WriterSchema | None] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.trouble = "" if self.registry else "Configure KAFKA_LAKE_SCHEMA_REGISTRY_URL to know what they are."

    def of(self, schema_id: SchemaId) -> WriterSchema | None:
        """Return the schema of an id; None if it is unknown, or the registry can't be used."""
        if self.registry is not None and not self.trouble and schema_id not in self._known:
            try:
                self._known[schema_id] = self.registry.by_id(schema_id)
            except UnknownSchemaError:
                self._known[schema_id] = None
            except SchemaNotSupportedError as error:
                self._known[schema_id], self.unsupported[schema_id] = None, str(error)
            except KafkaLakeError as error:
                self.trouble = str(error)
        return self._known.get(schema_id)

    def with_id(self, content: bytes, headers: Any, part: Part) -> bytes:
        """Return a value or key with the schema id before it that a header of its record has."""
        try:
            return prefixed(content, headers, part, self.registry.kind if self.registry else "")
        except ValueError:
            return content


def guess(contents: Sequence[bytes], part: Part, schemas: Schemas) -> Guess:
    """Return the guess about values or keys."""
    if not contents:
        return Guess(None, f"no {part} to guess from")
    ids = [schema_id(content) for content in contents]
    newest = list(dict.fromkeys(id_ for id_ in reversed(ids) if id_ is not None))
    if _few(ids.count(None), contents):
        known = {schema_id: schema for schema_id in newest if (schema := schemas.of(schema_id))}
        if _few(sum(id_ not in known for id_ in ids), contents):
            return _registered(contents, ids, known, part)
        if _likely(contents, newest):
            return _unknown_ids(contents, newest, part, schemas)
    return _without_ids(contents, part)


def schema_id(content: bytes) -> SchemaId | None:
    r"""Return the schema id of bytes in a registry's wire format; None for other bytes.

    >>> schema_id(b"\x00\x00\x00\x00\x07payload"), schema_id(b'{"id": 7}')
    (7, None)
    """
    id_, payload = _framed(content)
    return id_ if payload else None


def _framed(content: bytes) -> tuple[SchemaId | None, bytes]:
    try:
        return framed(content) or (None, b"")
    except (ValueError, OverflowError):
        return None, b""


def _few(strays: int, contents: Sequence[bytes]) -> bool:
    return strays * _STRAY_IN <= len(contents)


def _likely(contents: Sequence[bytes], ids: Sequence[SchemaId]) -> bool:
    """Return whether contents look like the wire format, without a registry that knows their ids."""
    texts = [str(id_).rpartition(" ")[2] for id_ in ids]
    numbers = [int(text) for text in texts if text.isdigit()]
    uuids = len(texts) - len(numbers)
    # Any 16 bytes may be a UUID, but records share schemas.
    return (
        max(numbers, default=0) <= _LARGEST_LIKELY_ID
        and (uuids < 2 or uuids * 2 <= len(contents))
        and any(len(content) != _LONG_BYTES for content in contents)
    )


def _registered(
    contents: Sequence[bytes], ids: Sequence[SchemaId | None], known: Mapping[SchemaId, WriterSchema], part: Part
) -> Guess:
    """Return the guess for contents whose schemas the registry has."""
    kind_of: dict[SchemaId | None, SchemaType] = {number: schema.kind for number, schema in known.items()}
    counted = Counter(kind_of.get(id_) for id_ in ids)
    nouns: dict[_Noun, int] = {}
    for kind, count in counted.most_common():
        same = [number for number, schema in known.items() if schema.kind == kind]
        evidence_text = f"{_LANGUAGES[kind]} with {_named(same)}" if kind else "something else"
        nouns[f"is {evidence_text}", f"are {evidence_text}"] = count
    kinds = [kind for kind in counted if kind]
    columns: dict[str, Column] = {}
    remarks = [*_strays(counted[None], part)]
    for number, schema in known.items():
        try:
            fields = writer_of(schema, _message_prefix(number, contents[_last(ids, number)], schema)).fields.fields
        except SchemaNotSupportedError as error:
            remarks.append(str(error))
        except ValueError as error:
            remarks.append(f"{schema_label(number)}: {error}.")
        else:
            for one in fields:
                columns.setdefault(one.name.lower(), Column(one.name, ddl(one.dataType)))
    format_ = _FORMATS[kinds[0]] if len(kinds) == 1 else "confluent"
    wrap = format_ == "avro" and part == "value" and all(_is_debezium(schema) for schema in known.values())
    envelope: Envelope | Literal[""] = "debezium" if wrap else ""
    return Guess(format_, _counts(nouns, part), tuple(columns.values()), tuple(remarks), envelope=envelope)


def _last(ids: Sequence[SchemaId | None], schema_id: SchemaId) -> int:
    return max(index for index, id_ in enumerate(ids) if id_ == schema_id)


def _message_prefix(number: SchemaId, content: bytes, schema: WriterSchema) -> bytes:
    if schema.kind != "PROTOBUF":
        return b""
    _, payload = _framed(content)
    message = framing_of(number).message
    return payload[: message(payload)[1]] if message else b""


def _unknown_ids(contents: Sequence[bytes], ids: Sequence[SchemaId], part: Part, schemas: Schemas) -> Guess:
    """Return the guess for contents in a wire format, if no registry knows their ids."""
    evidence_text = f"like a registry's wire format, {_named(ids)}"
    evidence = _counts({(f"looks {evidence_text}", f"look {evidence_text}"): len(contents)}, part)
    trouble = schemas.trouble or next((schemas.unsupported[id_] for id_ in ids if id_ in schemas.unsupported), "")
    if not trouble:
        # They are of another registry, or it is a coincidence. Any bytes can be read as `bytes`.
        return Guess("bytes", evidence, remarks=("The registry doesn't have these schema ids.",))
    payloads = [json_value(_framed(content)[1]) for content in contents]
    if all(isinstance(payload, dict) for payload in payloads):
        return Guess("json_schema", evidence, columns_of(payloads), (trouble,))
    return Guess("confluent", evidence, remarks=(trouble,))


def _without_ids(contents: Sequence[bytes], part: Part) -> Guess:
    """Return the guess for contents without schema ids."""
    values = [json_value(content) for content in contents]
    nouns = Counter(_noun(content, value) for content, value in zip(contents, values, strict=True))
    evidence = _counts(dict(nouns.most_common()), part)
    strays = len(contents) - nouns[_OBJECTS]
    # Nothing else looks like a JSON object by chance. The others, as truncated records, would be dead letters.
    if strays < nouns[_OBJECTS]:
        objects = [value for value in values if isinstance(value, dict)]
        columns = columns_of(objects)
        envelopes = {_envelope(value) for value in objects} if part == "value" else set()
        envelope = envelopes.pop() if len(envelopes) == 1 else ""
        return Guess("json", evidence, columns, _strays(strays, part), envelope=envelope)
    if nouns[_ARRAYS] == len(contents) and part == "value":
        return Guess("string", evidence)
    if _few(nouns[_BINARY], contents):
        return Guess("string", evidence, remarks=_strays(nouns[_BINARY], part))
    sizes = {len(content) for content in contents}
    alike = len(nouns) == 1 and len(contents) > 1 and len(sizes) == 1
    return Guess("bytes", f"{evidence}, {sizes.pop()} bytes each" if alike else evidence)


def _envelope(value: Mapping[str, Any]) -> Envelope | Literal[""]:
    """Return the envelope of an object that is a change event; else an empty text."""
    payload = value.get("payload")
    names = (payload if isinstance(payload, dict) and "schema" in value else value).keys()
    if {"op", "source"} <= names and {"before", "after"} & names:
        return "debezium"
    if not {"database", "table", "type", "data"} <= names:
        return ""
    return "canal" if isinstance(value["data"], list) or "isDdl" in names else "maxwell"


def _is_debezium(schema: WriterSchema) -> bool:
    parsed = json.loads(schema.text)
    fields = parsed.get("fields") if isinstance(parsed, dict) else None
    names = {field.get("name") for field in fields or () if isinstance(field, dict)}
    return {"before", "after", "source", "op"} <= names


def _noun(content: bytes, value: Any) -> _Noun:
    if isinstance(value, dict | list):
        return _OBJECTS if isinstance(value, dict) else _ARRAYS
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return _BINARY
    return _BINARY if _CONTROL.search(text) else _TEXT


def _strays(count: int, part: Part) -> tuple[str, ...]:
    """Return the remark about values of another format."""
    if not count or part == "key":
        return ()
    return ("One of them would be a dead letter." if count == 1 else f"{count} of them would be dead letters.",)


def _counts(nouns: Mapping[_Noun, int], part: Part) -> str:
    """Return the counts of nouns in one clause; the most frequent is the first."""
    (first, count), *rest = nouns.items()
    most = f"{count} of {sum(nouns.values())} sampled {part}s {first[count != 1]}"
    return ", ".join([most, *(f"{count} {noun[count != 1]}" for noun, count in rest)])


def _named(ids: Sequence[SchemaId]) -> str:
    first, *rest = sorted(ids, key=lambda id_: by_age((id_, b"")))
    kind = schema_label(first).rpartition(" ")[0][1:]
    return f"s{kind}{'s' if rest else ''} {', '.join(schema_label(id_).rpartition(' ')[2] for id_ in (first, *rest))}"
