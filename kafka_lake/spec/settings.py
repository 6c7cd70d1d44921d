"""The base of all settings: error messages, groups that are chosen by a kind, and types of text."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Annotated, Any, Self, Union, get_args, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WithJsonSchema,
    WrapValidator,
    field_validator,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import InitErrorDetails, core_schema

from kafka_lake.common.text import limit_of, seconds_of
from kafka_lake.errors import ConfigurationError

Problem = tuple[tuple[str | int, ...], str]
"""Where in a group of settings something is wrong, and what is wrong with it."""

_TEMPLATE_MARKS = ("{{", "{%", "{#")
_TEMPLATE = {"type": "string", "pattern": r"\{[\{%#]"}
_TOLD = ("title", "description", "default", "examples")


class Settings(BaseModel):
    """A group of settings. Text that is a template is taken as it is, until somebody renders it.

    An unknown key is refused with the nearest known one. Errors don't show values, which may be rendered secrets.
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, hide_input_in_errors=True, validate_by_name=True, validate_by_alias=True
    )

    @classmethod
    def names(cls) -> list[str]:
        """Return the settings of the group, as documents have them."""
        return [field.alias or name for name, field in cls.model_fields.items()]

    @model_validator(mode="before")
    @classmethod
    def _known(cls, given: Any) -> Any:
        if isinstance(given, Mapping):
            known = {*cls.names(), *cls.model_fields}
            refuse(cls, [((str(key),), cls.unknown(str(key))) for key in given if key not in known])
            missing = [(name, field) for name, field in cls.model_fields.items() if field.is_required()]
            lacking = [field.alias or name for name, field in missing if not {name, field.alias} & {*given}]
            refuse(cls, [((), f"{key}: is missing") for key in lacking])
        return given

    @classmethod
    def unknown(cls, key: str) -> str:
        """Return what is wrong with a key that the group doesn't have: the nearest one, or where the key belongs."""
        for name, field in cls.model_fields.items():
            for group in groups_in(field.annotation):
                if key in group.names():
                    inner = f"[{{{key}: …}}]" if _is_list(field.annotation) else f"{{{key}: …}}"
                    return f"belongs into {name}:, as in {name}: {inner}"
        return f"there is no such setting. {near(key, cls.names())}"

    @field_validator("*", mode="wrap")
    @classmethod
    def _or_a_template(cls, value: Any, validate: ValidatorFunctionWrapHandler, info: ValidationInfo) -> Any:
        if isinstance(value, bool) and _is_number(cls.model_fields[str(info.field_name)].annotation):
            raise ValueError(f"YAML reads this value as {str(value).lower()} (also yes, no, on, off). Write a number")
        return value if is_template(value) else validate(value)

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if not has_templates(self):
            refuse(type(self), self.problems())
        return self

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """Return what editors and `dg check yaml` get as schema: a template may stand for any value."""
        found = handler(schema)
        whole = handler.resolve_ref_schema(found)
        whole["properties"] = {name: _or_template(item) for name, item in whole.get("properties", {}).items()}
        return found

    def problems(self) -> Iterable[Problem]:
        """Yield problems of combined settings."""
        return ()


def _or_template(schema: JsonSchemaValue) -> JsonSchemaValue:
    described = {name: keyword for name, keyword in schema.items() if name in _TOLD}
    values = {name: keyword for name, keyword in schema.items() if name not in _TOLD}
    return schema if values == {"type": "string"} else {**described, "anyOf": [values, _TEMPLATE]}


def refuse(model: type[BaseModel], problems: Iterable[Problem]) -> None:
    """Raise a ValidationError if there are problems; each keeps its place, so that Dagster finds its line."""
    errors = [
        InitErrorDetails(type="value_error", loc=place, input=None, ctx={"error": ValueError(text)})
        for place, text in problems
    ]
    if errors:
        raise ValidationError.from_exception_data(model.__name__, errors, hide_input=True)


def message(error: Mapping[str, Any]) -> str:
    """Return the message of a Pydantic error, as the end of a sentence."""
    return str(error["msg"]).removeprefix("Value error, ").replace("Tuple should", "List should").rstrip(".")


def located(place: Iterable[object], text: str) -> str:
    """Return what is wrong with a setting, behind where it is: of the entries of a list, the first is number 1.

    >>> located(["tables", 0, "write"], "there is no such setting")
    'tables: number 1: write: there is no such setting'
    """
    names = [str(part) for part in place]
    return ": ".join([*(f"number {int(name) + 1}" if name.isdigit() else name for name in names if name), text])


def near(key: object, known: Sequence[str]) -> str:
    """Return the nearest of known words as a question, or all of them if none is near.

    >>> near("subjet", ["schema", "subject"]), near("x", ["schema", "subject"])
    ('Did you mean subject?', 'Write one of schema, subject.')
    """
    found = get_close_matches(str(key), known, 1)
    return f"Did you mean {found[0]}?" if found else f"Write one of {', '.join(known)}."


def is_template(value: object) -> bool:
    """Return whether a value is text with a template in it."""
    return isinstance(value, str) and any(mark in value for mark in _TEMPLATE_MARKS)


def has_templates(value: object) -> bool:
    """Return whether there is a template anywhere in a value."""
    if isinstance(value, BaseModel):
        return any(map(has_templates, value.__dict__.values()))
    if isinstance(value, Mapping):
        return any(map(has_templates, (*value, *value.values())))
    return any(map(has_templates, value)) if isinstance(value, list | tuple) else is_template(value)


def groups_in(annotation: Any) -> Iterator[type[Settings]]:
    """Give the groups of settings that a field may have."""
    if isinstance(annotation, type) and issubclass(annotation, Settings):
        yield annotation
    for inner in get_args(annotation):
        yield from groups_in(inner)


def _is_list(annotation: Any) -> bool:
    return get_origin(annotation) in (list, tuple) or any(map(_is_list, get_args(annotation)))


def _is_number(annotation: Any) -> bool:
    """Return whether a field takes numbers alone, to which Python counts true and false."""
    kinds = {annotation, *get_args(annotation)}
    return bool(kinds & {int, float}) and not kinds & {bool, str}


def one_of(key: str, groups: Mapping[str, type[Settings]], default: str | None = None) -> Any:
    """Return what chooses a group by one of its settings, and takes that setting's text alone for the whole group."""

    def chosen(value: Any, _: ValidatorFunctionWrapHandler) -> Any:
        if isinstance(value, tuple(groups.values())):
            return value
        given = value if isinstance(value, Mapping) else {key: value}
        kind = given.get(key, default)
        if is_template(kind):
            return value
        if kind is None or not isinstance(kind, str):
            raise ValueError(f"{key}: is missing. Write one of {', '.join(groups)}")
        if kind not in groups:
            place = (key,) if isinstance(value, Mapping) else ()
            refuse(Settings, [(place, f"{kind!r} isn't known. {near(kind, list(groups))}")])
        return groups[kind].model_validate({key: kind, **given})

    return WrapValidator(chosen)


class ShortFor:
    """What takes the value of one setting for a whole group."""

    def __init__(self, key: str) -> None:
        self._key = key

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        """Return what validates the group, or that value."""

        def whole(value: Any, validate: ValidatorFunctionWrapHandler) -> Any:
            return validate(value if value is None or isinstance(value, Mapping | Settings) else {self._key: value})

        return core_schema.no_info_wrap_validator_function(whole, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """Return the schema for editors, which allows the value, too."""
        return {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}, handler(schema)]}


def either(*kinds: Any) -> Any:
    """Return the union of types that are known at run time only."""
    return Union[kinds]  # noqa: UP007 - as above


def _duration(text: str) -> str:
    try:
        seconds_of(text)
    except ConfigurationError as error:
        raise ValueError(str(error)) from error
    return text


def _limit(limit: int | str | None) -> int | str | None:
    try:
        limit_of(limit, "")
    except ConfigurationError as error:
        raise ValueError(str(error).removeprefix(": ")) from error
    return limit


def _text(value: object) -> object:
    """Return the value, or raise a ValueError if YAML reads it as something else than text."""
    if value is None:
        raise ValueError("the value is missing, or YAML reads it as null. Write the text in quotes")
    if isinstance(value, bool):
        word = str(value).lower()
        raise ValueError(f"YAML reads this value as {word} (also yes, no, on, off). Write the text in quotes")
    if isinstance(value, int | float):
        raise ValueError(f"YAML reads this value as the number {value}. Write the text in quotes")
    return value


def _text_or_null(value: object) -> object:
    return None if value is None else _text(value)


def _each_text(value: object) -> object:
    """Check the keys and the values of a mapping by `_text`."""
    if not isinstance(value, Mapping):
        return value
    for key, entry in value.items():
        try:
            _text(key)
            _text(entry)
        except ValueError as error:
            raise ValueError(f"{key}: {error}") from None
    return value


def _no_truth_value(value: object) -> object:
    return _text(value) if isinstance(value, bool) else value


def _matching(pattern: str, problem: str) -> Callable[[str | None], str | None]:
    def check(text: str | None) -> str | None:
        if text is not None and not is_template(text) and not re.fullmatch(pattern, text):
            raise ValueError(f"{text!r} {problem}")
        return text

    return check


def _tags(tags: dict[str, str]) -> dict[str, str]:
    for key, value in tags.items():
        if is_template(key) or is_template(value):
            continue
        if key.startswith("kafka_lake/"):
            raise ValueError(f"{key} is a tag that kafka_lake sets itself. Choose another name")
        if not re.fullmatch(rf"({_WORD}/|dagster/kind/)?{_WORD}", key) or not re.fullmatch(rf"({_WORD})?", value):
            raise ValueError(f"{key}: {value!r}: tags have letters, digits, _, - and ., at most 63, and / in keys once")
    return tags


def _one_or_several(value: object) -> object:
    return value if isinstance(value, list | tuple | Mapping) else [_text(value)]


Text = Annotated[str, BeforeValidator(_text)]
"""Text. A number, true, false or nothing without quotes is refused."""

OptionalText = Annotated[str | None, BeforeValidator(_text_or_null)]
"""`Text`, or null."""

TextList = tuple[Text, ...]
"""A list of `Text`."""

_IN_JSON = {"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "string"}]}
TextOrList = Annotated[tuple[Text, ...], BeforeValidator(_one_or_several), WithJsonSchema(_IN_JSON)]
"""A list of `Text`, or one `Text`."""

TextMap = Annotated[dict[str, str], BeforeValidator(_each_text)]
"""A mapping of `Text` to `Text`."""

_WORD = "[A-Za-z0-9_.-]{1,63}"
Tags = Annotated[dict[str, str], BeforeValidator(_each_text), AfterValidator(_tags)]
"""A mapping of `Text` to `Text`, as Dagster takes tags."""

_OWNER = _matching(
    r"team:.+|[A-Za-z0-9._%+-]+@[A-Za-z0-9.-]+\.[A-Za-z]{2,7}", "is neither team:NAME nor an e-mail address"
)
Owners = Annotated[
    tuple[Annotated[Text, AfterValidator(_OWNER)], ...], BeforeValidator(_one_or_several), WithJsonSchema(_IN_JSON)
]
"""Owners as Dagster takes them."""

Group = Annotated[
    str | None,
    BeforeValidator(_text_or_null),
    AfterValidator(_matching(r"[A-Za-z0-9_]+(/[A-Za-z0-9_]+)*", "isn't letters, digits, _ and /")),
]
"""A group of assets as Dagster takes it, or null."""

Limit = Annotated[int | str | None, BeforeValidator(_no_truth_value), AfterValidator(_limit)]
"""A count, or a share as ``5%``, or null for no limit."""

Duration = Annotated[str, BeforeValidator(_text), AfterValidator(_duration)]
"""A duration as ``90m``, ``36h`` or ``7d``."""
