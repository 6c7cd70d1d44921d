"""What is published of a commit for several tables: nothing, once others were faster."""

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from kafka_lake.common.errors import PublishRefusedError
from kafka_lake.ingest import gate, left
from kafka_lake.ingest.effort import Effort
from kafka_lake.ingest.retry import RetryPolicy
from kafka_lake.ingest.topic_table import TopicTable
from kafka_lake.lake.catalog import LakeCatalog

ROWS = pa.table({"id": pa.array([1, 2], pa.int64())})


@pytest.mark.parametrize("overtaken", [False, True])
def test_no_table_of_a_route_is_published_once_others_have_moved_the_topics_own(
    overtaken: bool, catalog: LakeCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog.ensure_namespace("lake")
    own = catalog.pyiceberg.create_table(("lake", "events"), ROWS.schema)
    own.append(ROWS)
    planned = own.refresh().current_snapshot().snapshot_id
    if overtaken:
        own.append(ROWS)
    published, discarded = list[str](), list[str]()

    def staged(name: str) -> Any:
        branch = SimpleNamespace(head=planned)
        # What dead letters are staged with can't follow others.
        primary = SimpleNamespace(branch=branch, snapshot=1, appended=1)
        return SimpleNamespace(
            name=name, primary=primary, dead_letters=1, keyed=None, discard=lambda: discarded.append(name)
        )

    def context(name: str) -> Any:
        spec = SimpleNamespace(identifier=("lake", name), has_routes=name == "events")
        connections = SimpleNamespace(catalog=catalog, retry=RetryPolicy())
        return SimpleNamespace(
            spec=spec, table_name=f"lake.{name}", connections=connections, run_id="r", sleep=lambda _: None
        )

    def publish(_context: Any, _found: Any, _todo: Any, what: Any, **_: Any) -> float:
        published.append(what.name)
        return 1.0

    monkeypatch.setattr(gate, "audited", lambda *_: ([], {}))
    monkeypatch.setattr(gate, "_published", publish)
    plan: Any = SimpleNamespace(kind="append", deletes=())
    side: Any = SimpleNamespace(context=context("orders"), found=None, plan=plan)
    sides: Any = [gate.AuditedSide(side, staged("orders"), [], {})]

    def commit() -> None:
        found: Any = None
        gate.audit_and_publish(context("events"), found, plan, staged("events"), failed_so_far={}, sides=sides)

    if not overtaken:
        commit()
        assert (published, discarded) == (["orders", "events"], [])
        return
    with pytest.raises(PublishRefusedError, match=f"main moved from snapshot {planned}"):
        commit()
    assert (published, discarded) == ([], ["events", "orders"])


@pytest.mark.parametrize("fails", [False, True])
def test_dead_letters_of_the_table_of_a_route_are_reconciled_at_once_if_they_may_be_rows(
    fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    reconciled, warned = list[str](), list[str]()

    def reconcile(context: Any) -> int:
        reconciled.append(context.table_name)
        if fails:
            raise PublishRefusedError("others were faster")
        return 1

    monkeypatch.setattr(left, "left_by", lambda context, _found, _staged: context.left)
    monkeypatch.setattr(left, "reconcile", reconcile)

    def side(name: str, dead_letters: object, left_as: object) -> Any:
        context = SimpleNamespace(table_name=name, left=left_as, observer=SimpleNamespace(warn=warned.append))
        its = SimpleNamespace(staged=SimpleNamespace(dead_letters=None))
        return SimpleNamespace(context=context, found=SimpleNamespace(dead_letters=dead_letters)), its

    every = (side("settled", 1, "tables"), side("without letters", None, None), side("open", 1, None))
    published: Any = SimpleNamespace(sides=every)
    left.reconcile_sides(published)
    assert reconciled == ["open"]
    assert len(warned) == int(fails)


@pytest.mark.parametrize("letters", ["none", "as planned", "first ones", "more"])
def test_commit_is_refused_once_dead_letters_have_changed(
    letters: str, catalog: LakeCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dead letters that have come since the plan may be of records that are rows with this commit."""
    catalog.ensure_namespace("lake")
    planned: Any = None
    if letters != "none":
        table = catalog.pyiceberg.create_table(("lake", "events__dead_letters"), ROWS.schema)
        if letters in ("as planned", "more"):
            table.append(ROWS)
            planned = SimpleNamespace(head=table.refresh().current_snapshot().snapshot_id)
        if letters in ("first ones", "more"):
            table.append(ROWS)
    published, discarded = list[str](), list[str]()

    def publish(*_: Any) -> float:
        published.append("events")
        return 1.0

    monkeypatch.setattr(gate, "audited", lambda *_: ([], {}))
    monkeypatch.setattr(gate, "publish", publish)
    primary = SimpleNamespace(branch=SimpleNamespace(head=1), snapshot=1, appended=1, rows=1)
    staged: Any = SimpleNamespace(
        primary=primary,
        dead_letters=None,
        keyed=None,
        records=1,
        failed=0,
        tombstones=0,
        bytes_read=1,
        discard=lambda: discarded.append("events"),
    )
    context: Any = SimpleNamespace(
        spec=TopicTable("events", "lake", "events"),
        table_name="lake.events",
        connections=SimpleNamespace(catalog=catalog, retry=RetryPolicy()),
        effort=Effort(),
        sleep=lambda _: None,
    )
    found: Any = SimpleNamespace(table=None, dead_letters=planned)
    plan: Any = SimpleNamespace(kind="append", deletes=())

    def commit() -> None:
        gate.audit_and_publish(context, found, plan, staged, failed_so_far={})

    if letters in ("none", "as planned"):
        commit()
        assert (published, discarded) == (["events"], [])
        return
    with pytest.raises(PublishRefusedError, match="its dead-letter table has changed meanwhile"):
        commit()
    assert (published, discarded) == ([], ["events"])
