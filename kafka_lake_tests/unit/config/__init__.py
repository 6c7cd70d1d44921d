"""The models of `kafka_lake.config`, one module each. Documents are validated as Dagster does, but without Dagster."""

import pytest
import yaml
from pydantic import ValidationError

from kafka_lake.config.topic import Topic
from kafka_lake.spec.settings import located, message
from kafka_lake.spec.topic_table import TopicTable


def spec(text: str) -> TopicTable:
    """Return what the pipeline takes of a document's attributes."""
    return Topic.model_validate(yaml.safe_load(text)).topic_table()


def refusal(text: str) -> str:
    """Return what is said of a document's attributes, one error a line."""
    with pytest.raises(ValidationError) as refused:
        Topic.model_validate(yaml.safe_load(text))
    return "\n".join(located(error["loc"], message(error)) for error in refused.value.errors(include_url=False))
