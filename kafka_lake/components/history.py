"""The history of a keyed table in the asset graph: an asset below the topic, of which each run tells."""

from typing import Any

import dagster as dg

from kafka_lake.components.keys import history_key
from kafka_lake.components.presentation import Presentation
from kafka_lake.ingest.topic_table import TopicTable
from kafka_lake.lake.catalog import LakeCatalog
from kafka_lake.lake.positions import live_row_count


def build_history_assets(
    spec: TopicTable, source: dg.AssetKey, shown: Presentation
) -> list[dg.AssetSpec | dg.AssetChecksDefinition]:
    """Return a topic's history as an external asset below the topic, if it has one: the run of the table writes it.

    Args:
        spec: The topic's settings.
        source: The topic's asset.
        shown: How Dagster shows the assets.
    """
    if not spec.history:
        return []
    tracked = f" A version for each change of {', '.join(spec.track)}." if spec.track else ""
    asset = shown.asset(
        history_key(spec),
        f"The history of table {'.'.join(spec.identifier)}: each version of its rows, from `valid_from` to `valid_to`, "
        f"which is null while it is current.{tracked}",
        {"iceberg"},
        deps=[source],
        metadata={"dagster/table_name": ".".join(spec.history_table)},
    )
    return [asset]


def report_history(instance: dg.DagsterInstance, spec: TopicTable, catalog: LakeCatalog) -> None:
    """Tell Dagster what the history holds now, as a materialization."""
    table = catalog.table(spec.history_table)
    if table is None:
        return
    metadata: dict[str, Any] = {
        "dagster/table_name": f"{catalog.name}.{'.'.join(spec.history_table)}",
        "dagster/row_count": live_row_count(table),
        "dagster/uri": table.location(),
    }
    instance.report_runless_asset_event(dg.AssetMaterialization(history_key(spec), metadata=metadata))
