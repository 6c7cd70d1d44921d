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

UNMATCHED = "unmatched"
RULE = f"{RULE_CLASS}<name>"

ERROR_CLASSES: Mapping[str, str] = MappingProxyType(
    {
        NOT_JSON: "The value isn't one JSON object in UTF-8.",
        NOT_TEXT: "The value isn't UTF-8.",
        NO_SCHEMA_ID: "The record has no schema id, neither before its value nor in a header of the registry's kind.",
        UNKNOWN_SCHEMA: "The registry doesn't have the schema id, or the schema has another format than the topic.",
        MALFORMED: "The bytes don't decode with their schema.",
        WRONG_TYPE: "A field's value doesn't fit its column's type. `on_incompatible: new_column` stores it in "
        "another column.",
        NULL_IN_REQUIRED_COLUMN: "A required column is null or missing.",
        TOO_LARGE: "The value exceeds the topic's size limit and wasn't parsed.",
        TOO_DEEP: "The value has more than 64 nested levels.",
        BAD_KEY: "The key doesn't decode.",
        UNDECODABLE: "Reading or writing the record fails, even without other records.",
        UNMATCHED: "No table of the topic takes the record.",
        NOT_A_CHANGE: "Envelopes: the value isn't a change of a row; a heartbeat, for example.",
        NO_KEY: "Upserts: a key column is null or missing.",
        NO_ORDER: "Upserts: an `order_by` column is null, or the source position is unknown.",
        OTHER_KEY: "Envelopes: the record's key has other columns than the table's key.",
        KEY_CHANGED: "Maxwell or Canal with several partitions and without `order_by`: an update changes the key.",
        NO_OLD_KEY: "Envelopes: an update may have changed the key, and the record lacks the old key.",
        SEVERAL_ROWS: "Canal: the record has several rows.",
        VALUE_NOT_SENT: "Envelopes: the source omitted an unchanged value, and the table has no row with it.",
        RULE: "The row breaks this rule of the table.",
    }
)
"""Every class that a dead letter may have, and what it means, in one line each."""


def meaning_of(error_class: str) -> str:
    """Return what a class of dead letters means; empty if it is unknown."""
    return ERROR_CLASSES.get(RULE if error_class.startswith(RULE_CLASS) else error_class, "")
