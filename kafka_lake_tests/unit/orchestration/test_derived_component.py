"""Documents of derived tables: what they become in Dagster, and what is refused when definitions load."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml
from dagster.components.testing import create_defs_folder_sandbox
from pydantic import ValidationError

from kafka_lake.cli.load_definitions import explanation
from kafka_lake.config.derived_table import DerivedTable
from kafka_lake.config.table import TableSettings
from kafka_lake.orchestration.derived_assets import DERIVED_TAG, derived_of
from kafka_lake_tests.unit.orchestration.test_clusters import Documents, write

REVENUE = {
    "table": "revenue",
    "from": ["orders"],
    "write": "aggregate",
    "key": {"hour": "date_trunc('hour', at)"},
    "sql": "SELECT date_trunc('hour', at) AS hour, sum(total) AS revenue FROM orders GROUP BY ALL",
}
HOURS = "SELECT date_trunc('hour', at) AS hour FROM {} GROUP BY ALL"
BIG = {"table": "big", "from": "orders", "write": "append", "sql": "SELECT * FROM orders WHERE total > 9"}
PROJECT: Documents = {
    "cluster": "KafkaCluster",
    "orders": "KafkaTopic\ntopic: orders",
    "users": "KafkaTopic\ntopic: users\ntable: {columns: id bigint, write: {mode: upsert, key: [id]}}",
}


@contextmanager
def loaded(documents: Documents) -> Iterator[dg.Definitions]:
    with create_defs_folder_sandbox() as sandbox:
        write(sandbox.defs_folder_path, documents)
        with sandbox.build_all_defs() as definitions:
            yield definitions


def refusal(documents: Documents) -> str:
    with create_defs_folder_sandbox() as sandbox:
        write(sandbox.defs_folder_path, documents)
        with pytest.raises(Exception, match=r".") as refused, sandbox.build_all_defs():
            pass
        said = explanation(refused.value, sandbox.defs_folder_path)
    assert said is not None, refused.value
    return str(said)


def with_derived(*tables: Mapping[str, Any]) -> Documents:
    # JSON is YAML.
    return {**PROJECT, **{f"d_{number}": f"DerivedTable\n{json.dumps(table)}" for number, table in enumerate(tables)}}


def test_a_document_becomes_an_asset_below_its_upstream_tables() -> None:
    joined = {
        **BIG, "table": "priced", "from": ["lake.big"], "join": "users", "every": "0 * * * *",
        "sql": "SELECT b.*, u.id AS uid FROM big b LEFT JOIN users u USING (id)",
    }  # fmt: skip
    with loaded(with_derived(REVENUE, BIG, joined)) as definitions:
        repository = definitions.get_repository_def()
        graph = repository.asset_graph
        parents = {
            name: {key.to_user_string() for key in graph.get(dg.AssetKey(["lake", name])).parent_keys}
            for name in ("revenue", "big", "priced")
        }
        assert parents == {"revenue": {"lake/orders"}, "big": {"lake/orders"}, "priced": {"lake/big", "lake/users"}}
        node = graph.get(dg.AssetKey(["lake", "revenue"]))
        assert (node.partitions_def, node.pools) == (None, {"table_lake_revenue"})
        assert {key.name for key in node.check_keys} == {"audit"}
        assert "by key" in (node.description or "")
        sensor = repository.get_sensor_def("derived_tables")
        chosen: Any = sensor.asset_selection
        assert len(chosen.resolve(graph)) == 3
        assert [schedule.cron_schedule for schedule in repository.schedule_defs] == ["0 * * * *"]
        specs = {spec.table: spec for spec in derived_of(repository)}
        assert specs["revenue"] == DerivedTable(
            table="revenue", sources=("orders",), write="aggregate", key=REVENUE["key"], sql=REVENUE["sql"]
        )
        assert specs["priced"].upstream == {"big": ("lake", "big")}
        assert node.tags[DERIVED_TAG] == ""


def test_a_project_without_derived_tables_has_no_sensor_for_them() -> None:
    with loaded(PROJECT) as definitions:
        assert "derived_tables" not in {sensor.name for sensor in definitions.get_repository_def().sensor_defs}


def test_a_key_of_columns_is_a_list_or_one_name() -> None:
    newest = {"table": "newest", "from": ["orders"], "write": "upsert", "key": "id", "sql": "SELECT id FROM orders"}
    with loaded(with_derived(newest, {**newest, "table": "other", "key": ["id"]})) as definitions:
        assert [spec.key for spec in derived_of(definitions.get_repository_def())] == [{"id": "id"}] * 2


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"from": ["ordres"], "sql": HOURS.format("ordres")}, r"from: lake.ordres.*Is it"),
        ({"from": ["users"], "sql": HOURS.format("users")}, r"lake.users is a table with write: upsert.*replace"),
        ({"from": ["orders__dead_letters"], "sql": HOURS.format("orders__dead_letters")}, r"isn't a log"),
        ({"table": "orders"}, r"already belongs to topic orders"),
        ({"table": "users"}, r"already belongs to topic users"),
        ({"sql": "SELECT sum(total) AS total FROM orders"}, r"key: hour isn't a column of the result"),
        ({"verify": -1}, r"verify"),
        ({"write": "merge"}, r"append"),
        ({"every": "sometimes"}, r"every: 'sometimes' is neither news nor a duration"),
        ({"from": []}, r"from"),
        ({"sql": None}, r"needs exactly one of sql: and transform:"),
        ({"colour": "red"}, r"colour"),
        ({"rules": [{"not_null": ["hour"], "on_failure": "dead_letter"}]}, r"rules: number 1 \(not_null\): on_failure"),
        ({"rules": [{"not_null": ["hour"], "fail_above": "5%"}]}, r"fail_above: has no effect.*on_failure: warn"),
        ({"rules": [{"not_null": ["hour"]}] * 2}, r"rules: not_null_hour occurs twice"),
        ({"rules": [{"range": {"column": "revenue"}}]}, r"range never fails"),
    ],
)
def test_what_can_not_be_meant_is_refused_at_load(change: dict[str, Any], said: str) -> None:
    text = refusal(with_derived({**REVENUE, **change}))
    assert re.search(said, " ".join(text.split())), text


@pytest.mark.parametrize(
    "cron",
    [
        *("0 * * * *", "*/5 * * * *", "0 9 * * mon-fri", "0 0 1,15 JAN-mar *", "59 23 31 12 7", "5/15 0-6/2 * * sun,2"),
        *(
            "60 * * * *",
            "* 24 * * *",
            "* * 0 * *",
            "* * 32 * *",
            "* * * 13 *",
            "* * * * 8",
            "0 0 31 2 *",
            "0 0 30 feb *",
        ),
        *("* * * mon *", "* * * * jan", "*/0 * * * *", "*/5/2 * * * *", "1- * * * *", "-1 * * * *", "1,, * * * *"),
        *("0 0 30 feb *", "* * * *", "* * * * * *", "often", "0 25 * * *", "@daily", "@often"),
        *("0 22-6 * * *", "0 8 * * fri-mon", "*/60 * * * *", "@midnight", "@annually", "* * * 1jan *"),
    ],
)
def test_cron_expression_is_accepted_if_dagster_accepts_it(cron: str) -> None:
    by_dagster = _succeeds(lambda: dg.ScheduleDefinition(name="any", cron_schedule=cron, target="*"))
    assert _succeeds(lambda: DerivedTable.model_validate({**BIG, "every": cron})) == by_dagster


def _succeeds(build: Callable[[], object]) -> bool:
    try:
        build()
    except (dg.DagsterInvalidDefinitionError, ValidationError):
        return False
    return True


LOOKS = [
    *(("owners", [owner]) for owner in ("team:shop", "team:", "me@shop.com", "me@shop", "shop", "a@b.c d")),
    *(("group", group) for group in ("shop", "a/b", "a-b", "a//b", "", "größe")),
    *(("tags", {key: ""}) for key in ("a", "a/b", "a/b/c", "dagster/kind/x", "a b", "a" * 64, "", "kafka_lakes/a")),
    *(("tags", {"a": value}) for value in ("", "a.b-c_d", "a b", "a/b", "a" * 64)),
]


@pytest.mark.parametrize(("setting", "value"), LOOKS)
def test_looks_are_accepted_if_dagster_accepts_them(setting: str, value: Any) -> None:
    builds = (
        lambda: dg.AssetSpec("any", **{"group_name" if setting == "group" else setting: value}),
        lambda: DerivedTable.model_validate({**BIG, setting: value}),
        lambda: TableSettings.model_validate({setting: value}),
    )
    assert len(set(map(_succeeds, builds))) == 1


def test_rules_are_checks_that_fail_a_run_by_default() -> None:
    rules = [{"not_null": ["hour"]}, {"range": {"column": "revenue", "min": 0}, "on_failure": "warn"}]
    with loaded(with_derived({**REVENUE, "rules": rules})) as definitions:
        repository = definitions.get_repository_def()
        graph = repository.asset_graph
        keys = graph.get(dg.AssetKey(["lake", "revenue"])).check_keys
        blocking = {key.name: graph.get_check_spec(key).blocking for key in keys}
        assert blocking == {
            "audit": True, "rule_not_null_hour": True, "rule_range_revenue": False,
        }  # fmt: skip
        (spec,) = derived_of(repository)
        assert [rule.on_failure for rule in spec.named_rules] == ["fail", "warn"]


def test_tables_that_are_made_from_each_other_are_refused() -> None:
    one = {**BIG, "table": "one", "from": ["two"], "sql": "SELECT * FROM two"}
    two = {**BIG, "table": "two", "from": ["one"], "sql": "SELECT * FROM one"}
    assert "depend on themselves: lake." in refusal(with_derived(one, two))


def test_two_documents_for_one_table_are_refused() -> None:
    assert "already belongs to another derived table" in refusal(with_derived(BIG, BIG))


def test_table_whose_rows_change_is_read_only_as_a_whole() -> None:
    up, below = {**REVENUE, "table": "up"}, {**BIG, "table": "below", "from": ["up"], "sql": "SELECT * FROM up"}
    assert "lake.up is a derived table" in refusal(with_derived(up, below))
    with loaded(with_derived(up, {**below, "write": "replace"})):
        pass


PAGE = Path(__file__).parents[3] / "docs" / "derived-tables.md"
EXAMPLES = [yaml.safe_load(text) for text in re.findall(r"```yaml\n(type: .*?)```", PAGE.read_text(), re.DOTALL)]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda item: item["attributes"]["table"])
def test_each_example_of_the_page_loads(example: dict[str, Any]) -> None:
    attributes = example["attributes"]
    topics = {
        name: f"KafkaTopic\ntopic: {name}"
        + ("\ntable: {write: {mode: upsert, key: [id]}}" if name == "customers" else "")
        for name in [*attributes["from"], *attributes.get("join", [])]
    }
    kind = example["type"].removeprefix("kafka_lake.")
    with loaded({"cluster": "KafkaCluster", **topics, "derived": f"{kind}\n{json.dumps(attributes)}"}) as definitions:
        assert [spec.table for spec in derived_of(definitions.get_repository_def())] == [attributes["table"]]


def test_the_page_has_an_example_of_each_way_to_write() -> None:
    assert {example["attributes"]["write"] for example in EXAMPLES} == {"append", "upsert", "aggregate", "replace"}
