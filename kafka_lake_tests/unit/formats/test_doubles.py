"""Numbers that a double rounds are found in JSON texts, and only numbers."""

import json
import random
import uuid

import pyarrow as pa
import pytest

from kafka_lake.formats.json.task import doubles
from kafka_lake.formats.json.task.doubles import is_double, with_rounded

NUMBERS = [
    *("0.1", "1.5e3", "1e2", "-12.25", "123456789012345.5", "0.1234567890123456", "5e-324", "1e308", "2.50", "1E+22"),
    *("0.12345678901234567890", "1234567890.1234567", "1e400", "-1e-400", "1.5E+400", "12345678901234567e1"),
    *("9007199254740993.0", "0." + "1" * 60, "1" * 50 + ".5", "1e" + "0" * 45 + "1"),
]
AROUND = ['{"a":%s}', '{"a": %s }', '{"a":[1,%s]}', '{"a":[%s, 2]}', '{"a":\t%s\n,"b":1}', '{"a":{"b":"e","c":%s}}']


@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("part", [5, 1 << 18])
def test_numbers_that_a_double_rounds_are_found_whatever_stands_around_them(
    around: str, part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doubles, "_PART", part)
    draw = random.Random(around)
    numbers = draw.choices(NUMBERS, k=500)
    texts = [around % number for number in numbers]
    for text in texts:
        json.loads(text)
    # Numbers of more than 25 characters may be left to the strict path although a double holds them.
    rounded = [at for at, number in enumerate(numbers) if not is_double(number) or len(number) > 25]
    assert with_rounded(pa.array(texts)).tolist() == rounded
    for sliced in (texts[7:], texts[7:8]):
        expected = [at for at, text in enumerate(sliced) if 7 + at in rounded]
        assert with_rounded(pa.array(texts).slice(7, len(sliced))).tolist() == expected


def test_identifiers_with_the_digits_of_numbers_are_not_taken_for_numbers() -> None:
    draw = random.Random(1)
    ids = [uuid.UUID(int=draw.getrandbits(128)) for _ in range(5000)]
    texts = [f'{{"id": "{each}", "hex": "{each.hex}", "no": "1.2.3456789012345678", "x": 0.1}}' for each in ids]
    assert with_rounded(pa.array(texts)).tolist() == []
