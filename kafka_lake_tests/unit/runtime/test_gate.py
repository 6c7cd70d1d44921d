"""What is published of a commit whose dead-letter table has changed since the plan: nothing."""

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from kafka_lake.catalog.lake_catalog import LakeCatalog
from kafka_lake.errors import PublishRefusedError
from kafka_lake.ingest import publish as publishing
from kafka_lake.runtime.context import Effort, RetryPolicy
from kafka_lake.spec.topic_table import TopicTable

ROWS = pa.table({"id": pa.array([1, 2], pa.int64())})


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

    monkeypatch.setattr(publishing, "audited", lambda *_: ([], {}))
    monkeypatch.setattr(publishing, "publish", publish)
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
        publishing.audit_and_publish(context, found, plan, staged, failed_so_far={})

    if letters in ("none", "as planned"):
        commit()
        assert (published, discarded) == (["events"], [])
        return
    with pytest.raises(PublishRefusedError, match="its dead-letter table has changed meanwhile"):
        commit()
    assert (published, discarded) == ([], ["events"])
