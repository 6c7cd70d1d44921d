"""How a topic's records are decoded: its decoder, and the interface `Decoding`, which model tests simulate."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Protocol

from pyiceberg.table import Table
from pyspark.sql import DataFrame
from pyspark.sql import types as T

from kafka_lake.catalog.positions import TableState
from kafka_lake.cdc.avro import envelopes_and_keys
from kafka_lake.cdc.changes import Changes
from kafka_lake.formats.base import Part, PartName
from kafka_lake.formats.columns import Target
from kafka_lake.formats.decoder import Decoder, Keyed
from kafka_lake.formats.registered import Registered, remembered
from kafka_lake.formats.table_compatibility import key_columns
from kafka_lake.quality.result import Refused, RuleResult
from kafka_lake.quality.validation import Validation, ValidationResult
from kafka_lake.runtime.context import Connections
from kafka_lake.runtime.plan import Plan
from kafka_lake.runtime.task.report import DeadLetterClass, Span
from kafka_lake.schema.evolution.model import Conflict
from kafka_lake.schema.rules import Change
from kafka_lake.spec.ddl import parsed_ddl
from kafka_lake.spec.topic_table import TopicTable


@dataclass(frozen=True)
class SchemaPlan:
    """The columns to decode into, and how they differ from the table's.

    Args:
        conflicts: Values that fit no column of the table, and where they go.
    """

    target: Target
    renamed: tuple[Change, ...] = ()
    ignored: tuple[Change, ...] = ()
    refused: tuple[Change, ...] = ()
    conflicts: tuple[Conflict, ...] = ()


@dataclass(frozen=True)
class Batch:
    """Records to decode and write.

    Args:
        state: The table, with the columns that the batch needs.
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
    """The written data files of a batch, in no snapshot yet.

    Args:
        counts: The batch's metrics, as `batch_metrics` and the decoder name them.
        with_errors: Gives the records with ``error_class`` and ``error_message``, or only those that failed, lazy.
        spans: The rows by task and Kafka partition; None if only a scan can count them.
        rules: Results of the rules of single rows; None if there are none.
        classes: The failed records by class; None if they haven't been counted by class.
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
        """Delete the files. Never raises: a file that stays is not part of the table."""
        for file in self.files:
            with suppress(Exception):
                table.io.delete(file.file_path)


@dataclass(frozen=True)
class Decoded:
    """A batch of records, decoded.

    Args:
        counts: Returns the batch's metrics, after the rows have been written.
    """

    rows: DataFrame
    counts: Callable[[], dict[str, Any]]
    with_errors: Callable[[], DataFrame]


class Decoding(Protocol):
    """Decodes and writes records."""

    def decoder(self, spec: TopicTable, connections: Connections, state: TableState | None) -> Decoder:
        """Return the decoder of a topic's records."""

    def unreadable(self, spec: TopicTable, message: str) -> Decoder:
        """Return the decoder that makes every record a dead letter."""

    def create_table(self, spec: TopicTable, connections: Connections, records: DataFrame, undecodable: bool) -> None:
        """Create the topic's table; `kafka_lake.writers.schema_changes.create_table` says more."""

    def evolve_table(
        self, spec: TopicTable, state: TableState, decoder: Decoder, records: DataFrame
    ) -> tuple[SchemaPlan, tuple[Change, ...]]:
        """Add the columns that the rows need."""

    def write(self, batch: Batch, held: ExitStack) -> Written:
        """Decode records and write the rows of an append to data files, in no snapshot yet."""

    def decode(
        self,
        spec: TopicTable,
        decoder: Decoder,
        target: Target,
        records: DataFrame,
        topic_id: str,
        refused: Refused | None = None,
    ) -> Decoded:
        """Return what records become."""

    def evaluate(self, asked: Validation) -> ValidationResult:
        """Ask rules of rows; raises as `kafka_lake.quality.evaluate.evaluate`."""

    def dead_letters(self, with_errors: DataFrame, run_id: str, topic_id: str) -> DataFrame:
        """Return the records that became no row, as rows of the dead-letter table."""

    def classes(self, dead_letters: DataFrame) -> tuple[DeadLetterClass, ...]:
        """Return dead letters by class, the most frequent first."""

    def records(self, dead_letters: DataFrame) -> DataFrame:
        """Return the records that dead letters were, as Kafka gave them."""


def decoder_of(spec: TopicTable, connections: Connections, state: TableState | None) -> Decoder:
    """Return the decoder of a topic's records."""
    value = _part(spec, "value", connections, state)
    keys: Registered | None = None
    if spec.has_envelope and value.format.has_schema_ids:
        envelopes, keys = envelopes_and_keys(value.fetch_schema(), value.registry_kind)
        rows: Decoder = envelopes.remembering(remembered(state, "value"))
        keys = keys.remembering(remembered(state, "key"))
    else:
        rows = value.format.decoder(value)
    if spec.key_format is not None:
        key = _part(spec, "key", connections, state)
        rows = Keyed(rows, key.format.decoder(key), spec.key_column, of_tombstones=spec.is_keyed)
    if not spec.is_keyed:
        return rows
    columns = key_columns(spec, state.table if state else None)
    return Changes(
        rows=rows,
        keys=keys,
        envelope=spec.envelope,
        key=columns,
        order_by=spec.order_by,
        of_record=spec.has_envelope and not spec.key,
        looks=spec.has_envelope or bool(value.format.is_json and columns and columns != (spec.key_column,)),
        max_columns=spec.max_columns,
        left_out=None if spec.ignores_new_fields else spec.except_columns,
    )


def _part(spec: TopicTable, name: PartName, connections: Connections, state: TableState | None) -> Part:
    ddl = spec.schema if name == "value" else spec.key_schema
    declared = None
    if ddl is not None:
        declared = Target(_parsed(ddl), {}, _renamed(spec), any_case=True)
    return Part(spec, name, declared, state, registry=connections.registry)


@cache
def _parsed(ddl: str) -> T.StructType:
    return T.StructType.fromJson(parsed_ddl(ddl))


def _renamed(spec: TopicTable) -> dict[str, tuple[str, ...]]:
    """Return the names that columns had before renames, by the path of each column."""
    before: dict[str, tuple[str, ...]] = {}
    for old, new in spec.renames.items():
        parent, dot, name = old.rpartition(".")
        path = f"{parent}{dot}{new}"
        before[path] = (*before.get(path, ()), name)
    return before
