"""Rules of single rows, checked by Arrow."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kafka_lake.engine.task.packing import Batches
from kafka_lake.formats.task.batches import single_threaded
from kafka_lake.formats.task.shapes import column_of

Path = tuple[str, ...]
"""A column, or a field of a struct; empty for one that the table doesn't have yet: it counts as null."""
Test = tuple[str, Path, Any]
"""A kind of rule, its column, and its argument:

* ``accepted_values``: values that columns of the type can have.
* ``range``: the least and the greatest value, both allowed, either may be None.
* ``pattern``: a regular expression of RE2, found anywhere in the text.
* ``not_null``: None.
"""
RuleTest = tuple[str, str, str, Test]
"""A rule's name, its description, the error class of its dead letters (empty if it makes none), and its test."""
Answer = tuple[int, int, tuple[int, int] | None]
"""Number of rows that break a rule, number for which the condition is null, place of the first that breaks it."""

PLACE = ("topic_id", "partition", "offset")
BROKEN, UNANSWERED = "broken", "unanswered"
UNCHANGED = "unchanged"
"""Names of the columns that a change event leaves unchanged."""


def reason_of(broken: Sequence[tuple[str, str, str]]) -> tuple[str, str]:
    """Return error class and message of a row's dead letter. The message contains no values of the row."""
    error_class = next(filter(None, (rule_class for *_, rule_class in broken)))
    rules = "; ".join(f"{name} ({condition})" for name, condition, _ in broken)
    return error_class, f"Breaks {'a rule' if len(broken) == 1 else f'{len(broken)} rules'}: {rules}."


def answers(
    tests: Sequence[RuleTest], column: Callable[[Path], pa.Array], count: int, unchanged: pa.Array | None = None
) -> Iterator[pa.Array]:
    """Yield for each rule whether each row keeps it; null if that is unknown."""
    for *_, (kind, path, argument) in tests:
        if not path:
            yield pa.array([False if kind == "not_null" else None] * count, pa.bool_())
            continue
        answer = _answer(kind, column(path), argument)
        if kind == "not_null" and unchanged is not None:
            answer = pc.if_else(_lists(unchanged, path[0]), None, answer)
        yield answer


def _answer(kind: str, column: pa.Array, argument: Any) -> pa.Array:
    if kind == "not_null":
        return pc.is_valid(column)
    if kind == "pattern":
        return pc.match_substring_regex(column, argument)
    if kind == "range":
        kept = pa.scalar(True)
        for compare, bound in zip((pc.greater_equal, pc.less_equal), argument, strict=True):
            if bound is not None:
                kept = pc.and_kleene(kept, compare(column, pa.scalar(bound, column.type)))
        return kept
    values = pa.array(argument, column.type)
    if pa.types.is_floating(column.type):
        # Arrow looks values up by their bits, by which -0.0 isn't 0.0.
        column, values = (pc.add(value, pa.scalar(0.0, column.type)) for value in (column, values))
    return pc.if_else(pc.is_valid(column), pc.is_in(column, value_set=values), None)


def _lists(lists: pa.ListArray, name: str) -> pa.Array:
    """Return whether each list has a name."""
    has_name = np.zeros(len(lists), dtype=bool)
    has_name[pc.list_parent_indices(lists).filter(pc.equal(lists.flatten(), name)).to_numpy()] = True
    return pa.array(has_name)


def field_of(column: pa.Array, path: Path) -> pa.Array:
    """Return the field of a struct that the rest of a path names; null where a struct around it is."""
    return pc.struct_field(column, list(path[1:])) if path[1:] else column


def bits_of(broken: Sequence[bool] | np.ndarray, number: int) -> np.ndarray:
    """Return the bit of a rule for each row that breaks it."""
    return np.asarray(broken).astype(np.int64) << number


class RuleChecker:
    """Checks rows while they are written, and counts the results."""

    def __init__(self, tests: Sequence[RuleTest], columns: pa.Schema) -> None:
        self._tests, self._columns, self._rows = tests, columns, 0
        self._answers: dict[str, Answer] = {name: (0, 0, None) for name, *_ in tests}
        self._refusing = sum(1 << number for number, (*_, error_class, _) in enumerate(tests) if error_class)
        self._reasons: dict[int, tuple[str, str]] = {}

    def add(self, rows: pa.Table, records: pa.RecordBatch, unchanged: pa.Array | None = None) -> np.ndarray:
        """Check rows; return for each row a number with a bit for each rule that it breaks.

        Args:
            unchanged: The columns that each row leaves unchanged.
        """
        columns: dict[str, pa.Array] = {}

        def column(path: Path) -> pa.Array:
            if path[0] not in columns:
                columns[path[0]] = column_of(rows, self._columns.field(path[0]))
            return field_of(columns[path[0]], path)

        self._rows += len(rows)
        broken = np.zeros(len(rows), dtype=np.int64)
        for number, answer in enumerate(answers(self._tests, column, len(rows), unchanged)):
            name = self._tests[number][0]
            failed, first = len(rows) - answer.null_count - answer.true_count, None
            if failed:
                fails = ~pc.fill_null(answer, True).to_numpy(zero_copy_only=False)
                broken |= bits_of(fails, number)
                first = _first(records, fails)
            self._answers[name] = _both(self._answers[name], (failed, answer.null_count, first))
        return broken

    def refuses(self, broken: np.ndarray) -> np.ndarray:
        """Return which rows become dead letters, by what each breaks."""
        refused: np.ndarray = (broken & self._refusing) != 0
        return refused

    def reasons(self, broken: np.ndarray) -> tuple[pa.Array, pa.Array]:
        """Return error classes and messages of rows that become dead letters."""
        codes, places = np.unique(broken, return_inverse=True)
        for code in map(int, codes):
            if code not in self._reasons:
                self._reasons[code] = reason_of([test[:3] for n, test in enumerate(self._tests) if code >> n & 1])
        reasons = [self._reasons[int(code)] for code in codes]
        classes, messages = (pa.array([r[part] for r in reasons], pa.string()).take(places) for part in (0, 1))
        return classes, messages

    def answers(self) -> tuple[int, Mapping[str, Answer]]:
        """Return the number of checked rows, and the answers by rule."""
        return self._rows, self._answers


def _first(records: pa.RecordBatch, fails: np.ndarray) -> tuple[int, int]:
    partitions, offsets = (records.column(name).to_numpy()[fails] for name in PLACE[1:])
    least = partitions.min()
    return int(least), int(offsets[partitions == least].min())


def _both(one: Answer, other: Answer) -> Answer:
    firsts = [first for *_, first in (one, other) if first is not None]
    return one[0] + other[0], one[1] + other[1], min(firsts, default=None)


def merged_answers(parts: Iterable[tuple[int, Mapping[str, Answer]]]) -> tuple[int, dict[str, Answer]]:
    """Return the sum of several tasks' answers."""
    count, merged = 0, dict[str, Answer]()
    for rows, by_rule in parts:
        count += rows
        for name, answer in by_rule.items():
            merged[name] = _both(merged.get(name, (0, 0, None)), answer)
    return count, merged


def check_frame(work: Mapping[str, Any]) -> Batches:
    """Return the function for ``mapInArrow`` that checks rows of a frame.

    Its input has the columns of `PLACE`, one for each path, and perhaps `UNCHANGED`. Its output has those of `PLACE`,
    and two numbers with a bit for each rule: `BROKEN`, and `UNANSWERED` where the answer is null.
    """
    tests, columns = work["tests"], work["columns"]

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        single_threaded()
        for batch in batches:
            names, count = batch.schema.names, len(batch)
            unchanged = batch.column(UNCHANGED) if UNCHANGED in names else None
            broken, unanswered = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
            given = answers(tests, lambda path, rows=batch: rows.column(columns[path]), count, unchanged)  # type: ignore[misc]
            for number, answer in enumerate(given):
                broken |= bits_of(pc.invert(pc.fill_null(answer, True)), number)
                unanswered |= bits_of(pc.is_null(answer), number)
            columns_out = [*(batch.column(name) for name in PLACE), pa.array(broken), pa.array(unanswered)]
            yield pa.RecordBatch.from_arrays(columns_out, names=[*PLACE, BROKEN, UNANSWERED])

    return run
