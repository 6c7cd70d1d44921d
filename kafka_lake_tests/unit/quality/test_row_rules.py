"""Rules of single rows, value by value beside plain Python: what a task answers is what the rule means."""

import math
import re
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types as T

from kafka_lake.engine.interop import to_arrow_schema
from kafka_lake.errors import ConfigurationError
from kafka_lake.quality.row_rules import RowRules, find_column, row_rules
from kafka_lake.quality.task.rules import RuleChecker, answers, check_frame, field_of, merged_answers
from kafka_lake.spec.rule import AcceptedValues, OnFailure, Pattern, Range, RuleEntry, rules_of

BIG = 2**53
EAST = timezone(timedelta(hours=1))
KINDS = {
    "n": T.IntegerType(), "big": T.LongType(), "x": T.DoubleType(), "f": T.FloatType(), "d": T.DecimalType(9, 2),
    "exact": T.DecimalType(38, 18), "s": T.StringType(), "b": T.BooleanType(), "day": T.DateType(),
    "at": T.TimestampType(), "local": T.TimestampNTZType(), "a.b": T.StringType(),
    "who": T.StructType([T.StructField("Name", T.StringType())]),
}  # fmt: skip
COLUMNS = T.StructType([T.StructField(name, kind) for name, kind in KINDS.items()])
ARROW = to_arrow_schema(COLUMNS)


def rules(*entries: RuleEntry, declared: bool = False) -> RowRules:
    return row_rules("Topic t", rules_of(entries), COLUMNS, declared)


def kept(entry: RuleEntry, *values: Any) -> list[bool | None]:
    """Return whether rows with such values keep a rule, as a task says it."""
    made = rules(entry)
    ((*_, (_, path, _)),) = made.tests
    column = pa.array(values, ARROW.field(path[0]).type) if path else None
    (answer,) = answers(made.tests, lambda path: field_of(column, path), len(values))
    found: list[bool | None] = answer.to_pylist()
    return found


def in_range(column: str, least: Any = None, most: Any = None) -> RuleEntry:
    return RuleEntry(range=Range(column=column, min=least, max=most))


def accepts(column: str, *values: Any) -> RuleEntry:
    return RuleEntry(accepted_values=AcceptedValues(column=column, values=values))


def like(regex: str) -> RuleEntry:
    return RuleEntry(pattern=Pattern(column="s", regex=regex))


def at(text: str, zone: Any = UTC) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=zone)


def test_rules_name_columns_in_any_case() -> None:
    within = T.StructType([T.StructField("_2xx", T.LongType())])
    columns = T.StructType([T.StructField("user_id", T.LongType()), T.StructField("a_b", within)])
    for name in ("user_id", "User_Id"):
        assert find_column(columns, name) == (("user_id",), T.LongType())
    for name in ("a_b._2xx", "A_B._2XX"):
        assert find_column(columns, name) == (("a_b", "_2xx"), T.LongType())
    assert find_column(columns, "a_b.2xx") is None


# A rule, values that keep it, values that break it. Null is neither, but for not_null.
CASES: list[tuple[RuleEntry, Sequence[Any], Sequence[Any]]] = [
    (RuleEntry(not_null=("x",)), [0.0, math.nan, math.inf], [None]),
    (RuleEntry(not_null=("S",)), ["", "a"], [None]),
    (RuleEntry(not_null=("who.name",)), [{"Name": ""}], [None, {"Name": None}]),
    (RuleEntry(not_null=("later",)), [], [1, None]),
    (in_range("n", 0, 3), [0, 1, 3], [-1, 4]),
    (in_range("n", 0.5, 2.5), [1, 2], [0, 3]),
    (in_range("n", -0.5, 0.5), [0], [-1, 1]),
    (in_range("big", BIG + 1, BIG + 1), [BIG + 1], [BIG, BIG + 2]),
    (in_range("big", BIG + 0.0, 1e18), [BIG, 10**18], [BIG - 1, 10**18 + 1]),
    (in_range("x", 0, 10_000), [0.0, -0.0, 0.1, 10_000.0], [-0.1, 10_000.5, math.inf, -math.inf, math.nan]),
    (in_range("x", 0), [0.0, math.inf], [-math.inf, math.nan]),
    (in_range("x", None, 0.5), [-math.inf, 0.5], [0.6, math.nan]),
    (in_range("f", 0.1, 0.1), [0.1], [0.2, math.nan]),
    (in_range("d", 0.1, 1.5), [Decimal("0.10"), Decimal("1.50")], [Decimal("0.09"), Decimal("1.51")]),
    (in_range("d", 0.101, 0.109), [], [Decimal("0.10"), Decimal("0.11")]),
    (in_range("exact", 0.1), [Decimal("0.1"), Decimal("0.100000000000000001")], [Decimal("0.099999999999999999")]),
    (in_range("exact", -(10**19), 10**19), [Decimal(10) ** 19], [Decimal("10000000000000000000.000000000000000001")]),
    (in_range("day", "2026-01-02", "20260103"), [date(2026, 1, 2), date(2026, 1, 3)], [date(2026, 1, 1)]),
    (in_range("at", "2026-01-02"), [at("2026-01-02")], [at("2026-01-01T23:59:59.999999"), at("2026-01-02", EAST)]),
    (in_range("at", None, "2026-01-02T00:00+01:00"), [at("2026-01-01T23:00")], [at("2026-01-01T23:00:00.000001")]),
    (in_range("local", None, "2026-01-02"), [datetime(2026, 1, 2)], [datetime(2026, 1, 2, 0, 0, 1)]),
    (accepts("s", "new", "it's", "\U0001f355", ""), ["new", "it's", "\U0001f355", ""], ["NEW", "new ", "\x00"]),
    (accepts("n", 1, 2.0, 2.5), [1, 2], [0, 3]),
    (accepts("big", BIG + 1), [BIG + 1], [BIG]),
    (accepts("x", 0, 0.1, 5), [0.0, -0.0, 0.1, 5.0], [0.2, math.nan, math.inf]),
    (accepts("f", 0.1, 5), [0.1, 5.0], [0.11]),
    (accepts("d", 0.1, 1, 0.005), [Decimal("0.10"), Decimal("1.00")], [Decimal("0.01"), Decimal("0.00")]),
    (accepts("exact", 0.1), [Decimal("0.1")], [Decimal("0.100000000000000001")]),
    (accepts("b", True), [True], [False]),
    (accepts("day", "2026-01-02"), [date(2026, 1, 2)], [date(2026, 1, 3)]),
    (accepts("at", "2026-01-02T01:00+01:00"), [at("2026-01-02")], [at("2026-01-02T01:00")]),
    (accepts("A.B", "x"), ["x"], ["y"]),
    (accepts("who.Name", "x"), [{"Name": "x"}], [{"Name": "y"}]),
    (like("b"), ["b", "abc"], ["", "a", "B"]),
    (like("^[^@]+@[^@]+$"), ["a@b", "a\n@b"], ["@", "a@b@c", ""]),
    (like("^b$"), ["b"], ["b\n", "a\nb", "ab"]),
    (like("(?m)^b$"), ["b", "a\nb", "b\n"], ["ab"]),
    (like("(?i)^new$"), ["new", "NEW"], ["newer"]),
    (like("^.$"), ["a", "\U0001f355", "\r", "\u2028"], ["\n", "ab", ""]),
    (like(r"^\d\w\s$"), ["1a ", "9_\t"], ["\u0661a ", "1\u00e9 ", "1a\u00a0"]),
    (like(r"^\p{L}+$"), ["\u00e9a"], ["1"]),
    (like("^(a|b)*$"), ["ab" * 100_000], ["ab" * 100_000 + "c"]),
]


@pytest.mark.parametrize(("entry", "keeps", "breaks"), CASES)
def test_rule_is_kept_and_broken_by_values(entry: RuleEntry, keeps: Sequence[Any], breaks: Sequence[Any]) -> None:
    (rule,) = rules_of([entry])
    nulls = [] if rule.kind == "not_null" else [None]
    expected = [True] * len(keeps) + [False] * len(breaks) + [None] * len(nulls)
    assert kept(entry, *keeps, *breaks, *nulls) == expected


NUMBERS = st.one_of(st.none(), st.integers(-(2**31), 2**31 - 1), st.sampled_from([-1, 0, 1]))
BOUNDS = st.one_of(st.none(), st.integers(-5, 5), st.floats(-5, 5), st.sampled_from([0.1, -0.5, 10**6]))


@given(values=st.lists(NUMBERS, max_size=5), least=BOUNDS, most=BOUNDS, column=st.sampled_from(["n", "big", "x", "d"]))
def test_range_holds_what_python_finds_between_its_bounds(
    values: list[int | None], least: Any, most: Any, column: str
) -> None:
    low, high = (
        (-math.inf if least is None else Decimal(repr(least))),
        (math.inf if most is None else Decimal(repr(most))),
    )
    mine = [None if v is None else v % 10**6 for v in values]
    expected = [None if v is None else low <= v <= high for v in mine]
    if (least is not None or most is not None) and low <= high:
        assert kept(in_range(column, least, most), *mine) == expected


@given(text=st.text(max_size=8), regex=st.sampled_from(["^[a-c]+$", "a.c", "[^0]", "(?s)^.{2}$", "x*"]))
def test_pattern_finds_what_python_finds(text: str, regex: str) -> None:
    # Python's $ is also before a line break that ends the text.
    assert kept(like(regex), text) == [bool(re.search(regex.replace("$", r"\Z"), text))]


def test_column_that_is_not_there_yet_is_null_and_named() -> None:
    entries = [in_range("later", 0), like("a"), RuleEntry(not_null=("who.age",))]
    made = rules(*entries)
    assert made.unknown == {"range_later": ("later",), "not_null_who_age": ("who.age",)}
    assert [kept(entry, "a") for entry in entries] == [[None], [True], [False]]
    with pytest.raises(ConfigurationError, match="range_later: the table has no column later"):
        rules(*entries, declared=True)


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        (in_range("b", 0), "b is boolean, and a range is for numbers and times"),
        (in_range("at", 5), "at is timestamp, and 5 isn't a value of this type"),
        (in_range("at", None, "9999-12-31T23:59-01:00"), "isn't a value of this type"),
        (
            in_range("local", "2026-01-01T00:00Z"),
            "local is timestamp_ntz, and '2026-01-01T00:00Z' isn't a value of this type",
        ),
        (in_range("day", "2026-01-01T12:00"), "day is date, and '2026-01-01T12:00' isn't a value of this type"),
        (in_range("x", 10**400), "0 isn't a value of this type"),
        (in_range("n", 2**31), "n is int, and 2147483648 isn't a value of this type"),
        (in_range("big", None, math.inf), "big is bigint, and inf isn't a value of this type"),
        (in_range("d", 1e40), "d is decimal(9,2), and 1e+40 isn't a value of this type"),
        (accepts("n", "1"), "n is int, and '1' isn't a value of this type"),
        (accepts("n", True), "n is int, and True isn't a value of this type"),
        (accepts("s", 1), "s is string, and 1 isn't a value of this type"),
        (accepts("s", "\ud800"), "isn't a value of this type"),
        (accepts("b", "true"), "b is boolean, and 'true' isn't a value of this type"),
        (accepts("who", "1"), "'1' isn't a value of this type"),
        (RuleEntry(pattern=Pattern(column="n", regex="1")), "n is int, and a pattern is for text"),
    ],
)
def test_rule_that_does_not_go_with_a_type_is_refused(entry: RuleEntry, says: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        rules(RuleEntry(not_null=("b",)), entry)
    assert str(refused.value).startswith("Topic t: rules: ")
    assert says in str(refused.value)


ROWS = pa.table(
    {
        "n": pa.array([None, 1, 2, -1, None, -3, 5], pa.int32()),
        "s": pa.array(["a", "b", None, "b", "c", "a", "z"]),
    }
)
PLACES = {
    "partition": pa.array([1, 1, 1, 0, 0, 0, 1], pa.int32()),
    "offset": pa.array([5, 6, 7, 9, 8, 10, 8], pa.int64()),
}


def counted(ways: Sequence[OnFailure], parts: Sequence[slice]) -> tuple[list[Any], list[Any]]:
    """Ask parts of the rows in a task each; return all results, and what each row breaks."""
    entries = [RuleEntry(not_null=("n",)), in_range("n", 0), accepts("s", "a", "b")]
    made = rules(*(entry.model_copy(update={"on_failure": way}) for entry, way in zip(entries, ways, strict=True)))
    found, refused, records = list[Any](), list[Any](), pa.record_batch(PLACES)
    for part in parts:
        asked = RuleChecker(made.tests, ARROW)
        start, count = part.start, part.stop - part.start
        broken = asked.add(ROWS.slice(start, count), records.slice(start, count))
        bad = asked.refuses(broken)
        classes, messages = asked.reasons(broken[bad])
        refused += zip(
            [start + int(n) for n in bad.nonzero()[0]], classes.to_pylist(), messages.to_pylist(), strict=True
        )
        found.append(asked.answers())
    rows, by_rule = merged_answers(found)
    return list(made.results(rows, by_rule)), refused


def test_answers_of_several_tasks_add_up_and_name_the_first_broken_row() -> None:
    ways: Sequence[OnFailure] = ("dead_letter", "dead_letter", "warn")
    for parts in ([slice(0, 7)], [slice(0, 2), slice(2, 3), slice(3, 7)]):
        results, refused = counted(ways, parts)
        assert [(r.evaluated, r.failed, r.nulls, r.first) for r in results] == [
            (7, 2, 0, (0, 8)),
            (7, 2, 2, (0, 9)),
            (7, 2, 1, (0, 8)),
        ]
        assert [(row, error_class) for row, error_class, _ in refused] == [
            (0, "rule:not_null_n"),
            (3, "rule:range_n"),
            (4, "rule:not_null_n"),
            (5, "rule:range_n"),
        ]
        # A rule that warns makes no dead letter, and is named in those of other rules.
        assert refused[2][2] == "Breaks 2 rules: not_null_n (n is not null); accepted_values_s (s is one of a, b)."


def test_row_that_leaves_a_column_unchanged_may_lack_it() -> None:
    asked = RuleChecker(rules(RuleEntry(not_null=("n",))).tests, ARROW)
    unchanged = pa.array([["n"], [], [], [], ["s"], [], []], pa.list_(pa.string()))
    assert asked.add(ROWS, pa.record_batch(PLACES), unchanged).nonzero()[0].tolist() == [4]


def test_row_says_nothing_of_a_column_that_it_leaves_out() -> None:
    made = rules(RuleEntry(not_null=("n", "s")), in_range("n", 0))
    batch = pa.record_batch(
        {
            "topic_id": pa.array(["T"] * 3),
            "partition": pa.array([0] * 3, pa.int32()),
            "offset": pa.array([1, 2, 3], pa.int64()),
            "column_0": pa.array([None, None, -1], pa.int32()),
            "column_1": pa.array(["a", None, None]),
            "unchanged": pa.array([["n"], [], ["n", "s"]], pa.list_(pa.string())),
        }
    )
    columns = {("n",): "column_0", ("s",): "column_1"}
    (found,) = check_frame({"tests": made.tests, "columns": columns})([batch])
    assert found.to_pydict() == {
        "topic_id": ["T"] * 3,
        "partition": [0] * 3,
        "offset": [1, 2, 3],
        "broken": [0, 0b011, 0b100],
        "unanswered": [0b101, 0b100, 0b011],
    }
