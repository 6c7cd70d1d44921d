"""The setting ``rules:`` of a topic, as YAML has it; its fields are those of `RuleEntry`."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_type_hints

import dagster as dg
from pydantic import ConfigDict, Field, StrictBool, StrictFloat, StrictInt, create_model

from kafka_lake.components.text import Limit, OptionalText, Text, TextList, rendered_as
from kafka_lake.ingest.rule import (
    AcceptedValues,
    ForeignKey,
    NullShare,
    Pattern,
    Range,
    RowCount,
    RuleEntry,
    Volume,
)
from kafka_lake.ingest.topic_table import pydantic_fields

# YAML reads 5 as a number and "5" as text: a column of the other type has no such value.
_Value = StrictBool | StrictInt | StrictFloat | str
_Bound = StrictInt | StrictFloat | str | None
_BOUND: Any = Annotated[_Bound, rendered_as(_Bound)]
_FIELDS: dict[Any, dict[str, Any]] = {
    AcceptedValues: {"column": Text, "values": Annotated[list[_Value], rendered_as(list[_Value])]},
    Range: {"column": Text, "min": _BOUND, "max": _BOUND},
    Pattern: {"column": Text, "regex": Text},
    ForeignKey: {"columns": TextList, "table": Text, "to": TextList},
    RowCount: {"min": int | None, "max": int | None},
    NullShare: {"column": Text, "max": Text},
    Volume: {"per": Literal["hour", "day"], "days": int, "deviations": float},
}


class RuleKind(dg.Model, dg.Resolvable):
    """What a kind of rule asks for."""

    model_config = ConfigDict(extra="forbid")


def _kind(declared: Any) -> Any:
    """Return what YAML has for a kind of rule: the fields of its declaration, with their defaults."""
    fields: dict[str, Any] = {
        name: (_FIELDS[declared][name], field.default if not field.is_required() else ...)
        for name, field in pydantic_fields(declared).items()
    }
    return create_model(f"{declared.__name__}Fields", __base__=RuleKind, __doc__=declared.__doc__, **fields)


_KINDS = {declared: _kind(declared) for declared in _FIELDS}


def _in_yaml(hint: Any) -> Any:
    for declared, model in _KINDS.items():
        if hint == declared | None:
            return model | None
    return {tuple[str, ...]: TextList, str | None: OptionalText, int | str | None: Limit}.get(hint, hint)


def _entry_fields() -> dict[str, Any]:
    hints = get_type_hints(RuleEntry, include_extras=True)
    found: dict[str, Any] = {}
    for name, field in pydantic_fields(RuleEntry).items():
        # The default would be shared, and a column that is named by a rule is text.
        kind: Any = OptionalText if name == "name" else _in_yaml(hints[name])
        own: Any = Field(default=field.default, description=field.description, examples=field.examples)
        found[name] = (kind, own)
    return found


def settings_of_kinds() -> Mapping[str, tuple[str, ...]]:
    """Return the settings of each kind of rule that has some of its own."""
    return {
        name: tuple(_FIELDS[declared])
        for name, hint in get_type_hints(RuleEntry).items()
        for declared in _FIELDS
        if hint == declared | None
    }


_RuleFields: Any = create_model("RuleFields", __base__=(dg.Model, dg.Resolvable), **_entry_fields())


class RuleSettings(_RuleFields):  # type: ignore[misc]
    """One rule: exactly one kind, and what is to be done where it is broken."""

    model_config = ConfigDict(extra="forbid")

    def entry(self) -> RuleEntry:
        """Return the rule as the pipeline takes it."""
        given = {}
        for name in pydantic_fields(RuleEntry):
            value = getattr(self, name)
            kind = next((declared for declared, model in _KINDS.items() if isinstance(value, model)), None)
            given[name] = value if kind is None else kind(**{each: getattr(value, each) for each in vars(value)})
        return RuleEntry(**given)
