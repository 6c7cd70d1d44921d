"""Routing by the kind of a record, in place of what Spark computes of it: ``good/a`` is of type ``a``.

Who uses it replaces the functions by the same names in `kafka_lake.ingest.shared_read`.
"""

from collections.abc import Collection
from dataclasses import replace
from typing import Any, NamedTuple

from kafka_lake.routing.conditions import OWN, UNMATCHED
from kafka_lake.spec.topic_table import TopicTable
from kafka_lake.writers.stage import StagedRows
from kafka_lake_tests.unit.simulated.frames import Frame
from kafka_lake_tests.unit.simulated.history import UNROUTABLE, Poison, Record, Unmatched

REPLACED = ("routed", "of_route", "not_of_routes", "counts_of", "table_to_write", "record_ids")


class Routed(NamedTuple):
    """A record, and the numbers of the tables that take it."""

    record: Record
    numbers: tuple[int, ...]

    @property
    def partition(self) -> int:
        return self.record.partition

    @property
    def offset(self) -> int:
        return self.record.offset


def numbers_of(record: Record, spec: TopicTable) -> tuple[int, ...]:
    kind = record.kind.partition("/")[2]
    found = tuple(number for number, route in enumerate(spec.every_route) if kind in route.when.values)
    if spec.where is not None and kind in spec.where.values:
        found = (OWN, *found)
    return found or (OWN if spec.where is None else UNMATCHED,)


def routed(records: Frame, spec: TopicTable, _: Any) -> Frame:
    def found(held: list[Record]) -> list[Any]:
        if unroutable := [record for record in held if record.state == UNROUTABLE]:
            raise Poison(f"no condition holds or not for {unroutable[0]}")
        return [Routed(record, numbers_of(record, spec)) for record in held]

    return records.derived(found)


def of_route(records: Frame, number: int) -> Frame:
    return records.derived(lambda held: [record.record for record in _routed(held) if number in record.numbers])


def not_of_routes(records: Frame, numbers: Collection[int]) -> Frame:
    return records.derived(
        lambda held: [record.record for record in _routed(held) if not {*numbers} & {*record.numbers}]
    )


def counts_of(records: Frame) -> tuple[int, dict[int, int]]:
    held, counts = _routed(records.source()), dict[int, int]()
    for record in held:
        counts |= {number: counts.get(number, 0) + 1 for number in record.numbers}
    return len(held), counts


def table_to_write(*_: Any) -> None:
    """Return no table: there are no files for Arrow to write."""


def with_unmatched(rows: StagedRows, unmatched: Any, **_: Any) -> StagedRows:
    letters = unmatched.derived(lambda held: [Unmatched(*record) for record in held])
    held = letters.source()
    failed = sum(record.state != "tombstone" for record in held)
    more = {"records": len(held), "bytes_read": len(held), "failed": failed, "tombstones": len(held) - failed}
    counts = {name: count + more.get(name, 0) for name, count in rows.counts.items()}
    return replace(rows, counts=counts, with_errors=lambda: rows.with_errors().unionByName(letters))


def record_ids(_: Any, records: Frame) -> Frame:
    return records


def _routed(held: list[Any]) -> list[Routed]:
    return held
