"""The settings of a derived table's YAML document: those of `DerivedTable` in `derive`, and Dagster's own."""

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, StringConstraints, WithJsonSchema, create_model

from kafka_lake.components.keys import plain_name
from kafka_lake.components.presentation import Presentation
from kafka_lake.config.maintenance import MaintenanceSettings
from kafka_lake.config.rules import RuleSettings
from kafka_lake.config.settings import Settings
from kafka_lake.config.text import OptionalText, Properties, Text, TextList, TextMap, TextOrList
from kafka_lake.derive.derived_table import DerivedTable, OnChange, Write
from kafka_lake.ingest.topic_table import TABLE_NAME, pydantic_fields


def _as_mapping(value: object) -> object:
    if isinstance(value, str):
        value = [value]
    return {each: each for each in value} if isinstance(value, list | tuple) else value


_IN_JSON = {
    "anyOf": [
        {"type": "object", "additionalProperties": {"type": "string"}},
        {"type": "array", "items": {"type": "string"}},
        {"type": "string"},
    ]
}
Key = Annotated[dict[str, str], BeforeValidator(_as_mapping), WithJsonSchema(_IN_JSON)]
"""Columns, one or a list, or a mapping of columns to expressions."""

_Name = Annotated[Text, StringConstraints(pattern=TABLE_NAME)]
# What YAML has for each setting: text is taken as it is written, and templates work.
_KINDS = {
    "table": _Name,
    "namespace": _Name,
    "sources": TextOrList,
    "join": TextOrList,
    "sql": OptionalText,
    "transform": OptionalText,
    "write": Write,
    "key": Key,
    "order_by": TextOrList,
    "on_change": OnChange,
    "every": Text,
    "verify": int,
    "partitions": OptionalText,
    "partition_by": TextOrList,
    "sort_by": TextOrList,
    "table_properties": Properties,
    "maintenance": MaintenanceSettings | None,
    "rules": list[RuleSettings],
}


def _settings() -> dict[str, Any]:
    """Return the fields of `DerivedTable` as those of a component: same names, rules, defaults and documentation."""
    found: dict[str, Any] = {}
    for name, declared in pydantic_fields(DerivedTable).items():
        own: Any = declared
        if alias := declared.serialization_alias:
            own = Field(alias=alias, min_length=1, description=declared.description, examples=declared.examples)
        if name == "maintenance":
            own = Field(default=None, description=declared.description, examples=declared.examples)
        found[name] = (_KINDS[name], own)
    return found


_DerivedFields: Any = create_model("DerivedFields", __base__=Settings, **_settings())


class DerivedSettings(_DerivedFields):  # type: ignore[misc]
    """What can be said of a derived table."""

    owners: TextList = Field(default_factory=list, description="Owners, as Dagster shows them.")
    group: OptionalText = Field(default=None, description="Dagster's asset group; the namespace by default.")
    description: OptionalText = Field(default=None, description="What the rows are.")
    tags: TextMap = Field(default_factory=dict, description="Tags of the table's asset in Dagster.")

    def derived_table(self) -> DerivedTable:
        """Return the settings as a run takes them."""
        given = {name: getattr(self, name) for name in pydantic_fields(DerivedTable) if name != "maintenance"}
        given["rules"] = tuple(rule.entry() for rule in self.rules)
        return DerivedTable(**given, **({"maintenance": self.maintenance.policy()} if self.maintenance else {}))

    def presentation(self) -> Presentation:
        """Return how Dagster shows the table's asset."""
        return Presentation(self.group or plain_name(self.namespace), self.owners, self.description, self.tags)
