"""The setting ``maintenance:`` of a topic, as YAML has it; its fields are those of `Maintenance`."""

from typing import Any, get_type_hints

import dagster as dg
from pydantic import ConfigDict, create_model, field_validator

from kafka_lake.common.errors import ConfigurationError
from kafka_lake.components.text import OptionalText, TextList, duration
from kafka_lake.ingest.topic_table import pydantic_fields
from kafka_lake.lake.maintenance.settings import Maintenance
from kafka_lake.lake.maintenance.window import window_of

_KINDS = get_type_hints(Maintenance, include_extras=True)
_WRITTEN: dict[Any, Any] = {
    str | None: OptionalText,
    tuple[str, ...]: TextList,
}
_DECLARED: dict[str, Any] = {
    name: (_WRITTEN.get(_KINDS[name], _KINDS[name]), declared)
    for name, declared in pydantic_fields(Maintenance).items()
}
_Fields: Any = create_model("MaintenanceFields", __base__=(dg.Model, dg.Resolvable), **_DECLARED)


class MaintenanceSettings(_Fields):  # type: ignore[misc]
    """How a topic's tables are kept fast, and for how long their past is kept. All has defaults."""

    model_config = ConfigDict(extra="forbid")

    _durations = field_validator("expire_after", "keep_rows")(duration)

    @field_validator("window")
    @classmethod
    def _part_of_a_day(cls, window: str | None) -> str | None:
        try:
            if window is not None:
                window_of(window)
        except ConfigurationError as error:
            raise ValueError(str(error)) from error
        return window

    def policy(self, defaults: "MaintenanceSettings | None" = None) -> Maintenance:
        """Return the settings as maintenance takes them.

        Args:
            defaults: What counts for the settings that aren't written here.
        """
        own = self.model_fields_set if defaults is not None else pydantic_fields(Maintenance)
        return Maintenance(
            **{name: _frozen(getattr(self if name in own else defaults, name)) for name in pydantic_fields(Maintenance)}
        )


def _frozen(value: Any) -> Any:
    """Return the value of a setting as a dataclass has it: what YAML has as a list is a tuple."""
    return tuple(value) if isinstance(value, list) else value
