"""A batch of records on its way into the topic's table: decoded, then written by Arrow or by Spark."""

import logging
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame

from kafka_lake.ingest.connections import Connections
from kafka_lake.ingest.decode.decoder import Decoder
from kafka_lake.ingest.decode.json.decoder import Json
from kafka_lake.ingest.decode.target import Target
from kafka_lake.ingest.plan.model import Plan
from kafka_lake.ingest.stage.arrow_writer import ByArrow, by_arrow, why_not
from kafka_lake.ingest.stage.decoding import Decoded, Decoding
from kafka_lake.ingest.stage.keyed_rows import with_not_sent, write_changes
from kafka_lake.ingest.stage.replaced_rows import delete_replaced
from kafka_lake.ingest.stage.shape import shaped
from kafka_lake.ingest.stage.spark_writer import append, tasks_of
from kafka_lake.ingest.stage.staged import LetterClass, StagedTable, most_frequent_first, staged_table
from kafka_lake.ingest.topic_table import TopicTable
from kafka_lake.lake.branches import StagingBranch
from kafka_lake.lake.positions import POSITION, RUN_ID, TableState

log = logging.getLogger(__name__)

CLASSES = "classes"
"""Among the metrics of a batch: its dead letters by class, where who decoded them has counted them."""


DELETES, KEYED = "deletes", "keyed"
"""Likewise, of a keyed table: the staged table of deleted keys, and what became of the changes."""


@dataclass(frozen=True)
class Batch:
    """A batch on its way into the topic's table.

    Args:
        spec: The topic's settings.
        connections: Catalog and Spark.
        decoding: Makes rows of records.
        state: The table as the plan saw it, with the columns that the batch needs.
        plan: Its position goes into the snapshot's summary.
        records: The planned records, lazy.
        decoder: Knows what they look like.
        target: The columns to decode into.
        branch: Name of the branch to write to.
        run_id: Goes into the summary.
        marks: More of the summary.
    """

    spec: TopicTable
    connections: Connections
    decoding: Decoding
    state: TableState
    plan: Plan
    records: DataFrame
    decoder: Decoder
    target: Target
    branch: str
    run_id: str
    marks: Mapping[str, str]

    def write(self, undo: ExitStack) -> tuple[StagedTable, dict[str, Any], Callable[[], DataFrame]]:
        """Stage the rows, by Arrow if it can.

        Args:
            undo: Gets what takes them away again.

        Returns:
            What was staged; the batch's metrics; and what gives the records with ``error_class`` and ``error_message``,
            or those alone that have them.
        """
        spark = self.connections.spark()
        assert self.state.head is not None, "ensure_table gives every table a first snapshot"
        doubt = why_not(self.spec, self.decoder, self.target, self.state, self.plan)
        catalog, identifier = self.connections.catalog, self.spec.identifier
        branch = StagingBranch(spark, catalog, identifier, self.branch, self.state.head, self.state.table)
        branch.create()
        undo.callback(branch.discard)
        tasks = tasks_of(self.plan, spark)
        if not doubt:
            assert isinstance(self.decoder, Json), "others have no way by Arrow"
            arrow = by_arrow(
                spec=self.spec,
                spark=spark,
                records=self.records,
                decoder=self.decoder,
                target=self.target,
                state=self.state,
                plan=self.plan,
                tasks=tasks,
            )
            if arrow is not None:
                return self._append_files(branch, arrow, undo)
        else:
            log.info("Topic %s: Spark writes these rows: %s.", self.spec.topic, doubt)
        decoded = self.decoding.decode(
            self.spec, self.decoder, self.target, self.records, self.plan.after.identity.topic_id
        )
        if self.spec.write == "upsert":
            return self._merge(branch, decoded, tasks, undo)
        return self._append_rows(branch, decoded.rows, tasks), decoded.counts(), decoded.judged

    def _append_files(
        self, branch: StagingBranch, arrow: ByArrow, undo: ExitStack
    ) -> tuple[StagedTable, dict[str, Any], Callable[[], DataFrame]]:
        """Append what Arrow wrote as one snapshot."""
        undo.callback(arrow.release)
        branch.append(arrow.files, self._summary({**self.marks, **arrow.marks}))
        failed = self.records if arrow.failed is None else arrow.failed
        classes = most_frequent_first(LetterClass(**vars(each)) for each in arrow.failures)
        return (
            staged_table(branch, branch.head, self.state, arrow.spans),
            {**arrow.counts, CLASSES: classes},
            lambda: failed,
        )

    def _merge(
        self, branch: StagingBranch, decoded: Decoded, tasks: int, undo: ExitStack
    ) -> tuple[StagedTable, dict[str, Any], Callable[[], DataFrame]]:
        """Merge changes as one snapshot."""
        primary, deletes, keyed = write_changes(
            self.spec,
            self.connections,
            self.state,
            branch,
            decoded.rows,
            self.plan.after.identity.topic_id,
            self._summary(self.marks),
            tasks,
            undo,
        )
        counts = decoded.counts()
        counts["failed"] += len(keyed.not_sent)
        return (
            primary,
            {**counts, DELETES: deletes, KEYED: keyed},
            lambda: with_not_sent(decoded.judged(), self.connections.spark(), keyed.not_sent),
        )

    def _fitting(self, rows: DataFrame) -> DataFrame:
        spark = self.connections.spark()
        return shaped(rows, spark.table(self.connections.catalog.spark_name(self.spec.identifier)).schema)

    def _summary(self, marks: Mapping[str, str]) -> dict[str, str]:
        return {POSITION: self.plan.after.to_json(), RUN_ID: self.run_id, **marks}

    def _append_rows(self, branch: StagingBranch, rows: DataFrame, tasks: int) -> StagedTable:
        fitting = self._fitting(rows).coalesce(tasks)
        if self.plan.deletes:
            delete_replaced(self.spec, self.connections.spark(), branch, self.plan)
        return append(branch, self.state, fitting, self._summary(self.marks))
