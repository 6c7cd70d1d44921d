"""Two topics in one table: each has its log, and the table their positions."""

from dataclasses import replace
from typing import Any

from kafka_lake.ingest.report import RunReport
from kafka_lake.ingest.run import each_topic
from kafka_lake.ingest.topic_runner import LeftBehindError, TopicRunner
from kafka_lake.runtime.context import ignore
from kafka_lake.spec.topic_table import TopicTable
from kafka_lake_tests.unit.simulated.history import IDENTITIES, OTHER_TOPIC, Attempt
from kafka_lake_tests.unit.simulated.log import Log
from kafka_lake_tests.unit.simulated.process import Process, job_of, spec_of
from kafka_lake_tests.unit.simulated.world import World


class SharedWorld(World):
    """The logs of two topics, and the catalog with the table that both fill."""

    def __init__(self) -> None:
        super().__init__()
        self._other = Log(OTHER_TOPIC)

    @property
    def logs(self) -> dict[str, Log]:
        return {self.topic: self, OTHER_TOPIC: self._other}

    def do(self, action: str, argument: Any) -> None:
        kind, _, of_other = action.partition(" of ")
        if not of_other:
            super().do(action, argument)
            return
        self.reported[action] += 1
        if kind == "add partition":
            self._other.add_partition()
        else:
            {"produce": self._other.produce, "retain": self._other.retain, "cut": self._other.cut}[kind](*argument)

    def perform(self, process: Process, run_id: str) -> RunReport | None:
        attempt, context = process.attempt, process.context(run_id)
        spec = replace(spec_of(attempt), topics=tuple(IDENTITIES))

        def run(of_topic: TopicTable, _: object) -> RunReport:
            its = replace(context, spec=of_topic)
            return TopicRunner(its, lambda table: job_of(attempt, table)).run()

        chosen = [(replace(spec, topic=topic), attempt.partitions) for topic in attempt.topics]
        try:
            return each_topic(chosen, run_id, run, ignore)
        except LeftBehindError as left:
            self.reported["topics left"] += 1
            for error in left.errors.values():
                self.excuse(attempt, error)
            self._check_others(attempt, left)
            return None

    def _check_others(self, attempt: Attempt, left: LeftBehindError) -> None:
        """Note a topic that wasn't read since another one failed, which only what concerns both may bring about."""
        unread = set(attempt.topics) - {*left.errors, *left.report.reached}
        if unread and not attempt.events:
            self.violations.append(f"{attempt} left {unread}: {left}")
