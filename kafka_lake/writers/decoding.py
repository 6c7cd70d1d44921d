"""What Spark makes of a topic's records: data files, changes and dead letters, by the topic's format."""

from contextlib import ExitStack
from typing import Any

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F

from kafka_lake.catalog.commit_requirements import check_commit_requirements
from kafka_lake.catalog.positions import TableState
from kafka_lake.formats.columns import Target, spark_columns
from kafka_lake.formats.decoder import Decoder, Unreadable, batch_metrics, decoded
from kafka_lake.formats.rows import (
    TRANSFORM_ERROR,
    dead_letters_of,
    marks_errors,
    records_from_dead_letters,
    transform_errors,
    transformed,
    with_transform_errors,
    without_errors,
)
from kafka_lake.formats.task.batches import OBSERVED, loaded
from kafka_lake.formats.task.error_classes import UNDECODABLE
from kafka_lake.quality.evaluate import evaluate
from kafka_lake.quality.result import Refused
from kafka_lake.quality.validation import Validation, ValidationResult
from kafka_lake.runtime.choose_decoder import decoder_of
from kafka_lake.runtime.context import Connections
from kafka_lake.runtime.dead_letter_class import DeadLetterClass
from kafka_lake.runtime.decode_options import Batch, Decoded, SchemaPlan, Written
from kafka_lake.schema.rules import Change
from kafka_lake.spec.topic_table import TopicTable
from kafka_lake.writers.append import write_records, write_rows
from kafka_lake.writers.dead_letters import classes_of
from kafka_lake.writers.frames import shaped, tasks_of
from kafka_lake.writers.schema_changes import create_table, evolve_table, plan_schema, refuse_changes, row_columns
from kafka_lake.writers.upsert.change_events import changes_of


class SparkDecoding:
    """Implements `Decoding` by the topic's format, in Spark."""

    def decoder(self, spec: TopicTable, connections: Connections, state: TableState | None) -> Decoder:
        """Return the decoder of a topic's records; raises as `decoder_of`."""
        return decoder_of(spec, connections, state)

    def unreadable(self, spec: TopicTable, message: str, error_class: str = UNDECODABLE) -> Decoder:
        """Return the decoder that makes a dead letter of every record."""
        return Unreadable(message, error_class, also_none=spec.is_keyed)

    def create_table(self, spec: TopicTable, connections: Connections, records: DataFrame, undecodable: bool) -> None:
        """Create the table with the columns that a schema or the records show; raises as the function of this name."""
        create_table(spec, connections, records, undecodable)
        table = connections.catalog.table(spec.identifier)
        if table is not None:
            check_commit_requirements(connections.catalog, table)

    def evolve_table(
        self, spec: TopicTable, state: TableState, decoder: Decoder, records: DataFrame
    ) -> tuple[SchemaPlan, tuple[Change, ...]]:
        """Change the table's schema and layout, if need be; raises as `Decoding.evolve_table`."""
        want = plan_schema(spec, decoder, state)
        refuse_changes(spec, want.refused)
        rows = row_columns(spec, decoder, records, want.target)
        return want, evolve_table(spec, state, rows=rows, want=want, declared=decoder.fixed is not None)

    def write(self, batch: Batch, held: ExitStack) -> Written:
        """Write data files by Arrow, of what a transform returns if there is one."""
        if batch.spec.transform is None:
            return write_records(batch, held)
        # Decoding starts Python once for each partition of the records: few tasks, before it, not behind it.
        records = batch.records.coalesce(tasks_of(batch.plan, batch.spark))
        topic_id = batch.plan.after.identity.topic_id
        made = self.decode(batch.spec, batch.decoder, batch.target, records, topic_id=topic_id, refused=batch.refused)
        columns = spark_columns(batch.state.table.schema().as_struct())
        files = write_rows(batch, shaped(made.rows, columns))
        return Written(files, made.counts(), made.with_errors)

    def decode(
        self,
        spec: TopicTable,
        decoder: Decoder,
        target: Target,
        records: DataFrame,
        topic_id: str,
        refused: Refused | None = None,
    ) -> Decoded:
        """Decode, count while the rows are written, and transform."""
        found = decoded(records, decoder, target, spec.max_record_bytes)
        with_errors = found if refused is None else refused.set_apart(found)
        observation, metrics = Observation(), batch_metrics()
        is_keyed = spec.is_keyed
        # PySpark's Connect client can't join an observed frame with itself, as upserts do: they are counted apart.
        observes = not (is_keyed and ".connect." in type(records).__module__)
        observed = with_errors.observe(observation, *metrics) if observes else with_errors
        rows = changes_of(observed, spec, topic_id) if is_keyed else transformed(observed, spec, topic_id)
        marked_errors = F.count_if(F.col(TRANSFORM_ERROR).isNotNull()).alias("refused")
        refusals = Observation() if marks_errors(rows, spec) else None
        if refusals is not None:
            rows = rows.observe(refusals, marked_errors)

        def counts() -> dict[str, Any]:
            # Through Connect the metrics may be late, and are missing then: counted in a pass of its own.
            counted = dict(
                (_observed(observation) if observes else {}) or with_errors.agg(*metrics).collect()[0].asDict()
            )
            if refusals is not None:
                marked = (
                    _observed(refusals)
                    or transformed(with_errors, spec, topic_id).agg(marked_errors).collect()[0].asDict()
                )
                counted["failed"] += marked["refused"]
            counted[OBSERVED] = loaded(counted[OBSERVED], spec.max_columns)
            return counted

        return Decoded(without_errors(rows, spec), counts, lambda: with_errors)

    def evaluate(self, asked: Validation) -> ValidationResult:
        """Check rows by Arrow and Spark."""
        return evaluate(asked)

    def dead_letters(self, spec: TopicTable, with_errors: DataFrame, run_id: str, topic_id: str) -> DataFrame:
        """Select what failed; the transform is evaluated a second time if it sets rows apart."""
        decoded = with_errors
        if spec.transform is not None and marks_errors(transformed(decoded, spec, topic_id), spec):
            decoded = with_transform_errors(decoded, transform_errors(transformed(decoded, spec, topic_id), spec))
        return dead_letters_of(decoded, run_id, topic_id=topic_id)

    def classes(self, dead_letters: DataFrame) -> tuple[DeadLetterClass, ...]:
        """Group by class."""
        return classes_of(dead_letters)

    def records(self, dead_letters: DataFrame) -> DataFrame:
        """Select what Kafka gave."""
        return records_from_dead_letters(dead_letters)


def _observed(observation: Observation) -> dict[str, Any]:
    """Return what an observation has counted; nothing if Spark has taken the node that counts out of the plan.

    It does so for a batch in which nothing is a row.
    """
    try:
        return dict(observation.get)
    except Py4JJavaError:
        return {}
