"""Audit of the query: a sample of keys or records is also computed from all upstream rows, and must be equal.

An incremental run is correct only if the rows of a key, or of a record, depend on no other rows. For a sample of the
commit, the staged rows are compared; for a sample of older keys or records, the result of their own rows alone.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from math import isclose
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from kafka_lake.catalog.lake_catalog import quoted
from kafka_lake.common import environment
from kafka_lake.common.offsets import OffsetRange
from kafka_lake.config.derived_table import DerivedTable
from kafka_lake.derived.engine import Engine
from kafka_lake.derived.frames import Computed, Frames, having, keys_of, newest, not_older, of_keys, place, within
from kafka_lake.derived.plan import DerivePlan
from kafka_lake.engine.task import METADATA_COLUMN
from kafka_lake.errors import AuditFailedError
from kafka_lake.writers.frames import shaped

_MOST_ROWS = 50_000
_LONGEST = 400
_TIMES = "yyyy-MM-dd'T'HH:mm:ss.SSSSSS"
_AS_JSON = {"ignoreNullFields": "false", "timestampFormat": f"{_TIMES}XXX", "timestampNTZFormat": _TIMES}
_TOLERANCE = 1e-6
"""Relative or absolute tolerance of floats, whose sums depend on the order of rows."""

Row = Mapping[str, Any]
Rows = Sequence[Row]


@dataclass(frozen=True)
class _Sample:
    """A number of keys or records, computed in two ways."""

    number: int
    identity: Sequence[str]
    actual: Sequence[DataFrame]
    expected: DataFrame


def verify(
    engine: Engine, spec: DerivedTable, plan: DerivePlan, frames: Frames, *, computed: Computed, staged: DataFrame
) -> int:
    """Compute a sample of a commit from all upstream rows, compare it, and return the number of keys or records."""
    if not spec.verify or not spec.is_incremental:
        return 0
    samples = _keys if spec.write == "aggregate" else _records
    for size in dict.fromkeys((spec.verify, 1)):
        compared = [
            _compared(spec, sample, staged.schema)
            for sample in samples(spec, plan, frames, computed, staged=staged, size=size)
        ]
        if None not in compared:
            return sum(filter(None, compared))
    engine.observer.warn(
        f"Table {spec.name}: verify: a key, or record, has more than {_MOST_ROWS:,} rows, so nothing was compared. "
        f"Set verify: 0 if that is expected."
    )
    return 0


def _keys(
    spec: DerivedTable, plan: DerivePlan, frames: Frames, computed: Computed, staged: DataFrame, size: int
) -> Iterator[_Sample]:
    all_keys = keys_of(staged, spec)
    if computed.keys is None:
        older = frames.kept(_some(all_keys, _half(size, all_keys.count()), plan))
        changed = older.limit(0)
    else:
        changed = frames.kept(_some(computed.keys, size - size // 2, plan))
        older = frames.kept(_some(all_keys.exceptAll(computed.keys), size // 2, plan))
    expected = shaped(having(frames.query(), changed.union(older), spec), staged.schema)
    alone = shaped(having(of_keys(frames, spec, older), older, spec), staged.schema)
    number = changed.count() + older.count()
    yield _Sample(number, list(spec.key), [having(staged, changed, spec), alone], expected)


def _records(
    spec: DerivedTable, plan: DerivePlan, frames: Frames, computed: Computed, staged: DataFrame, size: int
) -> Iterator[_Sample]:
    (fact,) = plan.upstream.values()
    whole = frames.query()
    if plan.full:
        older, added = _places(frames.whole(), _half(size, fact.read.rows), plan), []
    else:
        since = {p: start for p, start in (fact.changes.since if fact.changes else {}).items() if start}
        # Records just before the new ones are the likeliest to change, and are found without a scan.
        count = -(-(size // 2) // max(1, len(since)))
        older = [OffsetRange(p, max(0, start - count), start) for p, start in since.items()]
        rows = frames.new(computed.again).select(METADATA_COLUMN)
        if computed.again:
            rows = rows.union(frames.made_of(computed.again).select(METADATA_COLUMN))
        added = _places(rows, size - size // 2, plan)
    if older:
        condition = within(fact.identity, older)
        alone = shaped(frames.query(frames.whole().filter(condition)).filter(condition), staged.schema)
        yield _Sample(sum(map(len, older)), [METADATA_COLUMN], [alone], shaped(whole.filter(condition), staged.schema))
    if not added:
        return
    condition = within(fact.identity, added)
    expected = shaped(whole.filter(condition), staged.schema)
    if spec.write == "append":
        yield _Sample(len(added), [METADATA_COLUMN], [staged.filter(condition)], expected)
        return
    # The row of a key may be from another, newer record.
    expected = not_older(newest(expected, spec, fact.identity), staged, spec, fact.identity)
    others = having(staged, keys_of(expected, spec), spec).filter(f"NOT coalesce({condition}, false)")
    yield _Sample(len(added), list(spec.key), [staged.filter(condition), others], expected)


def _half(size: int, available: int) -> int:
    # At most half of them: all keys together depend on no other rows.
    return min(size, max(1, available // 2))


def _some(keys: DataFrame, number: int, plan: DerivePlan) -> DataFrame:
    """Return a reproducible sample of rows that differs for each head of the table."""
    columns = [F.col(name) for name in keys.columns]
    return keys.orderBy(F.xxhash64(*columns, F.lit(plan.head or 0)), *columns).limit(number)


def _places(rows: DataFrame, number: int, plan: DerivePlan) -> list[OffsetRange]:
    places = rows.select(place("partition").alias("p"), place("offset").alias("o")).filter("o IS NOT NULL").distinct()
    return [OffsetRange(row.p, row.o, row.o + 1) for row in _some(places, number, plan).collect()]


def _compared(spec: DerivedTable, sample: _Sample, schema: T.StructType) -> int | None:
    """Compare a sample and return its number of keys or records; None if it has too many rows."""
    whole = F.to_json(F.struct(*[F.col(quoted(name)) for name in schema.names]), _AS_JSON)
    frames = [(True, sample.expected), *((False, frame) for frame in sample.actual)]
    texts = [frame.select(F.lit(is_expected).alias("expected"), whole.alias("row")) for is_expected, frame in frames]
    rows = reduce(DataFrame.union, texts).limit(_MOST_ROWS + 1).collect()
    if len(rows) > _MOST_ROWS:
        return None
    actual, expected = ([json.loads(row.row) for row in rows if row.expected is side] for side in (False, True))
    identity = {name.lower() for name in sample.identity}
    names = [name for name in schema.names if name.lower() in identity]
    differences = list(differing(actual, expected, names, schema))
    if not differences:
        return sample.number
    key, incremental, full = differences[0]
    what = "keys" if spec.write == "aggregate" else "records"
    differ = f"{_shown(incremental)} from the rows that a run reads, and {_shown(full)} from all rows"
    shown = f"for {key}, the result is {differ}"
    if not environment.samples():
        shown = f"KAFKA_LAKE_SAMPLES is false, so no row is shown; they differ in {_names(incremental, full)}"
    remedy = (
        "Correct key: or sql:, so that the rows of a key depend only on rows of from: with that key."
        if spec.write == "aggregate"
        else "Each row of the result must come from one row of from:, independent of other rows."
    )
    raise AuditFailedError(
        f"Table {spec.name}: verify: rows depend on rows of {', '.join(spec.sources)} that write: {spec.write} doesn't "
        f"read. {len(differences)} of {sample.number} {what} differ: {shown}.",
        f"main is unchanged. {remedy} Or use write: replace; or verify: 0, if the difference is intended.",
    )


def _shown(row: Row | None) -> str:
    if row is None:
        return "no row"
    text = json.dumps({name: value for name, value in row.items() if name != METADATA_COLUMN}, ensure_ascii=False)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def _names(one: Row | None, other: Row | None) -> str:
    if one is None or other is None:
        return "the number of rows"
    return ", ".join(name for name in one if one[name] != other.get(name))


def differing(
    actual: Rows, expected: Rows, identity: Sequence[str], schema: T.StructType
) -> Iterator[tuple[str, Row | None, Row | None]]:
    """Yield the keys whose rows differ, with one row of each side or None. Floats have a tolerance. Pure."""
    sides: dict[str, tuple[list[Row], list[Row]]] = defaultdict(lambda: ([], []))
    for number, rows in enumerate((actual, expected)):
        for row in rows:
            sides[", ".join(_key(name, row.get(name)) for name in identity)][number].append(row)
    for key, rows_of_key in sorted(sides.items()):
        one, other = _unmatched(*rows_of_key, schema)
        if one or other:
            yield key, one[0] if one else None, other[0] if other else None


def _key(name: str, value: Any) -> str:
    if name != METADATA_COLUMN or not isinstance(value, dict):
        return f"{name} = {json.dumps(value, ensure_ascii=False)}"
    return f"the record at partition {value['partition']}, offset {value['offset']}"


def _unmatched(actual: Iterable[Row], expected: Iterable[Row], schema: T.StructType) -> tuple[list[Row], list[Row]]:
    """Return the rows of each side that the other side lacks."""
    by_value: dict[Any, list[tuple[list[float], Row]]] = defaultdict(list)
    for row in expected:
        by_value[_exact(row, schema, floats := list[float]())].append((floats, row))
    unmatched = list[Row]()
    for row in actual:
        candidates = by_value[_exact(row, schema, floats := list[float]())]
        equal = (n for n, (numbers, _) in enumerate(candidates) if all(map(_is_close, floats, numbers)))
        if (index := next(equal, None)) is None:
            unmatched.append(row)
        else:
            candidates.pop(index)
    return unmatched, [row for rows in by_value.values() for _, row in rows]


def _exact(value: Any, kind: T.DataType, floats: list[float]) -> Any:
    """Return the part of a value that must be equal, and append its floats to a list."""
    # In JSON, NaN and infinities are text.
    if value is None or isinstance(value, str):
        return value
    if isinstance(kind, T.DoubleType | T.FloatType):
        floats.append(value)
        return float
    if isinstance(kind, T.StructType):
        return tuple(_exact(value.get(field.name), field.dataType, floats) for field in kind)
    if isinstance(kind, T.ArrayType):
        return tuple(_exact(element, kind.elementType, floats) for element in value)
    if isinstance(kind, T.MapType):
        return tuple((key, _exact(element, kind.valueType, floats)) for key, element in sorted(value.items()))
    return value


def _is_close(one: float, other: float) -> bool:
    return isclose(one, other, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE)
