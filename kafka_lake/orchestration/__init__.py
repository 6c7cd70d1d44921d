"""Dagster: components (YAML types), assets, checks, partitions, sensors, resources, reports."""

from kafka_lake.orchestration.components.derived_table import DerivedTable
from kafka_lake.orchestration.components.kafka_cluster import KafkaCluster
from kafka_lake.orchestration.components.kafka_topic import KafkaTopic
from kafka_lake.orchestration.components.kafka_topics import KafkaTopics, documents_of_topics

__all__ = ["DerivedTable", "KafkaCluster", "KafkaTopic", "KafkaTopics", "documents_of_topics"]
