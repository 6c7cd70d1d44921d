"""Checks of your own, called with rows of the real Spark; the documentation's recipes as they stand."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame

from kafka_lake.errors import ConfigurationError
from kafka_lake.orchestration.resources import SparkResource
from kafka_lake.quality.evaluate import evaluate
from kafka_lake.quality.validation import Validation, ValidationResult
from kafka_lake.runtime.commit import rule_finding
from kafka_lake.spec.rule import Range, RuleEntry, rules_of

pytestmark = pytest.mark.integration

HERE = "kafka_lake_tests.decode.checks"
DDL = "id bigint, amount double, _kafka struct<topic_id: string, partition: int, offset: bigint>"
Frame = Callable[[Sequence[float | None]], DataFrame]


@pytest.fixture(scope="module")
def frame(spark_resource: SparkResource) -> Frame:
    def make(amounts: Sequence[float | None]) -> DataFrame:
        rows = [(number, amount, ("T", 0, number)) for number, amount in enumerate(amounts)]
        return spark_resource.spark_session.createDataFrame(rows, DDL)

    return make


def asked(rows: DataFrame, *entries: RuleEntry, **settings: Any) -> ValidationResult:
    return evaluate(Validation(topic="orders", rules=rules_of(entries), rows=rows, column="_kafka", **settings))


def failures(verdict: ValidationResult, number: int = 0) -> dict[str, str]:
    checked = verdict.results[number].checked
    assert checked is not None
    return {failure.name: failure.found for failure in checked.failures}


def test_check_fails_warns_and_passes_with_its_results(frame: Frame) -> None:
    rows = frame([-3.25, 1.0, None])
    verdict = asked(rows, RuleEntry(check=f"{HERE}:both"))
    finding = rule_finding(verdict.results[0])
    assert (finding.check, finding.refuses) == ("rule_check_both", True)
    assert finding.problems == ("of 3 rows, 1 of 2 checks fail: amount is not negative: 1 row; on_failure is fail",)
    assert finding.facts | {"checks": 2, "checks_failed": 1, "failed: amount is not negative": "1 row"} == finding.facts
    warned = rule_finding(asked(rows, RuleEntry(check=f"{HERE}:amounts", on_failure="warn")).results[0])
    assert (warned.warns, warned.refuses) == (True, False)
    assert rule_finding(asked(frame([1.0]), RuleEntry(check=f"{HERE}:both")).results[0]).problems == ()


def test_check_gets_the_rows_that_other_rules_leave(frame: Frame) -> None:
    dead = RuleEntry(range=Range(column="amount", min=0), fail_above=None)
    verdict = asked(frame([-1.0, -2.0, 3.0]), RuleEntry(check=f"{HERE}:amounts"), dead)
    own, of_rows = verdict.results
    assert (own.failed, own.evaluated, of_rows.failed) == (0, 1, 2)
    assert verdict.refused is not None
    assert len(verdict.refused) == 2
    # Where a check fails, no row becomes a dead letter either.
    verdict = asked(frame([-1.0, 3.0]), dead, RuleEntry(check=f"{HERE}:few"))
    assert verdict.refused is not None


def test_messages_are_shown_with_samples_and_redacted(frame: Frame) -> None:
    rows, entry = frame([-3.25]), RuleEntry(check=f"{HERE}:amounts")
    assert failures(asked(rows, entry)) == {"amount is not negative": "1 row"}
    assert failures(asked(rows, entry, samples=True)) == {"amount is not negative": "1 row, -3.25"}
    assert failures(asked(rows, entry, samples=True, mask=("3",))) == {"amount is not negative": "1 row, -***.25"}


def test_commit_without_rows_is_not_checked(frame: Frame) -> None:
    (result,) = asked(frame([1.0]).limit(0), RuleEntry(check=f"{HERE}:raises")).results
    assert (result.checked, result.fails) == (None, False)


@pytest.mark.parametrize(
    ("reference", "says"),
    [
        ("nowhere:orders", "nowhere:orders: it can't be imported"),
        (f"{HERE}:missing", "has no attribute 'missing'"),
        (f"{HERE}:text", "str is not a function"),
        (f"{HERE}:nothing", "it raised TypeError"),
        (f"{HERE}:none_of_them", "it must return one or more kafka_lake.CheckResult"),
        (f"{HERE}:raises", "it raised ValueError."),
    ],
)
def test_function_that_gives_no_result_publishes_nothing(reference: str, says: str, frame: Frame) -> None:
    with pytest.raises(ConfigurationError) as raised:
        asked(frame([4111.0]), RuleEntry(check=reference))
    assert says in str(raised.value)
    assert "4111" not in str(raised.value)


@pytest.mark.exhaustive
def test_recipes_of_the_documentation_find_bad_rows(
    frame: Frame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    page = (Path(__file__).parents[2] / "docs" / "rules.md").read_text()
    recipes = re.findall(r"```python\n# my_checks\.py\n(.+?)```", page, re.DOTALL)
    entries = []
    for number, recipe in enumerate(recipes):
        (tmp_path / f"my_documented_checks_{number}.py").write_text(recipe)
        entries.append(RuleEntry(check=f"my_documented_checks_{number}:orders", name=f"recipe_{number}"))
    bad, good = asked(frame([5.5, -3.25]), *entries), asked(frame([5.5]), *entries)
    assert [failures(bad, number) for number in range(3)] == [
        {"amount is not negative": "1 row"},
        {"expect_column_values_to_be_between (amount)": "1 row"},
        {"schema of orders": "is not met"},
    ]
    assert [result.failed for result in good.results] == [0, 0, 0]
