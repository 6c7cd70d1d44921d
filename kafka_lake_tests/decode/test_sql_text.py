"""Users' SQL, by the real Spark: every function is in a list, and hostile texts hide no call from the check."""

import random
import re

import pytest
from pyspark.errors import PySparkException

from kafka_lake.orchestration.resources import SparkResource
from kafka_lake.spec.sql_text import ALLOWED, REFUSED, unsafe_condition
from kafka_lake_tests.unit.spec.test_sql_text import GETENV

pytestmark = pytest.mark.integration

# Operators, and words of the language that Spark lists as functions.
_NO_CALL = {"and", "between", "case", "div", "ilike", "in", "like", "not", "or", "regexp", "rlike", "when"}
_PIECES = (
    "'", "'", '"', "`", "--", "/*", "*/", "/*+", "\\", "\n", "\r", " ", "$$", "://", "r", "R", "x", "a", "(", ")", "''",
    ".", "=", " or ", " and ", "1", ",", "\u00a0", "\u2028", "'a'", "in (", "select ", "from ", "${env:HOME}", GETENV,
    f" or {GETENV} = 'a'", "`reflect`('a', 'b')", "exists (", "identifier('reflect')", "->", "::", "[", "]",
)  # fmt: skip


def test_every_function_of_spark_is_allowed_or_refused(spark_resource: SparkResource) -> None:
    there = {row[0] for row in spark_resource.spark_session.sql("SHOW SYSTEM FUNCTIONS").collect()}
    named = {name for name in there if re.fullmatch(r"\w+", name)} - _NO_CALL
    refused = {name for names in REFUSED for name in names.split()}
    assert named - ALLOWED - refused == set()
    assert refused <= named


def test_variables_of_the_environment_arent_substituted(spark_resource: SparkResource) -> None:
    session = spark_resource.live_session()
    row = session.range(1).selectExpr("'${env:PATH}' AS a").union(session.sql("SELECT '${env:PATH}'")).collect()
    assert [column["a"] for column in row] == ["${env:PATH}", "${env:PATH}"]


def test_safe_condition_has_no_call_or_subquery_for_spark(spark_resource: SparkResource) -> None:
    parser = spark_resource.spark_session._jsparkSession.sessionState().sqlParser()
    # Spark marks what is to be resolved by a quote before it.
    hidden = re.compile(r"'(?:reflect|java_method)\(|#\d+ \[|Unresolved")
    for text in (GETENV, "a IN (SELECT 1)", "EXISTS (FROM other)"):
        assert hidden.search(parser.parseExpression(text).treeString())
    chosen, safe = random.Random(22), 0
    for _ in range(20_000):
        text = "a = " + "".join(chosen.choices(_PIECES, k=chosen.randrange(1, 9)))
        if unsafe_condition(text):
            continue
        try:
            tree = parser.parseExpression(text).treeString()
        except PySparkException:
            continue
        assert not hidden.search(tree), (text, tree)
        safe += 1
    assert safe > 200
