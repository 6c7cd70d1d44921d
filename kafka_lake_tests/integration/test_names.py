"""Names of every kind, for topics, namespaces and tables: whatever a topic's table is called, all that can be done to
it works.
"""

from collections.abc import Callable
from dataclasses import replace

import pytest

from kafka_lake.cli.commands.status import collect
from kafka_lake.ingest.run import ingest, replay, replay_dead_letters
from kafka_lake.maintenance.clean import clean
from kafka_lake.maintenance.maintain import maintain
from kafka_lake.orchestration.components.kafka_topic import KafkaTopic
from kafka_lake.runtime.context import Connections
from kafka_lake.runtime.plan import ReplayRange
from kafka_lake.spec.maintenance import Maintenance
from kafka_lake.spec.topic_table import TopicTable
from kafka_lake_tests.conftest import Topic, View
from kafka_lake_tests.exhaustive import exhaustive

pytestmark = pytest.mark.integration

NewConnections = Callable[[], Connections]
NewView = Callable[[TopicTable], View]

ODD = [("lake", "lake"), ("größe_数 with-dash.and dot", "1"), ('it\'s "quoted", tick`ed', "100% select")]


def all_that_can_be_done(topic: Topic, strict: TopicTable, new: NewConnections, view: NewView) -> None:
    """Fill a table with rows and dead letters, and do to it all that the command line can."""
    connections, see = new(), view(strict)
    lenient = replace(strict, schema=strict.schema and strict.schema.replace(" not null", ""))
    for number in range(3):
        topic.send({"id": number})
        topic.send(b"junk")
        topic.send({"other": number})
        ingest(strict, connections, f"run-{number}")
    see.assert_exactly_once(topic.ledger)
    assert len(see.dead_letters()) == (6 if strict.schema else 3)
    sharp = replace(strict, maintenance=Maintenance(expire_after="0s", keep_snapshots=1))
    done = maintain(sharp, connections, everything=True)
    assert [(table.identifier, table.after.data_files) for table in done] == [
        (strict.identifier, 1),
        (strict.dead_letter_table, 1),
    ]
    assert all(table.expired for table in done)
    # What becomes a row is taken out of the dead letters.
    assert replay_dead_letters(lenient, connections, "dead_letter_replay").moved == (3 if strict.schema else 0)
    see.assert_exactly_once(topic.ledger)
    assert replay(lenient, connections, "replay", ReplayRange()).commits
    see.assert_exactly_once(topic.ledger)
    assert clean(strict, connections).branches == ()
    (status,) = collect([strict], connections.cluster, connections.catalog)
    assert (status.error, status.lag, status.rows, status.dead_letters) == ("", 0, 6, 3)
    see.assert_exactly_once(topic.ledger)
    see.assert_no_branches()


@pytest.mark.exhaustive
@pytest.mark.parametrize(("namespace", "table"), [exhaustive(*names) for names in ODD[:-1]] + ODD[-1:])
def test_a_namespace_and_a_table_may_be_called_anything(
    namespace: str, table: str, new_topic: Callable[..., Topic], connections: NewConnections, view: NewView
) -> None:
    topic = new_topic()
    spec = replace(topic.spec("id bigint not null"), namespace=namespace, table=table)
    all_that_can_be_done(topic, spec, connections, view)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "name",
    [exhaustive("shop.orders-v1", id="dots"), exhaustive("-._", id="signs"), pytest.param("x" * 249, id="longest")],
)
def test_shortest_document_fills_table_of_any_topic_name(
    name: str, new_topic: Callable[..., Topic], connections: NewConnections, view: NewView
) -> None:
    topic = new_topic(called=name)
    all_that_can_be_done(topic, KafkaTopic(topic=name).topic_table(), connections, view)
