"""All that the code location defines, as text: a change shows in review. UPDATE_SNAPSHOTS=1 rewrites it."""

import json
import os
from pathlib import Path

import pytest

from kafka_lake.definitions import defs

SNAPSHOT = Path(__file__).with_name("definitions.snapshot.json")


def described():
    repository = defs().get_repository_def()
    graph = repository.asset_graph
    assets = {}
    for key in sorted(graph.get_all_asset_keys()):
        node = graph.get(key)
        definition = repository.assets_defs_by_key[key]
        assets[key.to_user_string()] = {
            "deps": sorted(k.to_user_string() for k in node.parent_keys),
            "checks": sorted(f"{k.name}{' (blocking)' if graph.get(k).blocking else ''}" for k in node.check_keys),
            "partitions": node.partitions_def.name if node.partitions_def else None,
            "backfill": str(node.backfill_policy) if node.backfill_policy else None,
            "automation": repr(node.automation_condition.get_label()) if node.automation_condition else None,
            "kinds": sorted(node.kinds),
            "tags": sorted(k for k in node.tags if not k.startswith("dagster/kind")),
            "group": node.group_name,
            "owners": sorted(node.owners),
            "executable": node.is_materializable,
            "pools": sorted(node.pools or ()),
            "resources": sorted(definition.required_resource_keys),
        }
    return {
        "assets": assets,
        "sensors": {
            s.name: {"seconds": s.minimum_interval_seconds, "default": s.default_status.value}
            for s in sorted(repository.sensor_defs, key=lambda s: s.name)
        },
        "schedules": sorted(s.name for s in repository.schedule_defs),
        "resources": sorted(repository.get_top_level_resources()),
        "executor": {job.name: job.executor_def.name for job in repository.get_all_jobs()},
    }


@pytest.fixture(autouse=True)
def home(monkeypatch, tmp_path):
    """A deployment's folder without a database."""
    monkeypatch.setenv("KAFKA_LAKE_HOME", str(tmp_path))
    return tmp_path


def test_definitions_are_as_reviewed(monkeypatch):
    monkeypatch.delenv("KAFKA_LAKE_SCHEMA_REGISTRY_URL", raising=False)
    text = json.dumps(described(), indent=2) + "\n"
    if os.environ.get("UPDATE_SNAPSHOTS"):
        SNAPSHOT.write_text(text)
    assert text == SNAPSHOT.read_text(), "if this is what you want: UPDATE_SNAPSHOTS=1 pytest " + __file__


def test_a_registry_adds_the_topic_that_needs_one_and_nothing_else(monkeypatch):
    monkeypatch.setenv("KAFKA_LAKE_SCHEMA_REGISTRY_URL", "http://127.0.0.1:9")
    found, without = described(), json.loads(SNAPSHOT.read_text())
    # Two boxes in the graph for each topic.
    assert found["assets"].keys() - without["assets"].keys() == {"kafka/pizza-deliveries", "pizza/deliveries"}
    assert {**found, "assets": {key: found["assets"][key] for key in without["assets"]}} == without


def test_a_database_adds_its_topics_and_nothing_else(monkeypatch, home):
    monkeypatch.delenv("KAFKA_LAKE_SCHEMA_REGISTRY_URL", raising=False)
    (home / "postgres").mkdir()
    found, without = described(), json.loads(SNAPSHOT.read_text())
    added = {"shop/customers", "shop/orders"}
    topics = {"kafka/shop.public.customers", "kafka/shop.public.orders"}
    assert found["assets"].keys() - without["assets"].keys() == added | topics
    assert {**found, "assets": {key: found["assets"][key] for key in without["assets"]}} == without
