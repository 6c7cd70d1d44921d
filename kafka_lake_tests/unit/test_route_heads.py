"""Tables of routes that are gone or were set back: known by the commits that the topic's own table has noted."""

import json
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from kafka_lake.common.errors import TableError
from kafka_lake.common.offsets import Position, TopicIdentity
from kafka_lake.ingest.routes.heads import HEADS, heads_of, refuse_lost
from kafka_lake.lake.catalog import LakeCatalog
from kafka_lake.lake.positions import POSITION

AT = {POSITION: Position(TopicIdentity("c", "t", "events"), {0: 5}).to_json()}
ROWS = pa.table({"id": pa.array([1, 2], pa.int64())})


def create(catalog: LakeCatalog, name: str) -> Any:
    catalog.ensure_namespace("lake")
    return catalog.pyiceberg.create_table(("lake", name), ROWS.schema)


def commit(table: Any, **marks: str) -> int:
    table.append(ROWS, snapshot_properties=marks)
    table.refresh()
    return int(table.current_snapshot().snapshot_id)


def asked(own: Any, orders: Any, on_data_loss: str = "fail") -> list[str]:
    """Return the warnings."""
    said: list[str] = []
    spec = SimpleNamespace(topic="events", full_topic="events", on_data_loss=on_data_loss)
    context: Any = SimpleNamespace(spec=spec, observer=SimpleNamespace(warn=said.append))
    refuse_lost(context, own, {"lake.orders": orders, "lake.clicks": None})
    return said


def test_a_table_of_a_route_that_is_set_back_or_gone_stops_the_run(catalog: LakeCatalog) -> None:
    own, orders = create(catalog, "events"), create(catalog, "orders")
    first = commit(orders, **AT)
    commit(orders, **AT)
    commit(orders)
    noted = heads_of({"lake.orders": orders, "lake.clicks": None, "lake.empty": create(catalog, "empty")})
    assert noted == {"lake.orders": orders.metadata.snapshots[1].snapshot_id}
    assert asked(own, orders) == []
    commit(own, **AT, **{HEADS: json.dumps(noted)})
    # What has been noted last counts, also if newer commits note nothing.
    commit(own, **AT)
    assert asked(own, orders) == []
    commit(orders, **AT)
    assert asked(own, orders) == []
    with pytest.raises(TableError, match=r"table lake\.orders is gone\..*`kafka-lake replay events` reads"):
        asked(own, None)
    with pytest.raises(TableError, match=r"lake\.orders was dropped, and created again"):
        asked(own, create(catalog, "orders_again"))
    orders.manage_snapshots().rollback_to_snapshot(first).commit()
    orders.refresh()
    with pytest.raises(TableError, match=rf"was set back to before its snapshot {noted['lake.orders']}\."):
        asked(own, orders)
    (said,) = asked(own, orders, on_data_loss="continue")
    assert "what it had is not read again" in said


@pytest.mark.parametrize("cache", ["on", "off"])
def test_commits_that_have_expired_tell_nothing(
    cache: str, catalog: LakeCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    # PyIceberg takes the expired parent out of its child, which cached metadata still have.
    monkeypatch.setenv("KAFKA_LAKE_METADATA_CACHE", cache)
    own, orders = create(catalog, "events"), create(catalog, "orders")
    commit(orders, **AT)
    noted, last = commit(orders, **AT), commit(orders, **AT)
    commit(own, **AT, **{HEADS: json.dumps({"lake.orders": noted})})
    orders.maintenance.expire_snapshots().by_ids([noted]).commit()
    orders.refresh()
    assert [each.snapshot_id for each in orders.metadata.snapshots][1:] == [last]
    assert asked(own, orders) == []
    # A tag keeps the one that was noted, and those between have expired.
    between, newest = commit(orders, **AT), commit(orders, **AT)
    commit(own, **AT, **{HEADS: json.dumps({"lake.orders": last})})
    orders.manage_snapshots().create_tag(last, "kept").commit()
    orders.maintenance.expire_snapshots().by_ids([between]).commit()
    orders.refresh()
    assert {last, newest} <= {each.snapshot_id for each in orders.metadata.snapshots}
    assert asked(own, orders) == []
    commit(own, **{HEADS: "no JSON"})
    assert asked(own, orders) == []
