"""Dagster resources: Kafka, schema registry, catalog and Spark. Run configuration can't change their values."""

from typing import Any

import dagster as dg
from pydantic import PrivateAttr


class FixedResource(dg.ConfigurableResource):  # type: ignore[type-arg]
    """A resource that takes its values from its definition and the environment alone.

    Dagster lets run configuration override each field of a `ConfigurableResource`. Then a launched run could send the
    deployment's passwords to other brokers, another registry or another catalog. Dagster refuses run configuration for
    these resources before the run starts anything.
    """

    _definition: Any = PrivateAttr(default=None)

    def get_resource_definition(self) -> Any:
        """Return the definition for Dagster, always the same one: its configuration schema is empty."""
        if self._definition is None:
            configurable = super().get_resource_definition()
            schema = configurable.config_schema
            values = schema.default_value if schema.default_provided else {}
            self._definition = configurable.configured(lambda _: values, config_schema={})
        return self._definition
