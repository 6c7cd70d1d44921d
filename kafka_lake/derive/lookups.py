"""The queries that find rows whose looked-up row isn't there yet, made of a derived table's own query. Pure."""

from collections.abc import Collection, Iterator

from sqlglot import exp

from kafka_lake.common.errors import ConfigurationError
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
    return [_lacking(select, name, given, columns=columns) for name in spec.waited_for]


def _lacking(select: exp.Select, name: str, given: Collection[str], *, columns: Collection[str]) -> str:
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
    sources = sources_of(select)
    first = sources[0].alias_or_name
    built = exp.select(f"`{first}`.`{ORIGIN}`", dialect="spark").from_(sources[0].copy())
    if with_ := select.args.get("with_"):
        built.set("with_", with_.copy())
    anti = join.copy()
    anti.set("side", "LEFT")
    anti.set("kind", "ANTI")
    built.set("joins", [*(each.copy() for each in joins[: numbers[0]]), anti])
    known = {each.alias_or_name.lower() for each in sources[: numbers[0] + 1]}
    for each in _conditions(select, known, frozenset(map(str.lower, columns))):
        built = built.where(each.copy())
    return built.sql(dialect="spark")


def _conditions(select: exp.Select, known: Collection[str], columns: Collection[str]) -> Iterator[exp.Expr]:
    where = select.args.get("where")
    within = {id(each) for each in expression_queries(select)}
    for each in conjuncts(where.this if where is not None else None):
        if any(id(one) in within for one in each.walk()):
            continue
        there = list(each.find_all(exp.Column))
        if all((c.table and c.parts[0].name.lower() in known) or (not c.table and c.name in columns) for c in there):
            yield each


def _table(source: exp.Expr, given: Collection[str]) -> str:
    """Return the table that is read at a place, in lower case; empty if it is something else."""
    is_table = isinstance(source, exp.Table) and isinstance(source.this, exp.Identifier) and not source.db
    name = source.name.lower() if is_table else ""
    return "" if name in given else name


def _refused(why: str) -> ConfigurationError:
    return ConfigurationError(f"wait_for: can't tell which rows wait, since {why}.", _REMEDY)
