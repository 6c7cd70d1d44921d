"""The runner: makes one commit after another, retries temporary errors, isolates records that fail, and reports."""

from dataclasses import replace

from pyiceberg.table import Table
from pyspark.errors import AnalysisException
from tenacity import RetryCallState, Retrying, retry_if_exception, stop_after_attempt

from kafka_lake.catalog.branches import staging_branches
from kafka_lake.catalog.tables import drop_if_unused
from kafka_lake.common.offsets import Position
from kafka_lake.error_classification import (
    files_out_of_reach,
    headline,
    is_transient,
    kafka_data_loss,
    may_be_a_record,
    may_be_a_record_time,
    refused_by_kafka,
)
from kafka_lake.errors import AuditFailedError, KafkaError, KafkaLakeError, PublishRefusedError
from kafka_lake.formats.redaction import quoted
from kafka_lake.ingest import pipeline
from kafka_lake.ingest.bad_record import Search
from kafka_lake.ingest.byte_limit import ByteLimit
from kafka_lake.ingest.jobs.append import Job
from kafka_lake.ingest.pipeline import Done, TableRun
from kafka_lake.ingest.report import Reached, RunReport
from kafka_lake.ingest.shared_read import TableReader
from kafka_lake.ingest.table_state import Tables
from kafka_lake.ingest.too_large import LARGE, Large, TooLarge
from kafka_lake.ingest.topic_ends import TopicEnds
from kafka_lake.kafka.records import first_large_record
from kafka_lake.maintenance.clean import sweep
from kafka_lake.runtime.commit import CheckFailedError, Commit
from kafka_lake.runtime.context import LONGEST_SHORT_PAUSE, Context, short_pauses
from kafka_lake.runtime.plan import Plan, can_be_parted

_ATTEMPTS = 5


class Runner:
    """Makes the commits of one table in a run; arguments as of `TableRun`."""

    def __init__(
        self,
        context: Context,
        job: Job,
        topic: TopicEnds,
        reader: TableReader | None = None,
        *,
        position: Position | None,
    ) -> None:
        self.context = context
        self.job = job
        self.topic = topic
        self.reader = reader
        self.commits: list[Commit] = []
        self._run = TableRun(context, job, topic, reader, position=position, cut=self._cut)
        self._has_committed = False
        self._search = Search()
        self._byte_limit = ByteLimit(context)
        self._too_large = TooLarge(context, self._large_record)
        self._tables: Tables | None = None

    @property
    def position(self) -> Position | None:
        """Return the table's last known position; None if it has none."""
        return self._run.position

    @property
    def is_waiting(self) -> bool:
        """Return whether the table may have records although the last attempt had none to commit."""
        return self._run.passed is not None or (self.reader is not None and self.reader.is_waiting)

    def is_done(self) -> bool:
        """Return whether the job is done after the last commit, as far as that is certain."""
        if self._tables is None or self.reader is not None:
            return False
        try:
            return self.job.plan(self.topic, self._tables.table) is None
        except Exception:
            # The next commit raises the error, or retries.
            return False

    @property
    def may_have_to_reconcile(self) -> bool:
        """Return whether dead letters may have to be reconciled after the last commit."""
        return self._tables is None

    def next_commit(self) -> Commit | None:
        """Make the next commit; None if the job is done, or no record of its plan is for the table."""
        while True:
            try:
                done = self._commit_with_retries()
            except Exception as error:
                if (plan := self._plan_with_bad_record(error)) is None:
                    self._drop_unused()
                    if explained := self._explained(error):
                        raise explained from error
                    raise
                self._search_bad_record(plan, error)
            else:
                break
        self._run.created.clear()
        if done is None:
            return None
        commit, plan = done.commit, done.plan
        self._search = self._search.done(plan, commit.rows)
        self._byte_limit.done(plan, commit)
        self.commits.append(commit)
        self._has_committed = True
        self._run.position = commit.after
        if self.reader is not None:
            self.reader.note_commit(commit.after)
        failed, records = self._run.failed_so_far
        self._run.failed_so_far = failed + commit.dead_letters, records + commit.records
        self._mirror(commit.after)
        self.job.committed(commit, plan)
        self.context.observer.on_commit(commit, plan)
        return commit

    def _commit_with_retries(self) -> Done | None:
        """Plan again after a refused publication and after Kafka deleted records; retry temporary errors."""
        context = self.context
        retrying = Retrying(
            stop=stop_after_attempt(_ATTEMPTS),
            wait=short_pauses(context.connections.retry),
            retry=retry_if_exception(self._needs_new_plan),
            before_sleep=self._before_new_plan,
            sleep=self._pause,
            reraise=True,
        )
        pausing = replace(context, sleep=self._pause)
        return retrying(lambda: pausing.with_retries(self._try_commit, self._may_retry))

    def _try_commit(self) -> Done | None:
        run = self._run
        self._tables = run.decoding = run.passed = None
        try:
            done = pipeline.commit(run)
        except Exception as error:
            self._too_large.failed(run.decoding, error)
            raise
        if run.passed is not None:
            self._search = self._search.done(run.passed, rows=0)
        self._tables = done.tables if done else None
        return done

    def _cut(self, todo: Plan, table: Table | None) -> Plan:
        return self._too_large.cut(self._byte_limit.cut(self._search.next(todo)), table)

    def _needs_new_plan(self, error: BaseException) -> bool:
        return isinstance(error, PublishRefusedError) or _lost(error) is not None or self._may_be_compacted(error)

    def _may_be_compacted(self, error: BaseException | None) -> bool:
        """Return whether Kafka may have compacted the log between two readings of the same offsets.

        A transform that doesn't return one row for each row fails the same check, at each attempt.
        """
        is_about_counts = (
            error.is_about_counts if isinstance(error, CheckFailedError) else type(error) is AuditFailedError
        )
        if not is_about_counts:
            return False
        spec = self.context.spec
        if not spec.transform:
            return True
        return "compact" in self.context.connections.cluster.cleanup_policies([spec.topic]).get(spec.topic, "")

    def _large_record(self, todo: Plan) -> Large | None:
        topic, cluster = self.context.spec.topic, self.context.connections.cluster
        try:
            record = first_large_record(cluster, topic, todo.ranges, LARGE)
        except KafkaError:
            # The next attempt looks again.
            return None
        return Large(*record) if record else None

    def _before_new_plan(self, state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        warn = self.context.observer.warn
        if isinstance(error, PublishRefusedError):
            self.context.timings.refused += 1
            warn(f"{error} Planning again from the new position ({state.attempt_number} of {_ATTEMPTS}).")
            return
        if self.reader is not None:
            self.reader.forget_batch()
        if isinstance(error, AuditFailedError):
            warn(
                f"{error.message} Kafka compacts the log at any time, and may have done so between two readings of the "
                f"same offsets. Planning again ({state.attempt_number} of {_ATTEMPTS})."
            )
            return
        warn(f"Topic {self.context.spec.topic}: Kafka deleted records after the plan was made: {_lost(error)}")
        self.topic.poll()

    def _pause(self, seconds: float) -> None:
        # An error raised by the pause isn't caused by a record.
        self._tables = self._run.decoding = None
        self.context.sleep(seconds)

    def _may_retry(self, error: BaseException) -> bool:
        """Return whether to retry the same plan; during a search, a smaller plan is better."""
        searching = self._search.limit is not None
        return is_transient(error) and not (searching and self._plan_with_bad_record(error))

    def _explained(self, error: Exception) -> KafkaLakeError | None:
        """Return the error that says which setting is missing, if Spark's error shows that."""
        spec, connections = self.context.spec, self.context.connections
        return refused_by_kafka(error, spec.topic, connections.cluster) or files_out_of_reach(
            error, ".".join(spec.identifier), connections.catalog.name
        )

    def _plan_with_bad_record(self, error: BaseException) -> Plan | None:
        """Return the plan whose records may be the cause of an error; None if another cause is certain."""
        plan = self._run.decoding
        if plan is None or not can_be_parted(plan) or not may_be_a_record(error):
            return None
        # A transform that uses a missing column fails whatever the records are.
        return None if self.context.spec.transform and isinstance(error, AnalysisException) else plan

    def _search_bad_record(self, plan: Plan, error: Exception) -> None:
        """Choose the next part of a plan that failed."""
        spec, message = self.context.spec, headline(error)
        first = next(r for r in plan.ranges if len(r))
        if may_be_a_record_time(error) and not plan.by_client:
            self._search = self._search.unreadable(plan)
            self.context.observer.warn(
                f"Topic {spec.topic}: Spark can't read one of {plan.records_at_most} records from partition "
                f"{first.partition} offset {first.start} on: its Kafka timestamp is too large or too small. This "
                f"process reads the next {self._search.limit} instead."
            )
            return
        self._search = self._search.failed(plan, message)
        where = f"Topic {spec.topic}: the record at partition {first.partition} offset {first.start}"
        if self._search.found is None:
            where = f"Topic {spec.topic}: one of {plan.records_at_most} records from partition {first.partition}"
            where += f" offset {first.start} on"
            then = f"Trying {self._search.limit} of them."
            if plan.records_at_most == 1:
                # A temporary error may pass meanwhile.
                self._pause(min(self.context.connections.retry.max_seconds, LONGEST_SHORT_PAUSE))
        else:
            then = "It becomes a dead letter of class undecodable."
        reason = quoted(message, spec.samples, spec.mask)
        self.context.observer.warn(f"{where} makes its batch fail{f': {reason}' if reason else '.'} {then}")

    def _drop_unused(self) -> None:
        warn = self.context.observer.warn
        for identifier in sorted(self._run.created):
            name = ".".join(identifier)
            try:
                if drop_if_unused(self.context.connections.catalog, identifier):
                    warn(f"Table {name} is dropped: this run created it, and it is empty.")
            except Exception as error:
                # Don't hide the error of the run; the next run can use an empty table.
                warn(f"Empty table {name} couldn't be dropped: {error}")

    def forget_failed(self) -> None:
        """Count dead letters from 0: the limit holds for each part of a continuous run."""
        self._run.failed_so_far = (0, 0)

    def report(self, seconds: float) -> RunReport:
        """Return the report of the commits since the last one."""
        commits, self.commits, context = self.commits, [], self.context
        reached = {context.spec.topic: Reached(self.topic.now, self.position)}
        return RunReport(context.table_name, context.run_id, reached, commits, seconds=seconds)

    def sweep(self) -> None:
        """Drop branches that killed runs left behind, if this run has committed."""
        spec, tables = self.context.spec, self._tables
        states = (tables.table, tables.dead_letters) if tables else ()
        if not self._has_committed or (tables and not any(staging_branches(state.table) for state in states if state)):
            return
        try:
            sweep(spec, self.context.connections)
        except Exception as error:
            # Readers don't see the branches, and the next run tries again.
            self.context.observer.warn(f"Topic {spec.topic}: branches of killed runs were not dropped: {error}")

    def _mirror(self, position: Position) -> None:
        """Write the position to the consumer group, for lag tools only."""
        try:
            self.context.connections.cluster.commit_group(self.context.spec.group, position)
        except KafkaError as error:
            self.context.observer.warn(f"The table is up to date; lag tools may not be: {error}")


def _lost(error: BaseException | None) -> str | None:
    return kafka_data_loss(error) if error else None
