"""`kafka-lake history` of a table that had everything done to it: by runs, by maintenance, by others."""

import json
from collections.abc import Callable

import pytest
from typer.testing import Result

from kafka_lake.catalog.positions import author_summary
from kafka_lake.ingest.run import ingest, replay, replay_dead_letters, reset
from kafka_lake.maintenance.maintain import maintain
from kafka_lake.runtime.context import Connections
from kafka_lake.runtime.plan import ReplayRange
from kafka_lake.spec.maintenance import Maintenance
from kafka_lake.spec.topic_table import TopicTable
from kafka_lake_tests.conftest import Topic, View

pytestmark = pytest.mark.integration


@pytest.mark.exhaustive
def test_snapshot_log_names_author_and_operation_of_each_commit(
    new_topic: Callable[..., Topic],
    connections: Callable[[], Connections],
    view: Callable[[TopicTable], View],
    command_line: Callable[..., Result],
) -> None:
    topic = new_topic(2)
    narrow, spec = topic.spec("id int"), topic.spec(maintenance=Maintenance(compact_every=2))
    topic.send_ids(range(8), 2)
    topic.send({"id": 7_000_000_000})
    ingest(narrow, connections(), "first")
    topic.send_ids([10, 11, 12], 2)
    ingest(narrow, connections(), "second")
    replay(narrow, connections(), "again", ReplayRange("0:1,1:0", "0:3,1:2"))
    replay_dead_letters(spec, connections(), "letters")
    maintain(spec, connections(), everything=True)
    reset(spec, connections(), "back", "0:2,1:0")
    connections().spark().sql(f"INSERT INTO {view(spec).sql_name()} (id) VALUES (99)")

    shown = command_line([spec], "history", topic.name)
    assert shown.exit_code == 0
    reported = json.loads(command_line([spec], "history", spec.table, "--json").stdout)
    assert (reported["table"], reported["older"], reported["expired"]) == (".".join(spec.identifier), 0, False)
    who = author_summary("", "")
    seen = [(item["what"], item["run_id"], item["rows_added"] - item["rows_deleted"]) for item in reported["commits"]]
    assert seen[0] == ("append", "", 1)
    assert reported["commits"][0]["managed"] is False
    assert "spark" in reported["commits"][0]["engine"]
    ours = [commit for commit in reported["commits"] if commit["run_id"] and not commit["what"].startswith("part of")]
    assert [(row["what"], row["run_id"]) for row in ours][-3:] == [
        ("replay", "again"),
        ("append", "second"),
        ("append", "first"),
    ]
    assert {(row["host"], row["user"]) for row in ours} == {(who["kafka-lake.host"], who["kafka-lake.user"])}
    assert [row["offsets"] for row in ours][-3:] == [
        [{"partition": 0, "start": 1, "end": 3}, {"partition": 1, "start": 0, "end": 2}],
        [{"partition": 0, "start": 5, "end": 7}, {"partition": 1, "start": 4, "end": 5}],
        [{"partition": 0, "start": None, "end": 5}, {"partition": 1, "start": None, "end": 4}],
    ]
    (moved,) = [commit for commit in reported["commits"] if commit["run_id"] == "letters"]
    assert (moved["what"], moved["rows_added"], moved["offsets"]) == ("dead-letter replay", 1, [])
    assert [(change["column"], change["kind"]) for change in moved["schema_changes"]] == [("id", "widened")]
    assert "compaction" in [commit["what"] for commit in reported["commits"]]
    assert reported["commits"][-1]["what"] == "table created"
    assert [commit["run_id"] for commit in reported["commits"] if commit["what"] == "part of the replay"] == ["again"]
    assert next(commit["what"] for commit in reported["commits"] if commit["run_id"] == "back") == "reset"
    # Nobody is said to have written what the rows don't have.
    assert sum(change for _, _, change in seen) == len(view(spec).ids())
    letters = json.loads(command_line([spec], "history", spec.dead_letter_table[1], "--json").stdout)
    assert [commit["run_id"] for commit in letters["commits"] if commit["what"] == "append"] == ["first"]
    assert letters["commits"][0]["what"] == "dead letters reconciled"
