"""Rules that rows are asked while they are written, so that nobody has to read them once more for that."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kafka_lake.executors.writing.shapes import column_of

Test = tuple[Any, ...]
"""What a row is asked, as plain data:

* ``("told", column)``: it isn't null; ``("in", column, values)``; ``("matches", column, regular expression)``, which is
  found anywhere in it.
* ``(comparison, column, operand)``; the operand is ``("column", name)`` or ``("value", value)``.
* ``("and", test, test)``, ``("or", test, test)``, ``("not", test)``.
"""
RuleTest = tuple[str, str, str, Test]
"""A rule's name, what it asks for in words, the error class of rows that break it, empty if they are to be no dead
letters, and its test."""
Answer = tuple[int, int, tuple[tuple[int, int], ...]]
"""How many rows keep a rule; for how many there is no answer, since something is null; and partition and offset of the
first row of each Kafka partition that breaks it."""

MOST_RULES = 62
"""So many rules a row can break at once, as bits of a number."""

_COMPARISONS = {
    "=": pc.equal,
    "<>": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}
_NAN_IS = {"<>": True, ">": True, ">=": True}
_LAST_LINE_BREAK = r"(?:\r\n|[\n\r\x{85}\x{2028}\x{2029}])\z"


def reason_of(broken: Sequence[tuple[str, str, str]]) -> tuple[str, str]:
    """Return error class and message of a row's dead letter: the message names all rules that the row breaks.

    Nothing of the row's values is in it, so that it may be shown wherever the settings allow.

    Args:
        broken: Of each rule, in the order of the settings, its name, what it asks for in words, and its error class,
            which one of them at least has.
    """
    error_class = next(filter(None, (each for *_, each in broken)))
    said = "; ".join(f"{name} ({asks})" for name, asks, _ in broken)
    return error_class, f"Breaks {'a rule' if len(broken) == 1 else f'{len(broken)} rules'}: {said}."


class Asked:
    """Asks rows, and counts the answers.

    Args:
        tests: The rules.
        columns: The table's columns, whose types the rules are asked in.
    """

    def __init__(self, tests: Sequence[RuleTest], columns: pa.Schema) -> None:
        self._rules, self._columns, self._rows = tests, columns, 0
        self._tests = {number: test for number, (*_, test) in enumerate(tests)}
        self._counts = dict.fromkeys(self._tests, (0, 0))
        self._firsts: dict[int, dict[int, int]] = {number: {} for number in self._tests}
        self._reasons: dict[int, tuple[str, str]] = {}

    def add(self, rows: pa.Table, records: pa.RecordBatch) -> np.ndarray:
        """Ask rows. A rule that Arrow can't answer for them isn't asked any more.

        Args:
            rows: Of the table, before they have its types.
            records: What they were made of, with ``partition`` and ``offset``.

        Returns:
            Which rules each row breaks: a number whose bits are those of the rules.
        """
        self._rows += len(rows)
        broken = np.zeros(len(rows), dtype=np.int64)
        given = _Rows(rows, self._columns)
        for number, test in list(self._tests.items()):
            try:
                answer = given.answer(test)
            except _Unanswered:
                del self._tests[number], self._counts[number], self._firsts[number]
                continue
            kept, nulls = self._counts[number]
            told = pc.sum(answer).as_py() or 0
            self._counts[number] = (kept + told, nulls + answer.null_count)
            if told + answer.null_count < len(rows):
                fails = ~pc.fill_null(answer, True).to_numpy(zero_copy_only=False)
                broken |= fails.astype(np.int64) << number
                _keep_first(self._firsts[number], records, fails)
        return broken

    def refuses(self, broken: np.ndarray) -> np.ndarray:
        """Return which rows are to become dead letters, by what each breaks of the first `MOST_RULES` rules."""
        some = enumerate(self._rules[:MOST_RULES])
        bits = sum(1 << number for number, (*_, error_class, _) in some if error_class)
        refused: np.ndarray = (broken & bits) != 0
        return refused

    def reasons(self, broken: np.ndarray) -> tuple[pa.Array, pa.Array]:
        """Return error classes and messages of rows, each of which breaks a rule that makes dead letters."""
        codes, places = np.unique(broken, return_inverse=True)
        for code in map(int, codes):
            if code not in self._reasons:
                self._reasons[code] = reason_of([each[:3] for n, each in enumerate(self._rules) if code >> n & 1])
        told = [self._reasons[int(code)] for code in codes]
        classes, messages = (pa.array([each[part] for each in told], pa.string()).take(places) for part in (0, 1))
        return classes, messages

    def answers(self) -> tuple[int, dict[str, Answer]]:
        """Return how many rows were asked, and what they answered to each rule that all of them could answer."""
        names = {number: self._rules[number][0] for number in self._tests}
        return self._rows, {
            name: (*self._counts[number], tuple(sorted(self._firsts[number].items()))) for number, name in names.items()
        }


def _keep_first(firsts: dict[int, int], records: pa.RecordBatch, fails: np.ndarray) -> None:
    """Keep the lowest offset of each Kafka partition among records."""
    partitions, offsets = (records.column(name).to_numpy()[fails] for name in ("partition", "offset"))
    for partition in np.unique(partitions):
        _lower(firsts, int(partition), int(offsets[partitions == partition].min()))


def _lower(firsts: dict[int, int], partition: int, offset: int) -> None:
    firsts[partition] = min(offset, firsts.get(partition, offset))


class _Unanswered(Exception):
    pass


class _Rows:
    """Rows, whose columns get the table's types when they are asked for."""

    def __init__(self, rows: pa.Table, columns: pa.Schema) -> None:
        self._rows, self._columns = rows, columns
        self._known: dict[str, pa.Array] = {}

    def answer(self, test: Test) -> pa.Array:
        """Return whether each row keeps a rule: null where SQL has no answer."""
        kind, *given = test
        if kind == "and":
            return pc.and_kleene(*(self.answer(each) for each in given))
        if kind == "or":
            return pc.or_kleene(*(self.answer(each) for each in given))
        if kind == "not":
            return pc.invert(self.answer(given[0]))
        if kind in _COMPARISONS:
            return self._compared(kind, self._column(given[0]), *given[1])
        column = self._column(given[0])
        if kind == "told":
            return pc.is_valid(column)
        if kind == "in":
            found = pc.is_in(column, value_set=pa.array(given[1], column.type))
            return pc.if_else(pc.is_valid(column), found, None)
        return _matches(column, given[1])

    def _compared(self, comparison: str, column: pa.Array, what: str, given: Any) -> pa.Array:
        other = pa.scalar(given) if what == "value" else self._column(given)
        found = _COMPARISONS[comparison](column, other)
        if not pa.types.is_floating(column.type):
            return found
        # To Spark, NaN is greater than all numbers, and equal to itself.
        if what == "value":
            return pc.if_else(pc.is_nan(column), _NAN_IS.get(comparison, False), found)
        if pc.any(pc.or_kleene(pc.is_nan(column), pc.is_nan(other))).as_py():
            raise _Unanswered
        return found

    def _column(self, name: str) -> pa.Array:
        if name not in self._known:
            self._known[name] = column_of(self._rows, self._columns.field(name))
        return self._known[name]


def _matches(column: pa.Array, regex: str) -> pa.Array:
    found = pc.match_substring_regex(column, regex)
    if "$" not in regex or pc.all(found).as_py():
        return found
    # Java's $ is also before a line break that ends the text.
    before = pc.replace_substring_regex(column, _LAST_LINE_BREAK, "")
    return pc.or_(found, pc.match_substring_regex(before, regex))


def merged_answers(answers: Sequence[tuple[int, Mapping[str, Answer]]]) -> tuple[int, dict[str, Answer]]:
    """Return what several tasks found together, of rules that all of them could ask.

    Args:
        answers: How many rows each asked, and what they answered.
    """
    some = [each for rows, each in answers if rows]
    names = [name for name in some[0] if all(name in each for each in some)] if some else []
    found = {}
    for name in names:
        firsts: dict[int, int] = {}
        for each in some:
            for partition, offset in each[name][2]:
                _lower(firsts, partition, offset)
        kept, nulls = sum(each[name][0] for each in some), sum(each[name][1] for each in some)
        found[name] = (kept, nulls, tuple(sorted(firsts.items())))
    return sum(rows for rows, _ in answers), found
