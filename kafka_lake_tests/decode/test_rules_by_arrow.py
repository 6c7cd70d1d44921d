"""Rules that Arrow asks while it writes, beside Spark and Java, who would be asked otherwise: the same answers."""

import math
import random
from collections.abc import Sequence
from datetime import UTC, date, datetime
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    TimestampType,
    TimestamptzType,
)
from pyspark.sql import SparkSession

from kafka_lake.components.resources.spark import SparkResource
from kafka_lake.executors.writing.rules import Asked as AskedOfArrow
from kafka_lake.executors.writing.rules import _matches, merged_answers
from kafka_lake.ingest.rule import AcceptedValues, NullShare, Pattern, Range, Rule, RuleEntry, rules_of
from kafka_lake.ingest.rules.by_arrow import Answers, as_re2, may_set_apart, rules_for_arrow
from kafka_lake.ingest.rules.evaluate import Asked, evaluate
from kafka_lake_tests.lanes import exhaustive

pytestmark = pytest.mark.integration

BIG = 2**53
VALUES: dict[str, tuple[Any, list[Any]]] = {
    "n": (IntegerType(), [-1, 0, 1, 2, 2**31 - 1]),
    "m": (IntegerType(), [-1, 0, 1, 2]),
    "big": (LongType(), [-1, 0, 1, BIG, BIG + 1, 2**63 - 1]),
    "x": (DoubleType(), [-0.0, 0.0, 0.1, 0.5, 1.0, 1e300, math.inf, -math.inf]),
    "y": (DoubleType(), [0.0, 0.5, math.nan]),
    "f": (FloatType(), [0.1, 0.5, 1.0]),
    "s": (StringType(), ["", "new", "paid", "it's", "a\nb", "new\n", "NEW", "ñandú", "\U0001f355", "\x00"]),
    "t": (StringType(), ["new", "paid", ""]),
    "b": (BooleanType(), [True, False]),
    "day": (DateType(), [date(1, 1, 1), date(2026, 1, 1), date(2026, 1, 2), date(9999, 12, 31)]),
    "due": (DateType(), [date(2026, 1, 1), date(2026, 1, 3)]),
    "at": (TimestamptzType(), [datetime(1500, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, 12, 0, 0, 1, tzinfo=UTC)]),
    "local": (TimestampType(), [datetime(2026, 1, 1), datetime(2026, 1, 1, 12, 0, 0, 1)]),
    "d": (DecimalType(9, 2), []),
    "a.b": (StringType(), ["new", "x"]),
    "Case": (LongType(), [1, 2]),
}
SCHEMA = Schema(*(NestedField(n, name, kind) for n, (name, (kind, _)) in enumerate(VALUES.items(), 1)))
ALIKE = [
    ["n", "m", "big", "0", "1", "-1", "2.0", "9007199254740992"],
    ["x", "y", "y", "0", "0.1", "-0.5", "1", "0.0"],
    ["s", "t", "'new'", "''"],
    ["day", "due", "day"],
]
OPERANDS = [
    *("n", "m", "big", "x", "y", "f", "s", "t", "b", "day", "due", "at", "local", "d", "case", "`Case`", "later"),
    *("0", "1", "-1", "0.0", "0.1", "-0.5", "1.0", "2.5", "1e0", "9007199254740993", "99999999999999999999", "5L"),
    *("'new'", "'it\\'s'", "''", "'2026-01-01'", "NULL", "true", "n + 1", "upper(s)", "current_date"),
]


def an_entry(draw: random.Random) -> RuleEntry:
    column = draw.choice(list(VALUES))
    kind = draw.choice(["not_null", "accepted_values", "range", "pattern", "expression", "expression", "null_share"])
    if kind == "not_null":
        return RuleEntry(not_null=(column,))
    if kind == "null_share":
        return RuleEntry(null_share=NullShare(column, "50%"))
    if kind == "accepted_values":
        every = draw.choice([("new", "paid", "it's", "a\nb", "", "\U0001f355"), (0, 1, -1), (True,), (1, 2**40)])
        return RuleEntry(accepted_values=AcceptedValues(column, every))
    if kind == "range":
        bounds = [None, 0, 0.1, -1, BIG, 10**25, "2026-01-01", "2026-01-01T12:00:00.000001", "2026-01-01T00:00+05:30"]
        least, greatest = draw.choice(bounds), draw.choice(bounds)
        return RuleEntry(range=Range(column, 0 if least is None and greatest is None else least, greatest))
    if kind == "pattern":
        return RuleEntry(pattern=Pattern(column, draw.choice(["^(new|paid)?$", "[a-zñ]", "^.*$", r"^\w+$", "e"])))
    return RuleEntry(expression=an_expression(draw, 2))


def an_expression(draw: random.Random, depth: int) -> str:
    if depth and draw.random() < 0.6:
        left, right = an_expression(draw, depth - 1), an_expression(draw, depth - 1)
        return draw.choice([f"{left} AND {right}", f"({left}) OR {right}", f"NOT ({left})", f"NOT {right}"])
    # What goes with each other, mostly.
    one, other, third = draw.choices(OPERANDS, k=3)
    if draw.random() < 0.8:
        one, other, third = draw.choices(draw.choice(ALIKE), k=3)
    if draw.random() < 0.2:
        return draw.choice([f"{one} IS NULL", f"{one} IS NOT NULL", f"{one} BETWEEN {other} AND {third}"])
    return f"{one} {draw.choice(['=', '==', '<>', '!=', '<', '<=', '>', '>=', '<=>'])} {other}"


def a_table(draw: random.Random, nulls: float) -> pa.Table:
    columns = schema_to_pyarrow(SCHEMA, include_field_ids=False)
    count = draw.choice([1, 3, 40])
    # Few values in a column, so that rules are kept by all rows now and then.
    few = {name: draw.sample(every, min(len(every), draw.choice([1, 2, 8]))) for name, (_, every) in VALUES.items()}
    drawn = {
        name: [draw.choice(every) if every and draw.random() >= nulls else None for _ in range(count)]
        for name, every in few.items()
    }
    return pa.table({field.name: pa.array(drawn[field.name], field.type) for field in columns})


def asked_by_arrow(table: pa.Table, rules: Sequence[Rule], set_apart: bool) -> Answers:
    """Ask rows in two halves, one of them by each of two tasks."""
    tests, half = rules_for_arrow(rules, SCHEMA), table.num_rows // 2
    offsets = pa.array(range(table.num_rows), pa.int64())
    records = pa.record_batch({"partition": pa.array([0] * table.num_rows, pa.int32()), "offset": offsets})
    answers = []
    for begin, count in ((0, half), (half, table.num_rows - half)):
        asked = AskedOfArrow(tests, table.schema)
        asked.add(table.slice(begin, count), records.slice(begin, count))
        answers.append(asked.answers())
    return Answers(*merged_answers(answers), set_apart=set_apart)


@pytest.mark.parametrize("seed", [0, exhaustive(1)])
def test_what_arrow_answers_spark_answers_too(seed: int, spark_resource: SparkResource) -> None:
    draw, session = random.Random(seed), spark_resource.spark_session
    answered, kept = dict[str, int](), 0
    for number in range(12):
        table = a_table(draw, draw.choice([0, 0.3]))
        rules = tuple(
            rule for n in range(40) for rule in rules_of([RuleEntry(**{**vars(an_entry(draw)), "name": f"r{n}"})])
        )
        answers = asked_by_arrow(table, rules, set_apart=True)
        # What Arrow doesn't answer may be no rule to Spark; what it does answer must be one.
        asked = tuple(rule for rule in rules if rule.name in answers.by_rule)
        offsets = pa.array(range(table.num_rows), pa.int64())
        place = pa.StructArray.from_arrays(
            [pa.nulls(len(offsets), pa.string()), pa.array([0] * len(offsets), pa.int32()), offsets],
            ["topic_id", "partition", "offset"],
        )
        rows = session.createDataFrame(table.append_column("_kafka", place))
        verdict = evaluate(Asked(topic="t", rules=asked, rows=rows, column="_kafka"))
        by_partition = asked_by_arrow(table, rules, set_apart=False)
        for result in verdict.results:
            assert answers.result(result.rule) == result, f"{seed} {number} {result.rule.said}"
            if not result.failed or not result.rule.is_of_rows:
                assert by_partition.result(result.rule) == result
                kept += 1
            else:
                assert by_partition.result(result.rule) is None
            answered[result.rule.kind] = answered.get(result.rule.kind, 0) + 1
    assert set(answered) == {"not_null", "accepted_values", "range", "pattern", "expression", "null_share"}
    assert min(answered.values()) >= 3, answered
    assert answered["expression"] >= 30
    assert kept >= 50


def test_usual_rules_have_a_test_and_doubtful_ones_have_none() -> None:
    def has(**entry: Any) -> bool:
        return bool(rules_for_arrow(rules_of([RuleEntry(**entry)]), SCHEMA))

    usual = [
        {"not_null": ("a.b",)},
        {"accepted_values": AcceptedValues("s", ("new", "paid"))},
        {"range": Range("x", 0, 10_000)},
        {"range": Range("at", "2026-01-01")},
        {"pattern": Pattern("s", r"^[^@\s]+@[^@]+$".replace(r"\s", " "))},
        {"pattern": Pattern("s", r"^\d{4}-\d{2}-\d{2}$")},
        {"expression": "n >= 0 AND x >= 0.0"},
        {"expression": "day <= due OR due IS NULL"},
    ]
    assert [each for each in usual if not has(**each)] == []
    doubtful = [
        {"not_null": ("later",)},
        {"not_null": ("case",)},
        {"accepted_values": AcceptedValues("x", (0.5,))},
        {"range": Range("f", 0.1)},
        {"range": Range("d", 0)},
        {"range": Range("n", 0.5)},
        {"pattern": Pattern("n", "1")},
        {"pattern": Pattern("s", r"(?i)new")},
        {"expression": "n > x"},
        {"expression": "n + 1 > 0"},
        {"expression": "s > 'a'"},
        {"expression": "x > 1e400"},
        {"expression": "day > '2026-01-01'"},
        {"expression": "b"},
        {"expression": "n > 0 -- to Spark, the next line is comment, too: \\\n AND n < 5"},
        {"expression": "n > 0;"},
        {"expression": "n NOT NULL"},
        {"expression": "n ISNULL"},
        {"expression": 's = "t"'},
        {"accepted_values": AcceptedValues("s", ("\ud800",))},
        {"expression": "n BETWEEN ASYMMETRIC 1 AND 2"},
        {"expression": "(" * 400 + "n > 0" + ")" * 400},
        {"range": Range("at", max="9999-12-31T23:59:59-01:00")},
        {"range": Range("at", max="2026-01-01T00:00+18:30")},
        {"range": Range("at", max="2026-01-01T00:00+05:30:15.000001")},
    ]
    assert [each for each in doubtful if has(**each)] == []


PIECES = [
    *("a", "b", "é", "@", "-", " ", ".", "^", "$", "|", "(", ")", "(?:", "*", "+", "?", "??", "{2}", "{0,3}", "{1,}"),
    *("{,2}", "[ab]", "[^ab]", "[a-c]", "[a-]", "[^-a]", "[.*+]", "[a|b]", r"[\d_]", r"[^\w]", r"\d", r"\w", r"\."),
    *(
        r"\s",
        "^",
        "$",
        "$",
        "|",
        ")",
        "[+--]",
        "[a-c-e]",
        "[a-\\d]",
        "[b-a]",
        "&",
        "[a&&b]",
        "[[a]]",
        "#",
        "\\b",
        "\\n",
        "{1001}",
        "(a{900}){900}",
    ),
]
CHARACTERS = [*"aab bc-@.1_\n\r\x0b\x85\u2028é\U0001f355&#+", "\r\n", "\r\n"]


@pytest.mark.parametrize("seed", range(2))
def test_what_re2_finds_java_finds(seed: int, spark_session_of_java: SparkSession) -> None:
    draw = random.Random(seed)
    java = spark_session_of_java.sparkContext._jvm.java.util.regex.Pattern
    translated, found = 0, 0
    for _ in range(1500):
        regex = "".join(draw.choice(PIECES) for _ in range(draw.randrange(1, 6)))
        said = as_re2(regex)
        if said is None:
            continue
        translated += 1
        texts = ["".join(draw.choices(CHARACTERS, k=draw.randrange(0, 6))) for _ in range(10)]
        pattern = java.compile(regex)
        for text, matches in zip(texts, _matches(pa.array(texts), said).to_pylist(), strict=True):
            assert matches == pattern.matcher(text).find(), (regex, text)
            found += matches
    assert translated > 300
    assert found > 300


@pytest.fixture
def spark_session_of_java(spark_resource: SparkResource) -> SparkSession:
    """Give the session, whose Java can be asked directly."""
    session = spark_resource.spark_session
    assert session.sparkContext is not None
    return session


def test_a_rule_that_one_part_of_the_rows_cant_answer_isnt_answered() -> None:
    rules = rules_of([RuleEntry(expression="x <= y"), RuleEntry(not_null=("n",))])
    table = a_table(random.Random(1), 0).slice(0, 1)
    place, field = table.schema.get_field_index("y"), table.schema.field("y")
    tables = [table.set_column(place, field, [pa.array([y], pa.float64())]) for y in (1.0, math.nan, 2.0)]
    answers = asked_by_arrow(pa.concat_tables(tables), rules, set_apart=True)
    assert not answers.may_stay(rules)
    assert answers.may_stay(rules[1:])
    assert answers.rows == 3
    assert answers.by_rule == {"not_null_n": (3, 0, ())}


def test_more_rules_than_a_row_can_tell_are_asked_and_set_no_row_apart() -> None:
    rules = rules_of([RuleEntry(range=Range("n", least), name=f"r{least}") for least in range(70)])
    tests, table = rules_for_arrow(rules, SCHEMA), a_table(random.Random(1), 0).slice(0, 1)
    records = pa.record_batch({"partition": pa.array([0], pa.int32()), "offset": pa.array([0], pa.int64())})
    asked = AskedOfArrow(tests, table.schema)
    asked.refuses(asked.add(table, records))
    assert len(asked.answers()[1]) == 70
    assert not may_set_apart(rules, tests)
