"""What run configuration may say to a step, each value as it is given."""

from typing import Any

import dagster as dg


def run_choices(config: type[dg.Config]) -> dict[str, dg.Field]:
    """Return the configuration schema of a step: the fields of a class, none of which may name a variable.

    Dagster's own schema of the class would take ``{env: NAME}`` for a text, and whoever may launch a run would read the
    deployment's environment in the run's errors. Dagster refuses that before a run starts.

    Args:
        config: The class. The step makes it of `op_config`, since Dagster gives steps a `config` of its own schema.
    """
    return {name: _plain(field) for name, field in config.to_fields_dict().items()}


def _plain(field: dg.Field) -> dg.Field:
    kind: Any = field.config_type
    plain = dg.Noneable(_scalar(kind.inner_type)) if isinstance(kind, dg.Noneable) else _scalar(kind)
    default = {"default_value": field.default_value} if field.default_provided else {}
    return dg.Field(plain, description=field.description, is_required=field.is_required, **default)


def _scalar(kind: Any) -> Any:
    return kind.scalar_type if isinstance(kind, dg.ScalarUnion) else kind
