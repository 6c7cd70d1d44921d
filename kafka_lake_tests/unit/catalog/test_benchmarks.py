"""What the benchmarks conclude from what they see; and the page's tables are the kept results'.

`UPDATE_DOCS=1 pytest` on this file writes the tables again.
"""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.io.pyarrow import schema_to_pyarrow
from typer.testing import CliRunner

from benchmarks import __main__ as command
from benchmarks import anchors, backlog, connect_sink, page
from benchmarks.data import DIRTY, EVENTS, ORDERS, SHAPES, SMALL, Shape, dirtied, noted, values
from benchmarks.freshness import Ledger, histogram, percentiles
from benchmarks.limits import arrow_schema
from benchmarks.meter import cpu_seconds, memory_by_program, memory_bytes
from benchmarks.results import DIRTY_HEADER, HEADER, Repeat, Series, as_json, dirty_rows, in_markdown, throughput_rows
from kafka_lake.catalog.lake_catalog import LakeCatalog
from kafka_lake.errors import KafkaLakeError

# A tree that has used CPU in itself, in a child that was reaped, and in one that still lives; it prints how much.
_BURNER = """
import os, sys, time
def burn():
    while time.process_time() < 0.3: pass
reaped = os.fork()
if not reaped:
    burn(); os._exit(0)
os.waitpid(reaped, 0)
ready, done = os.pipe()
if not os.fork():
    burn(); os.write(done, b"x"); sys.stdin.read(); os._exit(0)
os.read(ready, 1)
burn()
print("burnt", flush=True)
sys.stdin.read()
"""


@pytest.mark.slow
def test_cpu_of_a_tree_counts_the_dead_and_the_living_once() -> None:
    with subprocess.Popen(
        [sys.executable, "-S", "-c", _BURNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "burnt\n"
        used = cpu_seconds(child.pid)
        child.communicate("")
    # Three times 0.3 s; each figure of the kernel's is cut to ticks, and the start of Python comes on top.
    assert 0.8 < used < 1.15


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "size"), [(ORDERS, 251), (SMALL, 144), (EVENTS, 727), (noted(200), 200), (noted(5000), 5000)]
)
def test_values_are_of_the_size_and_the_columns_that_are_told(shape: Shape, size: int) -> None:
    found = list(values(shape, 20_000))
    assert abs(sum(map(len, found)) / len(found) - size) < 1
    assert len({json.loads(value)["order_id"] for value in found}) == len(found) == 20_000
    assert list(json.loads(found[-1])) == arrow_schema(shape).names
    assert found[:100] == list(values(shape, 100))


@pytest.mark.parametrize("shape", [*SHAPES.values(), *DIRTY.values()])
def test_the_peer_writes_the_columns_that_we_write(shape: Shape) -> None:
    theirs = schema_to_pyarrow(connect_sink.schema_of(shape), include_field_ids=False)
    assert theirs.names == arrow_schema(shape).names
    assert str(theirs.field("date_ordered").type) == "timestamp[us, tz=UTC]"
    assert not theirs.field("order_id").nullable


def test_the_sink_gets_the_catalog_that_we_use(tmp_path: Path) -> None:
    properties = {"type": "sql", "uri": f"sqlite:///{tmp_path}/c.db", "warehouse": f"file://{tmp_path}/w"}
    catalog = LakeCatalog("lake", properties)
    config = connect_sink.connector_config("h:1", ORDERS, catalog, "t", connect_sink.Settings(6), "control-t")
    assert config["iceberg.catalog.uri"] == f"jdbc:sqlite:{tmp_path}/c.db?busy_timeout=30000"
    assert config["iceberg.catalog.warehouse"] == f"file://{tmp_path}/w"
    assert (config["iceberg.catalog"], config["iceberg.catalog.jdbc.schema-version"]) == ("lake", "V1")
    assert (config["tasks.max"], config["topics"], config["iceberg.tables"]) == ("6", "pizza-orders", "bench.t")
    assert not [key for key in config if key.startswith(("errors.", "transforms"))]


def test_the_sink_keeps_bad_records_where_it_shall(tmp_path: Path) -> None:
    properties = {"type": "sql", "uri": f"sqlite:///{tmp_path}/c.db", "warehouse": f"file://{tmp_path}/w"}
    catalog, settings = LakeCatalog("lake", properties), connect_sink.Settings(2, dead_letters=True)
    broken, wrong = (
        connect_sink.connector_config("h:1", DIRTY[name], catalog, "t", settings, "control-t")
        for name in ("pizza-orders-1-broken", "pizza-orders-1-wrong-type")
    )
    for config in (broken, wrong):
        assert config["errors.tolerance"] == "all"
        assert config["errors.deadletterqueue.topic.name"] == connect_sink.dead_letter_topic("t")
    # The sink itself would stop at such a value.
    assert ("transforms" in broken, wrong["transforms.cast.spec"]) == (False, "store_id:int32")


@pytest.mark.slow
@pytest.mark.parametrize("shape", DIRTY.values(), ids=DIRTY)
def test_as_many_records_are_spoilt_as_the_shape_says(shape: Shape) -> None:
    clean = list(values(shape, 20_000))
    found = list(dirtied(shape, clean))
    assert found == list(dirtied(shape, clean))
    spoilt = {value for value, bad in found if bad}
    share = shape.broken + shape.wrong_type
    assert abs(len(spoilt) / len(clean) - share) <= share / 5
    assert [value for value, bad in found if not bad] == [
        v for v, (_, bad) in zip(clean, found, strict=True) if not bad
    ]
    for value in spoilt:
        if shape.broken:
            with pytest.raises(json.JSONDecodeError):
                json.loads(value)
        else:
            assert re.fullmatch(r"x\d+", json.loads(value)["store_id"])


def repeat(seconds: float, rows: int = 1000, **more: float) -> Repeat:
    return Repeat(1000, 250_000, seconds, seconds * 2, 1.0, rows=rows, commits=1, **more)


def test_medians_are_of_each_figure_and_rates_follow_from_records() -> None:
    series = Series("x", "t", "warm", (repeat(1), repeat(4), repeat(2)))
    median = series.median()
    assert (median["seconds"], median["records_per_second"], median["records_per_cpu_second"]) == (2, 500, 250)
    assert "committed_seconds" not in median


def test_a_table_tells_a_repeat_that_is_not_exact_and_when_all_is_committed() -> None:
    late = repeat(2, committed_seconds=4, committed_cpu_seconds=5)
    result = {
        "series": as_json([Series("a", "t", "warm", (repeat(1), repeat(1, 999))), Series("b", "t", "cold", (late,))])
    }
    rows = [dict(zip(HEADER, row, strict=True)) for row in throughput_rows(result, "t")]
    assert [(r["Program"], r["exactly once"]) for r in rows] == [
        ("a", "NO"),
        ("b", "yes"),
        ("b, until committed", "yes"),
    ]
    assert [(r["records/s"], r["wall s"], r["CPU s"]) for r in rows[1:]] == [
        ("500", "2.0", "4.0"),
        ("250", "4.0", "5.0"),
    ]
    assert throughput_rows(result, "u") == []
    assert in_markdown(("a", "b", "c"), [("1", "2", "3")]) == "| a | b | c |\n|---|---|---:|\n| 1 | 2 | 3 |"


def test_anchors_cost_money_and_have_the_first_of_a_case_as_one() -> None:
    slow = replace(repeat(4), size=500_000)
    series = [
        Series("limit", "JSON", "limit", (repeat(1), repeat(2), repeat(9))),
        Series("kafka_lake", "JSON", "warm", (slow,)),
        Series("PyIceberg", "upsert", "warm", (replace(slow, size=0),)),
    ]
    result = {"settings": {"engine": {"cores": 2}}, "series": as_json(series)}
    rows = [dict(zip(anchors.HEADER, row, strict=True)) for row in anchors.rows(result)]
    assert [row["CPU beside the first program"] for row in rows] == ["1.00", "2.00", "1.00"]
    assert [row["records/s per core"] for row in rows] == ["", "125", ""]
    assert [row["MB per CPU-s"] for row in rows] == ["0.1", "0.1", ""]
    # 0.25 MB in 4 CPU-s: 16 million seconds a terabyte.
    assert [row["US$ per TB"] for row in rows] == ["224.00", "224.00", ""]


def test_a_table_compares_bad_records_with_clean_ones_and_counts_both_of_their_places() -> None:
    clean, bad = repeat(1), replace(repeat(2, 990), dead_letters=10)
    lost, twice = replace(bad, dead_letters=9), replace(bad, duplicates=1, committed_seconds=7, committed_cpu_seconds=9)
    series = [
        *(Series(name, "c", "warm", (clean,)) for name in ("a", "b")),
        Series("a", "d", "warm", (bad,)),
        Series("b", "d", "warm", (bad, lost, bad)),
        Series("c", "d", "warm", (twice,)),
    ]
    rows = dirty_rows({"topics": {"c": "clean", "d": "1% truncated"}, "series": as_json(series)})
    found = [dict(zip(DIRTY_HEADER, row, strict=True)) for row in rows]
    assert [(r["Records"], r["Program"], r["relative to clean records"]) for r in found] == [
        ("clean", "a, warm", "1.00"),
        ("clean", "b, warm", "1.00"),
        ("1% truncated", "a, warm", "0.50"),
        ("1% truncated", "b, warm", "0.50"),
        ("1% truncated", "c, warm", "1.00"),
    ]
    assert [r["s until visible"] for r in found[2:]] == ["2.0", "2.0", "7.0"]
    assert [(r["rows"], r["dead letters"], r["every record once"]) for r in found[2:]] == [
        ("990", "10", "yes"),
        ("990", "10", "NO"),
        ("990", "10", "NO"),
    ]


def test_a_record_waits_until_the_first_look_that_covers_it() -> None:
    ledger = Ledger(2)
    ledger.produced[0].extend([1.0, 2.0, 3.0])
    ledger.produced[1].extend([1.5])
    ledger.see({0: 2, 1: 0}, 4.0)
    assert not ledger.complete()
    ledger.see({0: 2, 1: 0}, 5.0)
    ledger.see({0: 3, 1: 1}, 6.0)
    assert ledger.complete()
    assert sorted(ledger.waits(0, 10)) == [2.0, 3.0, 3.0, 4.5]
    assert ledger.waits(2.0, 3.0) == [2.0]
    assert ledger.commits == 2


def test_percentiles_are_values_that_were_seen_and_every_value_is_in_a_bin() -> None:
    waits = [float(n) for n in range(1, 201)]
    assert percentiles(waits) == {"p50": 100, "p95": 190, "p99": 198, "max": 200}
    assert percentiles([7.0]) == {"p50": 7, "p95": 7, "p99": 7, "max": 7}
    found = histogram(waits)
    assert sum(found["counts"]) == 200
    assert found["counts"][:1] == [4]
    assert found["counts"][-1] == 6


@pytest.mark.parametrize("name", page.tables())
def test_the_tables_of_performance_are_the_kept_results(name: str) -> None:
    if os.environ.get("UPDATE_DOCS"):
        page.update()
    (found,) = page.between(name).findall(page.PAGE.read_text())
    assert found == f"{page.tables()[name]}\n"


@pytest.mark.slow
def test_memory_is_told_by_program() -> None:
    with subprocess.Popen(
        [sys.executable, "-S", "-c", _BURNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        ((program, found),) = memory_by_program(child.pid).items()
        assert program.startswith("python")
        assert found == pytest.approx(memory_bytes(child.pid), rel=0.2)
        child.communicate("")


_WHOLE = {"low": 3, "end": 9, "next": 9, "rows": 6, "distinct": 6, "first": 3, "last": 8}


@pytest.mark.parametrize(
    ("change", "exact"),
    [
        ({}, True),
        ({"rows": 7}, False),
        ({"rows": 5, "distinct": 5}, False),
        ({"distinct": 5}, False),
        ({"first": 4}, False),
        ({"last": 9}, False),
        ({"next": 8}, False),
        ({"low": 9, "rows": 0, "distinct": 0, "first": None, "last": None}, True),
        ({"low": 9}, False),
    ],
)
def test_a_partition_is_exact_if_each_offset_is_there_once(change: dict[str, int], exact: bool) -> None:
    assert backlog.is_exact(_WHOLE | change) == exact


def test_the_peaks_of_a_run_are_told_for_equal_parts_of_its_time() -> None:
    run = backlog.Run(100.0, ended=110.0, cpu=7.5)
    run.commits = [{"at": 104.5, "offsets": 10, "remaining": 20}, {"at": 109.5, "offsets": 20, "remaining": 0}]
    run.looks = [backlog.Look(100.5 + second, second << 20, 1 << 20) for second in range(10)]
    reported = run.reported()
    assert (reported["records"], reported["records_per_second"], reported["largest_commit"]) == (30, 3.0, 20)
    assert reported["longest_commit_seconds"] == 5.0
    assert [phase["records"] for phase in reported["phases"]] == [0] * 4 + [10] * 5 + [30]
    assert [phase["peak_java"] >> 20 for phase in reported["phases"]] == list(range(10))
    assert (reported["peak_memory"] >> 20, reported["peak_python"] >> 20) == (10, 1)


@pytest.mark.parametrize(
    ("budget", "said"), [(None, None), (12, None), (11, "run 2: 12 MiB, run 3: not looked at"), (9, "run 1: 10 MiB, ")]
)
def test_a_budget_of_memory_that_is_not_kept_fails_the_benchmark(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, budget: int | None, said: str | None
) -> None:
    def run_of(peak: int) -> dict[str, Any]:
        run = backlog.Run(100.0, ended=110.0)
        run.looks = [backlog.Look(100.5, peak << 20, 0)] if peak else []
        return run.reported()

    peaks = [10, 12] if said is None else [10, 12, 0]
    runs = [run_of(peak) for peak in peaks]
    result = {"benchmark": "backlog", "partitions": [{"partition": 0, **_WHOLE}], "runs": runs}
    monkeypatch.setattr(backlog, "measure", lambda *_: result)
    monkeypatch.setattr("benchmarks.results.save", lambda result, folder: tmp_path / "backlog.json")
    arguments = ["backlog", *(["--memory", str(budget)] if budget else [])]
    done = CliRunner().invoke(command.app, arguments)
    if said is None:
        assert done.exit_code == 0, done.output
    else:
        assert isinstance(done.exception, KafkaLakeError)
        assert f"The budget of {budget} MiB was not kept: " in done.exception.message
        assert said in done.exception.message
