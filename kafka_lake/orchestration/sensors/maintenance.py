"""One sensor for the maintenance of a cluster's tables."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import dagster as dg
from pydantic import TypeAdapter, ValidationError

from kafka_lake.catalog.lake_catalog import LakeCatalog
from kafka_lake.maintenance.maintain import Due, Tables, due
from kafka_lake.orchestration.heartbeat import end_dead
from kafka_lake.orchestration.jobs import health_check, health_check_key
from kafka_lake.orchestration.keys import MAINTENANCE_TAG, of_cluster
from kafka_lake.orchestration.metadata import topics_of
from kafka_lake.orchestration.runs import IN_FLIGHT
from kafka_lake.orchestration.steps import as_failed_tick
from kafka_lake.spec.topic_table import TopicTable, once_each

SENSOR = "kafka_maintenance"
_PAUSE_SECONDS = 900.0
_TICK_SECONDS = 20.0
_TABLES_OF_A_RUN = 10


@dataclass(frozen=True)
class Cursor:
    """What a tick leaves to the next one. Nothing is lost with it.

    Args:
        after: The table that was looked at last: the next tick goes on behind it.
        asked: When a run was asked for last, by table, in seconds since 1970.
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


def build_maintenance_sensor(
    job: Any, interval_seconds: int, running: bool, cluster: str | None = None
) -> dg.SensorDefinition:
    """Return the sensor of a cluster."""

    @dg.sensor(
        name=of_cluster(SENSOR, cluster),
        job=job,
        required_resource_keys={"catalog"},
        minimum_interval_seconds=interval_seconds,
        default_status=dg.DefaultSensorStatus.RUNNING if running else dg.DefaultSensorStatus.STOPPED,
        description="Looks at the metadata of the tables, and requests a run that compacts small files and expires old "
        "snapshots where the settings `maintenance:` of a topic ask for it. A run has up to ten topics, those first "
        "that have waited longest, and each at most once in 15 minutes.",
    )
    def kafka_maintenance(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        topics = [spec for spec in topics_of(context.repository_def) if spec.cluster == cluster]
        specs = once_each(topics)
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
    """
    in_flight = list(end_dead(context.instance, context.instance.get_runs(dg.RunsFilter(statuses=IN_FLIGHT))))
    runs = [run for run in in_flight if MAINTENANCE_TAG in run.tags]
    # One that is queued may wait long for a continuous run of its table: the others don't wait for it.
    going = [run for run in runs if run.status is not dg.DagsterRunStatus.QUEUED]
    if len(going) >= at_once(context.instance):
        names = "; ".join(run.tags[MAINTENANCE_TAG] for run in going)
        return dg.SensorResult(skip_reason=f"{names}: its maintenance is in flight", cursor=context.cursor)
    ours = {name for run in runs for name in run.tags[MAINTENANCE_TAG].split(",")}
    now, cursor = clock(), Cursor.of(context.cursor)
    known = {_name(spec) for spec in specs}
    # Clocks are set back, too.
    asked = {name: min(at, now) for name, at in cursor.asked.items() if name in known}
    needy: list[_Needy] = []
    warnings: list[dg.AssetCheckEvaluation] = []
    # All in turn: a tick hasn't the time for all of very many.
    last = cursor.after
    for spec in sorted(specs, key=lambda each: (_name(each) <= cursor.after, _name(each))):
        if clock() - now > _TICK_SECONDS:
            break
        last = _name(spec)
        if spec.maintenance.enabled is False:
            continue
        try:
            found = due(spec, Tables(catalog, _no_spark))
        except Exception as error:
            context.log.error(f"Table {last} is skipped: {error}")
            continue
        found = [each for each in found if not each.left_alone]
        if any(each.needs.overdue for each in found):
            warnings.append(health_check(spec, found))
        paused = last in ours or (last in asked and now - asked[last] < _PAUSE_SECONDS)
        if not paused and (tables := [each for each in found if each.needs.reasons]):
            needy.append(_Needy(spec, tables, asked.get(last, 0.0)))
    chosen = _together(needy)
    request = _request(chosen, now) if chosen else None
    for each in chosen:
        context.log.info(each.reasons)
        asked[_name(each.spec)] = now
    return dg.SensorResult(
        run_requests=[request] if request else [],
        skip_reason=None if request else "No table that was looked at needs maintenance now.",
        cursor=json.dumps(asdict(Cursor(last, asked))),
        asset_events=warnings,
    )


def at_once(instance: dg.DagsterInstance) -> int:
    """Return how many runs of maintenance a deployment may have at once; 1 unless ``dagster.yaml`` says another number.

    That is Dagster's own limit of runs with the tag, which its queue keeps. Without a queue, it is kept here alone.
    """
    queue = instance.get_concurrency_config().run_queue_config
    told = [each.get("limit") for each in (queue.tag_concurrency_limits or () if queue else ()) if _is_of_all(each)]
    return min((each for each in told if isinstance(each, int)), default=1)


def _is_of_all(limit: Mapping[str, Any]) -> bool:
    return limit.get("key") == MAINTENANCE_TAG and limit.get("value") is None


@dataclass(frozen=True)
class _Needy:
    """A topic whose tables need something, and when a run was asked for it last; 0 for never."""

    spec: TopicTable
    tables: list[Due]
    asked: float

    @property
    def turn(self) -> tuple[float, int]:
        """Return what sorts those first that have waited longest, and of them the neediest."""
        return self.asked, -max(each.needs.health.commits for each in self.tables)

    @property
    def reasons(self) -> str:
        return "; ".join(f"{each.name}: {', '.join(each.needs.reasons)}" for each in self.tables)


def _together(needy: list[_Needy]) -> list[_Needy]:
    """Return what one run does: several tables, unless the first is keyed and may have to wait for its topic's run."""
    needy = sorted(needy, key=lambda each: each.turn)
    if not needy or needy[0].spec.is_keyed:
        return needy[:1]
    return [each for each in needy if not each.spec.is_keyed][:_TABLES_OF_A_RUN]


def _request(chosen: list[_Needy], now: float) -> dg.RunRequest:
    names = [_name(each.spec) for each in chosen]
    return dg.RunRequest(
        run_key=f"{names[0]}:{now:.0f}",
        asset_check_keys=[health_check_key(each.spec) for each in chosen],
        tags={MAINTENANCE_TAG: ",".join(names)},
    )


def _name(spec: TopicTable) -> str:
    return ".".join(spec.identifier)


def _no_spark() -> Any:
    raise AssertionError("A sensor starts no Spark.")
