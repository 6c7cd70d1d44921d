"""Report: the commits and figures of a run, for Dagster's metadata, the terminal and tests."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import reduce

from kafka_lake.common.offsets import Position, Watermarks, lag
from kafka_lake.common.records import without_time
from kafka_lake.common.text import rough
from kafka_lake.ingest.audit import Audited
from kafka_lake.ingest.read import Records
from kafka_lake.runtime.commit import CHECKS, ColumnNote, Commit, Finding, Waited
from kafka_lake.runtime.context import Context
from kafka_lake.runtime.plan import Plan
from kafka_lake.runtime.task.report import DeadLetterClass, merged_classes
from kafka_lake.writers.staged import Staged


def report_commit(context: Context, records: Records, published: Audited) -> Commit:
    """Return what a published commit did; warn of records whose timestamp no table can hold."""
    plan, staged = records.plan, published.staged
    if staged.untimed:
        context.observer.warn(f"Topic {context.spec.topic}: {without_time(staged.untimed)}.")
    return Commit(
        snapshot=staged.primary.snapshot,
        ranges=plan.ranges,
        after=plan.after,
        records=staged.records,
        rows=staged.primary.rows,
        dead_letters=staged.failed,
        tombstones=staged.tombstones,
        files=staged.primary.files,
        size=staged.primary.size,
        rows_by_partition=published.rows_by_partition,
        findings=published.findings,
        kind=plan.kind,
        classes=staged.classes,
        waited=waited(staged, published.published_at) if not plan.replaces else None,
        published_at=published.published_at,
        bytes_read=staged.bytes_read,
        elsewhere=plan.elsewhere,
        ignored=records.ignored,
        without_table=records.without_table,
        untimed=staged.untimed,
        decoded_singly=staged.decoded_singly,
    )


def waited(staged: Staged, visible_at: float) -> Waited | None:
    """Return the age of a commit's records at its publication; None if no record has a timestamp.

    A timestamp in the future counts as age 0.
    """
    if staged.oldest_ms is None or staged.newest_ms is None:
        return None
    return Waited(max(0.0, visible_at - staged.oldest_ms / 1000), max(0.0, visible_at - staged.newest_ms / 1000))


@dataclass(frozen=True)
class Figures:
    """Totals of a run.

    Args:
        waited: The age of the records at publication.
        decoded_singly: Records that were decoded one by one, which is slower.
    """

    commits: int = 0
    records: int = 0
    rows: int = 0
    dead_letters: int = 0
    tombstones: int = 0
    invisible: int = 0
    files: int = 0
    size: int = 0
    seconds: float = 0.0
    waited: Waited | None = None
    bytes_read: int = 0
    untimed: int = 0
    decoded_singly: int = 0

    def plus(self, other: "Figures") -> "Figures":
        """Return the sum of both."""
        both = self.waited.merged(other.waited) if self.waited and other.waited else self.waited or other.waited
        names = [field.name for field in fields(self) if field.name != "waited"]
        return Figures(waited=both, **{name: getattr(self, name) + getattr(other, name) for name in names})


@dataclass(frozen=True)
class PartitionReport:
    """A run's work on one Kafka partition: offsets read, rows added, offsets left."""

    topic: str
    partition: int
    start: int
    end: int
    rows: int
    lag: int


@dataclass(frozen=True)
class Reached:
    """The position of a table in a topic after a run."""

    watermarks: Watermarks
    position: Position | None

    @property
    def lag(self) -> dict[int, int]:
        """Return the offsets left, by partition."""
        return lag(self.position, self.watermarks)


@dataclass(frozen=True)
class RunReport:
    """The commits of one run.

    Args:
        commits: In order; empty if there was nothing to do.
        others: The reports of the topic's other tables, by namespace and name.
    """

    table: str
    run_id: str
    reached: Mapping[str, Reached] = field(default_factory=dict)
    commits: Sequence[Commit] = ()
    seconds: float = 0.0
    others: Mapping[tuple[str, str], "RunReport"] = field(default_factory=dict)

    def plus(self, other: "RunReport") -> "RunReport":
        """Return the report of both runs, which are of different topics of a table."""
        reached, commits = {**self.reached, **other.reached}, [*self.commits, *other.commits]
        seconds, others = self.seconds + other.seconds, {**self.others, **other.others}
        return RunReport(self.table, self.run_id, reached, commits, seconds=seconds, others=others)

    @property
    def has_commits(self) -> bool:
        """Return whether any of the topic's tables has a commit."""
        return bool(self.commits) or any(other.commits for other in self.others.values())

    def of(self, table: tuple[str, str]) -> "RunReport":
        """Return the report of one of the topic's tables."""
        name = ".".join(table)
        return (
            self if name == self.table else self.others.get(table) or replace(self, table=name, commits=[], others={})
        )

    def total(self, attribute: str) -> int:
        """Return the sum of a number over all commits, such as ``rows``."""
        return sum(int(getattr(commit, attribute)) for commit in self.commits)

    def figures(self) -> Figures:
        """Return the totals."""
        names = "records rows dead_letters tombstones invisible files size bytes_read untimed decoded_singly"
        totals = {name: self.total(name) for name in names.split()}
        return Figures(commits=len(self.commits), seconds=self.seconds, waited=self.waited(), **totals)

    def waited(self) -> Waited | None:
        """Return the age of the records at the publication of their commits."""
        ages = [commit.waited for commit in self.commits if commit.waited]
        return reduce(Waited.merged, ages) if ages else None

    def lags(self) -> dict[str, int]:
        """Return the number of offsets left, by topic."""
        return {topic: sum(its.lag.values()) for topic, its in self.reached.items()}

    def partitions(self) -> list[PartitionReport]:
        """Return the work on each Kafka partition of each topic, in ascending order."""
        return [partition for topic, its in self.reached.items() for partition in self._partitions(topic, its)]

    def _partitions(self, topic: str, its: Reached) -> Iterator[PartitionReport]:
        commits, offsets = [c for c in self.commits if c.topic == topic], its.position.offsets if its.position else {}
        for partition, behind in its.lag.items():
            touched = [r for c in commits for r in c.ranges if r.partition == partition]
            yield PartitionReport(
                topic=topic,
                partition=partition,
                start=touched[0].start if touched else offsets.get(partition, 0),
                end=touched[-1].end if touched else offsets.get(partition, 0),
                rows=sum(c.rows_by_partition.get(partition, 0) for c in commits),
                lag=behind,
            )

    def classes(self) -> tuple[DeadLetterClass, ...]:
        """Return the run's dead letters by class, the most frequent first."""
        return merged_classes(c for commit in self.commits for c in commit.classes)

    def findings(self) -> list[Finding]:
        """Return one result for each check over all commits; without a commit, every check passes."""
        return merged(finding for commit in self.commits for finding in commit.stamped_findings())


@dataclass(frozen=True)
class RunSoFar:
    """The sum of a run's reports.

    Dagster keeps only the latest result of a check in a run, so each result covers the whole run.
    """

    figures: Figures = Figures()
    findings: tuple[Finding, ...] = ()

    def plus(self, report: RunReport) -> "RunSoFar":
        """Return the sum with one more report."""
        return RunSoFar(self.figures.plus(report.figures()), tuple(merged([*self.findings, *report.findings()])))


def merged(findings: Iterable[Finding]) -> list[Finding]:
    """Return one result for each check, with all problems and changes of columns, and the sum of numbers."""
    every = list(findings)
    checks = dict.fromkeys([*CHECKS, *(result.check for result in every)])
    return [_merged(check, [result for result in every if result.check == check]) for check in checks]


def _merged(check: str, findings: Sequence[Finding]) -> Finding:
    problems = dict.fromkeys(problem for finding in findings for problem in finding.problems)
    notes: dict[ColumnNote, ColumnNote] = {}
    for note in (note for finding in findings for note in finding.changes):
        # A note that every commit repeats, as about an ignored column, appears once.
        notes.setdefault(ColumnNote(note.column, note.what, note.before, note.after, why=note.why), note)
    warns = any(finding.warns for finding in findings) and not any(finding.refuses for finding in findings)
    facts = _summed([finding.facts for finding in findings])
    return Finding(check, tuple(problems), facts, changes=tuple(notes.values()), warns=warns)


def _summed(facts: Sequence[Mapping[str, object]]) -> dict[str, object]:
    """Return the facts of several commits: the sum of numbers, and the latest of other values."""
    result: dict[str, object] = {}
    for figures in facts:
        for key, value in figures.items():
            before = result.get(key)
            result[key] = before + value if isinstance(before, int) and isinstance(value, int) else value
    return result


@dataclass(frozen=True)
class Progress:
    """The progress of a run through a backlog.

    Args:
        largest: Offsets of the largest commit: the first one may be small.
        first: End of the first commit, and its offsets; None before that.
    """

    began: float
    commits: int = 0
    offsets: int = 0
    remaining: int = 0
    largest: int = 0
    first: tuple[float, int] | None = None
    last: float = 0.0

    def plus(self, todo: Plan, now: float) -> "Progress":
        """Return the progress after a commit."""
        done = todo.records_at_most
        # The pause between two backlogs of a continuous run doesn't count.
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

    def line(self) -> str:
        """Return a line for the log; empty if nothing is left.

        >>> from kafka_lake.common.offsets import OffsetRange, Position, TopicIdentity
        >>> position = Position(TopicIdentity("c", "t", "pizzas"), {})
        >>> one = Plan((OffsetRange(0, 0, 1_200_000),), position, 8_800_000)
        >>> two = Plan((OffsetRange(0, 1_200_000, 2_400_000),), position, 7_600_000)
        >>> Progress(0).plus(one, 60).plus(two, 120).line()
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
        """Return the estimated time left; empty if nothing is left, or before the first commit."""
        if not self.remaining or self.first is None:
            return ""
        at, before = self.first
        # The time before the first commit, as the start of Spark, isn't repeated.
        seconds, offsets = (self.last - at, self.offsets - before) if self.commits > 1 else (at - self.began, before)
        return f"about {rough(self.remaining * seconds / offsets)} left" if offsets and seconds > 0 else ""


def _short(count: int) -> str:
    if count < 10_000:
        return f"{count:,}"
    return f"{count / 1000:,.0f} k" if count < 1_000_000 else f"{count / 1_000_000:,.1f} M"


@dataclass(frozen=True)
class Replayed:
    """The result of a dead-letter replay.

    Args:
        report: The run's report: ``records`` were decoded, ``rows`` moved into the table.
        moved: Dead letters that are rows now.
    """

    report: RunReport
    moved: int
    remaining: int
