"""`type: kafka_lake.KafkaCluster`: the resources, sensors and jobs that topics share."""

import dagster as dg

from kafka_lake.common.text import seconds_of
from kafka_lake.config.project import Place, check_documents, shared
from kafka_lake.orchestration.components.base import ClusterDocument
from kafka_lake.orchestration.components.derived_table import DerivedTable
from kafka_lake.orchestration.components.kafka_topic import KafkaTopic
from kafka_lake.orchestration.components.kafka_topics import KafkaTopics, documents_of_topics
from kafka_lake.orchestration.jobs import build_maintenance_job, build_replay_job
from kafka_lake.orchestration.keys import of_cluster
from kafka_lake.orchestration.resources import CatalogResource, KafkaResource, RegistryResource, SparkResource
from kafka_lake.orchestration.sensors.derived import build_derived_sensor
from kafka_lake.orchestration.sensors.maintenance import build_maintenance_sensor
from kafka_lake.orchestration.sensors.topics import build_sensor


class KafkaCluster(ClusterDocument):
    """A Kafka cluster, an Iceberg catalog and a Spark, for all the topics of this deployment.

    All have defaults for the embedded set-up and are configured by environment variables; what is given here wins.
    Secrets belong in environment variables only. A project may have several such documents: each with a name, and
    catalog and Spark in one of them.
    """

    produces = ("resource", "sensor", "job")
    first_fields = frozenset({"name", "kafka_properties", "registry_properties", "catalog_properties", "spark_config"})

    def kafka(self) -> KafkaResource:
        """Return how the cluster is reached."""
        return KafkaResource(**self.connection())

    def registry(self) -> RegistryResource:
        """Return how the cluster's schema registry is reached."""
        return RegistryResource(properties=self.registry_properties, cluster_name=self.name)

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Return resources, executor, sensors and job."""
        tree = context.component_tree
        many: list[KafkaTopics | KafkaTopic] = [
            *tree.get_all_components(KafkaTopics),
            *(document for document in tree.get_all_components(KafkaTopic) if document.pattern is not None),
        ]
        clusters = sorted(tree.get_all_components(KafkaCluster), key=lambda cluster: str(cluster._place))
        check_documents(
            [Place(cluster.name, cluster._place) for cluster in clusters],
            [document.place for document in {id(d): d for d in (*documents_of_topics(tree), *many)}.values()],
        )
        common = {
            setting: shared(setting, [(cluster._place, getattr(cluster, setting)) for cluster in clusters])
            for setting in ("catalog_properties", "spark_config")
        }
        resources: dict[str, object] = {
            of_cluster("kafka", self.name): self.kafka(),
            of_cluster("registry", self.name): self.registry(),
        }
        if self.name == clusters[0].name:
            # Of resources with the same name Dagster takes one only.
            catalog = CatalogResource(properties=common["catalog_properties"])
            resources |= {
                "catalog": catalog,
                "spark": SparkResource(spark_config=common["spark_config"], catalog=catalog),
            }
        maintain = build_maintenance_job(self.name)
        catch_up = seconds_of(self.catch_up_for)
        derived = []
        if self.name == clusters[0].name and tree.get_all_components(DerivedTable):
            derived.append(build_derived_sensor(self.sensor_interval_seconds, self.sensor_running))
        return dg.Definitions(
            resources=resources,
            # One JVM or one Connect session a run: steps in processes of their own would start one each.
            executor=dg.in_process_executor,
            sensors=[
                build_sensor(
                    self.sensor_interval_seconds,
                    self.sensor_running,
                    catch_up_seconds=catch_up,
                    cluster=self.name,
                    many=[document for document in many if document.cluster == self.name],
                    shared_runs=self.shared_runs,
                ),
                build_maintenance_sensor(maintain, self.maintenance_interval_seconds, self.sensor_running, self.name),
                *derived,
            ],
            jobs=[build_replay_job(self.name), maintain],
        )
