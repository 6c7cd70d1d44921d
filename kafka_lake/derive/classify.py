"""Whether a query goes with the way its table is written: told when definitions load, by its text alone.

A row-wise query gives the same rows for a row of an upstream table whatever other rows there are. That is what allows
to read new rows alone.
"""

from collections.abc import Iterator, Set
from dataclasses import dataclass
from datetime import UTC, datetime

from sqlglot import exp

from kafka_lake.common.errors import ConfigurationError
from kafka_lake.common.sql_text import unsafe_condition, unsafe_query
from kafka_lake.derive.derived_table import DerivedTable
from kafka_lake.derive.keyed import keyed_problems
from kafka_lake.derive.lookups import lacking_queries
from kafka_lake.derive.parts import aggregates_of, expression_queries, laterals, not_judged
from kafka_lake.derive.query import ORIGIN, parsed, parsed_key, sources_of, tables_read, with_of, with_origin
from kafka_lake.lake.maintenance.order_settings import order_problem

_UNSTABLE_NAMES = (
    "rand random randn randstr uniform uuid shuffle now current_date current_time current_timestamp curdate "
    "localtimestamp monotonically_increasing_id spark_partition_id input_file_name input_file_block_start "
    "input_file_block_length unix_timestamp"
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
_BARE = ("current_date", "current_time", "current_timestamp", "localtimestamp")
_WORDS_FOR_NOW = frozenset({"now", "today", "tomorrow", "yesterday"})


def query_problems(spec: DerivedTable) -> Iterator[str]:
    """Give what is wrong with a table's settings, a sentence each, naming the setting and what to do.

    Args:
        spec: The table.
    """
    yield from _settings_problems(spec)
    if spec.sql is None:
        return
    problems = list(_text_problems(spec, spec.sql))
    yield from problems or _unsafe_problems(spec, spec.sql)


def _unsafe_problems(spec: DerivedTable, sql: str) -> Iterator[str]:
    if unsafe := unsafe_query(sql):
        yield f"sql: {unsafe}."
    for name, text in spec.key.items():
        if unsafe := unsafe_condition(text):
            yield f"key: {name}: {text}: {unsafe}."


def _text_problems(spec: DerivedTable, sql: str) -> Iterator[str]:
    try:
        query = parsed(sql)
        yield from _names_problems(spec, tables_read(query))
        known = _Known(frozenset(map(str.lower, spec.upstream)))
        if spec.is_incremental and (problems := list(dict.fromkeys(_not_judged(query, known)))):
            yield from (f"sql: {each} Use write: replace if it can't be written otherwise." for each in problems)
            return
        if spec.is_row_wise:
            problems = list(dict.fromkeys([*_row_wise_problems(query, known), *_origin_problems(query)]))
            yield from (f"write: {spec.write} needs a query that is row-wise: {each}" for each in problems)
            if not problems:
                with_origin(sql, spec.upstream)
                if spec.wait_for and len(spec.sources) == 1:
                    lacking_queries(spec)
        elif spec.write == "aggregate":
            yield from _key_problems(spec)
            yield from _keyed_problems(spec, query)
    except ConfigurationError as error:
        yield str(error)


def _not_judged(query: exp.Expr, known: "_Known") -> Iterator[str]:
    yield from not_judged(query)
    for each in laterals(query):
        if known.reads(each):
            yield "a LATERAL subquery reads a table of from:."


def _origin_problems(query: exp.Expr) -> Iterator[str]:
    for each in query.find_all(exp.Alias):
        inner = each.this
        if each.alias.lower() == ORIGIN and not (isinstance(inner, exp.Column) and inner.name.lower() == ORIGIN):
            yield f"{ORIGIN} tells the record of a row, and another value gets its name. Choose another name."


def _key_problems(spec: DerivedTable) -> Iterator[str]:
    for name, text in spec.key.items():
        key = parsed_key(name, text)
        told = f"key: {name}: {text}"
        if key.find(exp.Query):
            yield f"{told}: has a subquery. Write an expression over the columns of one row."
        elif found := [*aggregates_of(key), *_unstable(key), *_windows_of_time(key)]:
            yield f"{told}: {found[0]} isn't told by one row. Write an expression over its columns."


def _windows_of_time(key: exp.Expr) -> Iterator[str]:
    for each in key.find_all(exp.Anonymous):
        name = str(each.this).lower()
        if name == "session_window" or (name == "window" and len(each.expressions) != 2):
            yield f"{name}()" if name == "session_window" else "window() with a slide"


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
    yield from _waiting_problems(spec)
    try:
        cut = spec.time_partitions
    except ConfigurationError as error:
        cut = None
        yield str(error)
    if cut and cut.since > (today := datetime.now(UTC).date().isoformat()):
        yield (
            f"partitions: the first one begins on {cut.since}, and today is {today} in UTC: no run has a partition "
            "until then. Write the day of the first rows."
        )
    if cut and spec.wait_for:
        yield "partitions: doesn't go with wait_for:, whose rows may come later than all others. Leave one of them out."
    if (spec.lookback is None) != (spec.time is None) and not (spec.wait_for and spec.time is None):
        setting, lacks = ("lookback", "time") if spec.time is None else ("time", "lookback")
        yield f"{setting}: needs {lacks}:, to tell which rows are late. Set both, or none of them."
    if spec.lookback and not spec.is_incremental:
        yield "lookback: has no effect with write: replace, which reads all rows each time. Leave it out."
    for setting in ("keep_rows", "orphan_files", "statistics"):
        if getattr(spec.maintenance, setting):
            yield f"maintenance: {setting}: isn't for derived tables yet. Leave it out."
    if problem := order_problem(spec.maintenance):
        yield problem
    if spec.write == "replace" and spec.on_change == "forward":
        yield "on_change: forward has no effect with write: replace, which computes everything each time."


def _waiting_problems(spec: DerivedTable) -> Iterator[str]:
    if not spec.wait_for:
        return
    joined = {each.lower() for each in spec.joined}
    if lacks := [each for each in spec.waited_for if each.lower() not in joined]:
        yield f"wait_for: {lacks[0]} is no table of join:. Add it there, or take it out of wait_for:."
    if spec.lookback is None:
        yield "wait_for: needs lookback:, which says for how long rows wait. Set both."
    if not spec.is_row_wise:
        why = "reads all rows each time" if spec.write == "replace" else "computes keys from all of their rows"
        yield (
            f"wait_for: isn't for write: {spec.write}, which {why}. Let a table with write: append wait, and make "
            "this one of that."
        )
    if spec.sql is None:
        yield "wait_for: needs sql:, since nobody can tell what a transform joins. Use sql:, or leave wait_for: out."
    if len(spec.sources) > 1:
        yield "wait_for: is for tables with one table under from:. Make one of each, and unite them by UNION ALL."


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

    def reads(self, node: exp.Expr) -> bool:
        """Return whether a part of a query reads rows of an upstream table."""
        if isinstance(node, exp.Table) and isinstance(node.this, exp.Identifier):
            return not node.db and node.name.lower() in self.upstream
        return any(each.lower() in self.upstream for each in tables_read(node))


def _row_wise_problems(query: exp.Expr, known: _Known) -> Iterator[str]:
    inner = known
    for each in with_of(query):
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
    if any(known.reads(each) for each in expression_queries(select)):
        yield "a subquery in an expression reads a table of from:, and all of its rows count."
    if not reading:
        # Rows of other tables alone: they are what they are.
        return
    if len(reading) > 1:
        yield "it joins tables of from: with each other: rows of one would be missed that came before those of another."
    yield from _of_all_rows(select)
    yield from (f"{each} depends on other rows." for each in aggregates_of(select))
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


def _keyed_problems(spec: DerivedTable, query: exp.Query) -> Iterator[str]:
    yield from keyed_problems(query, spec.key, frozenset(map(str.lower, spec.upstream)))
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
    for cast in query.find_all(exp.Cast):
        if isinstance(cast.this, exp.Literal) and cast.this.name.strip().lower() in _WORDS_FOR_NOW:
            yield f"'{cast.this.name}'"
    for column in query.find_all(exp.Column):
        # Without parentheses they are functions to Spark, unless a column has the name.
        if not column.table and column.name.lower() in _BARE:
            yield f"{column.name.lower()}()"
