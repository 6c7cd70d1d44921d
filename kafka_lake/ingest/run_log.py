"""What a run logs: a line for each step, with its topic, table and run; and three lines if it fails. Decides nothing.

The lines go to the logger `kafka_lake.run`. Each has its facts as fields, too, for logs in JSON: `common.log_format`.
"""

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kafka_lake.common.log_format import RUNS, with_fields
from kafka_lake.common.redaction import error_without_secrets, without_secret_values
from kafka_lake.errors import KafkaLakeError
from kafka_lake.ingest.causes import headline, is_transient, sentence
from kafka_lake.ingest.commit import Commit
from kafka_lake.ingest.finding import NOT_KEPT
from kafka_lake.ingest.observer import Observer
from kafka_lake.ingest.plan.model import Plan

log = logging.getLogger(RUNS)
# Python would print warnings itself if nobody listens; Dagster and the progress bar are told of them anyway.
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
