"""The settings of a continuous run."""

from dataclasses import dataclass

from kafka_lake.errors import ConfigurationError


@dataclass(frozen=True)
class Continuous:
    """The settings of a continuous run, in seconds.

    Args:
        trigger: Shortest time between the starts of two commits.
        time_limit: No commit starts after this time; the sensor starts another run when there is work.
        idle: The run ends after this time without new records; with 0, as soon as there is nothing to do.
        report_every: Shortest time between two reports of materializations and check results.

    Raises:
        ConfigurationError: If a time is too short, or longer than the run.
    """

    trigger: float = 1.0
    time_limit: float = 3600.0
    idle: float = 300.0
    compact_every: int | None = 100
    report_every: float = 30.0

    def __post_init__(self) -> None:
        if self.trigger <= 0:
            raise ConfigurationError("trigger: must be greater than 0.", "Write for example 2s.")
        if self.time_limit < self.trigger:
            raise ConfigurationError(
                f"for: {self.time_limit:g} s is shorter than the trigger, {self.trigger:g} s.", "Write for example 1h."
            )
