"""What a part of a query gives: which of its columns is which expression of one upstream table's columns. Pure.

Each place where a query reads an upstream table has a number, as the same table may be read twice.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from sqlglot import exp

_PLACE = "kafka_lake_place_"


@dataclass(frozen=True)
class Relation:
    """The rows that a part of a query gives.

    Args:
        columns: Expressions over columns of upstream tables, by the name of the column; None where it is none.
        stars: Places whose columns are all there, under their own names.
        places: The places of upstream tables that its rows come from.
        nullable: Those of them of which a row may have nothing, as behind a LEFT JOIN.
        order: The names of all columns in their order; None if nobody knows.
    """

    columns: Mapping[str, exp.Expr | None] = field(default_factory=dict)
    stars: frozenset[int] = frozenset()
    places: frozenset[int] = frozenset()
    nullable: frozenset[int] = frozenset()
    order: tuple[str, ...] | None = None

    @property
    def reads(self) -> bool:
        """Return whether rows of upstream tables are behind it."""
        return bool(self.places)

    def column(self, name: str) -> exp.Expr | None:
        """Return the expression that a column is; None if nobody can tell."""
        if name in self.columns:
            found = self.columns[name]
            return found.copy() if found is not None else None
        return at_place(name, next(iter(self.stars))) if len(self.stars) == 1 else None

    def sure(self, name: str) -> exp.Expr | None:
        """Return the expression that a column is in each row; None if it is null in some, or nobody can tell."""
        found = self.column(name)
        return None if found is None or places_of(found) & self.nullable else found

    def may_have(self, name: str) -> bool:
        """Return whether a column of the name may be there."""
        return name in self.columns or bool(self.stars) or (self.order is None and not self.columns)

    def renamed(self, names: Sequence[str]) -> "Relation":
        """Return the rows with other names of their columns, as in ``AS t(a, b)``."""
        if not names:
            return self
        if self.order is None or len(self.order) != len(names):
            return replace(self, columns=dict.fromkeys(names), stars=frozenset(), order=tuple(names))
        columns = {new: self.column(old) for old, new in zip(self.order, names, strict=True)}
        return replace(self, columns=columns, stars=frozenset(), order=tuple(names))


def at_place(name: str, place: int) -> exp.Expr:
    """Return the column of an upstream table that is read at a place."""
    table = exp.Identifier(this=f"{_PLACE}{place}", quoted=False)
    return exp.Column(this=exp.Identifier(this=name, quoted=False), table=table)


def places_of(expression: exp.Expr) -> set[int]:
    """Return the places whose columns an expression is made of."""
    return {int(each.table.removeprefix(_PLACE)) for each in expression.find_all(exp.Column)}


def moved(expression: exp.Expr, place: int) -> exp.Expr:
    """Return an expression of one place as that of another one."""
    return expression.copy().transform(lambda each: at_place(each.name, place) if _is_placed(each) else each)


def _is_placed(node: exp.Expr) -> bool:
    return isinstance(node, exp.Column) and node.table.startswith(_PLACE)


def united(sides: Sequence[Relation], place: int) -> Relation:
    """Return the rows of several relations below each other, as UNION has them.

    Args:
        sides: The relations.
        place: The number of a place that stands for those of all of them.
    """
    first = sides[0]
    found = Relation(places=frozenset({place}) if any(each.places for each in sides) else frozenset())
    if first.order is None or any(each.order is None or len(each.order) != len(first.order) for each in sides):
        return found
    columns: dict[str, exp.Expr | None] = {}
    for number, name in enumerate(first.order):
        columns[name] = one_of([each.sure(each.order[number]) for each in sides if each.order is not None], place)
    return replace(found, columns=columns, order=first.order)


def one_of(given: Sequence[exp.Expr | None], place: int) -> exp.Expr | None:
    """Return the expression of a place that stands for others, each of one place, if they are the same ones."""
    there = [moved(each, place) for each in given if each is not None and len(places_of(each)) == 1]
    return there[0] if len(there) == len(given) and all(each == there[0] for each in there) else None


@dataclass(frozen=True)
class Scope:
    """The names that expressions of one SELECT know.

    Args:
        sources: What it reads, by their names, in order.
        merged: Columns of JOIN … USING, and what they are.
    """

    sources: Mapping[str, Relation]
    merged: Mapping[str, exp.Expr | None] = field(default_factory=dict)

    def resolved(self, expression: exp.Expr) -> exp.Expr | None:
        """Return an expression over columns of upstream tables; None if it is none, or nobody can tell."""
        try:
            return _plain(expression.copy().transform(self._column))
        except LookupError:
            return None

    def _column(self, node: exp.Expr) -> exp.Expr:
        if not isinstance(node, exp.Column) or _is_placed(node):
            return node
        names = [part.name.lower() for part in node.parts]
        if len(names) > 1 and names[0] in self.sources:
            found, rest = self.sources[names[0]].column(names[1]), names[2:]
        else:
            found, rest = self._unqualified(names[0]), names[1:]
        if found is None:
            raise LookupError(names[0])
        for name in rest:
            found = exp.Dot(this=found, expression=exp.to_identifier(name))
        return found

    def _unqualified(self, name: str) -> exp.Expr | None:
        if name in self.merged:
            known = self.merged[name]
            return known.copy() if known is not None else None
        reading = [each for each in self.sources.values() if each.reads and each.may_have(name)]
        # A column of another table can't have the name of one that the key is made of: Spark would find it ambiguous.
        return reading[0].column(name) if len(reading) == 1 else None


def _plain(expression: exp.Expr) -> exp.Expr:
    """Return an expression without what makes no difference: parentheses, and the case of names."""

    def plain(node: exp.Expr) -> exp.Expr:
        while isinstance(node, exp.Paren):
            node = node.this
        if isinstance(node, exp.Identifier):
            return exp.to_identifier(node.name.lower(), quoted=False)
        if isinstance(node, exp.Anonymous) and isinstance(node.this, str):
            node.set("this", node.this.lower())
        return node

    return expression.transform(plain)


def key_at(key: exp.Expr, place: int) -> exp.Expr:
    """Return the expression of a key over the columns of an upstream table that is read at a place."""
    base = Relation(stars=frozenset({place}), places=frozenset({place}))
    found = Scope({"": base}).resolved(key)
    assert found is not None, "each column of an upstream table is one"
    return found


def determines(given: Iterable[exp.Expr], key: exp.Expr) -> bool:
    """Return whether rows that are equal in some expressions are equal in a key, which is an expression, too."""
    known = list(given)

    def without(node: exp.Expr) -> exp.Expr:
        return exp.Null() if any(node == each for each in known) else node

    return not any(_is_placed(each) for each in key.copy().transform(without).walk())


def conjuncts(condition: exp.Expr | None) -> Iterator[exp.Expr]:
    """Yield the conditions that all must hold for one to hold."""
    if isinstance(condition, exp.And):
        yield from conjuncts(condition.this)
        yield from conjuncts(condition.expression)
    elif isinstance(condition, exp.Paren):
        yield from conjuncts(condition.this)
    elif condition is not None:
        yield condition
