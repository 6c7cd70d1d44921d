"""The schedule of a continuous run: pure functions of its settings and times."""

from collections.abc import Collection
from dataclasses import dataclass

from kafka_lake.common.offsets import Position, Watermarks
from kafka_lake.spec.continuous import Continuous

_TOPIC_POLL_SECONDS = 0.5
REPORTING_SHARE = 0.05
"""The largest share of a run's time that reporting takes."""


@dataclass(frozen=True)
class Times:
    """The last time of each action of a run, in seconds of one clock; minus infinity for never.

    Args:
        fed: Last time with new records, or the start of the run.
        polled: Last poll of the topic.
        reported: Last report, or the start of the run.
    """

    began: float
    fed: float
    polled: float = float("-inf")
    planned: float = float("-inf")
    committed: float = float("-inf")
    reported: float = float("-inf")
    reporting: float = 0.0


def next_poll(settings: Continuous, at: Times) -> float:
    """Return the time of the next poll: when another commit may start, with a minimum interval."""
    return max(at.committed + settings.trigger, at.polled + min(settings.trigger, _TOPIC_POLL_SECONDS))


def ending(settings: Continuous, at: Times, now: float, news: bool) -> str | None:
    """Return the reason for the run to end; None if it goes on."""
    if now - at.began >= settings.time_limit:
        return f"its time of {settings.time_limit:g} s is over"
    if not news and now - at.fed >= settings.idle:
        return f"no record arrived for {settings.idle:g} s" if settings.idle else "no record has arrived"
    return None


def reached(position: Position | None, target: Watermarks, partitions: Collection[int]) -> bool:
    """Return whether a table has reached watermarks, or the topic has been recreated since."""
    if position is None:
        return False
    ends = {p: target.end[p] for p in partitions if p in target.end}
    return not position.identity.same_as(target.identity) or all(
        position.offsets.get(p, -1) >= end for p, end in ends.items()
    )


def report_due(settings: Continuous, at: Times, now: float, commits: int) -> bool:
    """Return whether to report now: after the first commit, then in intervals, longer ones if reporting is slow."""
    pause = max(settings.report_every, at.reporting / REPORTING_SHARE)
    return commits > 0 and now - at.reported >= pause


def has_news(position: Position | None, now: Watermarks, partitions: Collection[int]) -> bool:
    """Return whether the topic has new records for a position, or has been recreated or cut off."""
    offsets = position.offsets if position else {}
    if (position and not position.identity.same_as(now.identity)) or not offsets.keys() <= now.end.keys():
        return True
    return any(now.end[p] != offsets.get(p, now.low[p]) for p in partitions if p in now.end)
