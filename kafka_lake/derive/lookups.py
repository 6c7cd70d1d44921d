"""The queries that find rows whose looked-up row isn't there yet, made of a derived table's own query. Pure."""

from collections.abc import Collection

from sqlglot import exp

from kafka_lake.common.errors import ConfigurationError
from kafka_lake.derive.clauses import Clauses, clauses_of
from kafka_lake.derive.derived_table import DerivedTable
from kafka_lake.derive.parts import expression_queries
from kafka_lake.derive.query import ORIGIN, parsed, sources_of, with_of
from kafka_lake.derive.relations import conjuncts

_REMEDY = "Write it as `SELECT … FROM orders o LEFT JOIN stores s ON o.store_id = s.store_id`, or leave wait_for: out."


def lacking_queries(spec: DerivedTable, columns: Collection[str] = ()) -> list[str]:
    """Return for each table of ``wait_for`` a query that gives the `_kafka` of rows that find none of its rows.

    Conditions of WHERE count that are over the upstream table, and over tables that are joined before.

    Args:
        spec: The derived table.
        columns: Of the upstream table, as far as they are known, to tell whose a column without a table's name is.

    Raises:
        ConfigurationError: If the query doesn't join one of them directly to the table of ``from``.
    """
    assert spec.sql is not None, "a transform doesn't tell what it joins"
    select = parsed(spec.sql)
    if not isinstance(select, exp.Select):
        raise _refused("the query is no single SELECT")
    (source,) = spec.upstream
    given = {each.alias.lower() for each in with_of(select)}
    sources = sources_of(select)
    if not sources or _table(sources[0], given) != source.lower():
        raise _refused(f"FROM doesn't begin with {source}")
    clauses = clauses_of(spec.sql)
    if clauses is None:
        raise _refused("the text doesn't tell what is behind FROM")
    return [_lacking(select, clauses, name, given, columns=columns) for name in spec.waited_for]


def _lacking(
    select: exp.Select, clauses: Clauses, name: str, given: Collection[str], *, columns: Collection[str]
) -> str:
    joins = list(select.args.get("joins") or ())
    numbers = [number for number, join in enumerate(joins) if _table(join.this, given) == name.lower()]
    if len(numbers) != 1:
        raise _refused(f"{name} isn't joined once, and directly")
    join = joins[numbers[0]]
    side, kind = str(join.side or "").upper(), str(join.kind or "").upper()
    if side not in ("", "LEFT") or kind not in ("", "INNER", "OUTER", "SEMI") or join.args.get("method"):
        told = " ".join(filter(None, (str(join.args.get("method") or "").upper(), side, kind, "JOIN")))
        raise _refused(f"{told} {name} doesn't look rows up")
    if not join.args.get("on") and not join.args.get("using"):
        raise _refused(f"{name} is joined without ON or USING")
    sources, number = sources_of(select), numbers[0]
    first = sources[0].alias_or_name
    conditions = list(conjuncts(where.this if (where := select.args.get("where")) is not None else None))
    anti = join.copy()
    anti.set("side", "LEFT")
    anti.set("kind", "ANTI")
    built = exp.select(f"`{first}`.`{ORIGIN}`", dialect="spark").from_(sources[0].copy())
    if with_ := select.args.get("with_"):
        built.set("with_", with_.copy())
    built.set("joins", [*(each.copy() for each in joins[:number]), anti])
    text = [
        f"{clauses.begins}SELECT `{first}`.`{ORIGIN}` FROM {clauses.source}",
        *clauses.joins[:number],
        *(f"LEFT ANTI JOIN {each}" for each in clauses.joined[number : number + 1]),
    ]
    known = (
        {each.alias_or_name.lower() for each in sources},
        {each.alias_or_name.lower() for each in sources[: number + 1]},
    )
    names = frozenset(map(str.lower, columns))
    within = {id(each) for each in expression_queries(select)}
    tree: exp.Expr | None = None
    for each, told in zip(conditions, clauses.conditions, strict=False):
        if any(id(one) in within for one in each.walk()) or not _is_over(each, *known, names):
            continue
        one = exp.Paren(this=each.copy())
        text.append(f"{'WHERE' if tree is None else 'AND'} ({told})")
        tree = one if tree is None else exp.And(this=tree, expression=one)
    if tree is not None:
        built.set("where", exp.Where(this=tree))
    # Each on a line of its own: a comment ends with it.
    found = "\n".join(text)
    if len(conditions) != len(clauses.conditions) or parsed(found) != built:
        raise _refused("the text doesn't tell what is behind FROM and WHERE")
    return found


def _is_over(condition: exp.Expr, sources: Collection[str], known: Collection[str], columns: Collection[str]) -> bool:
    """Return whether a condition is over known tables alone, or columns of the upstream table without its name."""
    for each in condition.find_all(exp.Column):
        first = each.parts[0].name.lower()
        has_table = len(each.parts) > 1 and first in sources
        if first not in (known if has_table else columns):
            return False
    return True


def _table(source: exp.Expr, given: Collection[str]) -> str:
    """Return the table that is read at a place, in lower case; empty if it is something else."""
    is_table = isinstance(source, exp.Table) and isinstance(source.this, exp.Identifier) and not source.db
    name = source.name.lower() if is_table else ""
    return "" if name in given else name


def _refused(why: str) -> ConfigurationError:
    return ConfigurationError(f"wait_for: can't tell which rows wait, since {why}.", _REMEDY)
