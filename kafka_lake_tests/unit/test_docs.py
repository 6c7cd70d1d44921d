"""The pages' tables and code are the code's: `UPDATE_DOCS=1 pytest` on this file writes the tables anew."""

import os
import re
from pathlib import Path

import pytest

from kafka_lake.ingest.decode.reference import tables
from kafka_lake.lake.how_to_read import how_to_read

PAGE = Path(__file__).parents[2] / "docs" / "formats.md"


@pytest.mark.parametrize("name", tables())
def test_the_tables_of_formats_are_what_the_decoders_say(name: str) -> None:
    between = re.compile(rf"(?<=<!-- {name} -->\n).*?(?=<!-- /{name} -->)", re.DOTALL)
    wanted = f"{tables()[name]}\n"
    if os.environ.get("UPDATE_DOCS"):
        PAGE.write_text(between.sub(lambda _: wanted, PAGE.read_text()))
    (found,) = between.findall(PAGE.read_text())
    assert found == wanted


def test_the_tutorial_reads_the_table_by_the_code_that_the_table_s_page_has() -> None:
    page = (PAGE.parent / "tutorial.md").read_text()
    found = re.findall(r"\*\*(\w+)\*\*\n\n```python\n(.*?)\n```", page, re.DOTALL)
    assert dict(found) == how_to_read("lake", ("lake", "web_orders"))
