"""Types of text settings: what is in quotes stays as written, and what YAML reads as something else is refused.

Dagster renders every string of a document as a template of Python objects, which makes the number 3 of ``"3"`` and
nothing of ``"None"``. Templates still work with these types; their result becomes text.
"""

import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import dagster as dg
from jinja2 import StrictUndefined, Template
from pydantic import BeforeValidator

from kafka_lake.common.durations import seconds_of
from kafka_lake.common.errors import ConfigurationError

# What the names of properties end with whose digits are no count.
_NAMING = re.compile(
    r"^header\.|(?:^|[._-])"
    r"(?:account|arn|credential|id|key|name|passphrase|password|region|scope|secret|string|token|user|username|warehouse)$"
)
# Those of AWS have twelve digits; with a zero at the beginning, YAML reads fewer.
_ACCOUNTS = ("glue.id", "warehouse")
_TEMPLATE_MARKS = ("{{", "{%", "{#")


def duration(text: str | None) -> str | None:
    """Return the text of a setting, or raise a ValueError if it is no duration; null is none that is set."""
    try:
        if text is not None:
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


def rendered(context: dg.ResolutionContext, value: Any) -> Any:
    """Return a string, or the strings of a list or a mapping, with their templates rendered as text."""
    if isinstance(value, Mapping):
        return {key: rendered(context.at_path(key), each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [rendered(context.at_path(number), each) for number, each in enumerate(value)]
    if not isinstance(value, str) or not any(mark in value for mark in _TEMPLATE_MARKS):
        return value
    # By Dagster first: its errors name file and line, and only it can give nothing, a list or a mapping.
    found = context.resolve_value(value)
    if isinstance(found, bool | int | float):
        return Template(value, undefined=StrictUndefined).render(**context.scope)
    return found


def rendered_as(model: Any) -> dg.Resolver:
    """Return what gives a setting of a type its templates' values, and leaves other text as it is written."""
    return dg.Resolver(rendered, model_field_type=model, inject_before_resolve=False)


def _as_written(model: Any) -> dg.Resolver:
    return dg.Resolver(lambda _, value: value, model_field_type=model, inject_before_resolve=False)


_TextModel = Annotated[str, BeforeValidator(_text)]

Text = Annotated[str, rendered_as(_TextModel)]
"""Text. A number, true, false or nothing without quotes is refused."""

OptionalText = Annotated[str | None, rendered_as(_TextModel | None)]
"""`Text`, or null."""

TextList = Annotated[list[str], rendered_as(list[_TextModel])]
"""A list of `Text`."""


def _one_or_several(value: object) -> object:
    return [value] if isinstance(value, str) else value


TextOrList = Annotated[list[str], rendered_as(Annotated[list[_TextModel], BeforeValidator(_one_or_several)])]
"""A list of `Text`, or one `Text`."""

TextOrTextList = Annotated[list[str] | str, rendered_as(list[_TextModel] | _TextModel)]
"""A list of `Text`, or one `Text`: which of them it is matters."""

TextMap = Annotated[dict[str, str], rendered_as(Annotated[dict[str, str], BeforeValidator(_each(_text))])]
"""A mapping of `Text` to `Text`."""

Properties = Annotated[dict[str, str], rendered_as(Annotated[dict[str, str], BeforeValidator(_written_out_each)])]
"""A mapping of `Text` to text, whose values may be numbers, true and false without quotes; not where one stands for an
account, a key or a name."""

AsWritten = Annotated[dict[str, Any], _as_written(dict[str, Any])]
"""Settings of something else, with the templates in them still to be rendered."""

OptionalAsWritten = Annotated[dict[str, Any] | None, _as_written(dict[str, Any] | None)]
"""`AsWritten`, or null."""

AsWrittenList = Annotated[list[dict[str, Any]], _as_written(list[dict[str, Any]])]
"""A list of `AsWritten`."""

AsWrittenByName = Annotated[dict[str, dict[str, Any]], _as_written(dict[str, dict[str, Any]])]
"""`AsWritten` by name."""

Limit = Annotated[int | str | None, rendered_as(Annotated[int | str | None, BeforeValidator(_no_truth_value)])]
"""A count, or `Text`, or null."""
