"""JSON values: what a topic's settings and table ask for, and what the records show; the decoding is the executors'."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import types as T

from kafka_lake.executors.json.columns import Rules
from kafka_lake.executors.json.decoder import Seen
from kafka_lake.executors.json.types import settled
from kafka_lake.executors.task import OBSERVED, loaded
from kafka_lake.ingest.decode.decoder import Learned, Nothing
from kafka_lake.ingest.decode.in_tasks import decoded_in_tasks, observed_in_tasks
from kafka_lake.ingest.decode.json.columns import columns_of, spark_type
from kafka_lake.ingest.decode.json.news import grown, with_required
from kafka_lake.ingest.decode.target import Target

_BESIDE = "feeds no declared column, and had a value {} times"


def decode_json(
    records: DataFrame,
    columns: T.StructType | Target,
    *,
    max_record_bytes: int | None = None,
    rules: Rules | None = None,
    plain: bool = True,
) -> DataFrame:
    """Add ``decoded``, ``error_class`` and ``error_message`` to records whose value is JSON.

    Args:
        records: What `read` gave; null values (tombstones) get all three as null.
        columns: Columns to look for. Fields that feed none are left aside; not-null columns must be there.
        max_record_bytes: Longer values are not parsed, they are ``too_large``; None for no limit.
        plain: Whether the fast path takes what it can.

    Returns:
        The records with three more columns, one row for each, none lost.
    """
    target = columns if isinstance(columns, Target) else Target(columns)
    work = work_of(target, rules or Rules(), max_record_bytes, plain)
    return decoded_in_tasks(records, target.columns, work).drop(OBSERVED)


def said_of(seen: Seen) -> dict[str, str]:
    """Return what is said of values and fields that are in no column: path → the sentence."""
    said = {path: f"{count} times had digits beyond microseconds, which were cut" for path, count in seen.cut.items()}
    said |= {
        path: f"{count} numbers have more digits than the column's type holds; they were rounded to the nearest one"
        for path, count in seen.rounded.items()
    }
    said |= dict.fromkeys(seen.empty, "has no column yet: it was empty, [] or {}, wherever it was")
    if seen.more:
        said["…"] = f"{seen.more} more fields without a column, counted once in each batch of records"
    return said


def work_of(target: Target, rules: Rules, max_record_bytes: int | None, plain: bool = True) -> dict[str, Any]:
    """Return what `record_decoder` makes a decoder of: plain data, which travels."""
    return {
        "decoder": "json",
        "columns": columns_of(target.columns, target),
        "rules": asdict(rules),
        "max_bytes": max_record_bytes,
        "plain": plain,
    }


@dataclass(frozen=True)
class Json(Nothing):
    """Decodes JSON objects, by declared columns or by those of the table and what the records show.

    Args:
        declared: Columns as the settings declare them; None to infer.
        infer_timestamps: Whether text that is a date or time in all records of a batch becomes a column of that type
            when it is first seen.
        rules: How values are read; fields without a column are wanted where nothing is declared.
        watches: Whether to see what is in no column; nobody looks for that in keys, whose columns are declared.
        shown: What the records look like, as far as the table doesn't know it, in one or more schemas.
        misfits: What those look like that fitted no row, by each pass.
        kept_out: What was in the records of the last pass and is in no column: path → what is said of it.
    """

    declared: Target | None = None
    infer_timestamps: bool = False
    rules: Rules = field(default_factory=Rules)
    watches: bool = True
    shown: tuple[T.StructType, ...] = ()
    misfits: tuple[T.StructType, ...] = ()
    kept_out: tuple[tuple[str, str], ...] = ()

    @property
    def fixed(self) -> Target | None:
        """The declared columns."""
        return self.declared

    def incoming(self) -> Sequence[tuple[str, T.StructType]]:
        """Return what the records have shown."""
        shown = [("the records", fields) for fields in self.shown]
        return [*shown, *(("the records that don't fit", fields) for fields in self.misfits)]

    def work(self, target: Target, max_record_bytes: int | None) -> Mapping[str, Any]:
        """Return what tasks are told, see `work_of`."""
        any_case = target.any_case or self.declared is not None
        rules = replace(self.rules, infer=self.declared is None, any_case=any_case)
        return work_of(target, rules, max_record_bytes)

    def learn(self, counts: Mapping[str, Any], records: DataFrame, target: Target) -> Learned | None:
        """Return a decoder that knows what a pass has shown.

        Args:
            counts: ``observed``: the texts that tell it.
            records: The records of the pass.
            target: What they were decoded into.
        """
        observed = (counts.get(OBSERVED) if self.watches else None) or ()
        if not observed:
            return None if not self.kept_out else Learned(replace(self, kept_out=()), again=False)
        return Learned(self._knowing(loaded(observed, self.rules.max_columns), target), again=False)

    def _knowing(self, seen: Seen, target: Target) -> "Json":
        said = said_of(seen)
        known = replace(self, kept_out=tuple(sorted(said.items())))
        if self.declared is not None:
            said |= {path: _BESIDE.format(count) for path, count in seen.aside.items()}
            return replace(known, kept_out=tuple(sorted(said.items())))
        shown, misfits = self.shown, self.misfits
        if seen.news:
            first, others = grown(target.columns, seen.news, target, prefix="", times=self.infer_timestamps)
            shown = tuple(dict.fromkeys((*shown, first, *(with_required(each, target) for each in others))))
        if (found := settled(seen.misfits, False)) is not None:
            kind = spark_type(found)
            assert isinstance(kind, T.StructType)
            misfits = tuple(dict.fromkeys((*misfits, with_required(kind, target))))
        return replace(known, shown=shown, misfits=misfits)

    def unkept(self) -> Mapping[str, str]:
        """Return what was in the records and is in no column: path → what is said of it."""
        return dict(self.kept_out)

    def look(self, records: DataFrame) -> "Json":
        """Return a decoder that knows what records look like, in a pass of its own unless that is declared."""
        if self.declared is not None:
            return self
        nothing = Target(T.StructType([]))
        seen = observed_in_tasks(records, self.work(nothing, None), self.rules.max_columns)
        return replace(self._knowing(seen, nothing), kept_out=())
