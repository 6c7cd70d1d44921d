"""The order of publication, and commits that are refused since the dead-letter table has changed."""

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from kafka_lake.catalog.branches import nothing
from kafka_lake.catalog.lake_catalog import LakeCatalog
from kafka_lake.catalog.positions import head_of
from kafka_lake.catalog.tables import added
from kafka_lake.common.offsets import Position, TopicIdentity
from kafka_lake.errors import PublishRefusedError
from kafka_lake.ingest.audit import Audited
from kafka_lake.ingest.publish import publish, totals_of_commit
from kafka_lake.ingest.table_state import Tables
from kafka_lake.runtime.context import Observer, RetryPolicy, Timings
from kafka_lake.runtime.plan import Plan
from kafka_lake.spec.topic_table import TopicTable

ROWS = pa.table({"id": pa.array([1, 2], pa.int64())})
AFTER = Position(TopicIdentity("cluster", "id", "events"), {})


def staged_table(events: list[str], name: str) -> Any:
    branch = SimpleNamespace(head=1, publish=lambda *_: events.append(name))
    return SimpleNamespace(branch=branch, snapshot=1, appended=1, rows=1)


def staged_commit(events: list[str], dead_letters: Any) -> Any:
    return SimpleNamespace(
        primary=staged_table(events, "rows"),
        dead_letters=dead_letters,
        deletes=None,
        merge_result=None,
        records=1,
        failed=0,
        tombstones=0,
        bytes_read=1,
        discard=lambda: events.append("discarded"),
    )


def context_of(spec: TopicTable, catalog: LakeCatalog) -> Any:
    return SimpleNamespace(
        spec=spec,
        table_name="lake.events",
        connections=SimpleNamespace(catalog=catalog, retry=RetryPolicy()),
        observer=Observer(),
        timings=Timings(),
        sleep=lambda _: None,
    )


@pytest.mark.parametrize("letters", ["none", "as planned", "first ones", "more"])
def test_commit_is_refused_once_dead_letters_have_changed(letters: str, catalog: LakeCatalog) -> None:
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
    events = list[str]()
    staged = staged_commit(events, dead_letters=None)
    context = context_of(TopicTable("events", "lake", "events"), catalog)
    audited = Audited(Plan((), AFTER, 0), staged, (), {})
    if letters in ("none", "as planned"):
        assert publish(context, Tables(None, planned), audited).published_at > 0
        assert events == ["rows"]
        return
    with pytest.raises(PublishRefusedError, match="another commit changed its dead-letter table"):
        publish(context, Tables(None, planned), audited)
    assert events == ["discarded"]


@pytest.mark.parametrize("write", ["append", "upsert", "history"])
@pytest.mark.parametrize("kind", ["append", "replace"])
def test_replay_of_changes_removes_dead_letters_last(write: Any, kind: Any, catalog: LakeCatalog) -> None:
    """A run that is killed in between must leave each record in one of the tables."""
    events = list[str]()
    spec = TopicTable("events", "lake", "events", write=write)
    catalog.ensure_namespace("lake")
    table = catalog.pyiceberg.create_table(spec.dead_letter_table, ROWS.schema)
    table.append(ROWS)
    letters = staged_table(events, "letters")
    letters.branch.head = head_of(table)
    audited = Audited(Plan((), AFTER, 0, kind), staged_commit(events, letters), (), {})
    publish(context_of(spec, catalog), Tables(None, None), audited)
    is_last = kind == "replace" and write != "append"
    assert events == (["rows", "letters"] if is_last else ["letters", "rows"])
    if is_last:
        table.append(ROWS)
        events.clear()
        with pytest.raises(PublishRefusedError, match="another commit changed its dead-letter table"):
            publish(context_of(spec, catalog), Tables(None, None), audited)
        assert events == ["discarded"], "the table mustn't be published twice"


@pytest.mark.parametrize(("write", "kind"), [("append", "append"), ("upsert", "replace")])
def test_publication_sets_totals_and_reports_its_steps(write: Any, kind: Any, catalog: LakeCatalog) -> None:
    spec = TopicTable("events", "lake", "events", write=write)
    catalog.ensure_namespace("lake")
    table = catalog.pyiceberg.create_table(spec.identifier, ROWS.schema)
    published, steps = list[Any](), list[str]()

    def staged_at(snapshot: int) -> Any:
        def note(staged: int, properties: Any = nothing) -> None:
            published.append((staged, dict(properties(table))))

        branch = SimpleNamespace(head=None, publish=note)
        return SimpleNamespace(branch=branch, snapshot=snapshot, appended=snapshot, rows=1)

    staged = staged_commit([], dead_letters=staged_at(2))
    staged.primary, staged.deletes = staged_at(1), staged_at(3)
    context = context_of(spec, catalog)
    context.observer = Observer(step_done=steps.append)
    audited = Audited(Plan((), AFTER, 0, kind), staged, (), {})
    properties = {**added(table, totals_of_commit(context, audited)), "own": "x"}
    publish(context, Tables(None, None), audited, {"own": "x"})
    wanted = [("dead letters published", (2, {})), ("deletes published", (3, {})), ("table published", (1, properties))]
    if kind == "replace":
        wanted.append(wanted.pop(0))
    assert list(zip(steps, published, strict=True)) == wanted
