"""The runs of a topic, one function each; the loop over a table's topics; and the log of a run."""

import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from kafka_lake.catalog.positions import state_of
from kafka_lake.common.logs import RUNS, error_without_secrets, with_fields, without_secret_values
from kafka_lake.error_classification import headline, is_transient, user_message
from kafka_lake.errors import KafkaLakeError, UnknownTopicError
from kafka_lake.ingest.jobs.adopt import Adopt, Adoption, Source
from kafka_lake.ingest.jobs.append import Append
from kafka_lake.ingest.jobs.dead_letter_replay import DeadLetterReplay
from kafka_lake.ingest.jobs.replay import Replay, Reset
from kafka_lake.ingest.report import Replayed, RunReport
from kafka_lake.ingest.table_state import with_position
from kafka_lake.ingest.topic_ends import TopicEnds
from kafka_lake.ingest.topic_runner import LeftBehindError, TopicRunner
from kafka_lake.runtime.commit import NOT_KEPT, Commit
from kafka_lake.runtime.context import Connections, Context, Observer
from kafka_lake.runtime.plan import Plan, ReplayRange
from kafka_lake.spec.topic_table import TopicTable
from kafka_lake.writers.decoding import SparkDecoding

log = logging.getLogger(RUNS)
# Without a handler, Python would print warnings that Dagster and the progress bar show already.
log.addHandler(logging.NullHandler())
_REMEDY = "docs/errors.md, #{}, says what to do; Dagster's page of the run has the full trace."
_STAYS = "the run's commits; the next run continues there."
_MOST_NOTES = 10


@dataclass
class RunLog:
    """The log of one run.

    Args:
        topic: The Kafka topic; empty for a derived table.
        began: The start of the current step, on the monotonic clock.
    """

    table: str
    run_id: str
    topic: str = ""
    began: float = field(default_factory=time.monotonic)

    def observing(self, observer: Observer) -> Observer:
        """Return an observer that logs each event before it passes it on."""

        def step_done(step: str) -> None:
            self._log(logging.INFO, step, {"step": step, "seconds": self._took()})
            observer.step_done(step)

        def on_commit(commit: Commit, plan: Plan) -> None:
            counts = {"rows": commit.rows, "dead_letters": commit.dead_letters, "records": commit.records}
            facts = {
                "snapshot": commit.snapshot,
                "tombstones": commit.tombstones,
                "remaining": plan.remaining,
                **counts,
            }
            line = f"committed snapshot {commit.snapshot}: {commit.rows} rows, {commit.dead_letters} dead letters"
            self._log(logging.INFO, line, {"step": "committed", "seconds": self._took(), **facts})
            for note in _unkept_values(commit):
                self._log(logging.INFO, note, {})
            observer.on_commit(commit, plan)

        def warn(line: str) -> None:
            self._log(logging.WARNING, line, {})
            observer.warn(line)

        return Observer(step_done, on_commit, warn)

    def failed(self, error: Exception) -> None:
        """Log the error, what to do, and what stays, in three lines; with a trace if the error is a bug."""
        message = user_message(error)
        what, remedy = message or headline(error), ""
        if isinstance(error, KafkaLakeError):
            what, remedy = without_secret_values(error.message), error.remedy
        name = type(error).__name__
        lines = [f"{name}: {what}", remedy or _REMEDY.format(name.lower()), f"Table {self.table} keeps {_STAYS}"]
        facts = {"error": name, "what_to_do": lines[1], "retry_helps": is_transient(error)}
        self._log(logging.ERROR, "\n".join(lines), facts, None if message else error_without_secrets(error))

    def _took(self) -> float:
        now = time.monotonic()
        took, self.began = now - self.began, now
        return round(took, 3)

    def _log(self, level: int, message: str, facts: Mapping[str, Any], trace: BaseException | None = None) -> None:
        place = {"topic": self.topic} if self.topic else {}
        subject = f"Topic {self.topic}" if self.topic else f"Table {self.table}"
        took = f", {facts['seconds']:.1f} s" if "seconds" in facts else ""
        fields = {**place, "table": self.table, "run": self.run_id, **facts}
        line = f"{subject}, run {self.run_id[:8]}: {message}{took}"
        log.log(level, "%s", line, extra=with_fields(fields), exc_info=trace)


def _unkept_values(commit: Commit) -> list[str]:
    """Return a line for each column that doesn't keep all of the records' values, for the first columns."""
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
    """Bring a topic's tables up to its current end.

    Raises:
        CheckFailedError: If a check refused a commit; earlier commits stay.
        LeftBehindError: If some of several tables failed; the other tables are up to date.
        DataLossError: If Kafka no longer has the next records, and ``on_data_loss`` is ``fail``.
        PublishRefusedError: If other writers moved ``main`` at each attempt.
        KafkaLakeError: For anything else that a user can mend; ``main`` has whole commits only.
    """
    with logged_run(spec, connections, run_id, observer) as context:
        return TopicRunner(context, lambda table: Append(table, partitions)).run()


def replay(
    spec: TopicTable, connections: Connections, run_id: str, replay_range: ReplayRange, observer: Observer | None = None
) -> RunReport:
    """Read a part of the topic again, and replace the table's rows of it by the current schema and transform.

    Raises:
        DataLossError: If Kafka no longer has some of the records and ``keep_missing`` is off. Nothing is changed.
        CheckFailedError: If rows of compacted records would be lost, or another check refused.
        KafkaLakeError: For anything else that a user can mend; ``main`` has whole commits only.
    """
    with logged_run(spec, connections, run_id, observer) as context:
        return TopicRunner(context, lambda table: Replay(table, replay_range)).run()


Chosen = Sequence[tuple[TopicTable, frozenset[int] | None]]
"""Topics of a table, each with its Kafka partitions; None for all of them."""


def each_topic(
    chosen: Chosen,
    run_id: str,
    run: Callable[[TopicTable, frozenset[int] | None], RunReport],
    warn: Callable[[str], None],
) -> RunReport:
    """Run each topic of a table, one after the other.

    Other topics are read after one fails. A topic that doesn't exist is left out, unless it is the only one.

    Raises:
        LeftBehindError: If some of several topics failed; the other topics are up to date.
        KafkaLakeError: The error of the only topic.
    """
    report, errors = RunReport(".".join(chosen[0][0].identifier), run_id), dict[str, Exception]()
    for spec, partitions in chosen:
        try:
            report = report.plus(run(spec, partitions))
        except Exception as error:
            if len(chosen) == 1:
                raise
            errors[spec.topic] = error
            warn(f"Topic {spec.topic} was skipped: {headline(error)}")
            if is_transient(error):
                # The other topics would fail in the same way.
                break
    existing = {topic: error for topic, error in errors.items() if not isinstance(error, UnknownTopicError)}
    if failed := existing or (errors if not report.reached else {}):
        raise LeftBehindError(f"Table {report.table}: some topics were not read", failed, report)
    return report


def plan_reset(
    spec: TopicTable, connections: Connections, to: str, partitions: Collection[int] | None = None
) -> Plan | None:
    """Return the plan of a reset without executing it; None if the table is at that position.

    Raises:
        TableError: If the table doesn't exist.
        ConfigurationError: If the topic doesn't have a target offset.
    """
    context = Context(spec, connections, "plan", decoding=SparkDecoding())
    topic = TopicEnds(context)
    # As in the reset itself, an error of the brokers comes before that of a missing table.
    topic.poll()
    table = connections.catalog.table(spec.identifier)
    state = with_position(context, topic, state_of(spec, table), required=False) if table else None
    return Reset(context, to, partitions).plan(topic, state)


def reset(
    spec: TopicTable,
    connections: Connections,
    run_id: str,
    to: str,
    observer: Observer | None = None,
) -> RunReport:
    """Set the table's position, in a commit of its own.

    Rows at and behind a target before the position are deleted, since their records will be read again. Offsets
    between the position and a target behind it are recorded as skipped.

    Raises:
        TableError: If the table doesn't exist.
        ConfigurationError: If the topic doesn't have a target offset, or rows would be deleted and there is no metadata
            column.
    """
    with logged_run(spec, connections, run_id, observer) as context:
        return TopicRunner(context, lambda table: Reset(table, to), alone=True).run()


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
        AdoptionRefusedError: If the other writer has committed since. ``main`` is as it was.
        KafkaLakeError: For anything else that a user can mend; ``main`` is as it was.
    """
    with logged_run(spec, connections, run_id, observer) as context:
        return TopicRunner(context, lambda table: Adopt(table, agreed, source), alone=True).run()


def replay_dead_letters(
    spec: TopicTable, connections: Connections, run_id: str, where: str | None = None, observer: Observer | None = None
) -> Replayed:
    """Decode dead letters again with the current schema and transform, and move those that fit into the table.

    Raises:
        ConfigurationError: If the condition is invalid.
        CheckFailedError: If a check refused the rows. Nothing is moved.
        TableError: If the table doesn't exist.
    """
    with logged_run(spec, connections, run_id, observer) as context:
        report = TopicRunner(context, lambda table: DeadLetterReplay(table, where), alone=True).run()
    remaining = report.total("dead_letters")
    # An upsert table has fewer rows than changes.
    moved = report.total("records") - remaining if spec.is_keyed else report.total("rows")
    return Replayed(report, moved, remaining)


@contextmanager
def logged_run(
    spec: TopicTable, connections: Connections, run_id: str, observer: Observer | None = None
) -> Iterator[Context]:
    """Give the context of a run, and log its steps and its failure."""
    run_log = RunLog(".".join(spec.identifier), run_id, spec.full_topic)
    try:
        yield Context(spec, connections, run_id, run_log.observing(observer or Observer()), decoding=SparkDecoding())
    except Exception as error:
        run_log.failed(error)
        raise
