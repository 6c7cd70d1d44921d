"""The pages' tables are the code's: `UPDATE_DOCS=1 pytest` on this file writes them anew."""

import os
import re
from pathlib import Path

import pytest

from kafka_lake.ingest.decode.reference import tables

PAGE = Path(__file__).parents[2] / "docs" / "formats.md"


@pytest.mark.parametrize("name", tables())
def test_the_tables_of_formats_are_what_the_decoders_say(name: str) -> None:
    between = re.compile(rf"(?<=<!-- {name} -->\n).*?(?=<!-- /{name} -->)", re.DOTALL)
    wanted = f"{tables()[name]}\n"
    if os.environ.get("UPDATE_DOCS"):
        PAGE.write_text(between.sub(lambda _: wanted, PAGE.read_text()))
    (found,) = between.findall(PAGE.read_text())
    assert found == wanted
