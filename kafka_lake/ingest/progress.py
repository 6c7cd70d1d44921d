"""How far a run is with a backlog that takes several commits, and about how long the rest takes. Pure."""

from dataclasses import dataclass

from kafka_lake.common.durations import rough
from kafka_lake.ingest.plan.model import Plan


@dataclass(frozen=True)
class Progress:
    """What the commits of a run have done so far of a backlog.

    Args:
        began: When the run began, in seconds of some clock.
        offsets: That they have consumed; those without a record count too.
        remaining: Offsets that the last of them left, as far as the run has looked.
        largest: Offsets of the largest of them: the first of a run may be a small one.
        first: When the first of them was done, and its offsets; None before that.
        last: When the last of them was done.
    """

    began: float
    commits: int = 0
    offsets: int = 0
    remaining: int = 0
    largest: int = 0
    first: tuple[float, int] | None = None
    last: float = 0.0

    def plus(self, todo: Plan, now: float) -> "Progress":
        """Return the progress after a commit.

        Args:
            now: When it was done, by the same clock.
        """
        done = todo.records_at_most
        # A run that continues has one backlog after the other; what it waited in between is no measure of anything.
        before = self if self.remaining or not self.commits else Progress(now)
        return Progress(
            began=before.began,
            commits=before.commits + 1,
            offsets=before.offsets + done,
            remaining=todo.remaining,
            largest=max(before.largest, done),
            first=before.first or (now, done),
            last=now,
        )

    def told(self) -> str:
        """Return it as a line for a log; empty where nothing is left.

        >>> from kafka_lake.common.offsets import OffsetRange, Position, TopicIdentity
        >>> position = Position(TopicIdentity("c", "t", "pizzas"), {})
        >>> one = Plan((OffsetRange(0, 0, 1_200_000),), position, 8_800_000)
        >>> two = Plan((OffsetRange(0, 1_200_000, 2_400_000),), position, 7_600_000)
        >>> Progress(0).plus(one, 60).plus(two, 120).told()
        '2 of about 9 commits, 2.4 M of 10.0 M records, about 6 min left'
        """
        if not self.remaining:
            return ""
        parts = [
            f"{self.commits} of about {self.commits + -(-self.remaining // max(1, self.largest)):,} commits",
            f"{_short(self.offsets)} of {_short(self.offsets + self.remaining)} records",
            self.time_left(),
        ]
        return ", ".join(filter(None, parts))

    def time_left(self) -> str:
        """Return about how long the rest takes; empty where nothing is left, or nobody can tell."""
        if not self.remaining or self.first is None:
            return ""
        at, before = self.first
        # What comes before the first commit is done, as the start of Spark, isn't repeated.
        seconds, offsets = (self.last - at, self.offsets - before) if self.commits > 1 else (at - self.began, before)
        return f"about {rough(self.remaining * seconds / offsets)} left" if offsets and seconds > 0 else ""


def _short(count: int) -> str:
    if count < 10_000:
        return f"{count:,}"
    return f"{count / 1000:,.0f} k" if count < 1_000_000 else f"{count / 1_000_000:,.1f} M"
