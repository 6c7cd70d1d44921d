"""Decoding by the kind of a record."""

from typing import TYPE_CHECKING, Any

from kafka_lake.catalog.tables import ensure_table
from kafka_lake.formats.columns import Target
from kafka_lake.formats.decoder import Decoder
from kafka_lake.quality.validation import Validation, ValidationResult
from kafka_lake.runtime.context import Connections
from kafka_lake.runtime.decoding import Batch, SchemaPlan, Written
from kafka_lake.spec.topic_table import TopicTable
from kafka_lake_tests.unit.simulated.history import COLUMNS, POISON, SCHEMA, Poison, Record, Unmatched

if TYPE_CHECKING:
    from kafka_lake_tests.unit.simulated.process import Process


class SimulatedDecoder(Decoder):
    """A decoder that leaves records as they are; whether one fits is the process's to say."""

    def decode(self, records: Any, *_: Any, **__: Any) -> Any:
        def decoded(held: list[Record]) -> list[Record]:
            if poisonous := [record for record in held if record.state == POISON]:
                raise Poison(f"{poisonous[0]} is poisonous")
            return held

        return records.derived(decoded)


class SimulatedUnreadable(Decoder):
    """A decoder that looks at nothing."""

    def decode(self, records: Any, *_: Any, **__: Any) -> Any:
        return records


class SimulatedDecoding:
    """Records become rows or letters by what the process knows; columns are those that there are."""

    def __init__(self, process: "Process") -> None:
        self._process = process

    def decoder(self, *_: Any) -> SimulatedDecoder:
        return SimulatedDecoder()

    def unreadable(self, _spec: object, _message: str) -> SimulatedUnreadable:
        return SimulatedUnreadable()

    def create_table(self, spec: TopicTable, connections: Connections, *_: Any) -> None:
        ensure_table(connections.catalog, spec.identifier, SCHEMA)

    def evolve_table(self, spec: TopicTable, *_: Any) -> tuple[SchemaPlan, tuple[()]]:
        self._process.evolve(spec.identifier)
        return SchemaPlan(Target(COLUMNS, {})), ()

    def write(self, batch: Batch, _: Any) -> Written:
        assert batch.refused is None, "it has no rules"
        with_errors = batch.decoder.decode(batch.records, batch.target)  # type: ignore[attr-defined]
        held = with_errors.source()
        counts = {
            "records": len(held),
            "bytes_read": len(held),
            "tombstones": sum(r.state == "tombstone" for r in held),
            "failed": sum(self._is_letter(r) for r in held),
        }
        # A file for each record.
        return Written(tuple(r for r in held if r.state in self._process.fits), counts, lambda: with_errors)

    def evaluate(self, _: Validation) -> ValidationResult:
        raise AssertionError("it has no rules")

    def dead_letters(self, with_errors: Any, *_: Any) -> Any:
        return with_errors.filter(self._is_letter)

    def classes(self, _: Any) -> tuple[()]:
        return ()

    def records(self, dead_letters: Any) -> Any:
        return dead_letters

    def _is_letter(self, record: Record) -> bool:
        fits = record.state in self._process.fits and not isinstance(record, Unmatched)
        return record.state != "tombstone" and not fits
