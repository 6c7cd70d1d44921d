"""When a continuous run does what: pure functions of its settings, and of what happened when."""

from collections.abc import Collection
from dataclasses import dataclass

from kafka_lake.common.offsets import Position, Watermarks
from kafka_lake.errors import ConfigurationError

_TOPIC_POLL_SECONDS = 0.5
REPORTING_SHARE = 0.05
"""How much of its time a run reports, at most."""


@dataclass(frozen=True)
class Continuous:
    """How a continuous run goes about it. All times are in seconds.

    Args:
        trigger: At most one commit is begun in this time.
        time_limit: No commit is begun after this time; the sensor starts another run as soon as there is work.
        idle: The run ends when nothing has come for so long; with 0 as soon as a commit leaves nothing to do.
        compact_every: After so many commits small files are compacted; None for never.
        report_every: Materializations and check results are reported at most once in this time.

    Raises:
        ConfigurationError: If a time is too short, or longer than the run.
    """

    trigger: float = 2.0
    time_limit: float = 3600.0
    idle: float = 300.0
    compact_every: int | None = 100
    report_every: float = 30.0

    def __post_init__(self) -> None:
        if self.trigger <= 0:
            raise ConfigurationError("trigger: must be more than nothing.", "Write for example 2s.")
        if self.time_limit < self.trigger:
            raise ConfigurationError(
                f"for: {self.time_limit:g} s is shorter than the trigger, {self.trigger:g} s.", "Write for example 1h."
            )
        if self.report_every < self.trigger:
            raise ConfigurationError(
                f"report_every: {self.report_every:g} s is shorter than the trigger, {self.trigger:g} s.",
                "Write for example 30s.",
            )


@dataclass(frozen=True)
class Times:
    """When a run did what last, in seconds of one clock; minus infinity for never.

    Args:
        fed: When it last was done with something new, or began.
        polled: When it last looked at the topic.
        planned: When it last looked at the table.
        committed: When it last began a commit.
        reported: When it last reported, or began.
        reporting: How long reporting took then.
    """

    began: float
    fed: float
    polled: float = float("-inf")
    planned: float = float("-inf")
    committed: float = float("-inf")
    reported: float = float("-inf")
    reporting: float = 0.0


def next_poll(settings: Continuous, at: Times) -> float:
    """Return when to look at the topic next: not before another commit may begin, and not all the time."""
    return max(at.committed + settings.trigger, at.polled + min(settings.trigger, _TOPIC_POLL_SECONDS))


def ending(settings: Continuous, at: Times, now: float, news: bool) -> str | None:
    """Return why the run ends now, None if it goes on: what has come by then is taken, unless the time is over."""
    if now - at.began >= settings.time_limit:
        return f"its time of {settings.time_limit:g} s is over"
    if not news and now - at.fed >= settings.idle:
        return f"nothing came for {settings.idle:g} s" if settings.idle else "nothing more has come"
    return None


def reached(position: Position | None, target: Watermarks, partitions: Collection[int]) -> bool:
    """Return whether a table holds all that a topic held at some time, or the topic is another one since."""
    if position is None:
        return False
    ends = {p: target.end[p] for p in partitions if p in target.end}
    return not position.identity.same_as(target.identity) or all(
        position.offsets.get(p, -1) >= end for p, end in ends.items()
    )


def report_due(settings: Continuous, at: Times, now: float, commits: int) -> bool:
    """Return whether to report now: at the first commit, then in intervals, longer ones where reporting is slow."""
    pause = max(settings.report_every, at.reporting / REPORTING_SHARE)
    return commits > 0 and now - at.reported >= pause


def has_news(position: Position | None, now: Watermarks, partitions: Collection[int]) -> bool:
    """Return whether the topic has anything that a table at this position lacks, or isn't what it was."""
    offsets = position.offsets if position else {}
    if (position and not position.identity.same_as(now.identity)) or not offsets.keys() <= now.end.keys():
        return True
    return any(now.end[p] != offsets.get(p, now.low[p]) for p in partitions if p in now.end)
