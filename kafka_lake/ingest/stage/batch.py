"""A batch of records on its way into the topic's table: decoded, then written by Arrow or by Spark."""

import logging
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from pyspark.sql import DataFrame

from kafka_lake.ingest.context import Context
from kafka_lake.ingest.decode.changes import Changes
from kafka_lake.ingest.decode.dead_letter_class import DeadLetterClass, most_frequent_first
from kafka_lake.ingest.decode.decoder import Decoder
from kafka_lake.ingest.decode.key_columns import key_columns
from kafka_lake.ingest.decode.rows import none_failed
from kafka_lake.ingest.decode.target import Target
from kafka_lake.ingest.decoding import Decoded
from kafka_lake.ingest.keyed.not_sent import with_not_sent
from kafka_lake.ingest.plan.model import Plan
from kafka_lake.ingest.rules.asked import Verdict
from kafka_lake.ingest.rules.result import Refused, refused_mark
from kafka_lake.ingest.stage.arrow_doubts import why_not
from kafka_lake.ingest.stage.arrow_writer import ByArrow, by_arrow, nothing_written
from kafka_lake.ingest.stage.changes_to_stage import ChangesToStage
from kafka_lake.ingest.stage.history_rows import write_versions
from kafka_lake.ingest.stage.keyed_rows import write_changes
from kafka_lake.ingest.stage.replaced_rows import delete_replaced
from kafka_lake.ingest.stage.shape import shaped
from kafka_lake.ingest.stage.spark_writer import append, tasks_of
from kafka_lake.ingest.stage.staged import StagedTable, staged_table
from kafka_lake.lake.author import author_summary, removes_mark
from kafka_lake.lake.branches import StagingBranch
from kafka_lake.lake.positions import TableState, positions_summary

log = logging.getLogger(__name__)

CLASSES = "classes"
"""Among the metrics of a batch: its dead letters by class, where who decoded them has counted them."""


DELETES, KEYED = "deletes", "keyed"
"""Likewise, of a keyed table: the staged table of deleted keys, and what became of the changes."""


@dataclass(frozen=True)
class WrittenBatch:
    """A batch that was written to a branch of the topic's table.

    Args:
        primary: The table on its branch.
        judged: Gives the records with ``error_class`` and ``error_message``, or those alone that have them.
        verdict: What the topic's rules found, if they have been asked and what they refuse is left out already.
        release: Lets Spark forget what ``judged`` reads; never raises.
    """

    primary: StagedTable
    counts: Mapping[str, Any]
    judged: Callable[[], DataFrame]
    verdict: Verdict | None = None
    release: Callable[[], None] = lambda: None


@dataclass(frozen=True)
class Batch:
    """A batch on its way into the topic's table.

    Args:
        state: The table as the plan saw it, with the columns that the batch needs.
        plan: Its position goes into the snapshot's summary.
        decoder: Knows what they look like.
        target: The columns to decode into.
        branch: Name of the branch to write to.
        refused: Records that become no row although they decode; None if there are none.
        written: The rows, if Arrow has written them already.
    """

    context: Context
    state: TableState
    plan: Plan
    records: DataFrame
    decoder: Decoder
    target: Target
    branch: str
    marks: Mapping[str, str]
    refused: Refused | None = None
    written: ByArrow | None = None

    def write(self, undo: ExitStack) -> WrittenBatch:
        """Stage the rows, by Arrow if it can.

        Args:
            undo: Gets what takes them away again.
        """
        context, spec = self.context, self.context.spec
        spark = context.connections.spark()
        assert self.state.head is not None, "ensure_table gives every table a first snapshot"
        branch = StagingBranch(
            spark=spark,
            catalog=context.connections.catalog,
            identifier=spec.identifier,
            name=self.branch,
            head=self.state.head,
            table=self.state.table,
        )
        branch.create()
        undo.callback(branch.discard)
        base, marks = self.state.head, dict(self.marks)
        if self.plan.deletes and not spec.is_keyed:
            gone = delete_replaced(context, branch, self.plan)
            base, marks = gone or base, marks | removes_mark(gone)
        if self.written is not None:
            return self._append_files(branch, self.written, base, marks)
        has_none = self.plan.share is not None and not self.plan.share.records
        if has_none and not spec.is_keyed and not self.plan.deletes:
            # The commit moves the position alone: Spark needn't look for rows.
            return self._append_files(branch, nothing_written(), base, marks)
        doubt = why_not(spec, self.decoder, target=self.target, state=self.state)
        tasks = tasks_of(self.plan, spark)
        if not doubt:
            # If the batch is staged, it is left by whoever releases that.
            held = undo.enter_context(ExitStack())
            arrow = by_arrow(
                spec=spec,
                spark=spark,
                records=self.records,
                decoder=self.decoder,
                target=self.target,
                state=self.state,
                plan=self.plan,
                tasks=tasks,
                held=held,
                refused=self.refused,
            )
            if arrow is not None:
                return replace(self._append_files(branch, arrow, base, marks), release=held.close)
            held.close()
        else:
            log.info("Topic %s: Spark writes these rows: %s.", spec.topic, doubt)
        topic_id, decoder = self.plan.after.identity.topic_id, self.decoder
        if isinstance(decoder, Changes):
            decoder = decoder.of_partitions(len(self.plan.after.offsets))
        # Decoding starts Python once for each partition of the records: few tasks, before it, not behind it.
        few = self.records.coalesce(tasks)
        decoded = context.decoding.decode(spec, decoder, self.target, few, topic_id=topic_id, refused=self.refused)
        if spec.is_keyed:
            return self._merge(branch, decoded, tasks, undo)
        rows = self._fitting(decoded.rows)
        primary = append(branch, self.state, rows, self._summary(marks))
        return WrittenBatch(primary, decoded.counts(), decoded.judged)

    def _append_files(self, branch: StagingBranch, arrow: ByArrow, base: int, marks: Mapping[str, str]) -> WrittenBatch:
        """Append what Arrow wrote as one snapshot."""
        refused = {each.rule.name: each.failed for each in arrow.rules if each.refuses_rows}
        branch.append(arrow.files, self._summary({**marks, **arrow.marks}, refused))
        classes = most_frequent_first(DeadLetterClass(**vars(each)) for each in arrow.failures)
        primary = replace(staged_table(branch, base, self.state, arrow.spans), rules=arrow.rules)

        def judged() -> DataFrame:
            return none_failed(self.records) if arrow.failed is None else arrow.failed

        return WrittenBatch(primary, {**arrow.counts, CLASSES: classes}, judged)

    def _merge(self, branch: StagingBranch, decoded: Decoded, tasks: int, undo: ExitStack) -> WrittenBatch:
        """Merge changes as one snapshot."""
        # What is set apart as it is, and what no route takes, has no changes, and a decoder that knows no keys.
        decoder, known = self.decoder, key_columns(self.context.spec, self.state.table)
        write = write_versions if self.context.spec.write == "history" else write_changes
        staged = write(
            ChangesToStage(
                context=self.context,
                plan=self.plan,
                state=self.state,
                branch=branch,
                changes=decoded.rows,
                key=decoder.key_in(self.target) if isinstance(decoder, Changes) else known,
                topic_id=self.plan.after.identity.topic_id,
                summary=self._summary(self.marks),
                tasks=tasks,
                failed=lambda: int(decoded.counts()["failed"]),
                declared=decoder.fixed is not None,
            ),
            undo,
        )
        counts, not_sent, verdict = decoded.counts(), staged.batch.not_sent, staged.batch.verdict
        refused = verdict.refused
        counts["failed"] += len(not_sent) + (len(refused) if refused else 0)

        def judged() -> DataFrame:
            found = with_not_sent(decoded.judged(), self.context.connections.spark(), not_sent)
            return found if refused is None else refused.set_apart(found)

        return WrittenBatch(
            staged.primary,
            {**counts, DELETES: staged.deletes, KEYED: staged.batch},
            judged,
            verdict,
        )

    def _fitting(self, rows: DataFrame) -> DataFrame:
        connections = self.context.connections
        return shaped(
            rows, connections.spark().table(connections.catalog.spark_name(self.context.spec.identifier)).schema
        )

    def _summary(self, marks: Mapping[str, str], refused: Mapping[str, int] = MappingProxyType({})) -> dict[str, str]:
        """Return the snapshot's summary."""
        before = self.refused.by_rule if self.refused is not None else {}
        marks = {**marks, **refused_mark({**before, **refused})}
        again = self.plan.deletes if self.plan.kind == "replace" else ()
        who = author_summary(self.context.run_id, self.plan.kind, again)
        return {**positions_summary(self.plan.after, self.state.others), **who, **marks}
