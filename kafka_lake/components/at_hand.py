"""Dagster's instance, for commands: what it knows of a topic's runs."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

import dagster as dg

from kafka_lake.common.home import dagster_home
from kafka_lake.components.keys import member_tag, op_name, work_name
from kafka_lake.components.topic_runs import topic_failed
from kafka_lake.ingest.topic_table import TopicTable

# A run that is in flight by now may fail as the last one did.
_ENDED = [dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED]


def dagster_at_hand() -> dg.DagsterInstance:
    """Return the Dagster instance of ``DAGSTER_HOME``, or that of this deployment's folder."""
    if "DAGSTER_HOME" in os.environ:
        return dg.DagsterInstance.get()
    return dg.DagsterInstance.from_config(str(dagster_home()))


@dataclass(frozen=True)
class FailedRun:
    """A topic's last run that is over, which failed.

    Args:
        failed_at: ISO 8601 in UTC; empty if Dagster doesn't say.
    """

    run_id: str
    failed_at: str
    error: str

    def line(self, topic: str) -> str:
        """Return it as people read it."""
        moment = self.failed_at or "an unknown time"
        return f"The last run of topic {topic}, {self.run_id[:8]}, failed at {moment}: {self.error}"


def failed_runs(specs: Iterable[TopicTable]) -> dict[str, FailedRun]:
    """Return the last runs of topics, of those whose last run failed; none if Dagster can't be asked."""
    by_name = {work_name(spec): spec for spec in specs}
    try:
        with dagster_at_hand() as instance:
            found = {name: _failed(instance, name, spec) for name, spec in by_name.items()}
    except Exception:
        # Whatever Dagster's storage may be, and whatever it may lack: positions and lags are told all the same.
        return {}
    return {name: run for name, run in found.items() if run is not None}


def _failed(instance: dg.DagsterInstance, name: str, spec: TopicTable) -> FailedRun | None:
    last = instance.get_run_records(dg.RunsFilter(statuses=_ENDED, tags={member_tag(name): name}), limit=1)
    if not last or not topic_failed(instance, last[0].dagster_run, spec):
        return None
    run, ended = last[0].dagster_run, last[0].end_time
    moment = datetime.fromtimestamp(ended, UTC).isoformat(timespec="seconds") if ended else ""
    why = "see its page in Dagster."
    failed = instance.all_logs(run.run_id, of_type=dg.DagsterEventType.STEP_FAILURE)
    # A run of one topic may have steps that check its table, too.
    for each in [each for each in failed if each.step_key == op_name(spec)] or failed:
        data = each.get_dagster_event().step_failure_data
        if data.user_failure_data is not None and data.user_failure_data.description:
            why = data.user_failure_data.description
        elif data.error is not None:
            error = data.error
            while error.cause is not None:
                error = error.cause
            why = error.message.strip()
    return FailedRun(run.run_id, moment, why)
