"""`type: kafka_lake.KafkaTopicTable`: a few lines of YAML become source asset, table asset and checks."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self

import dagster as dg
from pydantic import BaseModel, PrivateAttr

from kafka_lake.common.errors import ConfigurationError
from kafka_lake.components.assets import build_topic_assets
from kafka_lake.components.keys import plain_name
from kafka_lake.components.topic_settings import TopicSettings
from kafka_lake.ingest.dead_letters.samples import samples_from_env
from kafka_lake.ingest.topic_table import TopicTable, derived_table_name


class KafkaTopicTable(dg.Component, TopicSettings):
    """A Kafka topic as an Iceberg table.

    Only ``topic`` is needed. Unknown keys, bad values and combinations that can't work are refused when
    definitions load.
    """

    _place: Path = PrivateAttr(default_factory=Path)

    @classmethod
    def load(cls, attributes: BaseModel | None, context: dg.ComponentLoadContext) -> Self:
        """Return the component of a document, which remembers where that is."""
        component = super().load(attributes, context)
        place = context.component_path.file_path
        component._place = place / "defs.yaml" if place.is_dir() else place
        return component

    def tables(self) -> tuple[tuple[str, str], ...]:
        """Return namespace and name of the tables that are this topic's alone."""
        spec = self.topic_table(self._place.parent)
        return (spec.identifier, spec.dead_letter_table) if self.dead_letters == "table" else (spec.identifier,)

    def topic_table(self, folder: Path = Path()) -> TopicTable:
        """Return the settings as the pipeline takes them.

        Args:
            folder: Where the document is; schema files are named from there.

        Raises:
            ConfigurationError: If a schema file isn't there.
        """
        return TopicTable(
            format=self.format,
            schema_file=_file("schema_file", self.schema_file, folder),
            message=self.message,
            subject=self.subject,
            key_format=self.key_format,
            key_column=self.key_column,
            key_schema=self.key_schema,
            key_schema_file=_file("key_schema_file", self.key_schema_file, folder),
            infer_timestamps=self.infer_timestamps,
            evolution=self.evolution,
            on_incompatible=self.on_incompatible,
            renames=dict(self.renames),
            max_columns=self.max_columns,
            compatibility=self.compatibility,
            topic=self.topic,
            namespace=self.namespace,
            table=self.table or derived_table_name(self.topic),
            schema=self.columns,
            partition_by=tuple(self.partition_by),
            sort_by=tuple(self.sort_by),
            properties=dict(self.table_properties),
            metadata_column=self.metadata_column,
            start=self.start,
            max_records_per_commit=self.max_records_per_commit,
            transform=self.transform,
            consumer_group=self.consumer_group,
            on_data_loss=self.on_data_loss,
            dead_letters=self.dead_letters,
            max_dead_letters=self.max_dead_letters,
            max_record_bytes=self.max_record_bytes,
            samples=samples_from_env() if self.samples is None else self.samples,
            mask=tuple(self.mask),
            arrow=self.arrow,
            timestamp_unit=self.timestamp_unit,
            timestamp_precision=self.timestamp_precision,
        )

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Return the topic's assets and checks."""
        presentation: dict[str, Any] = {
            "owners": self.owners,
            "group_name": self.group or plain_name(self.namespace),
            "description": self.description,
            "continuous": self.continuous.settings() if self.continuous else None,
        }
        return dg.Definitions(assets=build_topic_assets(self.topic_table(context.path), **presentation))


def refuse_shared_tables(components: Iterable[KafkaTopicTable]) -> None:
    """Make sure that no two topics have a table in common: neither their tables nor their dead-letter tables.

    Args:
        components: All topics of a deployment.

    Raises:
        ConfigurationError: If two do, with both documents' names.
    """
    owners: dict[tuple[str, str], KafkaTopicTable] = {}
    for each in components:
        for table in each.tables():
            if (other := owners.setdefault(table, each)) is not each:
                raise ConfigurationError(
                    f"Table {'.'.join(table)} would be two topics': {other.topic}'s ({other._place}) and "
                    f"{each.topic}'s ({each._place}).",
                    "Give one of them another table: or namespace:.",
                )


def _file(setting: str, name: str | None, folder: Path) -> str | None:
    if name is None:
        return None
    path = (folder / name).resolve()
    if not path.is_file():
        raise ConfigurationError(f"{setting}: there is no file {path}.", "Paths start where the YAML document is.")
    return str(path)
