"""The text of a route's field, by the real Spark: the pattern and Spark's parser agree on all that is JSON."""

import json
from typing import Any

import pytest
from pyspark.sql import functions as F

from kafka_lake.orchestration.resources import SparkResource
from kafka_lake.routing.conditions import path_of, pattern_of, text_of

pytestmark = pytest.mark.integration

FIELDS = ("type", "größe", "a-b", "[$x] (a|b)*", "a b", "source.table", "x#&~")
TEXTS = ("order", "", "größe", 'a"b', "\\", "{", "}", "😀", "\x7f")
VALUES: tuple[Any, ...] = (*TEXTS, 1, 1.0, True, None, [], ["x"], {})
MORE: tuple[dict[str, Any], ...] = ({}, {"n": -0.5, "ok": False, "at": "b"}, {str(n): n for n in range(12)})
ODD = (None, b"", b"\xff", b"{", b"[]", b'{"type":"a\xff"}', b"{'type':'x'}", b'{"type":"a\nb"}')


def test_field_text_matches_spark_json_functions(spark_resource: SparkResource) -> None:
    texts: list[bytes | None] = [
        None,
        b"",
        b"\xff",
        b"{",
        b"[]",
        b'{"type":"a\xff"}',
        b"{'type':'x'}",
        b'{"type":"a\nb"}',
    ]
    for name in ("type", "größe", "a-b", "[$x] (a|b)*", "a b", "source", "x#&~"):
        for value in VALUES:
            for more in (
                {},
                {"n": -0.5, "ok": False, "at": "b"},
                {"more": {name: "y"}},
                {str(n): n for n in range(12)},
            ):
                for whole in ({name: value, **more}, {**more, name: value}):
                    texts += [json.dumps(whole, ensure_ascii=len(more) > 1).encode()]
                    texts += [json.dumps(whole, indent=1).encode(), json.dumps([whole]).encode()]
            twice = f'{{"{name}":{json.dumps(value)},"{name}":"second"}}'
            texts += [twice.encode(), f"{twice} x".encode(), f" \t{twice}".encode()]
    rows = spark_resource.spark_session.createDataFrame([(text,) for text in texts], "value binary")
    value = F.col("value").cast("string")
    for field in FIELDS:
        pattern = F.lit(pattern_of(field) or "no pattern")
        both = rows.select(
            text_of(field).alias("found"),
            F.get_json_object(value, path_of(field)).alias("parsed"),
            F.regexp_count(value, pattern).alias("quick"),
            "value",
        ).collect()
        assert [row for row in both if row["found"] != row["parsed"]] == []
        # Of some of them the pattern tells, but for a field in an object.
        assert any(row["quick"] for row in both) == (field != "source.table")
