"""Decode a topic's records in Spark: to data files, to change events, and to dead letters."""

from collections.abc import Sequence
from contextlib import ExitStack, suppress
from typing import Any

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F
from pyspark.sql import types as T

from kafka_lake.catalog.lake_catalog import check_commit_requirements, quoted
from kafka_lake.catalog.positions import TableState
from kafka_lake.engine.task import METADATA_COLUMN
from kafka_lake.formats.columns import Target, spark_columns
from kafka_lake.formats.decoder import Decoder, Unreadable, batch_metrics, decoded
from kafka_lake.formats.rows import dead_letters_of, records_from_dead_letters, transformed
from kafka_lake.formats.task.batches import OBSERVED, loaded
from kafka_lake.formats.task.error_classes import UNDECODABLE
from kafka_lake.quality.evaluate import evaluate
from kafka_lake.quality.result import Refused
from kafka_lake.runtime.context import Connections
from kafka_lake.runtime.decoding import Batch, Decoded, SchemaPlan, Written, decoder_of
from kafka_lake.schema.rules import Change
from kafka_lake.spec.topic_table import TopicTable
from kafka_lake.writers.append import write_records, write_rows
from kafka_lake.writers.dead_letters import classes_of
from kafka_lake.writers.frames import shaped, tasks_of
from kafka_lake.writers.schema_changes import create_table, evolve_table, plan_schema, refuse_changes, row_columns
from kafka_lake.writers.upsert.change_events import INTERNAL_COLUMNS, change_events
from kafka_lake.writers.upsert.keys import OPERATION, Keys


class SparkDecoding:
    """Implements `Decoding` by the topic's format, in Spark."""

    decoder = staticmethod(decoder_of)
    evaluate = staticmethod(evaluate)
    classes = staticmethod(classes_of)
    records = staticmethod(records_from_dead_letters)

    def unreadable(self, spec: TopicTable, message: str) -> Decoder:
        """Return the decoder that makes a dead letter of every record."""
        return Unreadable(message, UNDECODABLE, also_none=spec.is_keyed)

    def create_table(self, spec: TopicTable, connections: Connections, records: DataFrame, undecodable: bool) -> None:
        """Create the table with the columns that a schema or the records show; raises as the function of this name."""
        create_table(spec, connections, records, undecodable)
        table = connections.catalog.table(spec.identifier)
        if table is not None:
            check_commit_requirements(connections.catalog, table)

    def evolve_table(
        self, spec: TopicTable, state: TableState, decoder: Decoder, records: DataFrame
    ) -> tuple[SchemaPlan, tuple[Change, ...]]:
        """Change the table's schema and layout if need be; raises as `Decoding.evolve_table`."""
        plan = plan_schema(spec, decoder, state)
        refuse_changes(spec, plan.refused)
        rows = row_columns(spec, decoder, records, plan.target)
        return plan, evolve_table(spec, state, rows=rows, plan=plan, declared=decoder.fixed is not None)

    def write(self, batch: Batch, held: ExitStack) -> Written:
        """Write data files of the records, or of the rows that a transform returns."""
        if batch.spec.transform is None:
            return write_records(batch, held)
        # Decoding starts Python once for each partition of the records, so they are coalesced before it.
        records = batch.records.coalesce(tasks_of(batch.plan, batch.spark))
        topic_id = batch.plan.after.identity.topic_id
        rows = self.decode(batch.spec, batch.decoder, batch.target, records, topic_id=topic_id, refused=batch.refused)
        columns = spark_columns(batch.state.table.schema().as_struct())
        files = write_rows(batch, shaped(rows.rows, columns))
        return Written(files, rows.counts(), rows.with_errors)

    def decode(
        self,
        spec: TopicTable,
        decoder: Decoder,
        target: Target,
        records: DataFrame,
        topic_id: str,
        refused: Refused | None = None,
    ) -> Decoded:
        """Decode and transform; the batch is counted while the rows are written."""
        with_errors = decoded(records, decoder, target, spec.max_record_bytes)
        if refused is not None:
            with_errors = refused.set_apart(with_errors)
        metrics, observation = batch_metrics(), None
        # PySpark's Connect client can't join an observed frame with itself, as upserts do.
        if not (spec.is_keyed and ".connect." in type(records).__module__):
            observation = Observation()
        observed = with_errors if observation is None else with_errors.observe(observation, *metrics)
        as_rows = change_events if spec.is_keyed else transformed
        rows = as_rows(observed, spec, topic_id)

        def counts() -> dict[str, Any]:
            counted = _counts(observation, with_errors, metrics)
            counted[OBSERVED] = loaded(counted[OBSERVED], spec.max_columns)
            return counted

        return Decoded(rows, counts, lambda: with_errors)

    def changes(self, spec: TopicTable, connections: Connections, state: TableState, records: DataFrame) -> DataFrame:
        """Return the changes of an upsert table's keys in some records.

        Columns: ``p`` and ``o``, partition and offset; ``op``, the operation; ``k``, a struct of the key's columns;
        ``place``, the order in the source, null without one; ``bare``, whether a change lacks it though others have it.
        """
        decoder = self.decoder(spec, connections, state)
        target = plan_schema(spec, decoder, state).target
        topic_id = state.position.identity.topic_id if state.position else ""
        columns = spark_columns(state.table.schema().as_struct())
        keys = Keys.of(spec, decoder.key_in(target), topic_id)
        events = change_events(decoded(records, decoder, target, spec.max_record_bytes), spec, topic_id)
        events = shaped(events, T.StructType([*columns, *INTERNAL_COLUMNS])).alias("e")
        metadata = F.col(f"e.{quoted(METADATA_COLUMN)}")
        key = [F.expr(value).alias(f"k{number}") for number, value in enumerate(keys.key("e"))]
        # In structs of DuckDB, null is the greatest value; in Spark, it is the least.
        values = [part for value in map(F.expr, keys.source_order("e")) for part in (value.isNotNull(), value)]
        order = [value.alias(f"o{number}") for number, value in enumerate(values)]
        return events.select(
            metadata["partition"].alias("p"),
            metadata["offset"].alias("o"),
            F.col(OPERATION).alias("op"),
            F.struct(*key).alias("k"),
            (F.struct(*order) if order else F.lit(None).cast("boolean")).alias("place"),
            (F.expr(keys.has_no_order("e")) if order else F.lit(False)).alias("bare"),
        )

    def dead_letters(self, with_errors: DataFrame, run_id: str, topic_id: str) -> DataFrame:
        """Return the failed records as dead letters."""
        return dead_letters_of(with_errors, run_id, topic_id=topic_id)


def _counts(observation: Observation | None, frame: DataFrame, metrics: Sequence[Column]) -> dict[str, Any]:
    """Return what an observation counted; count again if it counted nothing.

    Spark removes the observing node from the plan of a batch without rows. Through Connect, metrics may be late.
    """
    if observation is not None:
        with suppress(Py4JJavaError):
            if counted := dict(observation.get):
                return counted
    return dict(frame.agg(*metrics).collect()[0].asDict())
