"""Suites of Great Expectations and schemas of Pandera, asked by these packages themselves of rows of the real Spark."""

import json
import os
import re
import socket
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from kafka_lake.common.errors import ConfigurationError
from kafka_lake.components.resources.spark import SparkResource
from kafka_lake.ingest.rule import Range, RuleEntry, rules_of
from kafka_lake.ingest.rule_finding import rule_finding
from kafka_lake.ingest.rules.evaluate import Asked, Verdict, evaluate
from kafka_lake.ingest.rules.result import RuleResult
from kafka_lake.ingest.rules.suite import Shown

pytestmark = pytest.mark.integration

HERE = "kafka_lake_tests.decode.suites"
DDL = (
    "id bigint, amount double, total double, tax double, who struct<email: string>, "
    "_kafka struct<topic_id: string, partition: int, offset: bigint>"
)
GOOD: dict[str, Any] = {"amount": 5.5, "total": 2.0, "tax": 1.0, "who": ("a@b",)}
BAD: list[dict[str, Any]] = [
    {"amount": -3.25},
    {"amount": -4111.0},
    {"amount": None, "who": ("nobody",)},
    {"total": 0.5},
    {"id": None},
]
Frame = Callable[[Sequence[dict[str, Any]]], DataFrame]


@pytest.fixture(scope="module")
def frame(spark_resource: SparkResource) -> Frame:
    def make(rows: Sequence[dict[str, Any]]) -> DataFrame:
        told = [{"id": n, **GOOD, **row, "_kafka": ("T", 0, n)} for n, row in enumerate(rows)]
        names = ["id", "amount", "total", "tax", "who", "_kafka"]
        return spark_resource.spark_session.createDataFrame([tuple(row[name] for name in names) for row in told], DDL)

    return make


def asked(rows: DataFrame, *entries: RuleEntry, shown: Shown | None = None) -> Verdict:
    rules = rules_of(entries)
    return evaluate(Asked(topic="orders", rules=rules, rows=rows, column="_kafka", shown=shown or Shown()))


def failures(result: RuleResult) -> dict[str, str]:
    assert result.suite is not None
    return {each.title: each.found for each in result.suite.failures}


def test_a_suite_names_its_expectations_that_fail_and_how_many_rows_fail_them(
    frame: Frame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from kafka_lake_tests.decode import suites

    rows = frame([*BAD, {}, {}])
    calls: list[Any] = []
    connect = socket.socket.connect
    monkeypatch.setattr(socket.socket, "connect", lambda self, to: (calls.append(to), connect(self, to))[1])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "orders.json").write_text(json.dumps(suites.orders.to_json_dict()))
    expected = {
        "expect_column_values_to_not_be_null (id)": "1 rows",
        "expect_column_values_to_be_between (amount)": "2 rows",
        "expect_column_values_to_match_regex (who.email)": "1 rows",
        "expect_column_pair_values_a_to_be_greater_than_b (total, tax)": "1 rows",
        "expect_column_mean_to_be_between (tax)": "is not met",
    }
    (file,) = asked(rows, RuleEntry(expectations=str(tmp_path / "orders.json"))).results
    assert failures(file) == expected
    assert [file.rule.name, file.evaluated, file.fails] == ["expectations_orders", 7, True]
    finding = rule_finding(file)
    assert finding.refuses
    assert "of 7 rows, 5 of 6 expectations fail: " in finding.problems[0]
    assert finding.facts | {"expectations": 6, "expectations_passed": 1, "expectations_failed": 5} == finding.facts
    assert "3.25" not in f"{finding}"
    # Samples are masked.
    (module,) = asked(rows, RuleEntry(expectations=f"{HERE}:orders"), shown=Shown(True, ("4111",))).results
    told = failures(module)
    assert told.pop("expect_column_mean_to_be_between (tax)") == "such as 1.0"
    assert {name: found.partition(",")[0] for name, found in told.items()}.items() <= expected.items()
    assert told["expect_column_values_to_be_between (amount)"] == "2 rows, such as -3.25, -***.0"
    assert told["expect_column_values_to_not_be_null (id)"] == "1 rows, such as None"
    assert [path.name for path in tmp_path.iterdir()] == ["orders.json"]
    assert "Calculating Metrics" not in capfd.readouterr().err
    assert {to[0] for to in calls if isinstance(to, tuple)} <= {"127.0.0.1", "::1", "localhost"}


def test_a_suite_is_asked_of_the_rows_that_stay(frame: Frame) -> None:
    whole = RuleEntry(expectations=f"{HERE}:amounts", on_failure="warn")
    dead = RuleEntry(range=Range("amount", 0), fail_above=None)
    rows = frame([*BAD[:2], *[{}] * 3])
    verdict = asked(rows, whole, dead)
    suite, ours = verdict.results
    assert (suite.failed, suite.evaluated, ours.failed) == (0, 3, 2)
    assert verdict.refused is not None
    assert len(verdict.refused) == 2
    # What fails anyway refuses no row.
    failing = RuleEntry(expectations=f"{HERE}:later")
    verdict = asked(rows, dead, failing)
    assert failures(verdict.results[1]) == {
        "expect_column_values_to_not_be_null (coupon)": "the table has no column coupon"
    }
    assert verdict.refused is None
    warned = rule_finding(asked(rows, RuleEntry(expectations=f"{HERE}:later", on_failure="warn")).results[0])
    assert (warned.warns, warned.refuses) == (True, False)


def test_the_ten_lines_of_the_documentation_work(frame: Frame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    page = Path(__file__).parents[2] / "docs" / "rules.md"
    suite, schema = re.findall(r"```python\n(.+?)```", page.read_text(), re.DOTALL)
    exec(suite, {})
    (tmp_path / "my_documented_checks.py").write_text(schema)
    (document,) = [each for each in re.findall(r"```yaml\n(.+?)```", page.read_text(), re.DOTALL) if "pandera" in each]
    entries = [RuleEntry(**each) for each in yaml.safe_load(document)["attributes"]["rules"]]
    entries[1] = replace(entries[1], pandera="my_documented_checks:Orders")
    results = asked(frame([{}, BAD[0]]), *entries).results
    assert [failures(each) for each in results] == [
        {"expect_column_values_to_be_between (amount)": "1 rows"},
        {"greater_than_or_equal_to(0) (amount)": "is not met"},
    ]


def test_of_no_rows_nothing_is_asked(frame: Frame) -> None:
    rows = frame([{}]).limit(0)
    results = asked(rows, RuleEntry(expectations=f"{HERE}:later"), RuleEntry(pandera=f"{HERE}:missing")).results
    assert [(each.suite, each.fails) for each in results] == [(None, False)] * 2


def test_a_schema_names_its_checks_that_fail(frame: Frame, monkeypatch: pytest.MonkeyPatch) -> None:
    from pandera.config import config_context

    monkeypatch.delenv("SPARK_LOCAL_IP", raising=False)
    model = RuleEntry(pandera=f"{HERE}:Orders")
    # As its environment variable says: it would check nothing.
    with config_context(validation_enabled=False):
        good, bad = (asked(frame(rows), model).results[0] for rows in ([{}, {}], [*BAD, {}]))
    assert (good.rule.name, good.failed, good.suite and good.suite.asked) == ("pandera_Orders", 0, 5)
    assert failures(bad) == dict.fromkeys(
        ("not_nullable (id)", "greater_than_or_equal_to(0) (amount)", "total_covers_tax"), "is not met"
    )
    finding = rule_finding(bad)
    assert "of 6 rows, 3 of 5 checks fail: " in finding.problems[0]
    assert "3.25" not in f"{finding}"
    assert "SPARK_LOCAL_IP" not in os.environ


def test_a_schema_tells_of_columns_and_of_no_row(frame: Frame) -> None:
    rules = [RuleEntry(pandera=f"{HERE}:{name}", on_failure="warn") for name in ("strict", "missing")]
    strict, missing = asked(frame([{}]), *rules).results
    # Pandera names one of several.
    (name,) = failures(strict)
    assert name in {f"column_in_schema ({name})" for name in ("amount", "total", "tax", "who")}
    assert failures(missing) == {"column_in_dataframe (coupon)": "is not met"}
    assert "a@b" not in f"{strict} {missing}"


def test_a_value_that_a_schema_cant_convert_is_a_failed_check_and_shown_to_nobody(frame: Frame) -> None:
    rows = frame([{}]).withColumn("code", F.lit("nobody"))
    hidden = asked(rows, RuleEntry(pandera=f"{HERE}:converted")).results[0]
    assert failures(hidden) == {"converted": "it can't be asked"}
    assert (hidden.failed, hidden.fails) == (1, True)
    shown = asked(rows, RuleEntry(pandera=f"{HERE}:converted"), shown=Shown(True)).results[0]
    assert "nobody" in failures(shown)["converted"]


@pytest.mark.parametrize(
    ("setting", "reference", "says"),
    [
        ("expectations", "nowhere:orders", "nowhere:orders: it can't be imported (No module named 'nowhere')"),
        ("expectations", f"{HERE}:nothing", "has no attribute 'nothing'"),
        ("expectations", f"{HERE}:text", "it is no ExpectationSuite but str"),
        ("expectations", "old.json", "it is no suite"),
        ("expectations", f"{HERE}:empty", "the suite has no expectation"),
        ("pandera", f"{HERE}:nothing_asked", "the schema has no column and no check"),
        ("pandera", f"{HERE}:text", "str is no DataFrameModel or DataFrameSchema of pandera.pyspark"),
        ("pandera", f"{HERE}:of_pandas", "is no DataFrameModel or DataFrameSchema of pandera.pyspark"),
    ],
)
def test_what_is_no_suite_is_refused(setting: str, reference: str, says: str, frame: Frame, tmp_path: Path) -> None:
    (tmp_path / "old.json").write_text(
        '{"name": "a", "expectations": [{"expectation_type": "expect_x", "kwargs": {}}]}'
    )
    if reference.endswith(".json"):
        reference = str(tmp_path / reference)
    with pytest.raises(ConfigurationError) as refused:
        asked(frame([{}]), RuleEntry(**{setting: reference}, name="a"))  # type: ignore[arg-type]
    assert f"rules: {setting}: {reference}" in str(refused.value)
    assert says in str(refused.value)
