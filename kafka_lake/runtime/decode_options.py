"""What a topic's records become: the columns of its table, its rows, and the dead letters.

`Decoding` is a port: stage calls it, and is tested without formats, schemas and Spark's expressions.
"""

from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from pyiceberg.table import Table
from pyspark.sql import DataFrame

from kafka_lake.catalog.positions import TableState
from kafka_lake.formats.columns import Target
from kafka_lake.formats.decoder import Decoder
from kafka_lake.formats.task.error_classes import UNDECODABLE
from kafka_lake.quality.result import Refused, RuleResult
from kafka_lake.quality.validation import Validation, ValidationResult
from kafka_lake.runtime.context import Connections
from kafka_lake.runtime.dead_letter_class import DeadLetterClass
from kafka_lake.runtime.plan import Plan
from kafka_lake.runtime.task.report import Span
from kafka_lake.schema.evolution.model import Conflict
from kafka_lake.schema.rules import Change
from kafka_lake.spec.topic_table import TopicTable


@dataclass(frozen=True)
class SchemaPlan:
    """The columns to decode into, and how they differ from the table's.

    Args:
        renamed: Columns of the table that get another name.
        ignored: Columns that the policy leaves out.
        refused: Changes that the policy forbids.
        conflicts: Values that fit no column of the table, and where they go.
    """

    target: Target
    renamed: tuple[Change, ...] = ()
    ignored: tuple[Change, ...] = ()
    refused: tuple[Change, ...] = ()
    conflicts: tuple[Conflict, ...] = ()


@dataclass(frozen=True)
class Batch:
    """Records on their way into a table.

    Args:
        state: The table with the columns that the batch needs.
        decoder: Knows what they look like.
        target: The columns to decode into.
        refused: Records that become no row although they decode; None if there are none.
        may_stop: Whether to stop early when records show columns that the table lacks.
    """

    spec: TopicTable
    spark: Any
    state: TableState
    plan: Plan
    records: DataFrame
    decoder: Decoder
    target: Target
    refused: Refused | None = None
    may_stop: bool = False


@dataclass(frozen=True)
class Written:
    """What a batch became: data files, in no snapshot yet.

    Args:
        files: Iceberg's descriptions of them.
        counts: The batch's metrics, as `batch_metrics` and the decoder name them.
        with_errors: Gives the records with ``error_class`` and ``error_message``, or only those that failed, lazy.
        spans: The rows by task and Kafka partition; None if only a scan can count them.
        rules: What rules of single rows found while the rows were written; None if none was asked.
        classes: The failed records by class; None if they haven't been counted by class.
        properties: Snapshot properties that describe it.
        has_stopped: Whether records are missing, since others showed columns that the table lacks.
    """

    files: tuple[Any, ...]
    counts: Mapping[str, Any]
    with_errors: Callable[[], DataFrame]
    spans: tuple[Span, ...] | None = None
    rules: tuple[RuleResult, ...] | None = None
    classes: tuple[DeadLetterClass, ...] | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    has_stopped: bool = False

    def delete_files(self, table: Table) -> None:
        """Delete the files, which no snapshot is to have. Never raises: what stays is no part of the table."""
        for file in self.files:
            with suppress(Exception):
                table.io.delete(file.file_path)


@dataclass(frozen=True)
class Decoded:
    """A batch of records, decoded.

    Args:
        rows: Those of the table, lazy.
        counts: Gives the batch's metrics, once the rows have been written.
        with_errors: Returns the records with ``error_class`` and ``error_message``, lazy.
    """

    rows: DataFrame
    counts: Callable[[], dict[str, Any]]
    with_errors: Callable[[], DataFrame]


class Decoding(Protocol):
    """What records become."""

    def decoder(self, spec: TopicTable, connections: Connections, state: TableState | None) -> Decoder:
        """Return the decoder of a topic's records; `decoder_of` says more."""

    def unreadable(self, spec: TopicTable, message: str, error_class: str = UNDECODABLE) -> Decoder:
        """Return the decoder that makes a dead letter of every record."""

    def create_table(self, spec: TopicTable, connections: Connections, records: DataFrame, undecodable: bool) -> None:
        """Create the topic's table; `kafka_lake.writers.schema_changes.create_table` says more."""

    def evolve_table(
        self, spec: TopicTable, state: TableState, decoder: Decoder, records: DataFrame
    ) -> tuple[SchemaPlan, tuple[Change, ...]]:
        """Give the table the columns that its rows need.

        Args:
            decoder: Knows what the records look like.

        Returns:
            The columns to decode into; and what the policy leaves out of the table.

        Raises:
            SchemaRefusedError: If Iceberg or the policy forbids what the records need. The table is as it was.
        """

    def write(self, batch: Batch, held: ExitStack) -> Written:
        """Decode records and write the rows of a table that is appended to, to data files that are in no snapshot yet.

        Args:
            held: Gets callbacks by which Spark drops what it caches.

        Raises:
            TableError: If the table's files can't be written.
        """

    def decode(
        self,
        spec: TopicTable,
        decoder: Decoder,
        target: Target,
        records: DataFrame,
        topic_id: str,
        refused: Refused | None = None,
    ) -> Decoded:
        """Return what records become.

        Args:
            spec: Its metadata column, transform and limits count.
            target: The columns to decode into.
            topic_id: The topic's id, for the metadata column.
            refused: Records that become no row although they decode.
        """

    def evaluate(self, asked: Validation) -> ValidationResult:
        """Ask rules of rows; raises as `kafka_lake.quality.evaluate.evaluate`."""

    def dead_letters(self, spec: TopicTable, with_errors: DataFrame, run_id: str, topic_id: str) -> DataFrame:
        """Return the records that became no row, as rows of the dead-letter table.

        Args:
            spec: Its transform counts, which sets rows apart too.
            run_id: The run that found them.
        """

    def classes(self, dead_letters: DataFrame) -> tuple[DeadLetterClass, ...]:
        """Return dead letters by class, the most frequent first."""

    def records(self, dead_letters: DataFrame) -> DataFrame:
        """Return the records that dead letters were, as Kafka gave them."""
