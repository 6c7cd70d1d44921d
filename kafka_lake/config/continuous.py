"""The group ``continuous:``: how often a topic's continuous runs commit, and when they end."""

from collections.abc import Iterator
from typing import Annotated

from pydantic import Field

from kafka_lake.common.durations import seconds_of
from kafka_lake.config.settings import Problem, Settings
from kafka_lake.config.text import Text
from kafka_lake.errors import ConfigurationError
from kafka_lake.ingest.continuous.schedule import Continuous


class ContinuousRuns(Settings):
    """How often a topic's continuous runs commit, and when they end. All has defaults: ``continuous: {}`` is enough.

    Durations are a number and ms, s, m or h.
    """

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

    def problems(self) -> Iterator[Problem]:
        """Give the durations that are none, or too short for another."""
        try:
            self.settings()
        except ConfigurationError as error:
            yield (), str(error)

    def settings(self) -> Continuous:
        """Return the settings as a continuous run takes them.

        Raises:
            ConfigurationError: If a duration is none, or too short for another.
        """
        written = {"trigger": self.trigger, "for": self.time_limit, "idle": self.idle}
        seconds = {}
        for key, text in {**written, "report_every": self.report_every}.items():
            try:
                seconds[key] = seconds_of(text)
            except ConfigurationError as error:
                raise ConfigurationError(f"{key}: {error}") from error
        return Continuous(
            trigger=seconds["trigger"],
            time_limit=seconds["for"],
            idle=seconds["idle"],
            compact_every=self.compact_every,
            report_every=seconds["report_every"],
        )
