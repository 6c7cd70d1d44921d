"""What is where in many JSON texts, found by looking at all of them at once."""

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from kafka_lake.formats.json.task.lines import Lines


@given(st.lists(st.text("{[}]a", max_size=6), max_size=6), st.integers(0, 3))
def test_opened_counts_brackets_of_each_text(texts: list[str], before: int) -> None:
    sliced = pa.array(["[{"] * before + texts + ["{"], pa.string()).slice(before, len(texts))
    opened = [text.count("{") + text.count("[") for text in texts]
    assert Lines(sliced).opened().tolist() == opened
