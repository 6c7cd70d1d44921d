"""Rules without an engine: what is declared, what it is called, when it fails a run, and what is told of it."""

from itertools import pairwise
from typing import Any

import dagster as dg
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kafka_lake.errors import ConfigurationError, EngineUnavailableError
from kafka_lake.formats import meaning_of
from kafka_lake.ingest.report import merged
from kafka_lake.orchestration.check_results import check_result
from kafka_lake.orchestration.metadata import SPEC
from kafka_lake.quality import custom_check as checks
from kafka_lake.quality.custom_check import Checked, CheckResult, run_check
from kafka_lake.quality.result import FEW, Refused, RuleResult, count_result, exceeds, reason_of
from kafka_lake.runtime.commit import rule_finding
from kafka_lake.spec.rule import (
    AcceptedValues,
    OnFailure,
    Pattern,
    Range,
    RowCount,
    Rule,
    RuleEntry,
    rules_of,
)
from kafka_lake.spec.topic_table import TopicTable
from kafka_lake.writers.task.writer import without_refused
from kafka_lake_tests.unit.orchestration.test_component import load, refusal, resolved

ISSUE = """
topic: orders
table:
  rules:
    - not_null: [order_id, store]
    - accepted_values: {column: status, values: [new, 5, "5", true]}
    - range: {column: amount, min: 0, max: 10000}
    - pattern: {column: email, regex: '^[^@]+@[^@]+$'}
    - {expression: total >= tax, name: total_covers_tax, on_failure: warn, fail_above: 20%}
    - unique: [order_id, store]
    - row_count: {min: 1}
"""


def rule(on_failure: OnFailure | None = None, fail_above: int | str | None = None, **entry: Any) -> Rule:
    given = entry or {"range": Range(column="amount", min=0)}
    return rules_of([RuleEntry(**given, on_failure=on_failure, fail_above=fail_above)])[0]


def test_a_document_gives_the_rules_and_their_checks() -> None:
    component, defs = load(ISSUE)
    spec: TopicTable = component.topic_table()
    assert [(r.name, r.on_failure, r.fail_above) for r in spec.named_rules] == [
        ("not_null_order_id", "dead_letter", "5%"),
        ("not_null_store", "dead_letter", "5%"),
        ("accepted_values_status", "dead_letter", "5%"),
        ("range_amount", "dead_letter", "5%"),
        ("pattern_email", "dead_letter", "5%"),
        ("total_covers_tax", "warn", "20%"),
        ("unique_order_id_store", "dead_letter", "5%"),
        ("row_count", "fail", None),
    ]
    # A number isn't a text, nor a truth value a number: columns of one type have no values of another.
    assert [repr(v) for v in spec.rules[1].accepted_values.values] == ["'new'", "5", "'5'", "True"]  # type: ignore[union-attr]
    graph = resolved(defs)
    table = dg.AssetKey(["lake", "orders"])
    checks = {key.name: graph.get_check_spec(key) for key in graph.asset_check_keys if key.asset_key == table}
    blocking = {name: check.blocking for name, check in checks.items() if name.startswith("rule_")}
    assert blocking == {r.check: r.name != "total_covers_tax" for r in spec.named_rules}
    assert checks["rule_range_amount"].description == "Rule: amount is from 0 to 10000."
    assert graph.get(table).metadata[SPEC] == spec


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ("rules: [{}]", "has no kind. Write exactly one of not_null, accepted_values"),
        ("rules: [{not_null: [a], unique: [a]}]", "has not_null, unique"),
        ("rules: [{not_null: {a: b}}]", "not_null"),
        ("rules: [{not_nul: [a]}]", "not_nul"),
        ("rules: [{foreign_key: {column: a}}]", "foreign_key"),
        ("rules: [{unique: [a], name: a-b}]", "name: 'a-b' can't be a name"),
        ("rules: [{unique: [a]}, {unique: [a]}]", "unique_a occurs twice"),
        ("rules: [{expression: a > b}, {expression: a < b}]", "expression_a_b occurs twice"),
        ("rules: [{unique: [a], on_failure: drop}]", "on_failure"),
        ("rules: [{accepted_values: {column: a, values: []}}]", "values: is empty"),
        ("rules: [{accepted_values: {column: a, values: [null]}}]", "values"),
        ("rules: [{accepted_values: {values: [1]}}]", "column"),
        ("rules: [{range: {column: a}}]", "range never fails"),
        ("rules: [{range: {column: a, min: 2, max: 1}}]", "min: 2 is above max: 1"),
        ("rules: [{range: {column: a, min: 2, max: '3'}}]", "have different types"),
        ("rules: [{range: {column: a, min: '10', max: '9'}}]", "'10' is not an ISO 8601 date or time"),
        ("rules: [{range: {column: a, min: '2026-01-01T00:00-05:00', max: '2026-01-01T02:00Z'}}]", "is above max"),
        ("rules: [{accepted_values: {column: a, values: [1.5, .nan]}}]", "values: NaN equals no value"),
        ("rules: [{range: {column: a, min: true}}]", "min"),
        ("rules: [{range: {column: a, max: .nan}}]", "NaN is not a bound"),
        ("rules: [{range: {column: a, min: .nan, max: 5}}]", "NaN is not a bound"),
        ("rules: [{pattern: {column: a, regex: '('}}]", "regex: '(' isn't a regular expression of RE2: missing )"),
        (
            "rules: [{pattern: {column: a, regex: '(?=b)'}}]",
            "expression of RE2: invalid perl operator: (?=",
        ),
        ("rules: [{pattern: {column: a, regex: ''}}]", "regex: is empty"),
        (f"rules: [{{not_null: {list('ab' * 32)}}}]", "at most 62 of not_null, accepted_values, range, pattern"),
        ("rules: [{expression: ' '}]", "expression: is empty"),
        ("rules: [{expression: 'TRUE'}]", "is the same for every row"),
        ("rules: [{expression: 'a in (select 1)'}]", "can't contain a query"),
        ("rules: [{row_count: {}}]", "row_count never fails"),
        ("rules: [{row_count: {min: 0}}]", "row_count never fails"),
        ("rules: [{row_count: {min: 2, max: 1}}]", "contains no number of rows"),
        ("rules: [{row_count: {min: 1}, on_failure: dead_letter}]", "no single row breaks row_count"),
        ("rules: [{row_count: {min: 1}, fail_above: 5%}]", "fail_above: has no effect"),
        ("rules: [{unique: [a], on_failure: fail, fail_above: 5%}]", "fail_above: has no effect"),
        ("rules: [{unique: [a], fail_above: 0}]", "fail_above: 0 allows no row to break the rule"),
        ("rules: [{unique: [a], fail_above: some}]", "'some' isn't a limit"),
        ("rules: [{unique: [a], on_failure: warn}]\n  write: upsert", "isn't supported with write: upsert"),
        ("rules: [{unique: [a], within: soon}]", "within: 'soon' is not a duration"),
        ("rules: [{not_null: [a], within: 7d}]", "within: applies only to unique"),
        ("rules: [{foreign_key: {columns: [], table: lake.b}}]", "columns: is empty"),
        ("rules: [{foreign_key: {columns: [a], table: lake.b, to: [a, b]}}]", "to: has 2 columns, and columns: has 1"),
        ("rules: [{foreign_key: {columns: [a], table: b}}]", "doesn't name a table. Write namespace.table"),
        ("rules: [{foreign_key: {columns: [a], table: lake.orders}}]", "lake.orders is the table itself"),
        ("rules: [{unique: [a]}]\n  dead_letters: skip", "unique_a: on_failure: dead_letter needs dead_letters: table"),
        ("rules: [{unique: [b]}]\n  columns: a int", "unique_b: b isn't in columns:, which are a"),
        ("rules: [{unique: [b]}]\n  exclude_fields: [b]", "unique_b: b is in exclude_fields:"),
        ("rules: [{not_null: [B.c]}]\n  exclude_fields: [b]", "not_null_B_c: B.c is in exclude_fields:"),
        ("rules: [{not_null: [a]}]\n  columns: a int not null, b int", "not_null_a: never fails: columns: says that a"),
        ("rules: [{check: a:b, on_failure: dead_letter}]", "no single row breaks check. Set fail or warn"),
        ("rules: [{check: a:b, fail_above: 5%}]", "fail_above: has no effect: no single row breaks check"),
        ("rules: [{check: checks.orders}]", "check: 'checks.orders' isn't a Python function"),
    ],
)
def test_what_cant_be_meant_or_has_no_effect_is_refused(document: str, says: str) -> None:
    assert says in refusal(f"topic: orders\ntable:\n  {document}")


@pytest.mark.parametrize(
    "document",
    [
        r"rules: [{pattern: {column: a, regex: '\p{L}+(?P<name>x)*?'}}]",
        "rules: [{expression: \"a = 'select'\", on_failure: fail}]",
        "rules: [{expression: '`select` > 1'}]",
        'rules: [{unique: [A, who.b, _kafka.key, _key]}]\n  columns: "a int, who struct<b: int>"\nkey: string',
        "rules: [{not_null: [b]}]\n  columns: 'a decimal(4, 2) not null, b struct<c: int not null>'",
        "rules: [{unique: [other]}]\n  columns: a int\n  transform: some:where",
        "rules: [{unique: [a], on_failure: warn}]\n  dead_letters: skip",
        "rules: [{unique: [a], on_failure: warn, fail_above: 5%}]",
        "rules: [{range: {column: a, min: '2026-01-01T05:00+05:00', max: '2026-01-01T02:00Z'}}]",
    ],
)
def test_what_may_be_meant_is_taken(document: str) -> None:
    component, _ = load(f"topic: orders\ntable:\n  {document}")
    assert component.topic_table().named_rules


@pytest.mark.parametrize(
    "result",
    [
        CheckResult("a", True, message=None),  # type: ignore[arg-type]
        CheckResult("a", None),  # type: ignore[arg-type]
        CheckResult("a", True, rows=1.5),  # type: ignore[arg-type]
        CheckResult(None, True),  # type: ignore[arg-type]
    ],
)
def test_check_with_odd_parts_is_refused_as_a_setting(result: CheckResult, monkeypatch: pytest.MonkeyPatch) -> None:
    # Any other error would be taken for that of a record, and be searched for among them.
    monkeypatch.setattr(
        checks, "_function", lambda _: lambda rows: [CheckResult("first", np.True_, np.int64(0)), result]
    )
    with pytest.raises(ConfigurationError, match="number 2 of its results needs name"):
        run_check("my_checks:odd", None, samples=True, mask=())  # type: ignore[arg-type]


def test_check_that_fails_for_a_temporary_reason_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def unanswered(_: Any) -> CheckResult:
        raise EngineUnavailableError("Spark doesn't answer.", "Try again.")

    monkeypatch.setattr(checks, "_function", lambda _: unanswered)
    with pytest.raises(EngineUnavailableError):
        run_check("my_checks:orders", None, samples=True, mask=())  # type: ignore[arg-type]


def test_check_lists_five_failures_in_errors_and_all_in_facts() -> None:
    found = Checked(tuple(CheckResult(f"c{n}", passed=n > 6, rows=n) for n in range(9)))
    finding = rule_finding(RuleResult(rule(check="a:b"), 50, 1, checked=found))
    assert finding.problems == (
        "of 50 rows, 7 of 9 checks fail: c0: 0 rows; c1: 1 row; c2: 2 rows; c3: 3 rows; c4: 4 rows; and 2 more; "
        "on_failure is fail",
    )
    assert finding.facts["failed: c6"] == "6 rows"
    reported = check_result(finding, dg.AssetKey("orders"))
    assert (reported.metadata["checks_failed"].value, "share_failed" in reported.metadata) == (7, False)


LIMITS = st.one_of(st.integers(1, 50), st.integers(1, 100).map("{}%".format))


@given(limit=LIMITS, evaluated=st.integers(0, 2000), failed=st.integers(0, 2000))
def test_a_limit_is_a_count_or_a_share_and_a_few_rows_are_never_too_large_a_share(
    limit: int | str, evaluated: int, failed: int
) -> None:
    found = exceeds(limit, failed, evaluated)
    if isinstance(limit, int):
        assert found == (failed > limit)
    else:
        assert found == (failed > FEW and failed * 100 > int(limit[:-1]) * evaluated)
    assert not exceeds(None, failed, evaluated)


@given(tenths=st.integers(1, 999), rows=st.integers(1, 5000))
@example(tenths=290, rows=100)
@example(tenths=7, rows=1000)
def test_what_is_exactly_a_share_is_not_above_it(tenths: int, rows: int) -> None:
    share, count = f"{tenths / 10}%", -(-tenths * rows // 1000)
    above = count * 1000 > tenths * rows
    assert exceeds(share, count, rows) == (above and count > FEW)
    assert TopicTable("orders", max_dead_letters=share).is_within_limit(count, rows) == (not above)


@pytest.mark.parametrize(
    ("on_failure", "limit", "failed", "fails", "passed", "warns"),
    [
        ("dead_letter", "5%", 50, False, True, False),
        ("dead_letter", "5%", 51, True, False, False),
        ("warn", None, 1000, False, False, True),
        ("warn", None, 0, False, True, False),
        ("warn", 20, 21, True, False, False),
        ("fail", None, 1, True, False, False),
        ("fail", None, 0, False, True, False),
    ],
)
def test_a_check_tells_what_a_rule_does(
    on_failure: OnFailure, limit: Any, failed: int, fails: bool, passed: bool, warns: bool
) -> None:
    result = RuleResult(rule(on_failure, limit), 1000, failed, 7, (0, 17) if failed else None)
    finding = rule_finding(result)
    assert (result.fails, finding.passed, finding.refuses) == (fails, passed, fails)
    shown = check_result(finding, dg.AssetKey("t"))
    assert (shown.severity == dg.AssetCheckSeverity.WARN) == warns
    reported = {name: value.value for name, value in shown.metadata.items()}
    assert (reported["evaluated"], reported["passed"], reported["failed"], reported["null"]) == (
        1000,
        1000 - failed,
        failed,
        7,
    )
    assert reported["share_failed"] == failed / 1000
    assert reported.get("first_broken") == ("partition 0, offset 17" if failed else None)
    if not passed:
        assert f"{failed} of 1000 rows break it (amount is at least 0), the first in partition 0 at offset 17" in str(
            shown.description
        )


def test_rules_about_a_commit_tell_how_it_is() -> None:
    few = count_result(rule(row_count=RowCount(min=2, max=5)), 1)
    assert rule_finding(few).problems == (
        "the commit has 1 rows, and the number of rows is from 2 to 5; on_failure is fail",
    )
    assert rule_finding(count_result(rule("warn", row_count=RowCount(max=5)), 6)).warns
    assert not rule_finding(count_result(rule(row_count=RowCount(min=2, max=5)), 5)).problems


def test_a_rule_about_a_column_that_isnt_there_warns_and_blocks_nothing() -> None:
    finding = rule_finding(RuleResult(rule(), 10, 0, 10, unknown=("amuont",)))
    assert (finding.passed, finding.warns, finding.refuses) == (False, True, False)
    assert finding.problems == ("the table has no column amuont yet, which counts as null",)
    assert rule_finding(RuleResult(rule("fail"), 10, 10, unknown=("amuont",))).refuses


def test_the_check_of_a_run_adds_its_commits_up() -> None:
    found = [rule_finding(RuleResult(rule("warn"), 100, failed, 1)) for failed in (0, 3)]
    (finding,) = [result for result in merged(found) if result.is_rule]
    assert (finding.facts["evaluated"], finding.facts["failed"], finding.warns) == (200, 3, True)
    failing = rule_finding(RuleResult(rule("warn", 1), 100, 2))
    assert next(result for result in merged([*found, failing]) if result.is_rule).refuses


def test_a_dead_letter_names_all_rules_and_nothing_of_the_row() -> None:
    rules = rules_of(
        [
            RuleEntry(pattern=Pattern(column="email", regex="@"), on_failure="warn"),
            RuleEntry(accepted_values=AcceptedValues(column="status", values=("new", True, 5))),
            RuleEntry(not_null=("id", "at"), name="there"),
        ]
    )
    assert reason_of(rules) == (
        "rule:accepted_values_status",
        "Breaks 4 rules: pattern_email (email matches @); accepted_values_status (status is one of new, true, 5); "
        "there_id (id is not null); there_at (at is not null).",
    )
    assert reason_of(rules[3:]) == ("rule:there_at", "Breaks a rule: there_at (at is not null).")
    assert meaning_of("rule:there_at").startswith("The row breaks this rule")


def test_one_column_needs_no_list() -> None:
    for kind in ("not_null", "unique"):
        (one,) = rules_of([RuleEntry.model_validate({kind: "id"})])
        assert one.columns == ("id",)
    key = RuleEntry.model_validate({"foreign_key": {"columns": "store", "table": "lake.stores", "to": "id"}})
    assert rules_of([key])[0].description == "store is in lake.stores (id)"


PLACES = st.sets(st.tuples(st.integers(0, 2), st.integers(0, 30)))
REASONS = (("rule:a", "a"), ("rule:b", "b"))


@given(given_places=PLACES, refused=PLACES)
def test_a_task_sets_apart_the_very_records_that_are_refused(
    given_places: set[tuple[int, int]], refused: set[tuple[int, int]]
) -> None:
    numbers = {where: sum(where) % 2 for where in refused}
    records = pa.table(
        {
            "topic_id": pa.array(["T"] * len(numbers), pa.string()),
            "partition": pa.array([p for p, _ in numbers], pa.int32()),
            "offset": pa.array([o for _, o in numbers], pa.int64()),
            "reason": pa.array(list(numbers.values()), pa.int32()),
        }
    )
    places = Refused(records, REASONS, {}).by_partition()
    assert all(all(a < b for a, b in pairwise(offsets)) for offsets, _ in places.values())
    ordered = list(given_places)
    batch = pa.RecordBatch.from_pydict(
        {
            "partition": pa.array([p for p, _ in ordered], pa.int32()),
            "offset": pa.array([o for _, o in ordered], pa.int64()),
        }
    )
    kept, apart = without_refused(batch, places, REASONS)
    classes, messages = (apart.column(name) for name in ("error_class", "error_message"))
    apart = apart.select(batch.schema.names)
    assert [tuple(row.values()) for row in kept.to_pylist()] == [w for w in ordered if w not in refused]
    assert [tuple(row.values()) for row in apart.to_pylist()] == [w for w in ordered if w in refused]
    assert list(zip(classes.to_pylist(), messages.to_pylist(), strict=True)) == [
        REASONS[numbers[w]] for w in ordered if w in refused
    ]
    assert all(isinstance(offsets, np.ndarray) for offsets, _ in places.values())


def test_refusals_of_two_engines_become_one() -> None:
    def refused(offset: int, name: str) -> Refused:
        record = {"topic_id": ["T"], "partition": pa.array([0], pa.int32()), "offset": [offset]}
        return Refused(pa.table({**record, "reason": pa.array([0], pa.int32())}), ((f"rule:{name}", name),), {name: 1})

    both = refused(7, "a").and_(refused(5, "b"))
    offsets, reasons = both.by_partition()[0]
    assert [(int(o), both.reasons[r][1]) for o, r in zip(offsets, reasons, strict=True)] == [(5, "b"), (7, "a")]
    assert both.by_rule == {"a": 1, "b": 1}
