"""What Dagster's pages show of topics, documents and reports, and how settings are found in assets."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from itertools import islice
from typing import Any

import dagster as dg
import yaml
from pydantic import BaseModel

from kafka_lake.common import environment
from kafka_lake.common.offsets import Watermarks
from kafka_lake.common.text import block
from kafka_lake.orchestration.keys import table_key, topic_key
from kafka_lake.spec.topic_table import TopicTable

SPEC = "kafka_lake/spec"
"""Metadata key of a table's settings. Dagster keeps the object in the code location and shows only its class."""

_SHORT_MARKDOWN = 1000
_SHOWN_LINES = 100
_DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


def table_name(identifier: tuple[str, str]) -> dict[str, str]:
    """Return the metadata by which Dagster matches the assets of one table over code locations."""
    return {"dagster/table_name": ".".join((environment.CATALOG.value(), *identifier))}


def table_address(identifier: tuple[str, str]) -> dict[str, str]:
    """Return what an asset's definition says about where its table is; runs report the name alone."""
    return {**table_name(identifier), "dagster/storage_kind": "iceberg"}


def records(lines: Iterable[Mapping[str, Any]]) -> dg.TableMetadataValue:
    """Return lines as a table, the first ones of many."""
    return dg.MetadataValue.table([dg.TableRecord(dict(line)) for line in islice(lines, _SHOWN_LINES)])


def in_a_window(markdown: str) -> dg.MarkdownMetadataValue:
    """Return Markdown that Dagster's page shows in a window of its own, at a click.

    Shorter Markdown stands in a column, which cuts off what a table has on its right.
    """
    return dg.MetadataValue.md(markdown.ljust(_SHORT_MARKDOWN))


def document_metadata(document: BaseModel) -> dg.MarkdownMetadataValue:
    """Return the settings of a document as YAML; defaults are left out."""
    written = document.model_dump(mode="json", by_alias=True, exclude_unset=True)
    text = yaml.dump(written, Dumper=_DUMPER, sort_keys=False, allow_unicode=True)
    return dg.MetadataValue.md(block(text.strip(), "yaml"))


def topics_in(metadata: Iterable[Mapping[str, Any]]) -> list[TopicTable]:
    """Return the topics that the metadata of assets carry; topics of one table follow each other."""
    specs = (entries.get(SPEC) for entries in metadata)
    return [topic for spec in specs if isinstance(spec, TopicTable) for topic in spec.each_topic]


def metadata_of(repository: dg.RepositoryDefinition | None) -> list[Mapping[str, Any]]:
    """Return the metadata of all assets of a code location, ordered by their keys."""
    assets = repository.assets_defs_by_key.values() if repository else ()
    by_key = {key: metadata for asset in assets for key, metadata in asset.metadata_by_key.items()}
    return [by_key[key] for key in sorted(by_key)]


def topics_of(repository: dg.RepositoryDefinition | None) -> list[TopicTable]:
    """Return the settings of all topics of a code location; topics of one table follow each other."""
    return topics_in(metadata_of(repository))


@dataclass(frozen=True)
class LastReport:
    """The end offset of a topic over all partitions, as Dagster last got it, and when (seconds since 1970)."""

    end: int
    at: float

    def rate(self, end: int, now: float) -> float | None:
        """Return how many records per second have come since; None if unknown.

        >>> LastReport(100, 10.0).rate(400, 70.0), LastReport(100, 10.0).rate(40, 70.0)
        (5.0, None)
        """
        # A topic that was made again ends before it did.
        return round((end - self.end) / (now - self.at), 2) if end >= self.end and now > self.at else None


def last_reports(instance: dg.DagsterInstance, specs: Collection[TopicTable]) -> dict[dg.AssetKey, LastReport]:
    """Return the last reports to Dagster by topic, in one query."""
    found = {}
    for record in instance.get_asset_records([topic_key(spec) for spec in specs]) if specs else ():
        event = record.asset_entry.last_materialization
        materialization = event.asset_materialization if event else None
        end = materialization.metadata.get("end_offset") if materialization else None
        if event and isinstance(end, dg.IntMetadataValue) and end.value is not None:
            found[record.asset_entry.asset_key] = LastReport(end.value, event.timestamp)
    return found


def topic_materialization(
    spec: TopicTable, now: Watermarks, behind: Mapping[int, int], rate: float | None = None
) -> dg.AssetMaterialization:
    """Return what Dagster shows of a topic: its end, which is its data version, and what its table lacks of it.

    It is others who fill the topic. Dagster's page of what is only ever observed says that it is never materialized.
    """
    version = sha256(repr(sorted(now.end.items())).encode()).hexdigest()[:16]
    lines = [{"partition": p, "end_offset": end, "lag": behind.get(p, 0)} for p, end in sorted(now.end.items())]
    return dg.AssetMaterialization(
        topic_key(spec),
        metadata={
            "table": dg.MetadataValue.asset(table_key(spec)),
            "lag": sum(behind.values()),
            **({} if rate is None else {"records_per_second": rate}),
            "end_offset": sum(now.end.values()),
            "partitions": str(len(now.end)),
            "by_partition": records(lines),
        },
        tags={"dagster/data_version": version},
    )
