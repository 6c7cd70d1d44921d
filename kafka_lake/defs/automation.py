"""Automation that is on from the start: tables made from topic tables follow them automatically."""

import dagster as dg


@dg.definitions
def automation() -> dg.Definitions:
    """Return the sensor that evaluates automation conditions, switched on."""
    return dg.Definitions(
        sensors=[
            dg.AutomationConditionSensorDefinition(
                "automation",
                target=dg.AssetSelection.all(),
                default_status=dg.DefaultSensorStatus.RUNNING,
                minimum_interval_seconds=5,
            )
        ]
    )
