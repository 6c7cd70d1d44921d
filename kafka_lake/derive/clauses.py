"""The clauses of a SELECT as their text: what is behind FROM, each JOIN, the conditions of WHERE. Pure.

A query that is written anew from its tree isn't always the same one: `log10(x)` becomes `LOG(10, x)`, which rounds in
another way.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sqlglot.tokenizer_core import Token, TokenType

from kafka_lake.derive.query import tokens_of

_OPENS = frozenset({TokenType.L_PAREN, TokenType.L_BRACKET, TokenType.L_BRACE, TokenType.CASE})
_CLOSES = frozenset({TokenType.R_PAREN, TokenType.R_BRACKET, TokenType.R_BRACE, TokenType.END})
_KINDS_OF_JOIN = frozenset(
    {
        TokenType.LEFT, TokenType.RIGHT, TokenType.FULL, TokenType.INNER, TokenType.OUTER, TokenType.SEMI,
        TokenType.ANTI, TokenType.CROSS, TokenType.NATURAL,
    }
)  # fmt: skip


@dataclass(frozen=True)
class Clauses:
    """What a SELECT consists of, as far as it says which rows it reads.

    Args:
        begins: What is before SELECT: its common table expressions.
        source: What is behind FROM.
        joins: Each JOIN behind it, its kind included.
        joined: What each of them joins, and by what.
        conditions: Those of WHERE that all must hold.
    """

    begins: str
    source: str
    joins: tuple[str, ...]
    joined: tuple[str, ...]
    conditions: tuple[str, ...]


def clauses_of(sql: str) -> Clauses | None:
    """Return the clauses of a SELECT; None if its text doesn't tell them."""
    outer = [(depth, each) for depth, each in _with_depth(tokens_of(sql)) if each.token_type != TokenType.SEMICOLON]
    top = [number for number, (depth, _) in enumerate(outer) if not depth]
    kinds = [each.token_type for _, each in outer]

    def first(kind: TokenType, after: int) -> int | None:
        return next((n for n in top if n > after and kinds[n] == kind), None)

    select = first(TokenType.SELECT, -1)
    froms = [n for n in top if select is not None and n > select and kinds[n] == TokenType.FROM]
    # Not that of IS DISTINCT FROM.
    begins = next((n for n in froms if kinds[n - 1] != TokenType.DISTINCT), None)
    if select is None or begins is None:
        return None
    ends = len(outer)
    where = first(TokenType.WHERE, begins)
    views = first(TokenType.LATERAL, begins)
    while views is not None and outer[views + 1][1].text.upper() != "VIEW":
        views = first(TokenType.LATERAL, views)
    end = min(each for each in (where, views, ends) if each is not None)
    starts, bodies = list[int](), list[int]()
    for number in top:
        if begins < number < end and kinds[number] in (TokenType.JOIN, TokenType.COMMA):
            start = number
            while kinds[number] == TokenType.JOIN and kinds[start - 1] in _KINDS_OF_JOIN:
                start -= 1
            starts.append(start)
            bodies.append(number + 1)

    def text(start: int, stop: int) -> str:
        return sql[outer[start][1].start : outer[stop - 1][1].end + 1] if start < stop else ""

    stops = [*starts[1:], end]
    conditions = _conditions(outer[where + 1 :]) if where is not None else []
    return Clauses(
        begins=sql[: outer[select][1].start],
        source=text(begins + 1, starts[0] if starts else end),
        joins=tuple(text(start, stop) for start, stop in zip(starts, stops, strict=False)),
        joined=tuple(text(body, stop) for body, stop in zip(bodies, stops, strict=False)),
        conditions=tuple(sql[each[0].start : each[-1].end + 1] for each in conditions),
    )


def _with_depth(tokens: Sequence[Token]) -> Iterator[tuple[int, Token]]:
    """Give each token with the number of brackets, and of CASE … END, that it is in; these themselves are in theirs."""
    depth = 0
    for each in tokens:
        if each.token_type in _OPENS:
            depth += 1
        yield depth, each
        if each.token_type in _CLOSES:
            depth -= 1


def _conditions(given: Sequence[tuple[int, Token]]) -> list[list[Token]]:
    """Return the conditions that all must hold, as their tokens."""
    least = min((depth for depth, _ in given), default=0)
    found, between = list[list[Token]]([[]]), 0
    whole = [each for _, each in given]
    if given and least and _is_one_parenthesis(given, least):
        return _conditions([(depth - 1, each) for depth, each in given[1:-1]])
    for depth, each in given:
        if not depth and each.token_type == TokenType.OR:
            return [whole]
        if not depth and each.token_type == TokenType.AND and not between:
            found.append([])
            continue
        if not depth:
            between += (each.token_type == TokenType.BETWEEN) - (each.token_type == TokenType.AND)
        found[-1].append(each)
    if len(found) == 1:
        return [whole] if whole else []
    depths = {id(each): depth for depth, each in given}
    return [one for part in found for one in _conditions([(depths[id(each)], each) for each in part])]


def _is_one_parenthesis(given: Sequence[tuple[int, Token]], least: int) -> bool:
    opened = [n for n, (depth, each) in enumerate(given) if depth == least and each.token_type == TokenType.L_PAREN]
    return (
        opened == [0] and given[-1][1].token_type == TokenType.R_PAREN and given[0][1].token_type == TokenType.L_PAREN
    )
