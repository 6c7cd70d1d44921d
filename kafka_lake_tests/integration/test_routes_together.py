"""Tables of routes that one job writes: large records, new fields, and tables that go their own way beside them."""

from collections.abc import Callable
from typing import Any

import pytest

from kafka_lake.catalog.positions import summary_of
from kafka_lake.ingest.run import ingest
from kafka_lake.runtime.context import Connections, Observer
from kafka_lake.spec.rule import RuleEntry
from kafka_lake.spec.topic_table import Route, TopicTable, When
from kafka_lake.writers import append as arrow
from kafka_lake.writers import append_tables as arrow_tables
from kafka_lake.writers.append import DECODED_BY_ARROW
from kafka_lake_tests.conftest import NAMESPACE, Topic, View

pytestmark = pytest.mark.integration


@pytest.mark.exhaustive
def test_one_spark_job_writes_tables_with_exclusive_conditions(
    new_topic: Callable[..., Topic],
    connections: Callable[[], Connections],
    view: Callable[[TopicTable], View],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic, jobs, real = new_topic(2), list[None](), arrow.run_tasks

    def counted(*given: Any, **named: Any) -> Any:
        jobs.append(None)
        return real(*given, **named)

    for module in (arrow, arrow_tables):
        monkeypatch.setattr(module, "run_tasks", counted)

    def to(name: str, **its: Any) -> Route:
        spec = TopicTable(topic.name, NAMESPACE, f"{topic.table}_{name}", **its)
        return Route(When(field="type", values=(name,)), spec)

    small = RuleEntry(expression="id < 900", name="small", on_failure="dead_letter")
    routes = (
        to("declared", schema="type string, id bigint, text string"),
        to("inferred"),
        to("ruled", schema="id bigint", rules=(small,)),
        to("keyed", schema="type string, id bigint, text string", write="upsert", key=("id",)),
        to("never", schema="id bigint"),
    )
    spec = topic.spec("type string, id bigint, text string", routes=routes)
    names = [None, *(route.to.table.removeprefix(f"{topic.table}_") for route in routes)]
    sent: dict[str | None, dict[int, object]] = {name: {} for name in names}
    bad: dict[str | None, set[int]] = {name: set() for name in names}

    def send(name: str | None, text: object = None, fails: bool = False) -> None:
        number = sum(map(len, (*sent.values(), *bad.values())))
        value: dict[str, object] = {"type": name or "other", "id": "none" if fails else number, "text": text}
        offset = topic.send(value, number % 2).offset
        if fails:
            bad[name].add(offset * 2 + number % 2)
        else:
            sent[name][number] = text

    def run(run_id: str) -> tuple[int, list[str]]:
        steps: list[str] = []
        jobs.clear()
        ingest(spec, connections(), run_id, observer=Observer(step_done=steps.append))
        for name, its in zip(names, spec.tables, strict=True):
            rows = view(its).rows() if view(its).catalog.table(its.identifier) else []
            found = {row["id"]: row.get("text") for row in rows}
            if name == "ruled":
                assert set(found) == {n for n in sent[name] if n < 900}
            else:
                assert found == sent[name], name
            assert len(rows) == len(found)
            letters = view(its).dead_letters()
            assert len(letters) == len(bad[name]) + (name == "ruled" and sum(n >= 900 for n in sent[name]))
            view(its).assert_no_branches()
        return len(jobs), steps

    for name in (None, "declared", "inferred", "ruled", "keyed"):
        for _ in range(3):
            send(name)
    send("declared", fails=True)
    # One job for those whose columns are declared, and one for what was to be created by what its records show.
    run("first")
    for name in (None, "declared", "inferred", "ruled", "keyed"):
        for _ in range(4):
            send(name)
    for name in (None, "declared", "inferred"):
        send(name, fails=name == "declared")
    # On a cluster, with more tasks than tables: they share them.
    with monkeypatch.context() as patch:
        patch.setattr(arrow_tables, "tasks_of", lambda *_: 6)
        count, steps = run("second")
    assert (count, steps.count("tables written")) == (1, 1)
    added = [int(summary_of(view(item).table.current_snapshot())["added-data-files"]) for item in spec.tables[:4]]
    assert sum(added) <= 4 + 6 - 1
    heads = [summary_of(table.current_snapshot()) for table in (view(item).table for item in spec.tables[:4])]
    assert [DECODED_BY_ARROW in head for head in heads] == [True] * 4
    # A new field has its table written again.
    for name in (None, "declared", "inferred", "ruled", "keyed"):
        send(name, "x" * 9000)
        send(name, "y")
    count, _ = run("third")
    assert count >= 2
    # A rule takes rows out: that table alone is written again.
    while sum(map(len, sent.values())) < 60:
        send("declared", "z")
    sent["ruled"][1000] = None
    topic.send({"type": "ruled", "id": 1000})
    send("ruled")
    run("fourth")
    assert view(routes[-1].to).rows() == []
