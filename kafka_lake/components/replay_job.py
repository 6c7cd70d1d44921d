"""The job that decodes dead letters again and moves those that fit by now into their table."""

from collections.abc import Iterator
from typing import Any

import dagster as dg
from pydantic import Field

from kafka_lake.components.assets import topics_of
from kafka_lake.components.dead_letters import dead_letter_evaluation
from kafka_lake.components.failures import as_failures
from kafka_lake.components.keys import of_cluster, partition_key, table_key
from kafka_lake.components.run_choices import run_choices
from kafka_lake.components.run_connections import connections_of, resource_keys
from kafka_lake.errors import ConfigurationError
from kafka_lake.ingest import run
from kafka_lake.ingest.connections import Connections
from kafka_lake.ingest.observer import Observer
from kafka_lake.ingest.topic_table import TopicTable


class ReplayConfig(dg.Config):
    """Which dead letters to decode again."""

    topic: str = Field(description="The Kafka topic.")
    where: str = Field(
        default="", description="SQL condition on the dead-letter table, as error_class = 'wrong_type'; empty for all."
    )


def build_replay_job(cluster: str | None = None) -> dg.JobDefinition:
    """Return the job for the topics of a cluster, by the cluster's name."""

    @dg.op(
        name=of_cluster("decode_again", cluster),
        required_resource_keys=resource_keys(cluster),
        config_schema=run_choices(ReplayConfig),
        out=dg.Out(dg.Nothing),
    )
    def replay(context: dg.OpExecutionContext) -> Iterator[Any]:
        config = ReplayConfig(**context.op_config)
        with as_failures(allow_retries=False):
            connections = connections_of(context.resources, cluster)
            for each in _chosen(context, cluster, config.topic):
                for spec in each.tables:
                    yield from _replay(context, spec, connections, config.where)
        yield dg.Output(None)

    @dg.job(
        name=of_cluster("replay_dead_letters", cluster),
        description="Decodes a topic's dead letters again and moves those that fit now into its table, exactly once.",
        executor_def=dg.in_process_executor,
    )
    def replay_dead_letters() -> None:
        replay()

    return replay_dead_letters


def _replay(
    context: dg.OpExecutionContext, spec: TopicTable, connections: Connections, where: str
) -> Iterator[dg.AssetMaterialization | dg.AssetCheckEvaluation]:
    observer = Observer(step_done=context.log.debug, warn=context.log.warning)
    done = run.replay_dead_letters(spec, connections, run_id=context.run_id, where=where or None, observer=observer)
    context.log.info(
        f"Topic {spec.topic}: {done.moved} dead letters are rows of table {'.'.join(spec.identifier)} now, "
        f"{done.remaining} of those examined remain."
    )
    for partition in done.report.partitions():
        if partition.rows:
            # What lies downstream notices: the table's partitions have new rows.
            yield dg.AssetMaterialization(
                table_key(spec),
                partition=partition_key(spec, partition.partition),
                metadata={"rows_added": partition.rows, "from": "dead letters"},
            )
    yield dead_letter_evaluation(spec, connections.catalog)


def _topics(context: dg.OpExecutionContext) -> list[TopicTable]:
    return topics_of(context.repository_def)


def _chosen(context: dg.OpExecutionContext, cluster: str | None, topic: str) -> list[TopicTable]:
    specs = [spec for spec in _topics(context) if spec.cluster == cluster]
    chosen = [spec for spec in specs if spec.topic == topic]
    if not chosen:
        known = ", ".join(sorted({spec.topic for spec in specs})) or "none"
        raise ConfigurationError(f"Topic {topic} has no table here; the topics are: {known}.", "Name one of them.")
    return chosen
