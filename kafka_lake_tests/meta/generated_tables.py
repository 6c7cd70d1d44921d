"""The lists of settings in docs/, as the code declares the settings."""

from collections.abc import Iterable, Mapping
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from kafka_lake.common.environment import VARIABLES, Variable
from kafka_lake.config.derived_table import DerivedTable
from kafka_lake.config.formats import FORMATS, KEYS
from kafka_lake.config.table import (
    Evolution,
    KeepDeadLetters,
    SkipDeadLetters,
    Table,
    TablesBy,
    TableSettings,
    Where,
)
from kafka_lake.config.topic import ContinuousRuns, MatchingTopics, Read, Topic
from kafka_lake.config.write import MODES
from kafka_lake.orchestration.assets import IngestConfig
from kafka_lake.orchestration.components.kafka_cluster import KafkaCluster
from kafka_lake.orchestration.components.kafka_topics import KafkaTopics
from kafka_lake.orchestration.derived_assets import DeriveConfig
from kafka_lake.spec.maintenance import Maintenance
from kafka_lake.spec.rule import RuleEntry, RuleKind
from kafka_lake.spec.settings import Settings

_WORDS: dict[object, str] = {
    str: "text",
    bool: "true or false",
    int: "whole number",
    float: "number",
    Any: "anything",
}
_QUOTED = set(",:{}[]#")


def of_a_topic() -> Mapping[str, str]:
    """Return the lists of docs/settings.md as Markdown, by the names of their places in the page."""
    return {
        "topic": _settings(Topic),
        "several-topics": _settings(MatchingTopics),
        "read": _settings(Read),
        "format": _settings(*FORMATS.values()),
        "key": _settings(*KEYS.values()),
        "table": _settings(Table),
        "where": _settings(Where),
        "write": _settings(*MODES.values()),
        "evolution": _settings(Evolution),
        "dead-letters": _settings(KeepDeadLetters, SkipDeadLetters),
        "tables-by": _settings(TablesBy, leave_out=TableSettings),
    }


def of_others() -> Mapping[str, str]:
    """Return the lists of other pages as Markdown, by the names of their places."""
    return {
        "continuous": _settings(ContinuousRuns),
        "maintenance": _settings(Maintenance),
        "topics": _settings(KafkaTopics),
        "derived": _settings(DerivedTable),
        "derived-run": _settings(DeriveConfig),
        "rule": _settings(RuleEntry),
        "cluster": _settings(KafkaCluster),
        "run": _settings(IngestConfig),
        "environment": "\n".join(
            _item(_name(variable), [_default_text(variable.default)], variable.description, [variable.example])
            for variable in VARIABLES
        ),
    }


def _name(variable: Variable) -> str:
    return f"{variable.name}…" if variable.name.endswith("_") else variable.name


def _settings(*models: type[BaseModel], leave_out: type[BaseModel] = Settings) -> str:
    """Return the settings of groups as a list; the first group describes a setting that several groups have."""
    fields = {name: field for model in reversed(models) for name, field in model.model_fields.items()}
    # Settings of a group itself come first, inherited ones behind them.
    own = [name for model in models for name in model.model_fields if name in vars(model).get("__annotations__", {})]
    ordered = dict.fromkeys([*own, *(name for model in models for name in model.model_fields)])
    items: list[str] = []
    for name in ordered:
        field = fields[name]
        if name in leave_out.model_fields:
            continue
        if _chooses(field):
            kinds = dict.fromkeys(kind for model in models for kind in get_args(model.model_fields[name].annotation))
            items.insert(0, _item(name, [", ".join(map(_code, kinds))], "", []))
            continue
        facts = [_kind(field.rebuild_annotation()), _default(field)]
        items.append(_item(field.alias or name, facts, field.description or "", map(_yaml, field.examples or ())))
    return "\n".join(items)


def _item(name: str, facts: Iterable[str], description: str, examples: Iterable[str]) -> str:
    """Return a setting as an item of a list."""
    in_brackets = ", ".join(filter(None, facts))
    head = f"- **`{name}`**" + (f" ({in_brackets})" if in_brackets else "")
    example = ", ".join(filter(None, map(_code, examples)))
    return head + (f": {description}" if description else "") + (f" Example: {example}." if example else "")


def _default_text(default: str) -> str:
    return f"default {_code(default)}" if default else ""


def _chooses(field: FieldInfo) -> bool:
    """Return whether a setting is the one by which a group is chosen."""
    return field.description is None and get_origin(field.annotation) is Literal


def _kind(annotation: Any) -> str:
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _kind(inner[0])
    if origin is Literal:
        return ", ".join(_code(kind) for kind in inner)
    if origin in (Union, UnionType):
        # A name may stand for a group.
        groups = any(isinstance(kind, type) and issubclass(kind, Settings) for kind in inner)
        kinds = [_kind(kind) for kind in inner if kind is not NoneType and not (groups and get_origin(kind) is Literal)]
        # Text may stand for a list of one.
        kinds = [kind for kind in kinds if kind != "text" or "list of text" not in kinds]
        return " or ".join(dict.fromkeys(kinds))
    if origin in (list, tuple):
        return f"list of {_kind(inner[0])}"
    if origin in (dict, Mapping):
        return "mapping"
    if annotation in _WORDS:
        return _WORDS[annotation]
    if isinstance(annotation, type) and issubclass(annotation, RuleKind):
        return f"mapping of {', '.join(map(_code, annotation.model_fields))}"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "group" if annotation.__module__.startswith("kafka_lake.") else "mapping"
    return ", ".join(_code(option.value) for option in annotation)


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True, validated_data={})
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json", exclude_none=True)
        chosen = next((name for name in ("type", "mode") if name in value), None)
        value = value[chosen] if chosen else ""
    return "" if value in (None, (), [], {}, "") or value is PydanticUndefined else _default_text(_yaml(value))


def _yaml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_yaml(entry)}" for key, entry in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_entry, value)) + "]"
    return f"{value:_}" if isinstance(value, int) and value >= 10_000 else str(getattr(value, "value", value))


def _entry(value: Any) -> str:
    return f"'{value}'" if isinstance(value, str) and _QUOTED & set(value) else _yaml(value)


def _code(text: object) -> str:
    return f"`{text}`" if text else ""
