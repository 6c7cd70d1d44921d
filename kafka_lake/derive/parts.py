"""Parts of a query's tree: what depends on several rows, and what nobody can judge by its text. Pure."""

from collections.abc import Iterator

from sqlglot import exp

from kafka_lake.derive.query import sources_of

# Spark's own (`DESCRIBE FUNCTION`); sqlglot knows some of them by no name.
_AGGREGATES = (
    "any any_value approx_count_distinct approx_percentile approx_top_k approx_top_k_accumulate approx_top_k_combine "
    "array_agg avg bit_and bit_or bit_xor bitmap_and_agg bitmap_construct_agg bitmap_or_agg bool_and bool_or "
    "collect_list collect_set corr count count_if count_min_sketch covar_pop covar_samp every first first_value "
    "grouping grouping_id histogram_numeric hll_sketch_agg hll_union_agg kll_merge_agg_bigint kll_merge_agg_double "
    "kll_merge_agg_float kll_sketch_agg_bigint kll_sketch_agg_double kll_sketch_agg_float kurtosis last last_value "
    "listagg max max_by mean measure median min min_by mode percentile percentile_approx percentile_cont "
    "percentile_disc regr_avgx regr_avgy regr_count regr_intercept regr_r2 regr_slope regr_sxx regr_sxy regr_syy "
    "schema_of_variant_agg skewness some std stddev stddev_pop stddev_samp string_agg sum theta_intersection_agg "
    "theta_sketch_agg theta_union_agg try_avg try_sum var_pop var_samp variance"
)
AGGREGATES = frozenset(_AGGREGATES.split())
_AROUND_A_FUNCTION = (exp.IgnoreNulls, exp.RespectNulls, exp.Filter, exp.WithinGroup)


def aggregates_of(node: exp.Expr, windows: bool = True) -> Iterator[str]:
    """Yield the functions over several rows in a SELECT or an expression itself, not in its subqueries.

    Args:
        node: The SELECT or expression.
        windows: Whether window functions count.
    """
    over = set[int]()
    for each in node.walk(prune=lambda one: one is not node and isinstance(one, exp.Query)):
        if each is not node and isinstance(each, exp.Query):
            continue
        if isinstance(each, exp.Window):
            function = each.this
            while isinstance(function, _AROUND_A_FUNCTION):
                function = function.this
            over.add(id(function))
            if windows:
                yield "a window function (OVER)"
        elif isinstance(each, exp.Any) and not isinstance(each.parent, exp.Like | exp.ILike):
            yield "any()"
        elif isinstance(each, exp.Func) and (name := _aggregate_name(each)) and (windows or id(each) not in over):
            yield f"{name}()"


def _aggregate_name(function: exp.Func) -> str:
    if isinstance(function, exp.Anonymous):
        name = str(function.this).lower()
        return name if name in AGGREGATES or name.endswith("_agg") else ""
    if isinstance(function, exp.AggFunc):
        return function.sql_name().lower()
    # Names that stand for something else too, as any in "LIKE ANY (…)", are not functions here.
    names = {each.lower() for each in function.sql_names()} if not isinstance(function, exp.Connector) else set()
    return next(iter(sorted(names & AGGREGATES)), "")


def expression_queries(select: exp.Select) -> Iterator[exp.Expr]:
    """Yield the subqueries in the expressions of a SELECT: not those that it reads as tables, nor WITH."""
    apart = {id(each) for each in (*sources_of(select), select.args.get("with_") or select.args.get("with"))}

    def below(node: exp.Expr) -> Iterator[exp.Expr]:
        for each in node.iter_expressions():
            if id(each) in apart:
                continue
            if isinstance(each, exp.Query):
                yield each
            else:
                yield from below(each)

    yield from below(select)


def not_judged(query: exp.Expr) -> Iterator[str]:
    """Yield what a query's text has that doesn't tell which rows it depends on, a sentence each."""
    for with_ in query.find_all(exp.With):
        if with_.args.get("recursive"):
            yield "WITH RECURSIVE reads its own rows."
    for each in query.find_all(exp.QueryTransform):
        yield f"{each.key.upper()} gives what a script gives: TRANSFORM … USING isn't allowed."
    for call in query.find_all(exp.Anonymous):
        if (name := str(call.this).upper()) in ("IDENTIFIER", "TABLE"):
            yield f"{name}(…) reads a table that the text doesn't name, or passes all of its rows to a function."
    for table in query.find_all(exp.Table):
        if table.args.get("joins") or isinstance(table.parent, exp.Subquery):
            yield "JOIN within parentheses, or with its ON behind another JOIN: write one JOIN … ON after the other."
        if table.args.get("version") or table.args.get("when"):
            yield f"{table.name} is read at the snapshot that the run records: leave VERSION or TIMESTAMP AS OF out."


def laterals(query: exp.Expr) -> Iterator[exp.Expr]:
    """Yield the LATERAL subqueries of a query."""
    for each in query.find_all(exp.Lateral):
        if isinstance(each.this, exp.Query):
            yield each.this


def windows_of(select: exp.Select) -> Iterator[exp.Expr]:
    """Yield the OVER clauses of a SELECT itself, those by name as WINDOW has them."""
    named = {each.this.name.lower(): each for each in select.args.get("windows") or ()}
    apart = {id(each) for each in named.values()}
    for each in select.walk(prune=lambda node: node is not select and isinstance(node, exp.Query)):
        if isinstance(each, exp.Window) and id(each) not in apart:
            alias = each.args.get("alias")
            yield named.get(alias.name.lower(), each) if alias is not None else each


def unaliased(each: exp.Expr) -> exp.Expr:
    """Return what is selected, without AS."""
    return each.this if isinstance(each, exp.Alias) else each


def by_position(each: exp.Expr, select: exp.Select) -> exp.Expr:
    """Return what a part of GROUP BY is, where it is the number or the alias of what is selected."""
    if isinstance(each, exp.Literal) and not each.is_string and each.name.isdigit():
        number = int(each.name) - 1
        return unaliased(select.expressions[number]) if number < len(select.expressions) else each
    if isinstance(each, exp.Column) and len(each.parts) == 1:
        # A column of the name would come first; then Spark refuses what is selected under it, as it isn't grouped by.
        aliased = [e for e in select.expressions if isinstance(e, exp.Alias) and e.alias.lower() == each.name.lower()]
        return aliased[0].this if aliased else each
    return each


def names_of(select: exp.Select) -> list[str]:
    """Return the names of what a SELECT selects, in lower case; of * there are none."""
    return [each.alias_or_name.lower() for each in select.expressions if not star_of(each)]


def order_of(select: exp.Select) -> tuple[str, ...] | None:
    """Return the names of all columns of a SELECT in their order; None if it has a *."""
    return None if any(star_of(each) for each in select.expressions) else tuple(names_of(select))


def star_of(each: exp.Expr) -> exp.Star | None:
    """Return the * that is selected; None if it is something else."""
    inner = each.this if isinstance(each, exp.Column) else each
    return inner if isinstance(inner, exp.Star) else None
