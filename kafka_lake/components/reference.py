"""docs/reference.md: every setting with its type, default, meaning and an example, as the code declares them."""

from collections.abc import Mapping
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from kafka_lake.common.environment import VARIABLES, Variable
from kafka_lake.common.markdown import table
from kafka_lake.components.continuous_runs import ContinuousRuns
from kafka_lake.components.derived_assets import DeriveConfig
from kafka_lake.components.derived_settings import DerivedSettings
from kafka_lake.components.ingest_config import IngestConfig
from kafka_lake.components.kafka_cluster import KafkaCluster
from kafka_lake.components.kafka_topics import KafkaTopics
from kafka_lake.components.maintenance_settings import MaintenanceSettings
from kafka_lake.components.rule_settings import RuleKind, RuleSettings
from kafka_lake.components.topic_settings import TopicSettings

_WORDS: dict[object, str] = {
    str: "text",
    bool: "true or false",
    int: "whole number",
    float: "number",
    Any: "anything",
}
_QUOTED = set(",:{}[]#")


def tables() -> Mapping[str, str]:
    """Return the tables as Markdown, by the name that their place in the page has."""
    return {
        "topic": _settings(TopicSettings),
        "continuous": _settings(ContinuousRuns),
        "maintenance": _settings(MaintenanceSettings),
        "topics": _settings(KafkaTopics),
        "derived": _settings(DerivedSettings),
        "derived-run": _settings(DeriveConfig),
        "rule": _settings(RuleSettings),
        "cluster": _settings(KafkaCluster),
        "run": _settings(IngestConfig),
        "environment": table(
            ("variable", "default", "meaning", "example"),
            ((_code(_name(each)), _code(each.default), each.description, _code(each.example)) for each in VARIABLES),
        ),
    }


def _name(variable: Variable) -> str:
    return f"{variable.name}…" if variable.name.endswith("_") else variable.name


def _settings(model: type[BaseModel]) -> str:
    rows = (
        (
            _code(field.alias or name),
            _kind(field.rebuild_annotation()),
            _default(field),
            field.description or "",
            ", ".join(_code(_yaml(each)) for each in field.examples or ()),
        )
        for name, field in model.model_fields.items()
    )
    return table(("setting", "type", "default", "meaning", "example"), rows)


def _kind(annotation: Any) -> str:
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _kind(inner[0])
    if origin is Literal:
        return ", ".join(_code(each) for each in inner)
    if origin in (Union, UnionType):
        return " or ".join(_kind(each) for each in inner if each is not NoneType)
    if origin in (list, tuple):
        return f"list of {_kind(inner[0])}"
    if origin in (dict, Mapping):
        return f"mapping of {_kind(inner[0])} to {_kind(inner[1])}"
    if annotation in _WORDS:
        return _WORDS[annotation]
    if isinstance(annotation, type) and issubclass(annotation, RuleKind):
        return f"mapping of {', '.join(map(_code, annotation.model_fields))}"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "mapping, see below" if annotation.__module__.startswith("kafka_lake.") else "mapping"
    return ", ".join(_code(each.value) for each in annotation)


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "**needed**"
    value = field.get_default(call_default_factory=True, validated_data={})
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json", exclude_none=True)
    return "" if value in (None, (), [], {}) or value is PydanticUndefined else _code(_yaml(value))


def _yaml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_yaml(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_entry, value)) + "]"
    return f"{value:_}" if isinstance(value, int) and value >= 10_000 else str(getattr(value, "value", value))


def _entry(value: Any) -> str:
    return f"'{value}'" if isinstance(value, str) and _QUOTED & set(value) else _yaml(value)


def _code(text: object) -> str:
    return f"`{text}`" if text else ""
