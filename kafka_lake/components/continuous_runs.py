"""The setting ``continuous:`` of a topic: how often its continuous runs commit, and when they end."""

from typing import Annotated

import dagster as dg
from pydantic import ConfigDict, Field, model_validator

from kafka_lake.common.durations import seconds_of
from kafka_lake.common.errors import ConfigurationError
from kafka_lake.components.text import Text
from kafka_lake.ingest.continuous.schedule import Continuous


class ContinuousRuns(dg.Model, dg.Resolvable):
    """How often a topic's continuous runs commit, and when they end. All has defaults: ``continuous: {}`` is enough.

    Durations are a number and ms, s, m or h.
    """

    model_config = ConfigDict(extra="forbid")

    trigger: Text = Field(default="2s", description="At most one commit starts in this time.")
    time_limit: Text = Field(
        default="1h", alias="for", description="The run ends after this time; the sensor starts another."
    )
    idle: Text = Field(default="5m", description="The run ends when no record has arrived for this time.")
    compact_every: Annotated[int, Field(ge=2)] | None = Field(
        default=100, description="Small files are compacted after this many commits; null for never."
    )
    report_every: Text = Field(
        default="30s", description="Materializations and check results are reported once in this time."
    )

    @model_validator(mode="after")
    def _possible(self) -> "ContinuousRuns":
        self.settings()
        return self

    def settings(self) -> Continuous:
        """Return the settings as a continuous run takes them.

        Raises:
            ValueError: If a duration is none, or too short for another.
        """
        written = {"trigger": self.trigger, "for": self.time_limit, "idle": self.idle}
        seconds = {}
        for key, text in {**written, "report_every": self.report_every}.items():
            try:
                seconds[key] = seconds_of(text)
            except ConfigurationError as error:
                raise ValueError(f"{key}: {error}") from error
        try:
            return Continuous(
                trigger=seconds["trigger"],
                time_limit=seconds["for"],
                idle=seconds["idle"],
                compact_every=self.compact_every,
                report_every=seconds["report_every"],
            )
        except ConfigurationError as error:
            raise ValueError(str(error)) from error
