"""A real Hive Metastore: commits that are overtaken, answers that are lost, servers that don't compare."""

from collections.abc import Callable
from typing import Any

import pytest
from hive_metastore.ThriftHiveMetastore import Client
from hive_metastore.ttypes import ShowLocksRequest, UnlockRequest
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table
from thrift.transport.TTransport import TTransportException

from kafka_lake.catalog.lake_catalog import LakeCatalog, check_commit_requirements
from kafka_lake.errors import CatalogRefusedError
from kafka_lake.ingest.run import ingest
from kafka_lake.runtime.context import Connections
from kafka_lake_tests.conftest import Topic, View
from kafka_lake_tests.written_by import by

pytestmark = [pytest.mark.integration, pytest.mark.every_pair, pytest.mark.pairs("hive_files")]

NewTopic = Callable[..., Topic]
NewConnections = Callable[..., Connections]

_alter = Client.alter_table_with_environment_context


def end_all_locks(catalog: LakeCatalog) -> int:
    """Take the locks away, as the metastore does once their time is over; return how many there were."""
    own: Any = catalog.pyiceberg
    with own._client as client:
        locks = client.show_locks(ShowLocksRequest()).locks
        for lock in locks:
            client.unlock(UnlockRequest(lockid=lock.lockid))
    return len(locks)


def test_a_writer_that_outlived_its_lock_undoes_nothing(
    new_topic: NewTopic, connections: NewConnections, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = new_topic()
    spec = topic.spec()
    topic.send_ids([1])
    ingest(spec, connections(), "run-1")
    slow, fast = connections().catalog, connections().catalog
    table, other = slow.table(spec.identifier), fast.table(spec.identifier)
    assert isinstance(table, Table)
    assert isinstance(other, Table)
    ended = []

    def after_a_long_pause(self: Client, *args: Any) -> None:
        monkeypatch.setattr(Client, "alter_table_with_environment_context", _alter)
        ended.append(end_all_locks(fast))
        with other.transaction() as change:
            change.set_properties({"by": "fast"})
        _alter(self, *args)

    monkeypatch.setattr(Client, "alter_table_with_environment_context", after_a_long_pause)
    with pytest.raises(CommitFailedException), table.transaction() as change:
        change.set_properties({"by": "slow"})
    assert ended == [1]
    assert table.refresh().properties["by"] == "fast"
    topic.send_ids([2])
    ingest(spec, connections(), "run-2")
    View(fast, spec).assert_exactly_once(topic.ledger)


@pytest.mark.parametrize("arrow", [True, False])
def test_answers_of_the_metastore_are_lost(
    new_topic: NewTopic, connections: NewConnections, monkeypatch: pytest.MonkeyPatch, arrow: bool
) -> None:
    topic = new_topic()
    spec = topic.spec(**by(arrow))
    topic.send_ids([1])
    ingest(spec, connections(), "run-1")
    topic.send_ids([2])
    calls = []

    def unheard(self: Client, *args: Any) -> None:
        _alter(self, *args)
        calls.append(args)
        # Each commit of a run twice: once unheard, once heard.
        if len(calls) % 2:
            raise TTransportException(TTransportException.END_OF_FILE, "the answer is lost")

    monkeypatch.setattr(Client, "alter_table_with_environment_context", unheard)
    ingest(spec, connections(), "run-2")
    assert len(calls) >= 2
    view = View(connections().catalog, spec)
    view.assert_exactly_once(topic.ledger)
    view.assert_no_branches()


def test_a_metastore_that_does_not_compare_gets_no_table(
    new_topic: NewTopic, connections: NewConnections, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = new_topic()
    spec = topic.spec()
    topic.send_ids([1])

    def careless(self: Client, dbname: str, tbl_name: str, new_tbl: Any, environment_context: Any) -> None:
        # As Hive Metastore 3.1.3 does.
        for name in [prop for prop in environment_context.properties if prop.startswith("expected_")]:
            del environment_context.properties[name]
        _alter(self, dbname, tbl_name, new_tbl, environment_context)

    monkeypatch.setattr(Client, "alter_table_with_environment_context", careless)
    with pytest.raises(
        CatalogRefusedError, match=r"accepts conflicting commits \(expected_parameter_key.*2\.3\.10 or 4\.0\.0"
    ):
        ingest(spec, connections(), "run-1")
    assert connections().catalog.table(spec.identifier) is None
    # Nor by another name, which it gets before it is dropped.
    left = [name for _, name in connections().catalog.pyiceberg.list_tables(spec.namespace)]
    assert not [name for name in left if name.startswith("unused_")]
    monkeypatch.undo()
    ingest(spec, connections(), "run-2")
    View(connections().catalog, spec).assert_exactly_once(topic.ledger)


def test_the_comparison_is_tried_without_a_trace(new_topic: NewTopic, connections: NewConnections) -> None:
    topic = new_topic()
    spec = topic.spec()
    topic.send_ids([1])
    ingest(spec, connections(), "run-1")
    catalog = connections().catalog
    before = View(catalog, spec).table
    check_commit_requirements(catalog, before)
    after = View(catalog, spec).table
    assert (after.metadata_location, after.metadata) == (before.metadata_location, before.metadata)
    assert end_all_locks(catalog) == 0
