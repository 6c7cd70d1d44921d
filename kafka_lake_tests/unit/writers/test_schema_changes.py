"""Which columns order changes: inferred times become timestamps, and text is refused."""

from dataclasses import replace

import pytest
from pyspark.sql import types as T

from kafka_lake.errors import ConfigurationError, TableError
from kafka_lake.formats.columns import Target
from kafka_lake.formats.json.driver import Json
from kafka_lake.formats.task.decoded import Observed
from kafka_lake.runtime.decoding import SchemaPlan
from kafka_lake.spec.rule import RuleEntry
from kafka_lake.spec.topic_table import TopicTable
from kafka_lake.writers.schema_changes import plan_schema, refuse_unknown

SPEC = TopicTable("orders", "shop", "orders", write="upsert", order_by=("at_s",))


def planned(kind: str, spec: TopicTable = SPEC) -> SchemaPlan:
    observed = Observed(new_fields={"new": {"at`s": kind, "seen": "timestamp"}})
    decoder = Json(order_by=spec.order_by).with_observed(observed, Target(T.StructType([])))
    return plan_schema(spec, decoder, None)


@pytest.mark.parametrize(
    ("kind", "column"),
    [
        ("timestamp", T.TimestampType()),
        ("timestamp_ntz", T.TimestampNTZType()),
        ("date", T.DateType()),
        ("long", T.LongType()),
    ],
)
def test_inferred_times_that_order_changes_are_timestamps(kind: str, column: T.DataType) -> None:
    columns = {field.name: field.dataType for field in planned(kind).target.columns}
    assert columns == {"at_s": column, "seen": T.StringType()}


def test_inferred_text_that_orders_changes_is_refused() -> None:
    with pytest.raises(TableError, match=r"order_by: at_s \(string\) of table shop.orders is neither a time nor"):
        planned("text")


@pytest.mark.parametrize("setting", ["key", "order_by"])
@pytest.mark.parametrize("unknown", ["sen", "SEEN", "_key"])
def test_columns_that_no_record_has_are_refused(setting: str, unknown: str) -> None:
    spec = TopicTable("orders", "shop", "orders", write="upsert", **{setting: ("seen", unknown)})
    with pytest.raises(TableError, match=rf"write: {setting}: table shop.orders would have no column '{unknown}'"):
        refuse_unknown(spec, planned("timestamp", spec).target)


def test_known_key_and_records_without_columns_are_not_refused() -> None:
    refuse_unknown(replace(SPEC, key=("seen",)), planned("timestamp").target)
    refuse_unknown(replace(SPEC, key=("id",), key_format="json"), Target(T.StructType([])))
    refuse_unknown(replace(SPEC, key=("id",)), Target(T.StructType([T.StructField("_key", T.StringType())])))


@pytest.mark.parametrize(
    ("named", "fields", "column"),
    [
        ("user_id", ("user-id", "user_id"), "user_id__2"),
        ("ID", ("id", "ID"), "ID__2"),
    ],
)
def test_key_isnt_a_column_that_another_field_fills(named: str, fields: tuple[str, str], column: str) -> None:
    spec = TopicTable("orders", "shop", "orders", write="upsert", key=(named,))
    with pytest.raises(ConfigurationError, match=rf"and the field '{named}' fills column {column}"):
        planned_fields(spec, fields)
    right = TopicTable("orders", "shop", "orders", write="upsert", key=(column,))
    assert planned_fields(right, fields).target.columns.fieldNames() == [fields[0].replace("-", "_"), column]


def test_ignored_null_in_a_column_of_another_case_is_refused() -> None:
    spec = TopicTable("orders", "shop", "orders", write="upsert", key=("id",), ignore_null_updates=("email", "later"))
    with pytest.raises(ConfigurationError, match=r"ignore_null_updates: table shop.orders has no column 'email', but"):
        planned_fields(spec, ("id", "Email"))


def test_rule_that_names_a_field_with_a_dot_is_refused() -> None:
    rules = (RuleEntry(not_null=("plan.tier",)),)
    spec = TopicTable("orders", "shop", "orders", rules=rules)
    with pytest.raises(ConfigurationError, match=r"rules: table shop.orders has no column 'plan.tier'; the field"):
        planned_fields(spec, ("id", "plan.tier"))
    planned_fields(spec, ("id", "plan"))


def test_excluded_column_isnt_filled_by_a_field_of_another_name() -> None:
    spec = TopicTable("orders", "shop", "orders", except_columns=("card_no",))
    with pytest.raises(ConfigurationError, match=r"exclude_fields: names the column card_no, .* field .card-no'"):
        planned_fields(spec, ("id", "card-no"))


def planned_fields(spec: TopicTable, fields: tuple[str, ...]) -> SchemaPlan:
    observed = Observed(new_fields={"new": dict.fromkeys(fields, "long")})
    return plan_schema(spec, Json().with_observed(observed, Target(T.StructType([]))), None)
