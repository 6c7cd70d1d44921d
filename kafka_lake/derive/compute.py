"""What of a derived table's rows comes and what goes, by how it is written: frames that nobody has computed yet."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from kafka_lake.common.offsets import OffsetRange
from kafka_lake.derive.bounds import Bound, bounds_of, within
from kafka_lake.derive.by_offset import rows_without
from kafka_lake.derive.derived_table import DerivedTable
from kafka_lake.derive.frames import Frames
from kafka_lake.derive.kept_back import KeptBack, kept_back
from kafka_lake.derive.plan import DerivePlan, ranges_by_topic, topic_of
from kafka_lake.derive.query import ORIGIN
from kafka_lake.derive.record import APPEND, MERGE, REBUILD, REWRITE
from kafka_lake.derive.waiting import joined
from kafka_lake.lake.catalog import quoted

_KEY = "kafka_lake_key_"
_OWN = "kafka_lake_own_key_"
_NUMBER = "kafka_lake_number"
_ORDER = "kafka_lake_order"


@dataclass(frozen=True)
class Computed:
    """The rows of one commit.

    Args:
        rows: What comes.
        kind: What the commit is, as its snapshot tells it.
        keys: The keys whose rows go, one row each, by `key_names`; None if no rows go by key.
        ranges: The offsets whose rows go, by topic id.
        possible: The keys that rows may have, likewise; None if any.
        candidates: Newest rows that count only if the table has no newer ones.
        bounds: Where the rows that were read lie, by the upstream table; of others nobody knows.
        kept_back: What becomes of records that find no row to look up.
    """

    rows: DataFrame
    kind: str
    keys: DataFrame | None = None
    ranges: Mapping[str, Sequence[OffsetRange]] | None = None
    possible: DataFrame | None = None
    candidates: bool = False
    bounds: Mapping[str, Sequence[Bound]] = field(default_factory=dict)
    kept_back: KeptBack = field(default_factory=KeptBack)


def compute(frames: Frames, spec: DerivedTable, plan: DerivePlan) -> Computed:
    """Return what a commit does to the rows.

    Args:
        frames: Give what it reads.
        spec: The derived table.
        plan: Of the commit.

    Raises:
        ConfigurationError: If the query doesn't go with the tables that it reads.
        TableError: If rows have come to an upstream table that tell no offset.
    """
    if plan.full:
        return _everything(frames, spec, plan)
    told = {name: frames.ranges(name) for name in plan.upstream}
    by_topic = ranges_by_topic(told, plan)
    ranges = {name: tuple(by_topic.get(topic_of(each.identity), ())) for name, each in plan.upstream.items()}
    if plan.waiting.ranges and (plan.looks_again or by_topic):
        # Only a table of one upstream table has them.
        looked_at = plan.waiting.ranges
        ranges = {name: tuple(joined([*each, *looked_at])) for name, each in ranges.items()}
    else:
        looked_at = ()
    if not spec.is_row_wise:
        return _keyed(frames, spec, plan, ranges)
    new = {name: frames.new(name, ranges[name]) for name in plan.upstream}
    replayed = tuple(each for told in by_topic.values() for each in told)
    back = _kept_back(frames, spec, plan, new, looked_at=looked_at, replayed=replayed)
    if spec.write == "append":
        gone = {topic: tuple(sorted(each)) for topic, each in by_topic.items()}
        kind = REWRITE if gone or back.released else APPEND
        return Computed(frames.query(_but(plan, new, back)), kind, ranges=gone or None, kept_back=back)
    if not by_topic:
        rows = newest(frames.query(_but(plan, new, back)), spec)
        return Computed(rows, MERGE, candidates=True, kept_back=back)
    touched = frames.kept(_touched(frames, spec, plan, ranges))
    there = _but(plan, {name: frames.whole(name) for name in plan.upstream}, back)
    rows = newest(having(frames.query(there), touched, spec), spec)
    return Computed(rows, MERGE, keys=touched, kept_back=back)


def _kept_back(
    frames: Frames,
    spec: DerivedTable,
    plan: DerivePlan,
    rows: Mapping[str, DataFrame],
    *,
    looked_at: Sequence[OffsetRange] = (),
    replayed: Sequence[OffsetRange] = (),
) -> KeptBack:
    if not spec.wait_for and not plan.waiting.ranges:
        return KeptBack()
    (one,) = rows.values()
    return kept_back(frames, spec, plan, one, looked_at=looked_at, replayed=replayed)


def _but(plan: DerivePlan, rows: Mapping[str, DataFrame], back: KeptBack) -> dict[str, DataFrame]:
    """Return rows of upstream tables but for those that are kept back."""
    return {name: rows_without(each, plan.upstream[name], back.waiting.ranges) for name, each in rows.items()}


def _keyed(
    frames: Frames, spec: DerivedTable, plan: DerivePlan, ranges: Mapping[str, Sequence[OffsetRange]]
) -> Computed:
    touched = frames.kept(_touched(frames, spec, plan, ranges))
    with frames.explained():
        bounds = {name: _bounds(frames.whole(name), touched, spec) for name in plan.upstream}
        read = {name: _with_keys(frames.whole(name).filter(within(bounds[name])), touched, spec) for name in bounds}
    return Computed(frames.query(read), MERGE, keys=touched, possible=touched, bounds=bounds)


def _everything(frames: Frames, spec: DerivedTable, plan: DerivePlan) -> Computed:
    whole = {name: frames.whole(name) for name in plan.upstream}
    back = _kept_back(frames, spec, plan, whole) if spec.wait_for else KeptBack()
    rows = frames.query(_but(plan, whole, back))
    kind = APPEND if plan.is_first else REBUILD
    if spec.write == "upsert":
        rows = newest(rows, spec)
    if spec.write != "aggregate":
        return Computed(rows, kind, kept_back=back)
    with frames.explained():
        keys = [_keys(frames.whole(name), spec) for name in plan.upstream]
        return Computed(rows, kind, possible=reduce(DataFrame.union, keys).distinct())


def _touched(
    frames: Frames, spec: DerivedTable, plan: DerivePlan, ranges: Mapping[str, Sequence[OffsetRange]]
) -> DataFrame:
    """Return the keys of rows that are new, or are others than before, and of what those were."""
    now = {name: frames.new(name, ranges[name]) for name in plan.upstream}
    if spec.write == "aggregate":
        before = [frames.before(name, ranges[name]) for name in plan.upstream if ranges[name]]
        with frames.explained():
            keys = [_keys(each, spec) for each in (*now.values(), *before)]
        return reduce(DataFrame.union, keys).distinct()
    names = key_names(spec)
    touched = [frames.query(now).select(*[F.col(quoted(name)).alias(key) for name, key in names.items()])]
    for name, each in ranges.items():
        if each:
            # The table itself knows: what its rows looked up then may be others now, or gone.
            own = frames.made_of(name, each)
            there = {column.lower() for column in own.columns}
            known = [F.col(quoted(n)) if n.lower() in there else F.lit(None) for n in names]
            touched.append(own.select(*[column.alias(key) for column, key in zip(known, names.values(), strict=True)]))
    return reduce(DataFrame.union, touched).distinct()


def key_names(spec: DerivedTable) -> dict[str, str]:
    """Return the names that the key's columns have in frames of keys, by the columns."""
    return {name: f"{_KEY}{number}" for number, name in enumerate(spec.key)}


def _keys(rows: DataFrame, spec: DerivedTable) -> DataFrame:
    names = key_names(spec)
    return rows.select(*[F.expr(each).alias(names[name]) for name, each in spec.key.items()])


def _bounds(rows: DataFrame, keys: DataFrame, spec: DerivedTable) -> tuple[Bound, ...]:
    names = key_names(spec)
    return bounds_of(keys, [(each, names[name]) for name, each in spec.key.items()], rows.schema)


def _with_keys(rows: DataFrame, keys: DataFrame, spec: DerivedTable) -> DataFrame:
    """Return the rows of an upstream table that have one of some keys."""
    names = {name: (each, f"{_OWN}{number}") for number, (name, each) in enumerate(spec.key.items())}
    # As columns, since window(…) is known to a projection alone.
    own = rows.select("*", *[F.expr(each).alias(column) for each, column in names.values()])
    same = [F.col(names[name][1]).eqNullSafe(F.col(key)) for name, key in key_names(spec).items()]
    return own.join(keys, _all(same), "left_semi").select(*map(F.col, map(quoted, rows.columns)))


def having(rows: DataFrame, keys: DataFrame, spec: DerivedTable, how: str = "left_semi") -> DataFrame:
    """Return the rows of the table that have one of some keys, or with ``left_anti`` none."""
    same = [F.col(quoted(name)).eqNullSafe(F.col(key)) for name, key in key_names(spec).items()]
    return rows.join(keys, _all(same), how)


def _all(conditions: Sequence[Column]) -> Column:
    return reduce(Column.__and__, conditions)


def newest(rows: DataFrame, spec: DerivedTable) -> DataFrame:
    """Return the newest row of each key: by ``order_by``, then by Kafka's offset."""
    place = [F.col(f"{quoted(ORIGIN)}.{quoted(each)}").desc_nulls_last() for each in ("offset", "partition")]
    order = [*[F.col(quoted(name)).desc_nulls_last() for name in spec.order_by], *place]
    window = Window.partitionBy(*[F.col(quoted(name)) for name in spec.key]).orderBy(*order)
    return rows.withColumn(_NUMBER, F.row_number().over(window)).filter(F.col(_NUMBER) == 1).drop(_NUMBER)


def not_older(rows: DataFrame, table: DataFrame, spec: DerivedTable) -> DataFrame:
    """Return those of the newest rows of keys that aren't older than what the table has of their keys."""
    there = table.select(
        *[F.col(quoted(name)).alias(key) for name, key in key_names(spec).items()], _order(spec).alias(_ORDER)
    )
    same = [F.col(quoted(name)).eqNullSafe(F.col(key)) for name, key in key_names(spec).items()]
    joined = rows.join(there, _all(same), "left")
    # Nulls are least in a struct's order, as they are among the newest rows of a batch.
    kept = joined.filter(F.col(_ORDER).isNull() | (_order(spec) >= F.col(_ORDER)))
    return kept.drop(*key_names(spec).values(), _ORDER)


def _order(spec: DerivedTable) -> Column:
    place = [F.col(f"{quoted(ORIGIN)}.{quoted(each)}") for each in ("offset", "partition")]
    named = [F.col(quoted(name)) for name in spec.order_by]
    return F.struct(*[each.alias(f"o{number}") for number, each in enumerate([*named, *place])])
