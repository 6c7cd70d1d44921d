"""The topics of this deployment, as its definitions have them."""

from kafka_lake.components.assets import SETTINGS, settings_of
from kafka_lake.definitions import defs
from kafka_lake.errors import ConfigurationError
from kafka_lake.ingest.topic_table import TopicTable


def topic_tables(topic: str | None = None) -> list[TopicTable]:
    """Return what the definitions say about topics and their tables, by topic.

    Args:
        topic: Only this topic; None for all.

    Raises:
        ConfigurationError: If no document in ``defs/`` is about that topic.
    """
    specs = [dict(asset.metadata) for asset in defs().resolve_all_asset_specs()]
    found = sorted((settings_of(each) for each in specs if SETTINGS in each), key=lambda each: each.topic)
    if topic is None:
        return found
    chosen = [each for each in found if each.topic == topic]
    if not chosen:
        known = ", ".join(each.topic for each in found) or "none"
        raise ConfigurationError(
            f"Topic {topic} has no table here; the topics are: {known}.",
            "Add a YAML document of type kafka_lake.KafkaTopicTable to defs/.",
        )
    return chosen
