"""A log that Kafka compacts while a run reads it: what was read first and what is read last differ."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from kafka_lake.engine.frames import Frames
from kafka_lake.ingest.run import ingest
from kafka_lake.runtime.context import Connections, Observer
from kafka_lake.spec.topic_table import TopicTable
from kafka_lake_tests.conftest import Topic, View
from kafka_lake_tests.exhaustive import exhaustive
from kafka_lake_tests.written_by import by

pytestmark = pytest.mark.integration


@dataclass(frozen=True)
class Compacting(Frames):
    """Frames of a log of which half the records go after their first reading.

    Args:
        folder: Has a file for each record of that half that was read.
    """

    folder: Path = Path()

    def from_kafka(self, spark: Any, options: Mapping[str, str]) -> DataFrame:
        folder, before = str(self.folder), any(self.folder.iterdir())

        def is_there(offset: int) -> bool:
            if offset % 2:
                return True
            try:
                os.close(os.open(f"{folder}/{offset}", os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                return False
            return not before

        kept = F.udf(is_there, "boolean").asNondeterministic()
        return super().from_kafka(spark, options).filter(kept("offset"))


@pytest.mark.exhaustive
@pytest.mark.parametrize("settings", [{"write": "upsert", "key": ("id",)}, exhaustive(by(False))])
def test_log_compacted_during_a_run_is_planned_again(
    settings: dict[str, Any],
    new_topic: Callable[..., Topic],
    connections: Callable[[], Connections],
    view: Callable[[TopicTable], View],
    tmp_path: Path,
) -> None:
    topic = new_topic(**{"cleanup.policy": "compact"})
    for number, value in enumerate((b"junk", {"id": 1}, {"id": 2}, {"id": 3})):
        topic.send(value, key=b"%d" % number)
    spec, said = topic.spec(**settings), list[str]()
    ours = replace(connections(), frames=Compacting(folder=tmp_path))
    ingest(spec, ours, "run-1", observer=Observer(warn=said.append))
    assert view(spec).ids() == [1, 3]
    assert view(spec).position() == {0: 4}
    (again,) = [line for line in said if "Planning again" in line]
    assert f"Topic {topic.name}, table" in again
    assert "Kafka compacts the log at any time" in again
