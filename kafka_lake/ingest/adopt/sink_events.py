"""The events on the control topic of the Iceberg sink for Kafka Connect, as far as they tell what is in a table.

A task writes data files, announces them (``DataWritten``), and then the offsets that they reach (``DataComplete``), all
in one Kafka transaction. The coordinator commits to the table what was announced before the offsets of the control
topic that it notes in the snapshot's summary.
Source: ``org.apache.iceberg.connect.events`` of Apache Iceberg 1.12.
"""

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from fastavro import schemaless_reader
from fastavro.schema import SchemaParseException, UnknownType

_MAGIC = b"\xc2\x01"
_LENGTH = 2


@dataclass(frozen=True)
class Place:
    """Where an event is on the control topic, and who sent it: the events of one task have one key, and are in order.

    Args:
        partition: Of the control topic.
        offset: In it.
        sender: Key of the record.
    """

    partition: int
    offset: int
    sender: bytes


@dataclass(frozen=True)
class DataWritten:
    """A task has written files of one table.

    Args:
        place: Where the event is.
        table: The parts of the table's name.
        table_uuid: The table's id; None if the event has none.
        records: Rows and deletes in the files.
    """

    place: Place
    table: tuple[str, ...]
    table_uuid: str | None
    records: int


@dataclass(frozen=True)
class DataComplete:
    """All files of a task are announced that hold what comes before some offsets.

    Args:
        place: Where the event is.
        offsets: Next offset by topic and partition; partitions that gave no record are left out.
    """

    place: Place
    offsets: Mapping[tuple[str, int], int]


class NotAnEventError(ValueError):
    """A record of the control topic is no event of the sink."""


def parse_event(place: Place, value: bytes | None, group: str) -> DataWritten | DataComplete | None:
    """Return an event that tells what is in a table; None for others, and those of other connectors.

    Args:
        place: Where the record is.
        value: Its value.
        group: Consumer group of the connector.

    Raises:
        NotAnEventError: If it is no event of the sink.
    """
    schema, event = _decoded(value)
    if event["group_id"] != group:
        return None
    payload = event["payload"]
    kind = next(field["type"]["name"] for field in schema["fields"] if field["name"] == "payload")
    if kind == "DataComplete":
        assigned = payload["assignments"] or []
        reached = {(each["topic"], each["partition"]): each["offset"] for each in assigned}
        return DataComplete(place, {key: offset for key, offset in reached.items() if offset is not None})
    if kind == "DataWritten":
        table = payload["table_reference"]
        files = [*(payload["data_files"] or []), *(payload["delete_files"] or [])]
        raw = table.get("table_uuid")
        return DataWritten(
            place,
            (*table["namespace"], table["name"]),
            None if raw is None else str(UUID(bytes=bytes(raw))),
            sum(each["record_count"] for each in files),
        )
    return None


def _decoded(value: bytes | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return schema and content of what Iceberg's ``AvroEncoderUtil`` wrote: two bytes, the schema, and the datum."""
    if value is None or not value.startswith(_MAGIC):
        raise NotAnEventError("it doesn't begin as one")
    begin = len(_MAGIC) + _LENGTH
    end = begin + int.from_bytes(value[len(_MAGIC) : begin], "big")
    try:
        schema = _without_namespaces(json.loads(value[begin:end]))
        event = schemaless_reader(io.BytesIO(value[end:]), schema, None)
    except (SchemaParseException, UnknownType, ValueError, EOFError, LookupError) as error:
        raise NotAnEventError(str(error)) from error
    if not isinstance(event, dict) or not {"group_id", "payload"} <= event.keys():
        raise NotAnEventError("it has no group_id and payload")
    return schema, event


def _without_namespaces(schema: Any) -> Any:
    """Return a schema whose types go by short names, since Iceberg refers to those without a namespace like that."""
    if isinstance(schema, list):
        return [_without_namespaces(each) for each in schema]
    if isinstance(schema, dict):
        return {key: _without_namespaces(each) for key, each in schema.items() if key != "namespace"}
    return schema
