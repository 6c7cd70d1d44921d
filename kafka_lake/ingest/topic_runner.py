"""The runner of a topic: each of its tables commits by itself, and an error of one of several stops only that one."""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import ClassVar

from kafka_lake.catalog.positions import state_of
from kafka_lake.common.offsets import Position, least
from kafka_lake.error_classification import headline, is_transient
from kafka_lake.errors import ConditionError, KafkaError, KafkaLakeError, RecordTooLargeError
from kafka_lake.ingest.jobs.append import Job
from kafka_lake.ingest.report import RunReport
from kafka_lake.ingest.runner import Runner
from kafka_lake.ingest.shared_read import SharedRead, TableReader
from kafka_lake.ingest.topic_ends import TopicEnds
from kafka_lake.routing.by_value import begins_in
from kafka_lake.runtime.commit import Commit
from kafka_lake.runtime.context import Context, StoppedError, Timings
from kafka_lake.spec.topic_table import TopicTable

Identifier = tuple[str, str]

_POSITION_SECONDS = 300.0
_FOR_ALL_TABLES = (ConditionError, KafkaError, RecordTooLargeError, StoppedError)


class LeftBehindError(KafkaLakeError):
    """Some tables of a topic, or topics of a table, couldn't be updated; the others are up to date."""

    what_to_do: ClassVar[str] = (
        "The message has the reason for each table or topic. Fix the cause and run again: the run continues from there."
    )

    def __init__(self, about: str, errors: Mapping[str, Exception], report: RunReport) -> None:
        reasons = "; ".join(f"{name}: {headline(error)}" for name, error in errors.items())
        remedies = dict.fromkeys(error.remedy for error in errors.values() if isinstance(error, KafkaLakeError))
        super().__init__(
            f"{about}: {reasons}",
            " ".join(filter(None, remedies)) or "Fix the cause and run again: the run continues from there.",
        )
        self.errors, self.report = dict(errors), report


class TopicRunner:
    """Makes the commits of a run.

    Args:
        position: Where an earlier run of this process ended, for a topic with a single table.
        alone: Whether the job is for the topic's own table only.

    Attributes:
        errors: The errors of stopped tables. An error of a single table is raised.
    """

    def __init__(
        self,
        context: Context,
        job: Callable[[Context], Job],
        topic: TopicEnds | None = None,
        *,
        position: Position | None = None,
        alone: bool = False,
    ) -> None:
        self.context = context
        self.topic = topic or TopicEnds(context)
        self.errors: dict[Identifier, Exception] = {}
        self._job = job
        self._shared = SharedRead(context)
        self._is_shared = context.spec.has_routes and not alone
        self._runners: dict[Identifier, Runner] = {}
        if not self._is_shared:
            self._runners[context.spec.identifier] = Runner(context, job(context), self.topic, position=position)
        self._positions_committed = self._reported = time.monotonic()

    @property
    def has_running(self) -> bool:
        """Return whether a table isn't stopped."""
        return not self.errors or bool(self._running())

    @property
    def commits(self) -> list[Commit]:
        """Return commits that haven't been reported yet."""
        return [commit for runner in self._runners.values() for commit in runner.commits]

    @property
    def position(self) -> Position | None:
        """Return the least position of the running tables, passed offsets included; None if one has no position."""
        running = self._running()
        positions = [runner.position for runner in running if runner.position is not None]
        if not positions or len(positions) < len(running):
            return None
        return least([replace(positions[0], offsets=self._next_offsets(runner)) for runner in running])

    def run(self) -> RunReport:
        """Make commits until the jobs of all tables are done."""
        # A poll within an attempt would retry within retries.
        self.topic.poll()
        self._add_tables()
        for runner in self._running():
            runner.job.prepare(self.topic)
        while self.next_commit() is not None and not all(runner.is_done() for runner in self._running()):
            pass
        report = self.finish()
        self.raise_errors(report)
        return report

    def next_commit(self) -> Commit | None:
        """Let each table make its next commit; return the first one, or None if all tables are done or stopped."""
        self._add_tables()
        try:
            while True:
                commits, is_done = self._round()
                if time.monotonic() - self._positions_committed > _POSITION_SECONDS:
                    self._commit_positions()
                if commits or is_done:
                    return commits[0] if commits else None
        finally:
            # Spark can drop the cached batch.
            self._shared.next_round()

    def _round(self) -> tuple[list[Commit], bool]:
        """Let each table commit its records of one batch; return the commits, and whether all tables are done."""
        self._shared.next_round()
        commits, is_done = list[Commit](), True
        for runner in self._in_order():
            commit = self._commit(runner)
            commits += [commit] if commit else []
            is_done &= not runner.is_waiting
            self._add_tables()
        return commits, is_done

    def report(self) -> RunReport:
        """Return the report of the commits since the last one, or since the run began."""
        began, self._reported = self._reported, time.monotonic()
        reports = {table: runner.report(self._reported - began) for table, runner in self._runners.items()}
        # An error may come before the first table is loaded.
        nothing = RunReport(self.context.table_name, self.context.run_id)
        own = reports.pop(self.context.spec.identifier, nothing)
        return replace(own, others=reports)

    def finish(self) -> RunReport:
        """Commit the position of each table, drop branches of killed runs, and return the last report."""
        try:
            self._commit_positions()
        finally:
            self._shared.next_round()
        report = self.report()
        for runner in self._runners.values():
            runner.sweep()
        return report

    def forget_failed(self) -> None:
        """Count dead letters from 0 in each table."""
        for runner in self._runners.values():
            runner.forget_failed()

    def raise_errors(self, report: RunReport) -> None:
        """Raise the errors of stopped tables as one."""
        if self.errors:
            errors = {".".join(table): error for table, error in self.errors.items()}
            raise LeftBehindError(f"Topic {self.context.spec.topic}: some tables were not updated", errors, report)

    def _add_tables(self) -> None:
        """Make a runner for each new table."""
        if self._is_shared:
            self.context.with_retries(self._try_to_add_tables)

    def _try_to_add_tables(self) -> None:
        if not self._runners:
            own = self.context.connections.catalog.table(self.context.spec.identifier)
            if own is not None:
                self._shared.note_values(state_of(self.context.spec, own))
        for spec in self._shared.context.spec.tables:
            if spec.identifier not in self._runners:
                self._runners[spec.identifier] = self._runner(spec)

    def _runner(self, spec: TopicTable) -> Runner:
        observer, name = self.context.observer, ".".join(spec.identifier)
        if spec.identifier != self.context.spec.identifier:
            observer = replace(observer, step_done=lambda step: self.context.observer.step_done(f"{name}: {step}"))
        begins = begins_in(self._shared.table_properties, spec.identifier)
        context = replace(self.context, spec=spec, observer=observer, timings=Timings(), begins=begins)
        reader = TableReader(self._shared, context)
        self._shared.readers[spec.identifier] = reader
        table = context.connections.catalog.table(spec.identifier)
        position = state_of(spec, table).position if table else None
        return Runner(context, self._job(context), self.topic, reader, position=position)

    def _running(self) -> list[Runner]:
        return [runner for table, runner in self._runners.items() if table not in self.errors]

    def _in_order(self) -> list[Runner]:
        """Return the running tables by offset; tables too far behind to share a batch come last."""
        offsets = {
            runner.context.spec.identifier: sum(self._next_offsets(runner).values()) for runner in self._running()
        }
        near = max(offsets.values(), default=0) - self.context.spec.max_records_per_commit

        def order(runner: Runner) -> tuple[bool, int]:
            offset = offsets[runner.context.spec.identifier]
            return offset < near, offset

        return sorted(self._running(), key=order)

    def _next_offsets(self, runner: Runner) -> dict[int, int]:
        """Return the next offsets that a table reads."""
        now, reader = self.topic.now, runner.reader
        if runner.position is not None:
            offsets = dict(runner.position.offsets)
        else:
            offsets = {**(now.low if self.context.spec.start == "earliest" else now.end), **runner.context.begins}
        return offsets if reader is None else {p: reader.next(p, offset) for p, offset in offsets.items()}

    def _commit(self, runner: Runner) -> Commit | None:
        """Let a table make its next commit. After an error, the table is left out for the rest of the run."""
        table, reader = runner.context.spec.identifier, runner.reader
        try:
            return runner.next_commit()
        except Exception as error:
            if reader is None or isinstance(error, _FOR_ALL_TABLES) or is_transient(error):
                raise
            self.errors[table] = error
            reader.is_stopped = True
            self.context.observer.warn(f"{headline(error)} Table {'.'.join(table)} stops; the other tables go on.")
            return None

    def _commit_positions(self) -> None:
        """Commit the position of each table with passed offsets, so that the next run doesn't read them again."""
        self._positions_committed = time.monotonic()
        for runner in self._running():
            reader = runner.reader
            if reader is None or not reader.has_passed:
                continue
            reader.moves_position_only = True
            try:
                if self._commit(runner) and runner.may_have_to_reconcile:
                    self._commit(runner)
            finally:
                reader.moves_position_only = False
