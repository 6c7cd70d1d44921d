"""The runner repeats commits until the job has nothing to do, retries what may pass, and reports."""

import time
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
from kafka_lake.ingest.jobs.append import Job
from kafka_lake.ingest.limits import LARGE, ByteLimit, Large, Search, TooLarge
from kafka_lake.ingest.pipeline import Attempt, Done
from kafka_lake.ingest.publish import GateFailedError
from kafka_lake.ingest.report import Reached, RunReport
from kafka_lake.ingest.shares import TableShare
from kafka_lake.ingest.table_state import Tables
from kafka_lake.ingest.telemetry import Lineage, flush, trace_commit, trace_failure
from kafka_lake.ingest.topic_ends import TopicEnds
from kafka_lake.kafka.records import first_large_record
from kafka_lake.maintenance.clean import sweep
from kafka_lake.runtime.commit import Commit
from kafka_lake.runtime.context import LONGEST_SHORT_PAUSE, Context, short_pauses
from kafka_lake.runtime.plan import Plan, can_be_parted

_ATTEMPTS = 5


class Runner:
    """Makes the commits of one run.

    Args:
        context: What the run works with.
        topic: What the topic holds, if it is known already.
        share: Selects the table's records of a topic with several tables; None for all records.

    Attributes:
        position: The table's last known position; None if it has none.
        commits: Commits that haven't been reported yet.
        lineage: The caller enters it for the time of the run.
        has_passed: Whether the last attempt found no record for the table.
    """

    def __init__(
        self, context: Context, job: Job, topic: TopicEnds | None = None, share: TableShare | None = None
    ) -> None:
        self.context = context
        self.job = job
        self.topic = topic or TopicEnds(context)
        self.share = share
        self.has_passed = False
        self.position: Position | None = None
        self.commits: list[Commit] = []
        self.lineage = Lineage(context)
        self._committed = 0
        self._failed_so_far = (0, 0)
        self._search = Search()
        self._byte_limit = ByteLimit(context)
        self._too_large = TooLarge(context, self._large_record)
        self._created: set[tuple[str, str]] = set()
        self._decoding: Plan | None = None
        self._left: Tables | None = None
        self._reported = time.monotonic()

    def run(self) -> RunReport:
        """Commit what the job asks for until it asks for nothing more."""
        with self.lineage:
            # Asked within an attempt, the brokers would be tried as often as attempts times attempts.
            self.topic.poll()
            self.job.prepare(self.topic)
            while True:
                done = self.next_commit()
                if done is None or self._is_done():
                    return self.finish()

    def _is_done(self) -> bool:
        """Return whether the job asks for nothing more of the table as the last commit left it."""
        if self._left is None:
            return False
        try:
            return self.job.plan(self.topic, self._left.table) is None
        except Exception:
            # What is done is done. The next commit will tell of it, and is attempted again where that may help.
            return False

    @property
    def is_unsettled(self) -> bool:
        """Return whether another look at the table may find dead letters to reconcile after the last commit."""
        return self._left is None

    def next_commit(self) -> Commit | None:
        """Make the next commit, if the job asks for one; errors are those of `run`."""
        try:
            commit = self._next_commit()
        except Exception as error:
            trace_failure(self.context, error)
            raise
        if commit is not None:
            trace_commit(self.context, commit)
            self.lineage.committed(self.context.spec, commit)
        return commit

    def _next_commit(self) -> Commit | None:
        while True:
            try:
                done = self._patiently()
            except Exception as error:
                if (part := self._part_of(error)) is None:
                    self._drop_unused()
                    if refused := self._mended_by_a_setting(error):
                        raise refused from error
                    raise
                self._search_on(part, error)
            else:
                break
        self._created.clear()
        if done is None:
            return None
        commit, todo = done.commit, done.plan
        self._search = self._search.done(todo, commit.rows)
        self._byte_limit.done(todo, commit)
        self.commits.append(commit)
        self._committed += 1
        self.position = commit.after
        if self.share is not None:
            self.share.committed(commit.after)
        failed, records = self._failed_so_far
        self._failed_so_far = failed + commit.dead_letters, records + commit.records
        self._mirror(commit.after)
        self.job.committed(commit, todo)
        self.context.observer.on_commit(commit, todo)
        return commit

    def _patiently(self) -> Done | None:
        """Plan again after a lost race and when Kafka lost or compacted records; retry temporary errors."""
        context = self.context
        retrying = Retrying(
            stop=stop_after_attempt(_ATTEMPTS),
            wait=short_pauses(context.connections.retry),
            retry=retry_if_exception(self._wants_another_plan),
            before_sleep=self._tell_refusal,
            sleep=self._pause,
            reraise=True,
        )
        patient = replace(context, sleep=self._pause)
        return retrying(lambda: patient.with_retries(self._try_commit, self._passes))

    def _try_commit(self) -> Done | None:
        outcome = pipeline.commit(
            Attempt(
                context=self.context,
                job=self.job,
                topic=self.topic,
                cut=self._cut,
                failed_so_far=self._failed_so_far,
                position=self.position,
                share=self.share,
            )
        )
        self.has_passed = outcome.passed is not None
        if outcome.passed is not None:
            self._search = self._search.done(outcome.passed, rows=0)
        self.position, self._decoding = outcome.position, outcome.decoding
        self._created |= outcome.created
        self._left = outcome.done.left if outcome.done else None
        if outcome.error is not None:
            self._too_large.failed(outcome.decoding, outcome.error)
            raise outcome.error
        return outcome.done

    def _cut(self, todo: Plan, table: Table | None) -> Plan:
        return self._too_large.cut(self._byte_limit.cut(self._search.next(todo)), table)

    def _wants_another_plan(self, error: BaseException) -> bool:
        return isinstance(error, PublishRefusedError) or _lost(error) is not None or self._may_be_compacted(error)

    def _may_be_compacted(self, error: BaseException | None) -> bool:
        """Return whether two readings of the same offsets may have differed: Kafka compacts logs at any time.

        A transform that doesn't give one row for one row differs as well, and does so at each attempt.
        """
        is_about_counts = (
            error.is_about_counts if isinstance(error, GateFailedError) else type(error) is AuditFailedError
        )
        if not is_about_counts:
            # Errors of a kind of their own are about what is in a record.
            return False
        spec = self.context.spec
        if not spec.transform:
            return True
        return "compact" in self.context.connections.cluster.cleanup_policies([spec.topic]).get(spec.topic, "")

    def _large_record(self, todo: Plan) -> Large | None:
        topic, cluster = self.context.spec.topic, self.context.connections.cluster
        try:
            found = first_large_record(cluster, topic, todo.ranges, LARGE)
        except KafkaError:
            # Why the engine died isn't known then; the next attempt asks again.
            return None
        return Large(*found) if found else None

    def _tell_refusal(self, state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        warn = self.context.observer.warn
        if isinstance(error, PublishRefusedError):
            self.context.effort.refused += 1
            warn(f"{error} Planning again from the new position ({state.attempt_number} of {_ATTEMPTS}).")
            return
        if self.share is not None:
            self.share.read_again()
        if isinstance(error, AuditFailedError):
            warn(
                f"{error.message} Kafka compacts the log at any time, and may have done so between two readings of the "
                f"same offsets. Planning again ({state.attempt_number} of {_ATTEMPTS})."
            )
            return
        # The plan knows what that means for this topic, and says which offsets are concerned.
        warn(f"Topic {self.context.spec.topic}: Kafka lost records after the plan was made: {_lost(error)}")
        self.topic.poll()

    def _pause(self, seconds: float) -> None:
        # An error that ends a pause isn't caused by a record.
        self._decoding = self._left = None
        self.context.sleep(seconds)

    def _passes(self, error: BaseException) -> bool:
        """Return whether to attempt the same commit again; in parts is better while a search goes on."""
        searching = self._search.limit is not None
        return is_transient(error) and not (searching and self._part_of(error))

    def _mended_by_a_setting(self, error: Exception) -> KafkaLakeError | None:
        spec, connections = self.context.spec, self.context.connections
        return refused_by_kafka(error, spec.topic, connections.cluster) or files_out_of_reach(
            error, ".".join(spec.identifier), connections.catalog.name
        )

    def _part_of(self, error: BaseException) -> Plan | None:
        """Return the commit of which one record may be the reason for an error; None if none can be."""
        plan = self._decoding
        if plan is None or not can_be_parted(plan) or not may_be_a_record(error):
            return None
        # A transform that asks for a column which isn't there fails without any record.
        return None if self.context.spec.transform and isinstance(error, AnalysisException) else plan

    def _search_on(self, plan: Plan, error: Exception) -> None:
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
                # What passes gets some time to do so.
                self._pause(min(self.context.connections.retry.max_seconds, LONGEST_SHORT_PAUSE))
        else:
            then = "It becomes a dead letter of class undecodable."
        told = quoted(message, spec.samples, spec.mask)
        self.context.observer.warn(f"{where} makes its batch fail{f': {told}' if told else '.'} {then}")

    def _drop_unused(self) -> None:
        warn = self.context.observer.warn
        for identifier in sorted(self._created):
            name = ".".join(identifier)
            try:
                if drop_if_unused(self.context.connections.catalog, identifier):
                    warn(f"Table {name} is dropped again: it was made for this run, and is empty.")
            except Exception as error:
                # The first error must stay visible; an empty table doesn't disturb the next run.
                warn(f"Table {name}, which is empty, is left behind: {error}")

    def forget_failed(self) -> None:
        """Count dead letters anew: the limit holds for each part of a continuous run."""
        self._failed_so_far = (0, 0)

    def raise_errors(self, report: RunReport) -> None:
        """Do nothing: an error of a single table has been raised already."""

    def report(self) -> RunReport:
        """Return what was done since the last report, or since the run began."""
        commits, began, context = self.commits, self._reported, self.context
        self.commits, self._reported = [], time.monotonic()
        elapsed = self._reported - began
        return RunReport(
            table=context.table_name,
            run_id=context.run_id,
            reached={context.spec.topic: Reached(self.topic.now, self.position)},
            commits=commits,
            seconds=elapsed,
        )

    def finish(self) -> RunReport:
        """Drop what dead runs left behind, if this one has done anything, and return the last report."""
        if self._committed:
            self._sweep()
            flush()
        return self.report()

    def _sweep(self) -> None:
        left = self._left
        spec = self.context.spec
        if left and not any(staging_branches(each.table) for each in (left.table, left.dead_letters) if each):
            return
        try:
            sweep(spec, self.context.connections)
        except Exception as error:
            # The table is up to date; what dead runs left is invisible, and the next run tries again.
            self.context.observer.warn(f"Topic {spec.topic}: branches of dead runs are left behind: {error}")

    def _mirror(self, position: Position) -> None:
        """Write the position to the consumer group: it is for lag tools only."""
        try:
            self.context.connections.cluster.commit_group(self.context.spec.group, position)
        except KafkaError as error:
            self.context.observer.warn(f"The table is up to date; lag tools may not be: {error}")


def _lost(error: BaseException | None) -> str | None:
    return kafka_data_loss(error) if error else None
