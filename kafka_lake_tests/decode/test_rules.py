"""Rules asked of Spark's rows, beside a model of them in Python: which rows pass or break them, and which go."""

import math
import random
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from kafka_lake.errors import ConfigurationError
from kafka_lake.orchestration.resources import SparkResource
from kafka_lake.quality.evaluate import evaluate
from kafka_lake.quality.validation import BROADCAST_ROWS, ReferencedTable, Validation, ValidationResult
from kafka_lake.spec.rule import (
    BY_ARROW,
    AcceptedValues,
    ForeignKey,
    OnFailure,
    Pattern,
    Range,
    RowCount,
    Rule,
    RuleEntry,
    rules_of,
)
from kafka_lake_tests.exhaustive import exhaustive

pytestmark = pytest.mark.integration

Row = dict[str, Any]
Place = tuple[str, int, int]
DDL = (
    "_kafka struct<topic_id: string, partition: int, offset: bigint>, n int, x double, d decimal(8, 2), s string, "
    "b boolean, at timestamp, who struct<name: string>, `a.b` string"
)
# What each says of a row in Python: True, False, or None where nothing can be said.
Model = Callable[[Row], bool | None]


def null_or(value: Any, answer: Callable[[Any], bool]) -> bool | None:
    return None if value is None else answer(value)


# NaN is in no range, and greater than any number in an expression of Spark's.
POSSIBLE: list[tuple[RuleEntry, Model]] = [
    (RuleEntry(not_null=("n",)), lambda r: r["n"] is not None),
    (RuleEntry(not_null=("who.name",)), lambda r: r["who"] is not None and r["who"]["name"] is not None),
    (
        RuleEntry(accepted_values=AcceptedValues(column="s", values=("new", "it's", "\\d"))),
        lambda r: null_or(r["s"], lambda s: s in ("new", "it's", "\\d")),
    ),
    (
        RuleEntry(accepted_values=AcceptedValues(column="n", values=(1, 2, 3))),
        lambda r: null_or(r["n"], lambda n: n in (1, 2, 3)),
    ),
    (RuleEntry(accepted_values=AcceptedValues(column="b", values=(True,))), lambda r: r["b"]),
    (RuleEntry(range=Range(column="n", min=0, max=3)), lambda r: null_or(r["n"], lambda n: 0 <= n <= 3)),
    (RuleEntry(range=Range(column="x", max=0.5)), lambda r: null_or(r["x"], lambda x: not math.isnan(x) and x <= 0.5)),
    (RuleEntry(range=Range(column="d", min=1.5)), lambda r: null_or(r["d"], lambda d: d >= 1.5)),
    (
        RuleEntry(range=Range(column="at", min="2026-01-02", max="2026-01-03T12:00:00")),
        lambda r: null_or(r["at"], lambda at: "2026-01-02 00:00:00" <= at <= "2026-01-03 12:00:00"),
    ),
    (
        RuleEntry(pattern=Pattern(column="s", regex="^n|'")),
        lambda r: null_or(r["s"], lambda s: bool(re.search("^n|'", s))),
    ),
    (
        RuleEntry(pattern=Pattern(column="a.b", regex=r"\d")),
        lambda r: null_or(r["a.b"], lambda s: bool(re.search(r"\d", s))),
    ),
    (RuleEntry(expression="n > x", name="n_beyond_x"), lambda r: beyond(r["n"], r["x"])),
    (
        RuleEntry(expression="_kafka.partition = 0 OR n IS NOT NULL", name="by_origin"),
        lambda r: r["_kafka"]["partition"] == 0 or r["n"] is not None,
    ),
    # A column that no record has shown yet is null.
    (RuleEntry(range=Range(column="later", min=0), name="of_later"), lambda r: None),
    (RuleEntry(not_null=("later",)), lambda r: False),
    (RuleEntry(expression="later > 5 OR n = 1", name="with_later"), lambda r: True if r["n"] == 1 else None),
]


def beyond(n: int | None, x: float | None) -> bool | None:
    return None if n is None or x is None else not math.isnan(x) and n > x


def rows_by(draw: random.Random, count: int) -> list[Row]:
    values: dict[str, list[Any]] = {
        "n": [None, -1, 0, 1, 2, 3, 4],
        "x": [None, 0.5, -2.0, 7.25, math.nan],
        "d": [None, 1.0, 1.5, 2.25],
        "s": [None, "", "new", "it's", "\\d", "5", "an"],
        "b": [None, True, False],
        "at": [None, "2026-01-01 23:59:59", "2026-01-02 00:00:00", "2026-01-03 12:00:00", "2026-01-03 12:00:01"],
        "who": [None, {"name": None}, {"name": "a"}],
        "a.b": [None, "7", "x"],
    }
    rows = []
    for place in range(count):
        origin = {"topic_id": "T", "partition": place % 2, "offset": place * 3}
        rows.append({"_kafka": origin, **{name: draw.choice(every) for name, every in values.items()}})
    return rows


@pytest.fixture
def frame(spark_resource: SparkResource) -> Callable[[Sequence[Row]], DataFrame]:
    session = spark_resource.spark_session

    def make(rows: Sequence[Row]) -> DataFrame:
        text = DDL.replace("at timestamp", "at string").replace("d decimal(8, 2)", "d double")
        found = session.createDataFrame([tuple(row.values()) for row in rows], text)
        return found.withColumn("at", found["at"].cast("timestamp")).withColumn("d", found["d"].cast("decimal(8, 2)"))

    return make


def asked(rows: DataFrame, rules: Sequence[Rule], **settings: Any) -> ValidationResult:
    return evaluate(Validation(topic="orders", rules=tuple(rules), rows=rows, column="_kafka", **settings))


def place(row: Row) -> Place:
    return row["_kafka"]["topic_id"], row["_kafka"]["partition"], row["_kafka"]["offset"]


def model_of(rows: Sequence[Row], rules: Sequence[Rule], models: Mapping[str, Model]) -> dict[Place, list[str]]:
    """Return the rules for which each row is refused, in their order, with those that only warn of it.

    Rules that Arrow asks come first: a row that one of them refuses isn't asked the others.
    """
    by_arrow = tuple(rule for rule in rules if rule.kind in BY_ARROW)
    if len(by_arrow) not in (0, len(rules)):
        found = model_of(rows, by_arrow, models)
        left = [row for row in rows if place(row) not in found]
        return found | model_of(left, [rule for rule in rules if rule not in by_arrow], models)
    found = {}
    # By partition and offset: the first of equal keys stays, if nothing else refuses it.
    ordered = sorted(rows, key=place)
    alone = {place(row): [r.name for r in rules if r.name in models and models[r.name](row) is False] for row in rows}
    refusing = {rule.name for rule in rules if rule.on_failure == "dead_letter"}
    for rule in rules:
        seen = set[Any]()
        for row in ordered if rule.kind == "unique" else ():
            if None in (values := [row[name] for name in rule.columns]):
                continue
            key = repr(values)
            if key in seen:
                found.setdefault(place(row), []).append(rule.name)
            if not refusing & set(alone[place(row)]):
                seen.add(key)
    return {
        where: alone[where] + found.get(where, [])
        for where in map(place, rows)
        if found.get(where) or refusing & set(alone[where])
    }


@pytest.mark.parametrize("seed", [0, exhaustive(1)])
def test_rule_engine_matches_model(seed: int, frame: Callable[[Sequence[Row]], DataFrame]) -> None:
    draw = random.Random(seed)
    rows = rows_by(draw, 300)
    possible = draw.sample(POSSIBLE, 8) if seed else POSSIBLE
    ways: tuple[OnFailure, ...] = ("dead_letter", "dead_letter", "warn")
    entries = [entry.model_copy(update={"on_failure": draw.choice(ways)}) for entry, _ in possible]
    entries.append(RuleEntry(unique=draw.choice([("n", "s"), ("s", "b", "x"), ("who", "d")])))
    rules = rules_of(entries)
    models = {rule.name: model for rule, (_, model) in zip(rules, possible, strict=False)}
    verdict = asked(frame(rows), rules)
    gone = model_of(rows, [rule for rule in rules if rule.kind in BY_ARROW], models)
    for result in verdict.results:
        mine = [row for row in rows if result.rule.kind in BY_ARROW or place(row) not in gone]
        answers = [models[result.rule.name](row) for row in mine] if result.rule.name in models else None
        if answers is not None:
            assert (result.failed, result.nulls) == (answers.count(False), answers.count(None)), result.rule.name
            broken = [place(row)[1:] for row, answer in zip(mine, answers, strict=True) if answer is False]
            assert result.first == min(broken, default=None)
        assert result.passed + result.failed == result.evaluated == len(mine)
    expected = model_of(rows, rules, models)
    assert verdict.refused is not None
    reported = verdict.refused.records.to_pylist()
    assert len(reported) == len({(r["topic_id"], r["partition"], r["offset"]) for r in reported})
    reasons = {(r["topic_id"], r["partition"], r["offset"]): verdict.refused.reasons[r["reason"]] for r in reported}
    assert {where: named(message) for where, (_, message) in reasons.items()} == expected
    refusing = {rule.name for rule in rules if rule.on_failure == "dead_letter"}
    for where, (error_class, _) in reasons.items():
        assert error_class == f"rule:{next(name for name in expected[where] if name in refusing)}"


def named(message: str) -> list[str]:
    return [part.split(" (")[0] for part in message.split(": ", 1)[1].split("; ")]


@pytest.mark.exhaustive
def test_dead_letter_replay_compares_with_table_rows(
    frame: Callable[[Sequence[Row]], DataFrame],
) -> None:
    rows = rows_by(random.Random(1), 6)
    for number, row in enumerate(rows):
        row["n"] = number // 2
    rules = rules_of([RuleEntry(unique=("n",))])
    verdict = asked(frame(rows[2:]), rules, existing=frame(rows[:3]))
    assert verdict.refused is not None
    # 1 is in the table already; of the two with 2 the first stays.
    found = [(r["partition"], r["offset"]) for r in verdict.refused.records.to_pylist()]
    assert sorted(found) == [(0, 6), (1, 9), (1, 15)]


@pytest.mark.parametrize("count", [exhaustive(3), BROADCAST_ROWS + 1])
def test_a_foreign_key_is_in_the_other_table_and_null_passes(
    count: int, frame: Callable[[Sequence[Row]], DataFrame]
) -> None:
    rows = rows_by(random.Random(3), 200)
    # Twice and with nulls, as no table of ours has its key, but others may.
    others = [*rows[:40], *rows[:20]]
    held = frame(others).selectExpr("CAST(n AS bigint) AS number", "s", "who")
    tables = {"lake.others": ReferencedTable(held, 7, count)}
    one, both = (
        ForeignKey(columns=("n",), table="lake.others", to=("number",)),
        ForeignKey(columns=("n", "s"), table="lake.others", to=("number", "S")),
    )
    rules = rules_of([RuleEntry(foreign_key=one), RuleEntry(foreign_key=both), RuleEntry(unique=("d",))])
    verdict = asked(frame(rows), rules, tables=tables)
    for result, names in zip(verdict.results, (("n",), ("n", "s")), strict=False):
        there = {tuple(row[name] for name in names) for row in others}
        of_rows = [tuple(row[name] for name in names) for row in rows]
        broken = [place(row) for row, key in zip(rows, of_rows, strict=True) if None not in key and key not in there]
        assert (result.evaluated, result.failed, result.snapshot) == (200, len(broken), 7)
        assert result.nulls == sum(None in key for key in of_rows)
        assert verdict.refused is not None
        reported = verdict.refused.records.to_pylist()
        refused = {
            (r["topic_id"], r["partition"], r["offset"])
            for r in reported
            if result.rule.name in named(verdict.refused.reasons[r["reason"]][1])
        }
        assert refused == set(broken)
    for given, says in ((("s",), "s is string, and number of lake.others is bigint"), (("n",), "has no column m")):
        wrong = ForeignKey(columns=given, table="lake.others", to=("number" if given == ("s",) else "m",))
        with pytest.raises(ConfigurationError, match=says):
            asked(frame(rows), rules_of([RuleEntry(foreign_key=wrong)]), tables=tables)


@pytest.mark.exhaustive
def test_unique_may_look_at_the_rows_of_earlier_commits(frame: Callable[[Sequence[Row]], DataFrame]) -> None:
    def at(rows: Sequence[Row], *days: int) -> DataFrame:
        days_of = F.element_at(F.lit(list(days)), F.col("n"))
        time = F.timestamp_seconds(F.lit(1_700_000_000)) + F.make_dt_interval(days=days_of)
        return frame(rows).withColumn("_kafka", F.col("_kafka").withField("timestamp", time)).drop("n")

    rows = rows_by(random.Random(1), 6)
    for number, row in enumerate(rows):
        row["n"], row["s"] = number + 1, "abcabc"[number]
    earlier, new = rows[:3], rows[3:]
    for within, refused in (("7d", {"c"}), ("1.5d", set()), ("table", {"a", "c"}), (None, set())):
        verdict = asked(
            at(new, 0, 0, 0, 20, 20, 12), rules_of([RuleEntry(unique=("s",), within=within)]),
            earlier=at(earlier, 0, 30, 9).filter("s <> 'b'"),
        )  # fmt: skip
        assert verdict.results[0].failed == len(refused), within
        places = {place(row) for row in new if row["s"] in refused}
        found = verdict.refused.records.to_pylist() if verdict.refused else []
        assert {(r["topic_id"], r["partition"], r["offset"]) for r in found} == places


def test_rules_about_a_commit(frame: Callable[[Sequence[Row]], DataFrame]) -> None:
    rows = rows_by(random.Random(1), 40)
    counts = [RowCount(min=41), RowCount(min=40, max=40), RowCount(min=0, max=39)]
    entries = [RuleEntry(row_count=count, name=f"of_{count.min}") for count in counts]
    verdict = asked(frame(rows), rules_of(entries))
    assert [(r.rule.name, r.failed, r.fails) for r in verdict.results] == [
        ("of_41", 1, True),
        ("of_40", 0, False),
        ("of_0", 1, True),
    ]
    assert verdict.refused is None


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        (RuleEntry(range=Range(column="s", min=0)), "s is string, and a range is for numbers and times"),
        (RuleEntry(expression="s RLIKE '*a'", name="like"), "rules: like: Spark can't evaluate it"),
        (RuleEntry(expression="n >", name="cut"), "rules: cut: 'n >' isn't a condition"),
        (RuleEntry(expression="n + 1", name="number"), "rules: number: 'n + 1' isn't a condition"),
        (RuleEntry(expression="sum(n) > 1", name="total"), "rules: total: 'sum(n) > 1' isn't a condition"),
        (RuleEntry(expression="no_function(n)", name="calls"), "rules: calls: 'no_function(n)' isn't a condition"),
    ],
)
def test_invalid_rule_is_refused_by_name(
    entry: RuleEntry, says: str, frame: Callable[[Sequence[Row]], DataFrame]
) -> None:
    with pytest.raises(ConfigurationError) as refused:
        asked(frame(rows_by(random.Random(2), 20)), rules_of([RuleEntry(not_null=("b",), on_failure="warn"), entry]))
    assert says in str(refused.value)
    assert "Topic orders" in str(refused.value)


@pytest.mark.parametrize(
    ("entry", "unknown"),
    [
        (RuleEntry(expression="who.age > 1"), ("age",)),
        (RuleEntry(expression="customer.email = 'x' AND n > 100"), ("customer.email",)),
        (RuleEntry(expression="exists(tags, t -> t > 100)"), ("tags",)),
        (RuleEntry(expression="`t``ags` + 1 > 0"), ("t`ags",)),
    ],
)
def test_expression_on_missing_field_is_not_evaluated(
    entry: RuleEntry, unknown: tuple[str, ...], frame: Callable[[Sequence[Row]], DataFrame]
) -> None:
    rows = frame(rows_by(random.Random(2), 3))
    verdict = asked(rows, rules_of([entry]))
    assert [(r.failed, r.nulls, r.unknown) for r in verdict.results] == [(0, 3, unknown)]
    with pytest.raises(ConfigurationError, match="isn't a condition on the rows"):
        asked(rows, rules_of([entry]), declared=True)


@pytest.mark.parametrize("entry", [RuleEntry(not_null=("m",)), RuleEntry(expression="m > 1")])
def test_where_all_columns_are_declared_another_one_is_refused(
    entry: RuleEntry, frame: Callable[[Sequence[Row]], DataFrame]
) -> None:
    with pytest.raises(ConfigurationError, match="columns are _kafka, n, x"):
        asked(frame(rows_by(random.Random(2), 3)), rules_of([entry]), declared=True)
