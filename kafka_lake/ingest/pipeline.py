"""One commit, the seven steps in a row: plan, read, decode and stage, audit, publish, report; and a run of them.

Exactly once rests on three things alone: the plan begins at the position of the very head that the branch starts from,
the position is part of the snapshot that holds the rows, and publication is refused if the head has moved.
"""

import logging
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from pyspark.errors import AnalysisException
from tenacity import (
    RetryCallState,
    Retrying,
    retry_if_exception,
    retry_if_exception_type,
    stop_after_attempt,
    wait_random_exponential,
)
from tenacity.wait import wait_base

from kafka_lake.common.errors import AuditFailedError, KafkaError, KafkaLakeError, PublishRefusedError, TableError
from kafka_lake.common.offsets import Position, Watermarks
from kafka_lake.ingest.audit import Finding, audit, schema_refused
from kafka_lake.ingest.connections import Systems
from kafka_lake.ingest.dead_letters.isolate import Search, can_be_parted
from kafka_lake.ingest.dead_letters.reconcile import settle
from kafka_lake.ingest.dead_letters.samples import quoted
from kafka_lake.ingest.maintenance.clean import sweep
from kafka_lake.ingest.plan import Plan, opening, plan, standstill, start_offsets, unsure, untold
from kafka_lake.ingest.publish import publish
from kafka_lake.ingest.read import read
from kafka_lake.ingest.rebuild import may_have_begun, rebuilt_position
from kafka_lake.ingest.report import Commit, RunReport, waited
from kafka_lake.ingest.retry import call, headline, is_transient, kafka_data_loss, may_be_a_record
from kafka_lake.ingest.stage.rebase import can_follow, follow
from kafka_lake.ingest.stage.schema_plan import SchemaRefusedError
from kafka_lake.ingest.stage.stage import stage
from kafka_lake.ingest.stage.staged import Staged
from kafka_lake.ingest.stage.table_schema import create_table
from kafka_lake.ingest.topic_table import TopicTable
from kafka_lake.lake.positions import TableState, head_of, read_state, row_count
from kafka_lake.lake.tables import drop_if_unused

log = logging.getLogger(__name__)

_ATTEMPTS = 5
_FOLLOWED = 30
_LONGEST_WAIT_SECONDS = 2.0


class _OvertakenError(PublishRefusedError):
    """Others moved ``main`` after the commit was staged, which is still there."""


class GateFailedError(AuditFailedError):
    """A gate refused a commit; `findings` says why."""

    def __init__(self, message: str, findings: list[Finding], remedy: str = "") -> None:
        said = remedy or "main is as it was and the staged snapshot is gone; mend the cause and run again."
        super().__init__(message, said)
        self.findings = findings


def _lost(error: BaseException | None) -> str | None:
    return kafka_data_loss(error) if error else None


def ignore(*_: Any) -> None:
    """Do nothing: the hook of those who don't listen."""


@dataclass
class Run:
    """One run over one topic: commit after commit until its agenda has no more.

    Args:
        spec: The topic and its table.
        systems: Cluster, catalog and Spark; Spark isn't touched if there is nothing to do.
        run_id: Goes into branch names, snapshot summaries and dead letters.
        on_commit: Called after each published commit with it and its plan.
        on_step: Called with the name of each step that has been done.
        say: Gets a line for whatever a person reading the run's log should know: retries, refusals, rebuilt positions.
        sleep: Pauses between attempts, for that many seconds; what it raises ends the run.
        sets_position: Whether the run is there to set the position, so that one which can't be told is no obstacle.
    """

    spec: TopicTable
    systems: Systems
    run_id: str
    on_commit: Callable[[Commit, Plan], None] = ignore
    on_step: Callable[[str], None] = ignore
    say: Callable[[str], None] = log.warning
    sleep: Callable[[float], None] = time.sleep
    sets_position: bool = False
    now: Watermarks = field(init=False)
    commits: list[Commit] = field(init=False, default_factory=list)
    committed: int = field(init=False, default=0)
    position: Position | None = field(init=False, default=None)
    _missing: set[tuple[str, str]] = field(init=False, default_factory=set)
    _borne: tuple[int, int] = field(init=False, default=(0, 0))
    _reported: float = field(init=False, default_factory=time.monotonic)
    _search: Search = field(init=False, default_factory=Search)
    _staging: Plan | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.look()

    def look(self) -> None:
        """Ask the brokers what the topic holds now.

        Raises:
            KafkaError: If they don't answer, or refuse.
        """
        ask = self.systems.cluster.watermarks_of
        self.now = call(
            self.systems.retry, self.say, f"Topic {self.spec.topic}", lambda: ask(self.spec.topic), self.sleep
        )

    def validated(self, position: Position | None, partitions: Collection[int] | None = None) -> Watermarks:
        """Return what the topic holds, and where its log was cut off since a position was written.

        Args:
            position: The table's; None if it has none.
            partitions: Only these are looked at; None for all.

        Raises:
            KafkaError: If the brokers don't answer.
        """
        doubts = unsure(position, self.now, partitions)
        if position is None or not doubts:
            return self.now
        return replace(self.now, cut_off=self.systems.cluster.cut_off(position, doubts))

    def go(
        self,
        next_plan: Callable[[TableState | None], Plan | None],
        reading: Callable[[Plan], Any],
        published: Callable[[Staged], None] = ignore,
    ) -> RunReport:
        """Commit what the agenda asks for until it asks for nothing more.

        Args:
            next_plan: Gives the next commit, from the table as it is at that moment.
            reading: Gives a plan's records.
            published: Called after each publication.

        Returns:
            What was done.

        Raises:
            GateFailedError: If a gate refused a commit; commits before it stay.
            PublishRefusedError: If others kept moving ``main`` ahead of this run.
            KafkaLakeError: For anything else a user can mend; ``main`` holds whole commits only.
        """
        while True:
            with self.turn(look=not self.committed):
                done = self.once(next_plan, reading, published)
            if done is None:
                return self.finish()

    @contextmanager
    def turn(self, look: bool) -> Iterator[None]:
        """Have this run's turn among those on the machine during the block, which is for one commit.

        Args:
            look: Whether to look at the topic again if others came first: what came meanwhile goes with the commit.
        """
        if self.systems.turns is None:
            yield
            return
        with self.systems.turns.take(self.sleep) as waited:
            if waited and look:
                self.look()
            yield

    def once(
        self,
        next_plan: Callable[[TableState | None], Plan | None],
        reading: Callable[[Plan], Any],
        published: Callable[[Staged], None] = ignore,
    ) -> Commit | None:
        """Make the next commit, if the agenda asks for one; arguments and errors are those of `go`.

        Returns:
            The commit, or None if there was nothing to do.
        """
        retrying = Retrying(
            stop=stop_after_attempt(_ATTEMPTS),
            wait=self._wait,
            retry=retry_if_exception(lambda error: isinstance(error, PublishRefusedError) or _lost(error) is not None),
            before_sleep=self._tell_refusal,
            sleep=self._pause,
            reraise=True,
        )
        while True:
            try:
                done = retrying(
                    lambda: call(
                        self.systems.retry,
                        self.say,
                        f"Topic {self.spec.topic}",
                        lambda: self._commit(next_plan, reading, published),
                        self._pause,
                        self._passes,
                    )
                )
            except Exception as error:
                if (part := self._part_of(error)) is None:
                    self._drop_unused()
                    raise
                self._search_on(part, error)
            else:
                break
        self._missing.clear()
        if done is None:
            return None
        commit, todo = done
        self._search = self._search.done(todo, commit.rows)
        self.commits.append(commit)
        self.committed += 1
        self.position = commit.after
        self._borne = self._borne[0] + commit.dead_letters, self._borne[1] + commit.records
        self._mirror(commit.after)
        self.on_commit(commit, todo)
        return commit

    def _drop_unused(self) -> None:
        for identifier in sorted(self._missing):
            try:
                if drop_if_unused(self.systems.catalog, identifier):
                    self.say(f"Table {'.'.join(identifier)} is dropped again: it was made for this run, and is empty.")
            except Exception as error:
                # What led here must not be hidden; an empty table is no harm to the next run.
                self.say(f"Table {'.'.join(identifier)}, which is empty, is left behind: {error}")

    @property
    def _wait(self) -> wait_base:
        # Who meets writers of a fixed pace must not have one.
        policy = self.systems.retry
        return wait_random_exponential(policy.initial_seconds, min(policy.max_seconds, _LONGEST_WAIT_SECONDS))

    def _tell_refusal(self, state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        if isinstance(error, PublishRefusedError):
            self.say(f"{error} Planning again from the new position ({state.attempt_number} of {_ATTEMPTS}).")
            return
        # The plan knows what that means for this topic, and says which offsets are concerned.
        self.say(f"Topic {self.spec.topic}: Kafka lost records after the plan was made: {_lost(error)}")
        self.look()

    def _pause(self, seconds: float) -> None:
        # What ends a pause is no record's fault.
        self._staging = None
        self.sleep(seconds)

    def _passes(self, error: BaseException) -> bool:
        """Return whether to attempt the same commit again; in parts is better while a search goes on."""
        searching = self._search.limit is not None
        return is_transient(error) and not (searching and self._part_of(error))

    def _part_of(self, error: BaseException) -> Plan | None:
        """Return the commit of which one record may be the reason for an error; None if none can be."""
        plan = self._staging
        if plan is None or not can_be_parted(plan) or not may_be_a_record(error):
            return None
        # A transform that asks for a column which isn't there fails without any record.
        return None if self.spec.transform and isinstance(error, AnalysisException) else plan

    def _search_on(self, plan: Plan, error: Exception) -> None:
        message = headline(error)
        self._search = self._search.failed(plan, message)
        first = next(r for r in plan.ranges if len(r))
        where = f"Topic {self.spec.topic}: the record at partition {first.partition} offset {first.start}"
        if self._search.found is None:
            where = f"Topic {self.spec.topic}: one of {plan.records_at_most} records from partition {first.partition}"
            where += f" offset {first.start} on"
            then = f"Trying {self._search.limit} of them."
            if plan.records_at_most == 1:
                # What passes gets some time to do so.
                self._pause(min(self.systems.retry.max_seconds, _LONGEST_WAIT_SECONDS))
        else:
            then = "It becomes a dead letter of class undecodable."
        told = quoted(message, self.spec.samples, self.spec.mask)
        self.say(f"{where} makes its batch fail{f': {told}' if told else '.'} {then}")

    def count_anew(self) -> None:
        """Forget how many dead letters this run has borne: what it does from now on stands for a run of its own."""
        self._borne = 0, 0

    def report(self) -> RunReport:
        """Return what was done since the last report, or since the run began."""
        commits, began = self.commits, self._reported
        self.commits, self._reported = [], time.monotonic()
        table, elapsed = ".".join(self.spec.identifier), self._reported - began
        return RunReport(self.spec.topic, table, self.run_id, self.now, self.position, commits, elapsed)

    def finish(self) -> RunReport:
        """Drop what dead runs left behind, if this one has done anything, and return the last report."""
        if self.committed:
            self._sweep()
        return self.report()

    def _commit(
        self,
        next_plan: Callable[[TableState | None], Plan | None],
        reading: Callable[[Plan], Any],
        published: Callable[[Staged], None],
    ) -> tuple[Commit, Plan] | None:
        spec, systems = self.spec, self.systems
        self._staging = None
        settle(spec, systems, self.run_id, on_step=self.on_step)
        letters = self._letters_head()
        state = self.state()
        self.position = state.position if state else None
        if self.position and self._is_ahead(self.position):
            # Another run has been further than this one could know when it began.
            self.look()
        todo = next_plan(state)
        self.on_step("planned")
        if todo is None:
            return None
        todo = self._staging = self._search.next(todo)
        records = reading(todo)
        if state is None:
            sought = (spec.identifier, spec.dead_letter_table)
            self._missing |= {each for each in sought if systems.catalog.table(each) is None}
        if state is None or state.head is None:
            create_table(spec, systems, records, todo.undecodable is not None)
            self.on_step("table created")
            return self._commit(next_plan, reading, published)
        try:
            staged, findings, by_partition, visible_at = self._publish(state, letters, todo, records)
        except Exception as error:
            if isinstance(error, KafkaLakeError) and not isinstance(error, GateFailedError):
                raise
            # Who publishes takes the branches of those away who no longer can: that shows as any error.
            table = systems.catalog.table(spec.identifier)
            if (head := head_of(table) if table else None) == state.head:
                raise
            raise PublishRefusedError(
                f"Table {'.'.join(spec.identifier)}: main moved from snapshot {state.head} to {head} meanwhile."
            ) from error
        published(staged)
        commit = Commit(
            staged.primary.snapshot,
            todo.ranges,
            todo.after,
            staged.records,
            staged.primary.rows,
            staged.failed,
            staged.tombstones,
            staged.primary.files,
            staged.primary.size,
            by_partition,
            tuple(findings),
            todo.kind,
            staged.classes,
            waited(staged, visible_at) if todo.kind != "replace" else None,
            visible_at,
        )
        return commit, todo

    def _is_ahead(self, position: Position) -> bool:
        return any(offset > self.now.end.get(p, -1) for p, offset in position.offsets.items())

    def _letters_head(self) -> int | None:
        table = self.systems.catalog.table(self.spec.dead_letter_table)
        return head_of(table) if table else None

    def _publish(
        self, state: TableState, letters: int | None, todo: Plan, records: Any
    ) -> tuple[Staged, list[Finding], dict[int, int], float]:
        spec, systems = self.spec, self.systems
        try:
            staged = stage(spec, systems, state, todo, records, self.run_id, self.on_step)
        except SchemaRefusedError as error:
            raise GateFailedError(error.message, [schema_refused(error)], error.remedy) from error
        self._staging = None
        retrying = Retrying(
            stop=stop_after_attempt(_FOLLOWED),
            wait=self._wait,
            retry=retry_if_exception_type(_OvertakenError),
            sleep=self.sleep,
            reraise=True,
        )
        try:
            for attempt in retrying:
                with attempt:
                    if attempt.retry_state.attempt_number > 1:
                        staged = self._followed(todo, staged)
                    findings, by_partition = self._audited(todo, staged)
                    if staged.dead_letters is None and self._letters_head() != letters:
                        # Letters that have come meanwhile may be of records that are rows with this commit.
                        raise PublishRefusedError(
                            f"Table {'.'.join(spec.identifier)}: its dead-letter table has changed meanwhile."
                        )
                    try:
                        visible_at = publish(staged, self.on_step)
                    except PublishRefusedError as error:
                        if not can_follow(todo, staged):
                            raise
                        raise _OvertakenError(error.message) from error
        except BaseException:
            staged.discard()
            raise
        return staged, findings, by_partition, visible_at

    def _audited(self, todo: Plan, staged: Staged) -> tuple[list[Finding], dict[int, int]]:
        spec = self.spec
        findings, by_partition = audit(spec, self.systems, todo, staged, self._borne)
        if failed := [f for f in findings if f.refuses]:
            reasons = "; ".join(f"{f.check}: {p}" for f in failed for p in f.problems)
            raise GateFailedError(f"Topic {spec.topic}, table {'.'.join(spec.identifier)}: {reasons}.", findings)
        self.on_step("audited")
        return findings, by_partition

    def _followed(self, todo: Plan, staged: Staged) -> Staged:
        followed = follow(self.systems, todo, staged, self.run_id)
        if followed is None:
            raise PublishRefusedError(
                f"Table {'.'.join(self.spec.identifier)}: main moved from snapshot {staged.primary.branch.head} "
                "meanwhile, and what was written doesn't go with what is there now."
            )
        self.on_step("followed")
        return followed

    def state(self) -> TableState | None:
        """Return the table as it is now, its position rebuilt if no snapshot carries it any more.

        Raises:
            TableError: If the position is gone and can't be told with certainty.
        """
        table = self.systems.catalog.table(self.spec.identifier)
        if table is None:
            return None
        state = read_state(table)
        try:
            return self._with_position(state)
        except TableError:
            if not self.sets_position:
                raise
            return state

    def _with_position(self, state: TableState) -> TableState:
        table = state.table
        if state.position is None and self.spec.start == "latest" and not row_count(table) and may_have_begun(table):
            raise TableError(
                f"Table {'.'.join(self.spec.identifier)} has no rows, and no snapshot in the history of main carries a "
                f"position in topic {self.spec.topic} any more, though there was one.",
                "Nothing was read, since start is latest and records could be missed. Set the position with "
                f"`kafka-lake reset {self.spec.topic} --to …`.",
            )
        if state.position is not None or not row_count(table):
            return state
        position = rebuilt_position(self.spec, self.systems, state, self.now)
        if position is None:
            self.say(
                f"Table {'.'.join(self.spec.identifier)}: its {row_count(table)} rows are others', none can be of "
                f"topic {self.spec.topic}; they stay, and the topic begins at {self.spec.start}."
            )
            return replace(state, adopted=row_count(table))
        self.say(
            f"Table {'.'.join(self.spec.identifier)}: no snapshot carries the position any more; "
            f"rebuilt from the rows: {dict(position.offsets)}."
        )
        return replace(state, position=position, rebuilt=True)

    def _sweep(self) -> None:
        try:
            sweep(self.spec, self.systems)
        except Exception as error:
            # The table is up to date; what dead runs left is invisible, and the next run tries again.
            self.say(f"Topic {self.spec.topic}: branches of dead runs are left behind: {error}")

    def _mirror(self, position: Position) -> None:
        try:
            self.systems.cluster.commit_group(self.spec.group, position)
        except KafkaError as error:
            self.say(f"The table is up to date; lag tools may not be: {error}")


def ingest(
    spec: TopicTable,
    systems: Systems,
    run_id: str,
    partitions: Collection[int] | None = None,
    on_commit: Callable[[Commit, Plan], None] = ignore,
    on_step: Callable[[str], None] = ignore,
    say: Callable[[str], None] = log.warning,
) -> RunReport:
    """Bring a table up to where its topic ends now.

    Args:
        spec: The topic and its table.
        systems: Cluster, catalog and Spark; Spark isn't touched if there is nothing to do.
        run_id: Goes into branch names, snapshot summaries and dead letters.
        partitions: Only these Kafka partitions; None for all.
        on_commit: Called after each published commit with it and its plan.
        on_step: Called with the name of each step that has been done.
        say: Gets a line for whatever a person reading the run's log should know.

    Returns:
        What was done.

    Raises:
        GateFailedError: If a gate refused a commit; commits before it stay.
        DataLossError: If Kafka no longer has what comes next, and the topic's settings don't say to go on.
        PublishRefusedError: If others kept moving ``main`` ahead of this run.
        KafkaLakeError: For anything else a user can mend; ``main`` holds whole commits only.
    """
    run = Run(spec, systems, run_id, on_commit, on_step, say)
    return run.go(catching_up(run, partitions), reading(run))


def catching_up(run: Run, partitions: Collection[int] | None = None) -> Callable[[TableState | None], Plan | None]:
    """Return the agenda of a run that brings the table up to what the run last saw of the topic.

    Args:
        run: Its watermarks are the target, and may move on meanwhile.
        partitions: Only these Kafka partitions; None for all.
    """
    spec = run.spec
    starts: dict[int, int] = {}
    if shortcoming := untold(run.now):
        run.say(shortcoming)

    def next_plan(state: TableState | None) -> Plan | None:
        position = state.position if state else None
        if position is None:
            # "latest" stays where it was at first: what came since would be in no table.
            found = start_offsets(spec, run.systems.cluster, run.now)
            starts.update({p: max(starts.get(p, o), run.now.low[p]) for p, o in found.items()})
        go_on = spec.on_data_loss == "continue"
        todo = plan(
            position, run.validated(position, partitions), starts, spec.max_records_per_commit, partitions, go_on
        )
        if todo is None and position is None:
            if begins := opening(spec, run.now, starts):
                run.say(
                    f"Topic {spec.topic}: start is latest, and the table has no position yet: it begins at {starts}."
                )
            return begins
        if todo is None and state and state.rebuilt and position:
            return standstill(position)
        return todo

    return next_plan


def reading(run: Run) -> Callable[[Plan], Any]:
    """Return what reads a plan's ranges from Kafka."""
    return lambda todo: read(run.systems.spark(), run.systems.kafka_options, todo, run.spec.topic)


def existing(spec: TopicTable, state: TableState | None) -> TableState:
    """Return the table's state.

    Raises:
        TableError: If there is no table with a position yet.
    """
    if state is None or state.position is None:
        raise TableError(
            f"Table {'.'.join(spec.identifier)} of topic {spec.topic} has no position yet.",
            f"Fill it first: materialize it, or run `kafka-lake ingest {spec.topic}`.",
        )
    return state
