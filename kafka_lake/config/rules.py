"""The entries of ``rules:``, as documents have them; their fields are those of `RuleEntry`."""

from collections.abc import Iterator
from typing import Any, Literal, get_type_hints

from pydantic import Field, StrictBool, StrictFloat, StrictInt, create_model

from kafka_lake.config.rule_problems import entry_problems
from kafka_lake.config.settings import Problem, Settings
from kafka_lake.config.text import Limit, OptionalText, Text, TextList
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
_FIELDS: dict[Any, dict[str, Any]] = {
    AcceptedValues: {"column": Text, "values": list[_Value]},
    Range: {"column": Text, "min": _Bound, "max": _Bound},
    Pattern: {"column": Text, "regex": Text},
    ForeignKey: {"columns": TextList, "table": Text, "to": TextList},
    RowCount: {"min": int | None, "max": int | None},
    NullShare: {"column": Text, "max": Text},
    Volume: {"per": Literal["hour", "day"], "days": int, "deviations": float},
}


class RuleKind(Settings):
    """What a kind of rule asks for."""

    @classmethod
    def unknown(cls, key: str) -> str:
        """Return what is wrong with a key: it may be one of the rule as a whole."""
        if key in pydantic_fields(RuleEntry):
            return "is a setting of the rule. Write it beside the kind, not in it"
        return super().unknown(key)


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


_RuleFields: Any = create_model("RuleFields", __base__=Settings, **_entry_fields())


class RuleSettings(_RuleFields):  # type: ignore[misc]
    """One rule: exactly one kind, and what is to be done where it is broken."""

    def problems(self) -> Iterator[Problem]:
        """Give what is wrong with the rule by itself."""
        for problem in entry_problems(self.entry()):
            yield (), problem

    def entry(self) -> RuleEntry:
        """Return the rule as the pipeline takes it."""
        given = {}
        for name in pydantic_fields(RuleEntry):
            value = getattr(self, name)
            kind = next((declared for declared, model in _KINDS.items() if isinstance(value, model)), None)
            given[name] = value if kind is None else kind(**{each: getattr(value, each) for each in vars(value)})
        return RuleEntry(**given)
