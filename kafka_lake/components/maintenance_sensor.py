"""One sensor for the maintenance of a cluster's tables: it looks at their metadata, and asks for a run where it is due.

What it keeps is when it has asked last, so that a table which maintenance can't help isn't maintained at every tick.
"""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import dagster as dg
from pydantic import TypeAdapter, ValidationError

from kafka_lake.components.alive import end_dead
from kafka_lake.components.assets import topics_of
from kafka_lake.components.failures import as_failed_tick
from kafka_lake.components.keys import MAINTENANCE_TAG, maintenance_key, of_cluster
from kafka_lake.components.topic_runs import IN_FLIGHT
from kafka_lake.ingest.maintenance.maintain import Due, due
from kafka_lake.ingest.maintenance.tables import Tables
from kafka_lake.ingest.topic_table import TopicTable
from kafka_lake.lake.catalog import LakeCatalog

SENSOR = "kafka_maintenance"
_PAUSE_SECONDS = 900.0
_TICK_SECONDS = 20.0


@dataclass(frozen=True)
class Cursor:
    """What a tick leaves to the next one. Nothing is lost with it.

    Args:
        after: The table that was looked at last: the next tick goes on behind it.
        asked: When a run was asked for, by table, in seconds since 1970; not longer ago than matters.
    """

    after: str = ""
    asked: dict[str, float] = field(default_factory=dict)

    @staticmethod
    def of(text: str | None) -> "Cursor":
        """Return what a text tells; nothing, if it is of another version."""
        try:
            return _AS_JSON.validate_json(text or "{}")
        except ValidationError:
            return Cursor()


_AS_JSON = TypeAdapter(Cursor)


def build_maintenance_sensor(interval_seconds: int, running: bool, cluster: str | None = None) -> dg.SensorDefinition:
    """Return the sensor of a cluster.

    Args:
        interval_seconds: Time between two ticks.
        running: Whether it is on by default.
        cluster: The cluster's name; None if it has none.
    """

    @dg.sensor(
        name=of_cluster(SENSOR, cluster),
        asset_selection=dg.AssetSelection.tag(MAINTENANCE_TAG, cluster or ""),
        required_resource_keys={"catalog"},
        minimum_interval_seconds=interval_seconds,
        default_status=dg.DefaultSensorStatus.RUNNING if running else dg.DefaultSensorStatus.STOPPED,
        description="Looks at the metadata of the tables, and requests a run that compacts small files and expires old "
        "snapshots where the settings `maintenance:` of a topic ask for it. One run at a time, the neediest table "
        "first, and each table at most once in 15 minutes.",
    )
    def kafka_maintenance(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        specs = [spec for spec in topics_of(context.repository_def) if spec.cluster == cluster]
        resources: Any = context.resources
        with as_failed_tick():
            return evaluate(context, specs, resources.catalog.open())

    return kafka_maintenance


def evaluate(
    context: dg.SensorEvaluationContext,
    specs: Sequence[TopicTable],
    catalog: LakeCatalog,
    clock: Callable[[], float] = time.time,
) -> dg.SensorResult:
    """Return the run that is asked for, if one is.

    A table that can't be looked at is logged and skipped.

    Args:
        context: Of the tick.
        specs: The topics.
        catalog: Where their tables are.
        clock: Seconds since 1970.
    """
    in_flight = list(end_dead(context.instance, context.instance.get_runs(dg.RunsFilter(statuses=IN_FLIGHT))))
    ours = {run.tags[MAINTENANCE_TAG]: run.status for run in in_flight if MAINTENANCE_TAG in run.tags}
    # One that is queued may wait long for a continuous run of its table: the others don't wait for it.
    if going := sorted(name for name, status in ours.items() if status is not dg.DagsterRunStatus.QUEUED):
        return dg.SensorResult(skip_reason=f"{going[0]}: its maintenance is in flight", cursor=context.cursor)
    now, cursor = clock(), Cursor.of(context.cursor)
    asked = {name: at for name, at in cursor.asked.items() if now - at < _PAUSE_SECONDS}
    needy: list[tuple[TopicTable, list[Due]]] = []
    # All in turn: a tick hasn't the time for all of very many.
    last = cursor.after
    for spec in sorted(specs, key=lambda each: (_name(each) <= cursor.after, _name(each))):
        if clock() - now > _TICK_SECONDS:
            break
        last = _name(spec)
        if last in asked or last in ours or spec.maintenance.enabled is False:
            continue
        try:
            found = due(spec, Tables(catalog, _no_spark))
        except Exception as error:
            context.log.error(f"Table {last} is skipped: {error}")
            continue
        if tables := [each for each in found if each.needs.reasons and not each.left_alone]:
            needy.append((spec, tables))
    if not needy:
        return dg.SensorResult(
            skip_reason="No table needs maintenance.", cursor=json.dumps(asdict(Cursor(last, asked)))
        )
    spec, tables = max(needy, key=lambda each: max(table.needs.health.commits for table in each[1]))
    reasons = "; ".join(f"{each.name}: {', '.join(each.needs.reasons)}" for each in tables)
    context.log.info(f"{reasons}. {len(needy) - 1} other topics wait.")
    name = _name(spec)
    request = dg.RunRequest(
        run_key=f"{name}:{now:.0f}", asset_selection=[maintenance_key(spec)], tags={MAINTENANCE_TAG: name}
    )
    asked[name] = now
    return dg.SensorResult(run_requests=[request], cursor=json.dumps(asdict(Cursor(last, asked))))


def _name(spec: TopicTable) -> str:
    return ".".join(spec.identifier)


def _no_spark() -> Any:
    raise AssertionError("A sensor starts no Spark.")
