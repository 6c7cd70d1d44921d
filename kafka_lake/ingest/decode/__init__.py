"""Decode: bytes become columns by the topic's format; what can't be decoded is set apart with its reason.

A module per format. Each gives a frame with the columns ``decoded`` (a struct, null where decoding failed),
``error_class`` and ``error_message`` (both null where it did not) beside the record's own.
"""

from collections.abc import Mapping
from types import MappingProxyType

NOT_JSON = "not_json"
WRONG_TYPE = "wrong_type"
NULL_IN_REQUIRED_COLUMN = "null_in_required_column"
TOO_LARGE = "too_large"
TRANSFORM_FAILED = "transform_failed"

ERROR_CLASSES: Mapping[str, str] = MappingProxyType(
    {
        NOT_JSON: "The value is not one JSON object in UTF-8.",
        WRONG_TYPE: "The value of a field doesn't fit the type of its column.",
        NULL_IN_REQUIRED_COLUMN: "A column that must not be null is null in the value, or missing from it.",
        TOO_LARGE: "The value has more bytes than the topic's limit; it was not parsed.",
        TRANSFORM_FAILED: "The record was decoded, and the topic's transform refused it.",
    }
)
"""Every class that a dead letter may have, and what it means, in one line each."""
