"""Whether a query goes with the way its table is written: told when definitions load, by its text alone. Pure.

A row-wise query gives the same rows for a row of an upstream table whatever other rows there are. That is what allows
to read new rows alone.
"""

from collections.abc import Iterator, Set
from dataclasses import dataclass

from sqlglot import exp

from kafka_lake.common.errors import ConfigurationError
from kafka_lake.derive.derived_table import DerivedTable
from kafka_lake.derive.query import parsed, sources_of, tables_read, with_origin

# Spark's own (`DESCRIBE FUNCTION`); sqlglot knows some of them by no name.
_AGGREGATES = (
    "any any_value approx_count_distinct approx_percentile approx_top_k approx_top_k_accumulate approx_top_k_combine "
    "array_agg avg bit_and bit_or bit_xor bitmap_and_agg bitmap_construct_agg bitmap_or_agg bool_and bool_or "
    "collect_list collect_set corr count count_if count_min_sketch covar_pop covar_samp every first first_value "
    "grouping grouping_id histogram_numeric hll_sketch_agg hll_union_agg kll_merge_agg_bigint kll_merge_agg_double "
    "kll_merge_agg_float kll_sketch_agg_bigint kll_sketch_agg_double kll_sketch_agg_float kurtosis last last_value "
    "listagg max max_by mean median min min_by mode percentile percentile_approx percentile_cont percentile_disc "
    "regr_avgx regr_avgy regr_count regr_intercept regr_r2 regr_slope regr_sxx regr_sxy regr_syy schema_of_variant_agg "
    "skewness some std stddev stddev_pop stddev_samp string_agg sum theta_intersection_agg theta_sketch_agg "
    "theta_union_agg try_avg try_sum var_pop var_samp variance"
)
AGGREGATES = frozenset(_AGGREGATES.split())
_UNSTABLE_NAMES = (
    "rand random randn randstr uuid shuffle now current_date current_timestamp curdate localtimestamp "
    "monotonically_increasing_id spark_partition_id input_file_name unix_timestamp"
)
_UNSTABLE = frozenset(_UNSTABLE_NAMES.split())
_OF_ALL_ROWS = {
    "group": "GROUP BY",
    "having": "HAVING",
    "distinct": "DISTINCT",
    "limit": "LIMIT",
    "offset": "OFFSET",
    "order": "ORDER BY",
    "sort": "SORT BY",
    "qualify": "QUALIFY",
    "sample": "TABLESAMPLE",
    "pivots": "PIVOT",
}
_REMEDY = {
    "append": "Use write: aggregate with a key, or write: replace.",
    "upsert": "Use write: aggregate with a key, or write: replace.",
    "aggregate": "Let the rows of a key depend on rows with that key alone, or use write: replace.",
}


def query_problems(spec: DerivedTable) -> Iterator[str]:
    """Give what is wrong with a table's settings, a sentence each, naming the setting and what to do.

    Args:
        spec: The table.
    """
    yield from _settings_problems(spec)
    if spec.sql is None:
        return
    try:
        query = parsed(spec.sql)
        yield from _names_problems(spec, tables_read(query))
        if spec.is_row_wise:
            problems = list(dict.fromkeys(_row_wise_problems(query, _Known(frozenset(map(str.lower, spec.upstream))))))
            yield from (f"write: {spec.write} needs a query that is row-wise: {each}" for each in problems)
            if not problems:
                with_origin(spec.sql, spec.upstream)
        elif spec.write == "aggregate":
            yield from dict.fromkeys(_keyed_problems(query, frozenset(map(str.lower, spec.upstream))))
    except ConfigurationError as error:
        yield str(error)


def _settings_problems(spec: DerivedTable) -> Iterator[str]:
    if (spec.sql is None) == (spec.transform is None):
        yield "sql: or transform: is needed, and one of them only."
    names = [each.rpartition(".")[2].lower() for each in (*spec.sources, *spec.join)]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        yield f"from: and join: have {twice[0]} twice, and the query would know both by that name. Leave one out."
    if spec.identifier in (*spec.upstream.values(), *spec.joined.values()):
        yield f"table: {spec.name} is made from itself. Give it another name, or take it out of from: and join:."
    if spec.write in ("upsert", "aggregate") and not spec.key:
        yield f"write: {spec.write} needs key:, which tells rows apart."
    if spec.write in ("append", "replace") and spec.key:
        yield f"key: has no effect with write: {spec.write}. Leave it out."
    if spec.write == "upsert" and (given := [name for name, each in spec.key.items() if each != name]):
        yield f"key: {given[0]} has an expression. With write: upsert the key is of columns of the result; list them."
    if spec.order_by and spec.write != "upsert":
        yield f"order_by: has no effect with write: {spec.write}. Leave it out."
    for setting in ("keep_rows", "orphan_files"):
        if getattr(spec.maintenance, setting):
            yield f"maintenance: {setting}: isn't for derived tables yet. Leave it out."
    if spec.write == "replace" and spec.on_change == "forward":
        yield "on_change: forward has no effect with write: replace, which computes everything each time."


def _names_problems(spec: DerivedTable, read: Set[str]) -> Iterator[str]:
    known = {name.lower(): name for name in (*spec.upstream, *spec.joined)}
    for name in sorted(read):
        if name.lower() not in known:
            bare = name.rpartition(".")[2].lower()
            if bare in known:
                yield f"sql: reads {name}; write {known[bare]}, as the query knows the tables of from: and join:."
            else:
                yield f"sql: reads {name}, which is neither in from: nor in join:. Add it to one of them."
    for name in sorted(set(known) - {each.lower() for each in read}):
        yield f"sql: doesn't read {known[name]}. Take it out of from: and join:."


@dataclass(frozen=True)
class _Known:
    """Names that stand for rows of upstream tables at some place of a query, and for others."""

    upstream: frozenset[str]

    def with_tables_of(self, query: exp.Expr) -> "_Known":
        with_ = query.args.get("with_") or query.args.get("with")
        known = self
        for each in with_.expressions if with_ is not None else ():
            name = each.alias.lower()
            reads = known.reads(each.this)
            known = _Known(known.upstream | {name} if reads else known.upstream - {name})
        return known

    def reads(self, node: exp.Expr) -> bool:
        """Return whether a part of a query reads rows of an upstream table."""
        if isinstance(node, exp.Table) and isinstance(node.this, exp.Identifier):
            return not node.db and node.name.lower() in self.upstream
        return any(each.lower() in self.upstream for each in tables_read(node))


def _row_wise_problems(query: exp.Expr, known: _Known) -> Iterator[str]:
    with_ = query.args.get("with_") or query.args.get("with")
    inner = known
    for each in with_.expressions if with_ is not None else ():
        yield from _row_wise_problems(each.this, inner)
        name = each.alias.lower()
        inner = _Known(inner.upstream | {name} if inner.reads(each.this) else inner.upstream - {name})
    if isinstance(query, exp.Subquery):
        yield from _of_all_rows(query)
        yield from _row_wise_problems(query.this, inner)
    elif isinstance(query, exp.SetOperation):
        if not inner.reads(query.left) and not inner.reads(query.right):
            return
        if not isinstance(query, exp.Union) or query.args.get("distinct"):
            yield f"{query.key.upper()} compares rows with each other; UNION ALL doesn't."
        yield from _of_all_rows(query)
        for side in (query.left, query.right):
            if not inner.reads(side):
                yield "a part of UNION ALL reads no table of from:, and would come again with each run."
            yield from _row_wise_problems(side, inner)
    elif isinstance(query, exp.Select):
        yield from _problems_of_select(query, inner)


def _of_all_rows(query: exp.Expr) -> Iterator[str]:
    for arg, name in _OF_ALL_ROWS.items():
        if query.args.get(arg):
            yield f"{name} depends on other rows."


def _problems_of_select(select: exp.Select, known: _Known) -> Iterator[str]:
    sources = sources_of(select)
    reading = [number for number, each in enumerate(sources) if known.reads(each)]
    inside = [each for source in sources for each in source.find_all(exp.Query)]
    for each in select.find_all(exp.Query):
        outer = each.find_ancestor(exp.Select, exp.SetOperation)
        is_source = any(each is one or each.parent in sources for one in inside)
        if outer is select and not is_source and not each.find_ancestor(exp.With) and known.reads(each):
            yield "a subquery in an expression reads a table of from:, and all of its rows count."
    if not reading:
        # Rows of other tables alone: they are what they are.
        return
    if len(reading) > 1:
        yield "it joins tables of from: with each other: rows of one would be missed that came before those of another."
    yield from _of_all_rows(select)
    yield from (f"{each} depends on other rows." for each in _aggregates(select))
    for number, join in enumerate(select.args.get("joins") or (), 1):
        side, kind = str(join.side or "").upper(), str(join.kind or "").upper()
        kept = reading[0] < number or (not side and kind not in ("SEMI", "ANTI"))
        if side in ("RIGHT", "FULL") or not kept:
            yield f"{f'{side} {kind}'.strip()} JOIN gives rows that no row of {_name(sources[reading[0]])} is behind."
        elif side == "LEFT" and reading[0] >= number:
            yield f"LEFT JOIN gives rows that no row of {_name(sources[reading[0]])} is behind."
    for source in sources:
        if isinstance(source, exp.Subquery) and known.reads(source):
            yield from _row_wise_problems(source, known)
        yield from (f"{name} depends on other rows." for name in _samples(source) if known.reads(source))


def _samples(source: exp.Expr) -> Iterator[str]:
    if source.args.get("sample"):
        yield "TABLESAMPLE"
    if source.args.get("pivots"):
        yield "PIVOT"


def _name(source: exp.Expr) -> str:
    return source.alias_or_name or "from:"


def _aggregates(select: exp.Select) -> Iterator[str]:
    """Yield the functions over several rows in a SELECT itself, not in its subqueries."""
    for each in select.walk(prune=lambda node: node is not select and isinstance(node, exp.Query)):
        if each is not select and isinstance(each, exp.Query):
            continue
        if isinstance(each, exp.Window):
            yield "a window function (OVER)"
        elif isinstance(each, exp.Func) and (name := _aggregate_name(each)):
            yield f"{name}()"


def _aggregate_name(function: exp.Func) -> str:
    if isinstance(function, exp.Anonymous):
        name = str(function.this).lower()
        return name if name in AGGREGATES or name.endswith("_agg") else ""
    if isinstance(function, exp.AggFunc):
        return function.sql_name().lower()
    # Names that stand for something else too, as any in "= ANY (…)", are not functions here.
    names = {each.lower() for each in function.sql_names()} if not isinstance(function, exp.Connector) else set()
    return next(iter(sorted(names & AGGREGATES)), "")


def _keyed_problems(query: exp.Expr, upstream: frozenset[str]) -> Iterator[str]:
    known = _Known(upstream)
    for select in query.find_all(exp.Select, exp.SetOperation):
        if not known.reads(select):
            continue
        for arg in ("limit", "offset"):
            if select.args.get(arg):
                yield f"sql: {_OF_ALL_ROWS[arg]} lets rows of a key depend on others. {_REMEDY['aggregate']}"
        if isinstance(select, exp.Select) and not select.args.get("group"):
            functions = [name for name in _aggregates(select) if name.endswith("()")]
            windows = list(select.find_all(exp.Window))
            if functions and not windows:
                yield f"sql: {functions[0]} without GROUP BY is over the rows of all keys. {_REMEDY['aggregate']}"
        for window in select.find_all(exp.Window):
            if not window.args.get("partition_by"):
                yield f"sql: OVER without PARTITION BY is over the rows of all keys. {_REMEDY['aggregate']}"
    for name in sorted(set(_unstable(query))):
        yield (
            f"sql: {name} gives other values each time, and only keys of new rows are computed again. Use columns of "
            "the rows, or write: replace."
        )


def _unstable(query: exp.Expr) -> Iterator[str]:
    for each in query.find_all(exp.Func):
        names = {str(each.this).lower()} if isinstance(each, exp.Anonymous) else {n.lower() for n in each.sql_names()}
        if (found := names & _UNSTABLE) and not (found == {"unix_timestamp"} and each.args.get("this")):
            yield f"{min(found)}()"
    for column in query.find_all(exp.Column):
        # Without parentheses they are functions to Spark, unless a column has the name.
        if not column.table and column.name.lower() in ("current_date", "current_timestamp", "localtimestamp"):
            yield f"{column.name.lower()}()"
