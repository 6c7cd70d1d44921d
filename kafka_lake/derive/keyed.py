"""Whether rows of a key depend on upstream rows of that key alone: shown from a query's text, or refused. Pure.

That is what allows to compute keys again from their own rows. So wherever rows meet (GROUP BY, a window, DISTINCT, a
join of upstream tables), they must be equal in the key.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count

from sqlglot import exp

from kafka_lake.derive.parts import (
    aggregates_of,
    by_position,
    expression_queries,
    names_of,
    order_of,
    star_of,
    unaliased,
    windows_of,
)
from kafka_lake.derive.query import parsed_key, sources_of, tables_read, with_of
from kafka_lake.derive.relations import Relation, Scope, conjuncts, determines, key_at, one_of, places_of, united

REMEDY = "Let the rows of a key depend on rows with that key alone, or use write: replace."


def keyed_problems(query: exp.Query, key: Mapping[str, str], upstream: frozenset[str]) -> Iterator[str]:
    """Give why rows of a key may depend on others, a sentence each.

    Args:
        query: What the table is made by.
        key: The columns of the result that are the key, and the expression over upstream columns that each is.
        upstream: Names of the upstream tables, in lower case.

    Raises:
        ConfigurationError: If an expression of the key can't be read.
    """
    analysis = _Analysis(key, {name: parsed_key(name, each) for name, each in key.items()})
    result = analysis.relation(query, dict.fromkeys(upstream))
    yield from dict.fromkeys(analysis.problems)
    if analysis.problems:
        return
    for name, expression in analysis.keys.items():
        column = result.column(name.lower())
        places = places_of(column) if column is not None else set[int]()
        if not any(column == key_at(expression, place) and place not in result.nullable for place in places):
            if result.order is not None and name.lower() not in result.order and not result.stars:
                yield f"key: {name} is no column of the result. Select it under that name."
                continue
            yield (
                f"sql: column {name} of the result can't be seen to be {key[name]}, which is its key. Select it as "
                f"`{key[name]} AS {name}`; or correct key:, if the column is something else."
            )


@dataclass(frozen=True)
class _Defined:
    """A common table expression, and the names that it knows."""

    cte: exp.Expr
    known: "_Known"

    @property
    def names(self) -> list[str]:
        """Return the names that it gives its columns; none if they keep those that they have."""
        alias = self.cte.args.get("alias")
        return [each.name.lower() for each in alias.args.get("columns") or ()] if alias is not None else []


_Known = Mapping[str, _Defined | None]


@dataclass
class _Analysis:
    """One query's analysis; ``problems`` grows."""

    key: Mapping[str, str]
    keys: Mapping[str, exp.Expr]
    problems: list[str] = field(default_factory=list)
    _numbers: Iterator[int] = field(default_factory=count)

    def relation(self, query: exp.Expr, known: _Known) -> Relation:
        """Return what a query gives.

        Args:
            query: The query, or a part of it.
            known: The names of upstream tables, with None, and of common table expressions.
        """
        known = dict(known)
        for each in with_of(query):
            known[each.alias.lower()] = _Defined(each, dict(known))
        if isinstance(query, exp.Subquery):
            found = self.relation(query.this, known)
            self._limits(query, found)
            return found
        if isinstance(query, exp.SetOperation):
            return self._set_operation(query, known)
        if isinstance(query, exp.Select):
            return self._select(query, known)
        return Relation()

    def _add(self, problem: str) -> None:
        self.problems.append(f"sql: {problem} {REMEDY}")

    def _limits(self, query: exp.Expr, found: Relation) -> None:
        for arg, name in (("limit", "LIMIT"), ("offset", "OFFSET"), ("sample", "TABLESAMPLE"), ("pivots", "PIVOT")):
            if found.reads and query.args.get(arg):
                self._add(f"{name} lets rows of a key depend on others.")

    def _told(self, name: str) -> str:
        return name if self.key[name] == name else f"{name} ({self.key[name]})"

    def _apart(self, given: Sequence[exp.Expr | None], found: Relation, what: str) -> None:
        """Make sure that rows that are equal in some expressions have the same key."""
        there = [each for each in given if each is not None]
        sure = found.places - found.nullable
        for name, key in self.keys.items():
            if not any(determines(there, key_at(key, place)) for place in sure):
                self._add(f"{what} lacks {self._told(name)}, so that rows of several keys meet.")

    def _set_operation(self, query: exp.SetOperation, known: _Known) -> Relation:
        left, right = self.relation(query.left, known), self.relation(query.right, known)
        if isinstance(query, exp.Union):
            if left.reads != right.reads:
                self._add("a part of UNION reads no table of from:, so that its rows have no key of new rows.")
            found = united([left, right], next(self._numbers))
        else:
            found = left
        if (left.reads or right.reads) and (not isinstance(query, exp.Union) or query.args.get("distinct")):
            both = united([left, right], next(self._numbers)) if right.reads else left
            if not left.reads:
                self._add(f"what is left of {query.key.upper()} reads no table of from:.")
            self._apart([both.column(name) for name in both.order or ()], both, query.key.upper())
        self._limits(query, found)
        return found

    def _select(self, select: exp.Select, known: _Known) -> Relation:
        sources, merged = self._sources(select, known)
        together = (places_of(each) for each in merged.values() if each is not None)
        found = Relation(
            places=frozenset().union(*(each.places for each in sources.values()), *together),
            nullable=frozenset().union(*(each.nullable for each in sources.values())),
        )
        for each in expression_queries(select):
            if _reads(each, known):
                self._add("a subquery in an expression reads a table of from:. Join it on the key.")
        if not found.reads:
            return replace(found, columns=dict.fromkeys(names_of(select)), order=order_of(select))
        scope = Scope(sources, merged)
        self._limits(select, found)
        group = select.args.get("group")
        if group is not None:
            self._grouped(select, group, scope, found)
        elif aggregates := list(aggregates_of(select, windows=False)):
            self._add(f"{aggregates[0]} without GROUP BY is over the rows of all keys.")
        elif select.args.get("having"):
            self._add("HAVING without GROUP BY is over the rows of all keys.")
        for window in windows_of(select):
            given = [scope.resolved(each) for each in window.args.get("partition_by") or ()]
            self._apart(given, found, "PARTITION BY of OVER" if given else "OVER without PARTITION BY")
        found = _selected(select, scope, found)
        if select.args.get("distinct"):
            given = [found.column(name) for name in found.order or found.columns]
            whole = [key_at(key, place) for place in found.stars for key in self.keys.values()]
            self._apart([*given, *whole], found, "DISTINCT")
        return found

    def _grouped(self, select: exp.Select, group: exp.Expr, scope: Scope, found: Relation) -> None:
        sets = [arg for arg in ("rollup", "cube", "grouping_sets") if group.args.get(arg)]
        plain = [each for each in group.expressions if not isinstance(each, exp.Rollup | exp.Cube | exp.GroupingSets)]
        if sets or len(plain) < len(group.expressions):
            self._add("ROLLUP, CUBE and GROUPING SETS give totals over several keys.")
        given = [by_position(each, select) for each in plain]
        if group.args.get("all"):
            given = [unaliased(each) for each in select.expressions if not list(aggregates_of(each))]
        self._apart([scope.resolved(each) for each in given], found, "GROUP BY")

    def _sources(self, select: exp.Select, known: _Known) -> tuple[dict[str, Relation], dict[str, exp.Expr | None]]:
        found: dict[str, Relation] = {}
        merged: dict[str, exp.Expr | None] = {}
        joins = [None, *(select.args.get("joins") or ())]
        for number, (source, join) in enumerate(zip(sources_of(select), joins, strict=False)):
            here = self._source(source, known)
            name = source.alias_or_name.lower() or f"?{number}"
            if join is None:
                found[name] = here
                continue
            side, kind = str(join.side or "").upper(), str(join.kind or "").upper()
            left = dict(found)
            found[name] = here
            self._joined(select, join, left, {name: here}, merged=merged)
            reading = {one for one, each in left.items() if each.reads}
            if (side in ("LEFT", "FULL") and here.reads and not reading) or (
                side in ("RIGHT", "FULL") and reading and not here.reads
            ):
                self._add(f"{side} JOIN gives rows that no row of a table of from: is behind.")
            if side in ("LEFT", "FULL") and kind not in ("SEMI", "ANTI"):
                found[name] = replace(here, nullable=here.places)
            if side in ("RIGHT", "FULL"):
                found.update({one: replace(each, nullable=each.places) for one, each in left.items()})
            if kind in ("SEMI", "ANTI"):
                if here.reads and not reading:
                    self._add(f"{kind} JOIN asks for any row of a table of from:.")
                del found[name]
        return found, merged

    def _source(self, source: exp.Expr, known: _Known) -> Relation:
        alias = source.args.get("alias")
        names = [each.name.lower() for each in alias.args.get("columns") or ()] if alias is not None else []
        found = Relation()
        if isinstance(source, exp.Table) and isinstance(source.this, exp.Identifier) and not source.db:
            name = source.name.lower()
            given = known.get(name)
            if given is not None:
                found = self.relation(given.cte.this, given.known).renamed(given.names)
            elif name in known:
                place = next(self._numbers)
                found = Relation(stars=frozenset({place}), places=frozenset({place}))
        elif isinstance(source, exp.Subquery):
            found = self.relation(source, known)
        self._limits(source, found)
        return found.renamed(names)

    def _joined(
        self,
        select: exp.Select,
        join: exp.Join,
        left: Mapping[str, Relation],
        right: Mapping[str, Relation],
        *,
        merged: dict[str, exp.Expr | None],
    ) -> None:
        """Make sure that rows of upstream tables that are joined have the same key."""
        side, (name, here) = str(join.side or "").upper(), next(iter(right.items()))
        using = [each.name.lower() for each in join.args.get("using") or ()]
        before, after = Scope(left, merged), Scope(right)
        pairs = [(before.resolved(exp.column(each)), after.resolved(exp.column(each))) for each in using]
        both = Scope({**left, name: here}, merged)
        conditions = list(conjuncts(join.args.get("on")))
        where = select.args.get("where")
        if not side and where is not None:
            conditions += conjuncts(where.this)
        for each in conditions:
            if isinstance(each, exp.EQ | exp.NullSafeEQ):
                first, second = both.resolved(each.this), both.resolved(each.expression)
                pairs += [(first, second), (second, first)]
        sure = [p for each in left.values() for p in each.places - each.nullable]
        if here.reads and any(each.reads for each in left.values()):
            for key, expression in self.keys.items():
                if not any(
                    one == key_at(expression, p) and other == key_at(expression, q)
                    for one, other in pairs
                    for p in sure
                    for q in here.places - here.nullable
                ):
                    self._add(f"tables of from: are joined without {self._told(key)} being equal.")
        for column in using:
            one, other = before.resolved(exp.column(column)), after.resolved(exp.column(column))
            if side == "FULL":
                merged[column] = one_of([one, other], next(self._numbers)) if one is not None else None
            else:
                merged[column] = other if side == "RIGHT" or one is None else one


def _reads(query: exp.Expr, known: _Known) -> bool:
    """Return whether a query reads an upstream table."""
    read = {each.lower() for each in tables_read(query)} & set(known)
    return any((given := known[name]) is None or _reads(given.cte.this, given.known) for name in read)


def _selected(select: exp.Select, scope: Scope, found: Relation) -> Relation:
    columns: dict[str, exp.Expr | None] = {}
    stars: frozenset[int] = frozenset()
    order: list[str] | None = []
    for each in select.expressions:
        star = star_of(each)
        if star is None:
            given = None if list(aggregates_of(each)) else scope.resolved(unaliased(each))
            columns[each.alias_or_name.lower()] = given
            order = None if order is None else [*order, each.alias_or_name.lower()]
            continue
        owner = each.table.lower() if isinstance(each, exp.Column) else ""
        taken = [relation for name, relation in scope.sources.items() if not owner or name == owner]
        out = {one.name.lower() for arg in ("except_", "except", "replace") for one in star.args.get(arg) or ()}
        out |= {one.alias.lower() for one in star.args.get("replace") or ()}
        reading = [relation for relation in taken if relation.reads]
        for relation in reading:
            columns.update({name: relation.column(name) for name in relation.order or relation.columns})
            stars |= relation.stars
        columns.update(dict.fromkeys(out))
        known = len(taken) == 1 and taken[0].order is not None and not out and not taken[0].stars
        order = [*order, *(taken[0].order or ())] if order is not None and known else None
    # A table's own * has its own columns, and not what USING makes of them.
    merged = scope.merged if any(isinstance(each, exp.Star) for each in select.expressions) else {}
    return replace(found, columns={**columns, **merged}, stars=stars, order=tuple(order) if order is not None else None)
