"""The runner of a topic with several tables: each commits by itself; one that fails doesn't stop the others."""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import ClassVar

from kafka_lake.common.offsets import Position, least
from kafka_lake.error_classification import headline, is_transient
from kafka_lake.errors import ConditionError, KafkaError, KafkaLakeError, RecordTooLargeError
from kafka_lake.ingest.jobs.append import Job
from kafka_lake.ingest.report import RunReport
from kafka_lake.ingest.runner import Runner
from kafka_lake.ingest.shares import TableShare, TopicRecords
from kafka_lake.ingest.telemetry import Lineage
from kafka_lake.ingest.topic_ends import TopicEnds
from kafka_lake.routing.by_value import begins_in
from kafka_lake.runtime.commit import Commit
from kafka_lake.runtime.context import Context, Effort, StoppedError
from kafka_lake.runtime.record_keys import state_of
from kafka_lake.spec.topic_table import TopicTable

Identifier = tuple[str, str]

_SETTLE_SECONDS = 300.0
_FOR_ALL_TABLES = (ConditionError, KafkaError, RecordTooLargeError, StoppedError)


class LeftBehindError(KafkaLakeError):
    """Some tables of a topic, or topics of a table, stay where they are; the others are up to date."""

    what_to_do: ClassVar[str] = (
        "The message says for each table or topic why. Mend the cause and run again: it goes on where it stopped."
    )

    def __init__(self, about: str, errors: Mapping[str, Exception], report: RunReport) -> None:
        said = "; ".join(f"{name}: {headline(error)}" for name, error in errors.items())
        remedies = dict.fromkeys(error.remedy for error in errors.values() if isinstance(error, KafkaLakeError))
        super().__init__(
            f"{about} where they were: {said}",
            " ".join(filter(None, remedies)) or "Mend the cause and run again: each goes on where it stopped.",
        )
        self.errors, self.report = dict(errors), report


class TopicRunner:
    """Makes the commits of a run over a topic with several tables, as `Runner` does for one.

    Args:
        context: What the run works with; its settings are the topic's.
        job: Makes what the run is for, for one of the tables.
        topic: What the topic holds, if it is known already.

    Attributes:
        errors: Why tables stopped, by namespace and name.
    """

    def __init__(self, context: Context, job: Callable[[Context], Job], topic: TopicEnds | None = None) -> None:
        self.context = context
        self.topic = topic or TopicEnds(context)
        self.lineage = Lineage(context)
        self.errors: dict[Identifier, Exception] = {}
        self._job = job
        self._records = TopicRecords(context)
        self._runners: dict[Identifier, Runner] = {}
        self._settled = self._reported = time.monotonic()

    @property
    def commits(self) -> list[Commit]:
        """Return commits that haven't been reported yet."""
        return [commit for runner in self._runners.values() for commit in runner.commits]

    @property
    def position(self) -> Position | None:
        """Return the least position of the tables that go on; offsets without a record for them count as done."""
        positions = [each.position for each in self._going() if each.position is not None]
        if not positions or len(positions) < len(self._going()):
            return None
        return least([replace(positions[0], offsets=self._next_offsets(each)) for each in self._going()])

    def run(self) -> RunReport:
        """Commit what the job asks for until it asks for nothing more."""
        with self.lineage:
            self.topic.poll()
            self._add_tables()
            for runner in self._going():
                runner.job.prepare(self.topic)
            while self.next_commit() is not None:
                pass
            report = self.finish()
            self.raise_errors(report)
            return report

    def next_commit(self) -> Commit | None:
        """Let each table make its next commit."""
        self._add_tables()
        try:
            while True:
                commits, is_done = self._round()
                if not self._going():
                    self.raise_errors(self.report())
                if time.monotonic() - self._settled > _SETTLE_SECONDS:
                    self._settle()
                if commits or is_done:
                    return commits[0] if commits else None
        finally:
            # Spark can drop the cached batch.
            self._records.next_round()

    def _round(self) -> tuple[list[Commit], bool]:
        """Let each table commit its part of one batch; return the commits, and whether all tables are done."""
        self._records.next_round()
        commits, is_done = list[Commit](), True
        for runner in self._in_order():
            share = self._records.shares[runner.context.spec.identifier]
            commit = self._commit(runner)
            commits += [commit] if commit else []
            is_done &= not (runner.has_passed or share.is_waiting)
            self._add_tables()
        return commits, is_done

    def report(self) -> RunReport:
        """Return what was done since the last report, or since the run began."""
        began, self._reported = self._reported, time.monotonic()
        reports = {
            table: replace(runner.report(), seconds=self._reported - began) for table, runner in self._runners.items()
        }
        own = reports.pop(self.context.spec.identifier)
        return replace(own, others=reports)

    def finish(self) -> RunReport:
        """Write the position of each table, drop branches of dead runs, and return the last report."""
        try:
            self._settle()
        finally:
            self._records.next_round()
        report = self.report()
        for runner in self._runners.values():
            runner.finish()
        return report

    def forget_failed(self) -> None:
        """Count dead letters anew, as `Runner.forget_failed`."""
        for runner in self._runners.values():
            runner.forget_failed()

    def raise_errors(self, report: RunReport) -> None:
        """Raise the errors of tables that stopped."""
        if self.errors:
            errors = {".".join(table): error for table, error in self.errors.items()}
            raise LeftBehindError(f"Topic {self.context.spec.topic}: the run left tables", errors, report)

    def _add_tables(self) -> None:
        """Make a runner for each new table."""
        self.context.with_retries(self._try_to_add_tables)

    def _try_to_add_tables(self) -> None:
        if not self._runners:
            own = self.context.connections.catalog.table(self.context.spec.identifier)
            if own is not None:
                self._records.know(state_of(self.context.spec, own))
        for spec in self._records.context.spec.tables:
            if spec.identifier not in self._runners:
                self._runners[spec.identifier] = self._runner(spec)

    def _runner(self, spec: TopicTable) -> Runner:
        observer, name = self.context.observer, ".".join(spec.identifier)
        if spec.identifier != self.context.spec.identifier:
            observer = replace(observer, step_done=lambda step: self.context.observer.step_done(f"{name}: {step}"))
        begins = begins_in(self._records.properties, spec.identifier)
        context = replace(self.context, spec=spec, observer=observer, effort=Effort(), begins=begins)
        share = TableShare(self._records, context)
        self._records.shares[spec.identifier] = share
        runner = Runner(context, self._job(context), self.topic, share)
        runner.lineage = self.lineage
        table = context.connections.catalog.table(spec.identifier)
        runner.position = state_of(spec, table).position if table else None
        return runner

    def _going(self) -> list[Runner]:
        return [runner for table, runner in self._runners.items() if table not in self.errors]

    def _in_order(self) -> list[Runner]:
        """Return the runners that go on, furthest behind first; those that must read alone come last."""
        reached = {runner.context.spec.identifier: sum(self._next_offsets(runner).values()) for runner in self._going()}
        near = max(reached.values(), default=0) - self.context.spec.max_records_per_commit

        def place(runner: Runner) -> tuple[bool, int]:
            its = reached[runner.context.spec.identifier]
            return its < near, its

        return sorted(self._going(), key=place)

    def _next_offsets(self, runner: Runner) -> dict[int, int]:
        """Return a table's next offset, by partition."""
        now, share = self.topic.now, self._records.shares[runner.context.spec.identifier]
        if runner.position is not None:
            offsets = dict(runner.position.offsets)
        else:
            offsets = {**(now.low if self.context.spec.start == "earliest" else now.end), **runner.context.begins}
        return {partition: share.next(partition, offset) for partition, offset in offsets.items()}

    def _commit(self, runner: Runner) -> Commit | None:
        """Let a table make its next commit; after an error it stops for the rest of the run."""
        table = runner.context.spec.identifier
        try:
            return runner.next_commit()
        except Exception as error:
            if isinstance(error, _FOR_ALL_TABLES) or is_transient(error):
                raise
            self.errors[table] = error
            self._records.shares[table].is_stopped = True
            self.context.observer.warn(f"{headline(error)} Table {'.'.join(table)} stays where it is; others go on.")
            return None

    def _settle(self) -> None:
        """Commit the position of each table that got no records, so that the next run doesn't read them again."""
        self._settled = time.monotonic()
        for runner in self._going():
            share = self._records.shares[runner.context.spec.identifier]
            if not share.has_passed:
                continue
            share.is_settling = True
            try:
                if self._commit(runner) and runner.is_unsettled:
                    self._commit(runner)
            finally:
                share.is_settling = False


def runner_of(context: Context, job: Callable[[Context], Job], topic: TopicEnds | None = None) -> Runner | TopicRunner:
    """Return what makes the commits of a run, to one table or to several."""
    return TopicRunner(context, job, topic) if context.spec.has_routes else Runner(context, job(context), topic)
