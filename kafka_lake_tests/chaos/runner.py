"""One run of the ingestion as a process of its own, configured by the environment as a user's would be.

It writes down what it does, and ends or halts itself at a named step if it is told to.
"""

import argparse
import json
import os
import signal
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

from pydantic import TypeAdapter

from kafka_lake.errors import KafkaLakeError
from kafka_lake.ingest.run import ingest
from kafka_lake.orchestration.resources import CatalogResource, KafkaResource, SparkResource
from kafka_lake.runtime.context import Connections, Observer, RetryPolicy
from kafka_lake.spec.topic_table import TopicTable
from kafka_lake_tests.chaos.sabotage import SABOTAGES

FAILED = 3
# Faults last for seconds here.
_LONGEST_PAUSE = 3.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--spec", required=True, help="the topic's settings as JSON")
    parser.add_argument("--run-id", required=True)
    parser.add_argument("--events", type=Path, required=True, help="file to append a JSON line per event to")
    parser.add_argument("--max-records", type=int, help="offsets of one commit at most")
    parser.add_argument("--kill-at", help="step to send itself SIGKILL at")
    parser.add_argument("--stop-at", help="step to send itself SIGSTOP at")
    parser.add_argument("--nth", type=int, default=1, help="at its nth passage")
    parser.add_argument("--sabotage", choices=sorted(SABOTAGES))
    options = parser.parse_args()

    def event(kind: str, **facts: object) -> None:
        line = json.dumps({"at": time.time(), "run": options.run_id, "event": kind, **facts}) + "\n"
        with options.events.open("a") as file:
            file.write(line)

    if options.sabotage:
        SABOTAGES[options.sabotage]()
    passages: Counter[str] = Counter()

    def step_done(step: str) -> None:
        # Steps of a topic's further tables have the table in front.
        step = step.rpartition(": ")[2]
        passages[step] += 1
        event("step", step=step)
        if passages[step] == options.nth:
            if step == options.kill_at:
                event("killed", step=step)
                os.kill(os.getpid(), signal.SIGKILL)
            if step == options.stop_at:
                event("stopped", step=step)
                os.kill(os.getpid(), signal.SIGSTOP)

    spec = TypeAdapter(TopicTable).validate_json(options.spec)
    if options.max_records:
        spec = replace(spec, max_records_per_commit=options.max_records)
    kafka, catalog = KafkaResource(), CatalogResource()
    spark = SparkResource(spark_config={}, catalog=catalog)
    retry = RetryPolicy(max_seconds=_LONGEST_PAUSE)
    connections = Connections(kafka.cluster(), kafka.spark_options(), catalog.open(), spark.live_session, retry)
    event("ready")
    try:
        report = ingest(
            spec,
            connections,
            options.run_id,
            observer=Observer(
                on_commit=lambda commit, plan: event("commit", snapshot=commit.snapshot, records=commit.records),
                step_done=step_done,
            ),
        )
        event("done", records=report.total("records"))
    except KafkaLakeError as error:
        event("failed", error=type(error).__name__, message=str(error)[:2000])
        sys.exit(FAILED)
    except Exception as error:
        event("failed", error=type(error).__name__, message=str(error)[:2000])
        raise


if __name__ == "__main__":
    main()
