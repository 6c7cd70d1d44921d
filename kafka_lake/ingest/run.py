"""Runs over one topic, each by one call; the loop over the topics of a table; and what a run logs."""

import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from kafka_lake.common.log_format import RUNS, with_fields
from kafka_lake.common.redaction import error_without_secrets, without_secret_values
from kafka_lake.error_classification import headline, is_transient, sentence
from kafka_lake.errors import KafkaLakeError, UnknownTopicError
from kafka_lake.ingest.adopt import Adoption, Source
from kafka_lake.ingest.jobs.adopt import Adopt
from kafka_lake.ingest.jobs.append import Append
from kafka_lake.ingest.jobs.dead_letter_replay import DeadLetterReplay, Replayed
from kafka_lake.ingest.jobs.replay import Extent, Replay, Reset
from kafka_lake.ingest.report import RunReport
from kafka_lake.ingest.runner import Runner
from kafka_lake.ingest.table_state import with_position
from kafka_lake.ingest.topic_ends import TopicEnds
from kafka_lake.ingest.topic_runner import LeftBehindError, runner_of
from kafka_lake.runtime.commit import NOT_KEPT, Commit
from kafka_lake.runtime.context import Connections, Context, Observer
from kafka_lake.runtime.plan import Plan
from kafka_lake.runtime.record_keys import state_of
from kafka_lake.spec.topic_table import TopicTable
from kafka_lake.writers.decoding import SparkDecoding

log = logging.getLogger(RUNS)
# Without a handler Python would print warnings, which Dagster and the progress bar show already.
log.addHandler(logging.NullHandler())
_REMEDY = "docs/errors.md, #{}, says what to do; Dagster's page of the run has the whole trace."
_STAYS = "what the run has committed; the next run continues there."
_MOST_NOTES = 10


@dataclass
class RunLog:
    """The log of one run.

    Args:
        table: What the run fills, as messages have it.
        topic: The Kafka topic; empty for a table that is made from tables.
        began: When the step in progress began, on the monotonic clock.
    """

    table: str
    run_id: str
    topic: str = ""
    began: float = field(default_factory=time.monotonic)

    def observing(self, observer: Observer) -> Observer:
        """Return an observer that logs what it is told, and tells the other one then."""

        def step_done(step: str) -> None:
            self._tell(logging.INFO, step, {"step": step, "seconds": self._took()})
            observer.step_done(step)

        def on_commit(commit: Commit, plan: Plan) -> None:
            counts = {"rows": commit.rows, "dead_letters": commit.dead_letters, "records": commit.records}
            facts = {
                "snapshot": commit.snapshot,
                "tombstones": commit.tombstones,
                "remaining": plan.remaining,
                **counts,
            }
            told = f"committed snapshot {commit.snapshot}: {commit.rows} rows, {commit.dead_letters} dead letters"
            self._tell(logging.INFO, told, {"step": "committed", "seconds": self._took(), **facts})
            for note in _altered(commit):
                self._tell(logging.INFO, note, {})
            observer.on_commit(commit, plan)

        def warn(line: str) -> None:
            self._tell(logging.WARNING, line, {})
            observer.warn(line)

        return Observer(step_done, on_commit, warn)

    def failed(self, error: Exception) -> None:
        """Log why the run has failed, what to do, and what stays: three lines, and a trace if nobody can mend it."""
        told = sentence(error)
        what, remedy = told or headline(error), ""
        if isinstance(error, KafkaLakeError):
            what, remedy = without_secret_values(error.message), error.remedy
        name = type(error).__name__
        lines = [f"{name}: {what}", remedy or _REMEDY.format(name.lower()), f"Table {self.table} keeps {_STAYS}"]
        facts = {"error": name, "what_to_do": lines[1], "retry_helps": is_transient(error)}
        self._tell(logging.ERROR, "\n".join(lines), facts, None if told else error_without_secrets(error))

    def _took(self) -> float:
        now = time.monotonic()
        took, self.began = now - self.began, now
        return round(took, 3)

    def _tell(self, level: int, told: str, facts: Mapping[str, Any], trace: BaseException | None = None) -> None:
        place = {"topic": self.topic} if self.topic else {}
        of = f"Topic {self.topic}" if self.topic else f"Table {self.table}"
        took = f", {facts['seconds']:.1f} s" if "seconds" in facts else ""
        fields = {**place, "table": self.table, "run": self.run_id, **facts}
        line = f"{of}, run {self.run_id[:8]}: {told}{took}"
        log.log(level, "%s", line, extra=with_fields(fields), exc_info=trace)


def _altered(commit: Commit) -> list[str]:
    """Return which columns lack something of the records' values, and why: a line each, of some columns at most."""
    notes = (note for finding in commit.findings for note in finding.changes if note.what == NOT_KEPT)
    lines = [f"column {note.column}: {note.why}" for note in notes]
    return (
        lines if len(lines) <= _MOST_NOTES else [*lines[:_MOST_NOTES], f"and {len(lines) - _MOST_NOTES} more columns"]
    )


def ingest(
    spec: TopicTable,
    connections: Connections,
    run_id: str,
    partitions: Collection[int] | None = None,
    observer: Observer | None = None,
) -> RunReport:
    """Bring a table up to where its topic ends now.

    Raises:
        GateFailedError: If a gate refused a commit; commits before it stay.
        LeftBehindError: If tables of a topic with several couldn't take their records; the others have theirs.
        DataLossError: If Kafka no longer has what comes next, and the topic's settings don't say to go on.
        PublishRefusedError: If others kept moving ``main`` ahead of this run.
        KafkaLakeError: For anything else a user can mend; ``main`` holds whole commits only.
    """
    with logged_run(spec, connections, run_id, observer) as context:
        return runner_of(context, lambda each: Append(each, partitions)).run()


def replay(
    spec: TopicTable, connections: Connections, run_id: str, extent: Extent, observer: Observer | None = None
) -> RunReport:
    """Read a part of the topic again and swap the table's rows of it for what today's schema and transform give.

    Raises:
        DataLossError: If Kafka no longer has what the table has there, unless told to keep it. Nothing is changed.
        GateFailedError: If the swap would lose rows of records that Kafka compacted away, or another gate refused.
        KafkaLakeError: For anything else a user can mend; ``main`` holds whole commits only.
    """
    with logged_run(spec, connections, run_id, observer) as context:
        return runner_of(context, lambda each: Replay(each, extent)).run()


Chosen = Sequence[tuple[TopicTable, frozenset[int] | None]]
"""Topics of a table, each with its Kafka partitions; None for all of them."""


def each_topic(
    chosen: Chosen,
    run_id: str,
    run: Callable[[TopicTable, frozenset[int] | None], RunReport],
    warn: Callable[[str], None],
) -> RunReport:
    """Run over the topics of a table, one after the other; each commit is of one topic.

    A topic that fails doesn't keep the others from being read. One that the brokers don't know is left out, unless it
    is the only one: a deleted topic has nothing to read.

    Raises:
        LeftBehindError: If some of several topics have failed; the others are up to date.
        KafkaLakeError: As the run of the only topic.
    """
    report, errors = RunReport(".".join(chosen[0][0].identifier), run_id), dict[str, Exception]()
    for spec, partitions in chosen:
        try:
            report = report.plus(run(spec, partitions))
        except Exception as error:
            if len(chosen) == 1:
                raise
            errors[spec.topic] = error
            warn(f"Topic {spec.topic} is left out: {headline(error)}")
            if is_transient(error):
                # The others would wait for the same.
                break
    known = {topic: error for topic, error in errors.items() if not isinstance(error, UnknownTopicError)}
    if left := known or (errors if not report.reached else {}):
        raise LeftBehindError(f"Table {report.table}: the run left topics", left, report)
    return report


def plan_reset(
    spec: TopicTable, connections: Connections, to: str, partitions: Collection[int] | None = None
) -> Plan | None:
    """Return what a reset would do, without doing it; None if the position is there already.

    Raises:
        TableError: If there is no table yet.
        ConfigurationError: If a target lies outside of what the topic holds.
    """
    context = Context(spec, connections, "plan", decoding=SparkDecoding())
    topic = TopicEnds(context)
    # Brokers that don't answer are told of before a table that isn't there, as by the reset itself.
    topic.poll()
    table = connections.catalog.table(spec.identifier)
    state = with_position(context, topic, state_of(spec, table), required=False) if table else None
    return Reset(context, to, partitions).plan(topic, state)


def reset(
    spec: TopicTable,
    connections: Connections,
    run_id: str,
    to: str,
    partitions: Collection[int] | None = None,
    observer: Observer | None = None,
) -> RunReport:
    """Set the table's position by hand, in a commit of its own.

    Rows at and beyond a target before the position are removed, since they will be read again; offsets between the
    position and a target beyond it are recorded as skipped.

    Raises:
        TableError: If there is no table yet.
        ConfigurationError: If a target lies outside of what the topic holds, or rows would have to be removed and
            there is no metadata column to tell them by.
    """
    with logged_run(spec, connections, run_id, observer) as context:
        return Runner(context, Reset(context, to, partitions)).run()


def adopt(
    spec: TopicTable,
    connections: Connections,
    run_id: str,
    agreed: Adoption,
    source: Source,
    observer: Observer | None = None,
) -> RunReport:
    """Take over a table that another writer has filled: write the position at which it resumes, in one commit.

    Raises:
        AdoptionRefusedError: If the other writer has gone on since. ``main`` is as it was.
        KafkaLakeError: For anything else a user can mend; ``main`` is as it was.
    """
    with logged_run(spec, connections, run_id, observer) as context:
        return Runner(context, Adopt(context, agreed, source)).run()


def replay_dead_letters(
    spec: TopicTable, connections: Connections, run_id: str, where: str | None = None, observer: Observer | None = None
) -> Replayed:
    """Decode dead letters again with today's schema and transform, and move those that now fit into the table.

    Raises:
        ConfigurationError: If there is no metadata column, or the condition isn't understood.
        GateFailedError: If a gate refused the rows. Nothing is moved.
        TableError: If there is no table yet.
    """
    with logged_run(spec, connections, run_id, observer) as context:
        report = Runner(context, DeadLetterReplay(context, where)).run()
    remaining = report.total("dead_letters")
    # A keyed table has fewer rows than changes, and none of those that are older than its rows.
    moved = report.total("records") - remaining if spec.is_keyed else report.total("rows")
    return Replayed(report, moved, remaining)


@contextmanager
def logged_run(
    spec: TopicTable, connections: Connections, run_id: str, observer: Observer | None = None
) -> Iterator[Context]:
    """Give what a run works with; what happens during the block is logged, and why it fails if it does."""
    run_log = RunLog(".".join(spec.identifier), run_id, spec.full_topic)
    try:
        yield Context(spec, connections, run_id, run_log.observing(observer or Observer()), decoding=SparkDecoding())
    except Exception as error:
        run_log.failed(error)
        raise
