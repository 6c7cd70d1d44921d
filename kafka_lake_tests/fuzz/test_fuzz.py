"""The short fuzz: some thousand inputs of a fixed seed. `make fuzz N=1000000 SEED=` is the long one."""

import pytest

from kafka_lake.executors.json import converter, scalars, types
from kafka_lake_tests.fuzz.adapter import taken_by_arrow
from kafka_lake_tests.fuzz.generate import CORPUS, tame_payload
from kafka_lake_tests.fuzz.json_fuzz import BATCH, TOPICS, Found, check, fuzz


def test_every_value_of_the_input_is_in_the_row_in_a_dead_letter_or_named() -> None:
    found = Found()
    for found in fuzz(4000, 20261122):
        assert found.wrong == []
    assert found.outcomes["rows"] > 10_000
    assert {"not_json", "wrong_type", "too_deep"} == set(found.outcomes) - {"rows"}


def test_the_fuzz_goes_both_ways() -> None:
    contents = [tame_payload(1, index) for index in range(BATCH)]
    taken = {name: taken_by_arrow(contents, columns) for name, (columns, _) in TOPICS.items()}
    assert {name for name, count in taken.items() if count} == {"declared, plain", "inferred, plain"}
    assert min(count for count in taken.values() if count) > BATCH // 5


@pytest.mark.parametrize(
    ("module", "name", "sabotaged"),
    [
        (scalars, "is_double", lambda number: True),
        (scalars, "same_number", lambda one, other: True),
        (converter, "refuse_twice", lambda value: None),
        (converter, "FIRST_MICROS", -(2**62)),
        (converter, "LAST_MICROS", 2**62),
        (types, "dumps", lambda value: "{}"),
    ],
)
def test_a_decoder_that_lies_is_found_out(
    module: object, name: str, sabotaged: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, name, sabotaged)
    found = Found()
    check(list(CORPUS.values()), found)
    for found in fuzz(2000, 1):
        if found.wrong:
            break
    assert found.wrong
