"""The short fuzz: some thousand inputs of a fixed seed. `make fuzz N=1000000 SEED=` is the long one."""

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from kafka_lake.formats.json.task.rows import Converter
from kafka_lake.formats.task.columns import Rules
from kafka_lake_tests.exhaustive import exhaustive
from kafka_lake_tests.fuzz.adapter import decoder_of, taken_fast
from kafka_lake_tests.fuzz.generate import CORPUS, payload, tame_payload
from kafka_lake_tests.fuzz.json_fuzz import BATCH, TOPICS, Found, check, fuzz


def test_every_json_value_is_in_row_dead_letter_or_report() -> None:
    found = Found()
    for found in fuzz(4000, 20261122):
        assert found.wrong == []
    assert found.outcomes["rows"] > 10_000
    assert {"not_json", "wrong_type", "too_deep"} == set(found.outcomes) - {"rows"}


@pytest.mark.parametrize("settings", [{}, {"any_case": True}, {"timestamp_unit": "ms"}])
@pytest.mark.parametrize("topic", TOPICS)
def test_fast_and_strict_path_agree_on_everything(topic: str, settings: dict[str, Any]) -> None:
    columns, infer = TOPICS[topic]
    fast, strict = (decoder_of(columns, Rules(infer, **settings), plain) for plain in (True, False))
    for start in range(0, 2 * BATCH, BATCH):
        make = tame_payload if start else payload
        contents = [*CORPUS.values(), *(make(20261127, index) for index in range(start, start + BATCH))]
        one, other = (decoder.decode(pa.array(contents, pa.binary())) for decoder in (fast, strict))
        assert one.rows.equals(other.rows)
        assert (one.error_class, one.error_message) == (other.error_class, other.error_message)
        assert replace(one.seen, slow={}) == other.seen


def test_fast_path_takes_most_of_what_is_tame() -> None:
    contents = [tame_payload(1, index) for index in range(BATCH)]
    taken = {name: taken_fast(contents, columns, infer) for name, (columns, infer) in TOPICS.items()}
    assert min(taken.values()) > BATCH * 0.6


@pytest.mark.parametrize(
    ("module", "name", "sabotaged"),
    [
        ("rows", "is_double", lambda number: True),
        ("rows", "same_number", lambda one, other: True),
        ("rows", "refuse_twice", lambda value: None),
        exhaustive("rows", "FIRST_MICROS", -(2**62)),
        exhaustive("rows", "LAST_MICROS", 2**62),
        exhaustive("types", "dumps", lambda value: "{}"),
    ],
)
def test_a_decoder_that_lies_is_found_out(
    module: str, name: str, sabotaged: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A decoder that was unpacked in this process has its own copy of its modules.
    names = Converter.row.__globals__
    monkeypatch.setitem(names if module == "rows" else names["as_text"].__globals__, name, sabotaged)
    found = Found()
    check(list(CORPUS.values()), found)
    for found in fuzz(2000, 1):
        if found.wrong:
            break
    assert found.wrong
