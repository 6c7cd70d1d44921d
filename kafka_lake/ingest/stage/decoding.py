"""What a topic's records become: the columns of its table, its rows, and the dead letters.

`Decoding` is a port: stage asks it, and is tested without formats, schemas and Spark's expressions.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F

from kafka_lake.ingest.connections import Connections
from kafka_lake.ingest.decode.choose import decoder_of
from kafka_lake.ingest.decode.decoder import Decoder, batch_metrics
from kafka_lake.ingest.decode.rows import (
    TRANSFORM_ERROR,
    dead_letters_of,
    marks_errors,
    records_from_dead_letters,
    transform_errors,
    transformed,
    with_transform_errors,
    without_errors,
)
from kafka_lake.ingest.decode.target import Target
from kafka_lake.ingest.decode.undecodable import Unreadable
from kafka_lake.ingest.keyed.changes import changes_of
from kafka_lake.ingest.stage.dead_letter_rows import classes_of
from kafka_lake.ingest.stage.schema_plan import SchemaPlan, plan_schema, refuse_changes
from kafka_lake.ingest.stage.staged import LetterClass
from kafka_lake.ingest.stage.table_schema import create_table, evolve_table, row_columns
from kafka_lake.ingest.topic_table import TopicTable
from kafka_lake.lake.assertions import require_assertions
from kafka_lake.lake.positions import TableState
from kafka_lake.lake.schema import Change


@dataclass(frozen=True)
class Decoded:
    """A batch of records, decoded.

    Args:
        rows: Those of the table, lazy.
        counts: Gives the batch's metrics, once the rows have been written.
        judged: Gives the records with ``error_class`` and ``error_message``, lazy: few batches have dead letters, and
            what decodes for messages is built for those alone.
    """

    rows: DataFrame
    counts: Callable[[], dict[str, Any]]
    judged: Callable[[], DataFrame]


class Decoding(Protocol):
    """What records become."""

    def decoder(self, spec: TopicTable, connections: Connections, state: TableState | None) -> Decoder:
        """Return the decoder of a topic's records; `decoder_of` says more."""

    def unreadable(self, spec: TopicTable, message: str) -> Decoder:
        """Return the decoder that makes a dead letter of every record.

        Args:
            spec: The topic's settings.
            message: Why.
        """

    def create_table(self, spec: TopicTable, connections: Connections, records: DataFrame, undecodable: bool) -> None:
        """Create the topic's table; `kafka_lake.ingest.stage.table_schema.create_table` says more."""

    def evolve_table(
        self, spec: TopicTable, state: TableState, decoder: Decoder, records: DataFrame
    ) -> tuple[SchemaPlan, tuple[Change, ...]]:
        """Give the table the columns that its rows need.

        Args:
            spec: The topic's policy.
            state: The table.
            decoder: Knows what the records look like.
            records: Lazy.

        Returns:
            The columns to decode into; and what the policy leaves out of the table.

        Raises:
            SchemaRefusedError: If Iceberg or the policy forbids what the records need. The table is as it was.
        """

    def decode(self, spec: TopicTable, decoder: Decoder, target: Target, records: DataFrame, topic_id: str) -> Decoded:
        """Return what records become.

        Args:
            spec: Its metadata column, transform and limits count.
            decoder: Of the topic.
            target: The columns to decode into.
            records: Lazy.
            topic_id: The topic's id, for the metadata column.
        """

    def letters(self, spec: TopicTable, judged: DataFrame, run_id: str, topic_id: str) -> DataFrame:
        """Return the records that became no row, as rows of the dead-letter table.

        Args:
            spec: Its transform counts, which sets rows apart too.
            judged: As `decode` gives them.
            run_id: The run that found them.
            topic_id: The topic's id.
        """

    def classes(self, letters: DataFrame) -> tuple[LetterClass, ...]:
        """Return dead letters by class, the most frequent first."""

    def records(self, letters: DataFrame) -> DataFrame:
        """Return the records that dead letters were, as Kafka gave them."""


class SparkDecoding:
    """By the topic's format, in Spark; see `Decoding`."""

    def decoder(self, spec: TopicTable, connections: Connections, state: TableState | None) -> Decoder:
        """Return the decoder of a topic's records; raises as `decoder_of`."""
        return decoder_of(spec, connections, state)

    def unreadable(self, spec: TopicTable, message: str) -> Decoder:
        """Return the decoder that looks at nothing."""
        return Unreadable(message, also_none=spec.write == "upsert")

    def create_table(self, spec: TopicTable, connections: Connections, records: DataFrame, undecodable: bool) -> None:
        """Create the table with the columns that a schema or the records show; raises as the function of this name.

        Raises:
            CatalogRefusedError: If the catalog can't hold what exactly once rests on.
        """
        create_table(spec, connections, records, undecodable)
        table = connections.catalog.table(spec.identifier)
        if table is not None:
            require_assertions(connections.catalog, table)

    def evolve_table(
        self, spec: TopicTable, state: TableState, decoder: Decoder, records: DataFrame
    ) -> tuple[SchemaPlan, tuple[Change, ...]]:
        """Change the table's schema and layout, if need be; raises as `Decoding.evolve_table`."""
        want = plan_schema(spec, decoder, state)
        refuse_changes(spec, want.refused)
        rows = row_columns(spec, decoder, records, want.target)
        return want, evolve_table(spec, state, rows, want, decoder.fixed is not None)

    def decode(self, spec: TopicTable, decoder: Decoder, target: Target, records: DataFrame, topic_id: str) -> Decoded:
        """Decode, count while the rows are written, and transform."""
        limit = spec.max_record_bytes
        decoded = decoder.decode(records, target, max_record_bytes=limit, messages=False)
        observation, metrics = Observation(), batch_metrics(decoder, limit)
        observed = decoded.observe(observation, *metrics)
        is_keyed = spec.write == "upsert"
        rows = changes_of(observed, spec, topic_id) if is_keyed else transformed(observed, spec, topic_id)
        refused = F.count_if(F.col(TRANSFORM_ERROR).isNotNull()).alias("refused")
        refusals = Observation() if marks_errors(rows, spec) else None
        if refusals is not None:
            rows = rows.observe(refusals, refused)

        def counts() -> dict[str, Any]:
            # Through Connect the metrics may be late, and are missing then: counted in a pass of its own.
            found = dict(_observed(observation) or decoded.agg(*metrics).collect()[0].asDict())
            if refusals is not None:
                marked = _observed(refusals) or transformed(decoded, spec, topic_id).agg(refused).collect()[0].asDict()
                found["failed"] += marked["refused"]
            return found

        return Decoded(
            without_errors(rows, spec), counts, lambda: decoder.decode(records, target, max_record_bytes=limit)
        )

    def letters(self, spec: TopicTable, judged: DataFrame, run_id: str, topic_id: str) -> DataFrame:
        """Select what failed; the transform is evaluated a second time if it sets rows apart."""
        decoded = judged
        if spec.transform is not None and marks_errors(transformed(decoded, spec, topic_id), spec):
            decoded = with_transform_errors(decoded, transform_errors(transformed(decoded, spec, topic_id), spec))
        return dead_letters_of(decoded, run_id, topic_id=topic_id)

    def classes(self, letters: DataFrame) -> tuple[LetterClass, ...]:
        """Group by class."""
        return classes_of(letters)

    def records(self, letters: DataFrame) -> DataFrame:
        """Select what Kafka gave."""
        return records_from_dead_letters(letters)


def _observed(observation: Observation) -> dict[str, Any]:
    """Return what an observation has counted; nothing if Spark doesn't tell.

    It doesn't where it has taken the node that counts out of the plan, as of a batch in which nothing is a row.
    """
    try:
        return dict(observation.get)
    except Py4JJavaError:
        return {}
