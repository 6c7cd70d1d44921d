"""Dead letters are reconciled with the rows while others delete, roll back, die and race."""

from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from kafka_lake.catalog.positions import head_of
from kafka_lake.ingest.run import ingest, replay_dead_letters
from kafka_lake.runtime.context import Observer
from kafka_lake_tests.conftest import Topic, View
from kafka_lake_tests.contract.pairs import PAIRS
from kafka_lake_tests.exhaustive import exhaustive
from kafka_lake_tests.integration.test_exactly_once import at, killed_at  # noqa: F401

pytestmark = pytest.mark.integration


def letters_name(view: View) -> str:
    return view.catalog.spark_name(view.spec.dead_letter_table)


def filled(new_topic: Any, connections: Any, **settings: Any) -> tuple[Topic, Any, Any]:
    topic = new_topic()
    strict = topic.spec("id bigint not null", **settings)
    lenient = replace(strict, schema="id bigint")
    topic.send_ids([0])
    topic.send({"other": 1})
    topic.send({"other": 2})
    topic.send(b"junk")
    topic.send({"other": 4})
    ingest(strict, connections(), "run-1")
    return topic, strict, lenient


def rows_and_letters(view: View) -> dict[str, Any]:
    return {
        "rows": sorted(r["_kafka"]["offset"] for r in view.rows()),
        "letters": sorted(r["offset"] for r in view.dead_letters()),
    }


@pytest.mark.exhaustive
@pytest.mark.in_contract
@pytest.mark.parametrize(
    "version",
    ["2", pytest.param("3", marks=[pytest.mark.exhaustive, pytest.mark.pairs(*(p for p in PAIRS if p != "rest_s3"))])],
)
def test_merge_on_read_dead_letters_come_back_after_a_rollback(
    version: str, new_topic: Any, connections: Any, view: Any, spark_resource: Any
) -> None:
    """The dead-letter table deletes merge-on-read: a file with deletes keeps its path."""
    topic, strict, lenient = filled(new_topic, connections)
    spark, see = spark_resource.spark_session, view(strict)
    spark.sql(
        f"ALTER TABLE {letters_name(see)} SET TBLPROPERTIES "
        f"('format-version' = '{version}', 'write.delete.mode' = 'merge-on-read')"
    )
    good = head_of(see.table)
    assert replay_dead_letters(lenient, connections(), "again", "offset in (1, 2)").moved == 2
    see.assert_exactly_once(topic.ledger)
    spark.sql(see.call("rollback_to_snapshot", snapshot_id=f"{good}")).collect()
    topic.send_ids([5])
    ingest(strict, connections(), "run-2")
    see.assert_exactly_once(topic.ledger)


@pytest.mark.parametrize("version", ["2", exhaustive("3")])
def test_foreign_delete_of_dead_letters_keeps_older_file(
    version: str, new_topic: Any, connections: Any, view: Any, spark_resource: Any
) -> None:
    """Beside an older file of letters, Iceberg keeps a file of deletes whose data file is gone."""
    topic, strict, lenient = filled(new_topic, connections)
    topic.send({"other": 5})
    topic.send(b"junk")
    topic.send({"other": 7})
    ingest(strict, connections(), "run-1b")
    spark, see = spark_resource.spark_session, view(strict)
    name = letters_name(see)
    spark.sql(
        f"ALTER TABLE {name} SET TBLPROPERTIES ('format-version' = '{version}', 'write.delete.mode' = 'merge-on-read')"
    )
    spark.sql(f"DELETE FROM {name} WHERE offset = 6")
    spark.sql(f"ALTER TABLE {name} UNSET TBLPROPERTIES ('write.delete.mode')")
    assert replay_dead_letters(lenient, connections(), "again", "offset = 5").moved == 1
    topic.send_ids([8])
    ingest(strict, connections(), "run-2")
    assert rows_and_letters(see) == {"rows": [0, 5, 8], "letters": [1, 2, 3, 4, 7]}


@pytest.mark.exhaustive
@pytest.mark.in_contract
def test_dead_letters_of_killed_run_are_reconciled_by_slower_run(
    new_topic: Any,
    connections: Any,
    view: Any,
    killed_at: Any,  # noqa: F811
) -> None:
    """A run by the new schema is staged; one by the old schema dies between its two publications; a third reconciles
    its dead letters and dies; then the first publishes.
    """
    topic = new_topic()
    strict = topic.spec("id bigint not null")
    lenient = replace(strict, schema="id bigint")
    topic.send_ids([0])
    topic.send({"other": 1})
    topic.send(b"junk")
    ingest(lenient, connections(), "first")
    topic.send_ids([3])
    topic.send({"other": 4})

    def meanwhile() -> None:
        killed_at(strict, "dead letters published")
        # Settles, and dies after that.
        killed_at(strict, "planned")

    ingest(lenient, connections(), "slow", observer=Observer(step_done=at("audited", meanwhile)))
    topic.send_ids([5])
    ingest(lenient, connections(), "next")
    view(strict).assert_exactly_once(topic.ledger)


@pytest.mark.exhaustive
def test_a_dead_letter_replay_during_a_rollback_is_published(
    new_topic: Any,
    connections: Any,
    view: Any,
    spark_resource: Any,
    killed_at: Any,  # noqa: F811
) -> None:
    """One is staged; another is published and reconciled; main is rolled back to where both began; the first ends."""
    topic = new_topic()
    strict = topic.spec("id bigint not null")
    lenient = replace(strict, schema="id bigint")
    topic.send_ids([0])
    topic.send({"other": 1})
    ingest(strict, connections(), "first")
    topic.send_ids([2])
    topic.send({"other": 3})
    ingest(strict, connections(), "second")
    replay_dead_letters(lenient, connections(), "learns that id may be null", "offset = 99")
    view(strict).table.update_schema().make_column_optional("id").commit()
    head = head_of(view(strict).table)

    def meanwhile() -> None:
        killed_at(lenient, "reconciled dead letters published", doing=partial(replay_dead_letters, where="offset = 3"))
        back = view(strict).call("rollback_to_snapshot", snapshot_id=f"{head}")
        spark_resource.spark_session.sql(back).collect()

    replay_dead_letters(
        lenient, connections(), "slow", "offset = 1", observer=Observer(step_done=at("audited", meanwhile))
    )
    topic.send_ids([4])
    ingest(lenient, connections(), "next")
    view(strict).assert_exactly_once(topic.ledger)
