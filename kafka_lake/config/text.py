"""Types of text settings: what is in quotes stays as written, and what YAML reads as something else is refused."""

import re
from collections.abc import Callable, Mapping
from typing import Annotated

from pydantic import BeforeValidator, WithJsonSchema

from kafka_lake.common.durations import seconds_of
from kafka_lake.config.settings import is_template
from kafka_lake.errors import ConfigurationError

# What the names of properties end with whose digits are no count.
_NAMING = re.compile(
    r"^header\.|(?:^|[._-])"
    r"(?:account|arn|credential|id|key|name|passphrase|password|region|scope|secret|string|token|user|username|warehouse)$"
)
# Those of AWS have twelve digits; with a zero at the beginning, YAML reads fewer.
_ACCOUNTS = ("glue.id", "warehouse")


def duration(text: str | None) -> str | None:
    """Return the text of a setting, or raise a ValueError if it is no duration; null and templates are right."""
    try:
        if text is not None and not is_template(text):
            seconds_of(text)
    except ConfigurationError as error:
        raise ValueError(str(error)) from error
    return text


def _text(value: object) -> object:
    """Return the value, or raise a ValueError if YAML reads it as something else than text."""
    if value is None:
        raise ValueError("there is no value here, or YAML reads it as none. Write the text in quotes")
    if isinstance(value, bool):
        word = str(value).lower()
        raise ValueError(f"YAML reads this value as {word} (also yes, no, on, off). Write the text in quotes")
    if isinstance(value, int | float):
        raise ValueError(f"YAML reads this value as the number {value}. Write the text in quotes")
    return value


def _text_or_null(value: object) -> object:
    return None if value is None else _text(value)


def _each(check: Callable[[object], object]) -> Callable[[object], object]:
    """Return a function that checks the keys of a mapping by `_text`, and its values by that check."""

    def checked(value: object) -> object:
        if not isinstance(value, Mapping):
            return value
        found: dict[object, object] = {}
        for key, each in value.items():
            try:
                found[_text(key)] = check(each)
            except ValueError as error:
                raise ValueError(f"{key}: {error}") from None
        return found

    return checked


def _written_out(value: object) -> object:
    """Return a number or a truth value as properties have it."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else _text(value)


def _written_out_each(value: object) -> object:
    """Return properties as text; what stands for an account, a key or a name, and isn't text to YAML, is refused.

    YAML reads 012345670123 as octal, 1234567_89 without its underscore, 1.10 as 1.1, and no as false.
    """
    if isinstance(value, Mapping):
        for key, each in value.items():
            if isinstance(each, int | float) and _NAMING.search(str(key).lower()) and not _is_account(key, each):
                kind = "true or false" if isinstance(each, bool) else "a number, without zeros at its beginning or end"
                raise ValueError(f"{key}: YAML reads this value as {kind}. Write the text in quotes")
    return _each(_written_out)(value)


def _is_account(key: object, value: float) -> bool:
    return key in _ACCOUNTS and isinstance(value, int) and len(str(value)) == 12


def _no_truth_value(value: object) -> object:
    return _text(value) if isinstance(value, bool) else value


def _one_or_several(value: object) -> object:
    return [value] if isinstance(value, str) else value


Text = Annotated[str, BeforeValidator(_text)]
"""Text. A number, true, false or nothing without quotes is refused."""

OptionalText = Annotated[str | None, BeforeValidator(_text_or_null)]
"""`Text`, or null."""

TextList = list[Text]
"""A list of `Text`."""

_IN_JSON = {"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "string"}]}
TextOrList = Annotated[list[Text], BeforeValidator(_one_or_several), WithJsonSchema(_IN_JSON)]
"""A list of `Text`, or one `Text`."""

TextMap = Annotated[dict[str, str], BeforeValidator(_each(_text))]
"""A mapping of `Text` to `Text`."""

_ANY_VALUE = {"type": "object", "additionalProperties": {"type": ["string", "number", "boolean"]}}
Properties = Annotated[dict[str, str], BeforeValidator(_written_out_each), WithJsonSchema(_ANY_VALUE)]
"""A mapping of `Text` to text, whose values may be numbers, true and false without quotes; not where one stands for an
account, a key or a name."""

Limit = Annotated[int | str | None, BeforeValidator(_no_truth_value)]
"""A count, or `Text`, or null."""
