"""JSON, Avro, Protobuf and JSON Schema: schemas to columns, and bytes to columns.

A package or a module for each format. Each gives a frame with the columns ``decoded`` (a struct, null where decoding
failed), ``error_class`` and ``error_message`` (both null where it did not) beside the record's own.
"""

from collections.abc import Mapping
from types import MappingProxyType

from kafka_lake.formats.task.error_classes import (
    BAD_KEY,
    KEY_CHANGED,
    MALFORMED,
    NO_KEY,
    NO_OLD_KEY,
    NO_ORDER,
    NO_SCHEMA_ID,
    NOT_A_CHANGE,
    NOT_JSON,
    NOT_TEXT,
    NULL_IN_REQUIRED_COLUMN,
    OTHER_KEY,
    SEVERAL_ROWS,
    TOO_DEEP,
    TOO_LARGE,
    UNDECODABLE,
    UNKNOWN_SCHEMA,
    VALUE_NOT_SENT,
    WRONG_TYPE,
)
from kafka_lake.spec.rule import RULE_CLASS

TRANSFORM_FAILED = "transform_failed"
UNMATCHED = "unmatched"
RULE = f"{RULE_CLASS}<name>"

ERROR_CLASSES: Mapping[str, str] = MappingProxyType(
    {
        NOT_JSON: "The value is not one JSON object in UTF-8.",
        NOT_TEXT: "The value is not UTF-8.",
        NO_SCHEMA_ID: "The value doesn't begin with a zero byte and a schema id, as a registry's serializers write.",
        UNKNOWN_SCHEMA: "The registry has no schema of the value's id, or one that the topic's format can't use.",
        MALFORMED: "The bytes don't decode by the schema that they were written with.",
        WRONG_TYPE: "The value of a field doesn't fit the type of its column; on_incompatible: new_column keeps it in "
        "another one.",
        NULL_IN_REQUIRED_COLUMN: "A column that must not be null is null in the value, or missing from it.",
        TOO_LARGE: "The value has more bytes than the topic's limit; it was not parsed.",
        TOO_DEEP: "The value has more than 64 levels of objects and arrays.",
        BAD_KEY: "The value is well, but the key doesn't decode; the message says why.",
        TRANSFORM_FAILED: "The record was decoded, and the topic's transform refused it.",
        UNDECODABLE: "The record alone makes its batch fail; the message says how.",
        UNMATCHED: "No table of the topic takes the record.",
        NOT_A_CHANGE: "With an envelope: the value isn't a change of a row.",
        NO_KEY: "With write upsert: a column of the row's key is null or missing.",
        NO_ORDER: "With write upsert: the value that orders changes is null or unknown.",
        OTHER_KEY: "With an envelope: the record's key has other columns than the table's key; the message names both.",
        KEY_CHANGED: "With envelope maxwell or canal, several partitions and no order_by: an update changes the row's "
        "key, and offsets of two partitions don't order the changes.",
        NO_OLD_KEY: "With an envelope: an update may have changed the row's key, and lacks the key before it.",
        SEVERAL_ROWS: "With envelope canal: the record has several rows.",
        VALUE_NOT_SENT: "With an envelope: the source didn't send a value since it hasn't changed, and there is no row "
        "that has it.",
        RULE: "The row breaks the topic's rule of this name; the message names all rules that it breaks.",
    }
)
"""Every class that a dead letter may have, and what it means, in one line each."""


def meaning_of(error_class: str) -> str:
    """Return what a class of dead letters means; empty if it is unknown."""
    return ERROR_CLASSES.get(RULE if error_class.startswith(RULE_CLASS) else error_class, "")
