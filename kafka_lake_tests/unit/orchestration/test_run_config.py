"""What run configuration may say: how a run does its work, and nothing of where the work is done."""

from collections.abc import Iterator
from typing import Any

import dagster as dg
import pytest

from kafka_lake.orchestration.resources import CatalogResource, KafkaResource, RegistryResource, SparkResource
from kafka_lake_tests.unit.orchestration.test_clusters import loaded

PROJECT = {
    "cluster_eu": "KafkaCluster\nname: eu\nkafka_properties: {bootstrap.servers: 'eu:9092'}\n"
    "catalog_properties: {type: rest, uri: 'http://catalog'}\nspark_config: {spark.executor.memory: 2g}",
    "cluster_us": "KafkaCluster\nname: us\nkafka_properties: {bootstrap.servers: 'us:9092'}",
    "orders": "KafkaTopic\ntopic: orders\ncluster: eu\ntables:\n"
    "  - {name: eu.refunds, where: {field: type, equals: refund}}\n  - {name: eu.orders}",
    "customers": "KafkaTopic\ntopic: customers\ncluster: us\n"
    "table: {name: us.customers, write: {mode: upsert, key: [id]}}",
    "totals": "DerivedTable\ntable: totals\nnamespace: eu\nfrom: [orders]\nwrite: aggregate\nevery: 2m\nkey: [store]\n"
    "sql: SELECT store, count(*) AS number FROM orders GROUP BY store",
}
# What a run may choose, whatever it is of.
CHOICES = {"catch_up_for", "end", "everything", "keep_missing", "mode", "poll_every", "topics"}
CHOICES |= {"rebuild", "start", "topic", "where"}
# Dagster's own: retries and order of steps, the log's level and name, and where outputs of ops go, which no run of
# kafka_lake has.
DAGSTER = ("execution/config/", "loggers/console/config/", "resources/io_manager/config")


def _leaves(kind: Any, path: tuple[str, ...] = ()) -> Iterator[str]:
    fields = getattr(kind, "fields", None) or {}
    if not fields and path:
        yield "/".join(path)
    for name, field in fields.items():
        yield from _leaves(field.config_type, (*path, name))


def test_run_config_of_every_job_has_only_choices_of_a_run() -> None:
    with loaded(PROJECT) as definitions:
        jobs = definitions.get_repository_def().get_all_jobs()
        leaves = {leaf for job in jobs for leaf in _leaves(job.run_config_schema.config_type)}
    assert {job.name for job in jobs} >= {"__ASSET_JOB", "replay_dead_letters_eu", "replay_dead_letters_us"}
    rest = {leaf for leaf in leaves if not leaf.startswith(DAGSTER)}
    resources = {leaf for leaf in rest if leaf.startswith("resources/")}
    named = ("catalog", "spark", "kafka_eu", "kafka_us", "registry_eu", "registry_us")
    assert resources == {f"resources/{name}/config" for name in named}
    chosen = {leaf.split("/")[3] for leaf in rest - resources if leaf.count("/") > 2}
    assert chosen == CHOICES
    assert {leaf.split("/")[0] for leaf in rest - resources} == {"ops"}


def test_run_config_names_no_variables() -> None:
    with loaded(PROJECT) as definitions:
        jobs = definitions.get_repository_def().get_all_jobs()
        asked = {(job, *leaf.split("/")[1:4:2]) for job in jobs for leaf in _leaves(job.run_config_schema.config_type)
                 if leaf.startswith("ops/") and leaf.count("/") > 2}  # fmt: skip
        assert {setting for _, _, setting in asked} == CHOICES
        for job, op, setting in asked:
            given = {"ops": {op: {"config": {setting: {"env": "PATH"}}}}}
            with pytest.raises(dg.DagsterInvalidConfigError, match=setting):
                dg.validate_run_config(job, given)


def test_replay_job_gives_no_io_manager_anything_to_write() -> None:
    # Run configuration may say where an I/O manager writes. What assets return has no value to write.
    with loaded(PROJECT) as definitions:
        jobs = definitions.get_repository_def().get_all_jobs()
        steps = [op for job in jobs if job.name.startswith("replay") for op in job.all_node_defs]
    assert len(steps) == 2
    assert all(output.dagster_type.is_nothing for op in steps for output in op.output_defs)


def _asks(resources: dict[str, Any]) -> dg.Definitions:
    @dg.asset(required_resource_keys=set(resources))
    def asks(context: dg.AssetExecutionContext) -> None:
        kafka, catalog, spark = (getattr(context.resources, name) for name in ("kafka", "catalog", "spark"))
        context.add_output_metadata(
            {"kafka": kafka.properties, "catalog": catalog.properties, "spark": spark.spark_config}
        )

    return dg.Definitions([asks], resources=resources)


@pytest.mark.slow
def test_resources_have_the_values_of_their_definitions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ITS_TYPE", "rest")
    catalog = CatalogResource(properties={"type": dg.EnvVar("ITS_TYPE"), "uri": "http://catalog"})
    resources = {
        "kafka": KafkaResource(properties={"bootstrap.servers": "eu:9092"}),
        "registry": RegistryResource(),
        "catalog": catalog,
        "spark": SparkResource(spark_config={"spark.executor.memory": "2g"}, catalog=catalog),
    }
    job = _asks(resources).resolve_implicit_global_asset_job_def()
    (event,) = job.execute_in_process().get_asset_materialization_events()
    reported = {name: value.value for name, value in event.materialization.metadata.items()}
    assert reported["kafka"] == {"bootstrap.servers": "eu:9092"}
    assert reported["catalog"] == {"type": "rest", "uri": "http://catalog"}
    assert reported["spark"] == {"spark.executor.memory": "2g"}


@pytest.mark.parametrize("name", ["kafka", "registry", "catalog", "spark"])
def test_run_config_of_a_resource_is_refused(name: str) -> None:
    catalog = CatalogResource()
    resources = {
        "kafka": KafkaResource(),
        "registry": RegistryResource(),
        "catalog": catalog,
        "spark": SparkResource(spark_config={}, catalog=catalog),
    }
    job = _asks(resources).resolve_implicit_global_asset_job_def()
    setting = "spark_config" if name == "spark" else "properties"
    given = {"resources": {name: {"config": {setting: {"a": "b"}}}}}
    with pytest.raises(dg.DagsterInvalidConfigError, match=f'unexpected config entry "{setting}"'):
        job.execute_in_process(run_config=given)


def test_steps_share_what_the_first_one_made_and_runs_dont() -> None:
    seen: list[object] = []

    @dg.op(required_resource_keys={"kafka"}, out=dg.Out(dg.Nothing), ins={"before": dg.In(dg.Nothing)})
    def step(context: dg.OpExecutionContext) -> None:
        seen.append(context.resources.kafka.once_a_run(object))

    @dg.job(resource_defs={"kafka": KafkaResource()}, executor_def=dg.in_process_executor)
    def two_steps() -> None:
        step.alias("second")(step())

    two_steps.execute_in_process()
    two_steps.execute_in_process()
    assert seen[0] is seen[1]
    assert seen[2] is seen[3]
    assert seen[0] is not seen[2]
