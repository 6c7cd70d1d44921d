"""Dagster components: YAML documents that become assets, checks, a sensor and resources."""

from kafka_lake.components.derived_table import DerivedTable
from kafka_lake.components.kafka_cluster import KafkaCluster
from kafka_lake.components.kafka_topic import KafkaTopic
from kafka_lake.components.kafka_topics import KafkaTopics

__all__ = ["DerivedTable", "KafkaCluster", "KafkaTopic", "KafkaTopics"]
