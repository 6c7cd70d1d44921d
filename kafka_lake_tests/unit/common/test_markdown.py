"""Content of records on Dagster's pages is text: as a browser's Markdown reads it, it makes no link, image or HTML."""

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token

from kafka_lake.catalog.lake_catalog import LakeCatalog
from kafka_lake.common.offsets import Position, TopicIdentity, Watermarks
from kafka_lake.common.text import block, code, plain, printable, table
from kafka_lake.ingest.report import Reached, RunReport
from kafka_lake.orchestration.check_results import check_result, dead_letter_result
from kafka_lake.orchestration.reporting import _of_routes
from kafka_lake.orchestration.table_metadata import about_table, table_metadata
from kafka_lake.runtime.commit import Commit, Finding
from kafka_lake.runtime.task.report import DeadLetterClass
from kafka_lake.spec.topic_table import TopicTable

MARKDOWN = MarkdownIt("commonmark").enable(["table", "strikethrough"])
# GitHub's Markdown makes links of these in any text but code: micromark's autolink literals.
AUTOLINK = re.compile(r"https?://[-.\w]|www\.[-.\w]|[-.\w+]@[-\w]+\.[-\w]", re.IGNORECASE)
HARMLESS = {"text", "code_inline", "softbreak", "fence"}
HOSTILE = (
    "[Sign in again](https://evil.example/login)",
    "![](https://evil.example/pixel.png)",
    "<img src=x onerror=alert(1)><a href='http://evil.example'>in</a>",
    "https://evil.example/login",
    "www.evil.example",
    "WWW.evil.example mail.to@evil.example",
    "`[a](http://evil.example)",
    "``` [a](http://evil.example) ```",
    "a\\|[a](http://evil.example)|b",
    "a\\\\|[a](http://evil.example)\\|",
    "`|[a](http://evil.example)|`",
    "a\n\n[a]: http://evil.example\n\n[a]",
    "\n```\n\n[a](http://evil.example)",
    "[a]: http://evil.example",
    "<https://evil.example>",
    "    # heading",
    "- [ ] task\n1. one\n> quote",
    "~~gone~~ **bold** _so_ &#91;a](x) &lt;b&gt;",
    "a | b\n--- | ---\n[a](http://evil.example) | c",
    "back\\",
    "`",
    " ",
)
pieces = st.sampled_from(
    [
        "[a](http://e.x)",
        "![",
        "](",
        "<b>",
        "`",
        "``",
        "|",
        "\\",
        "\n",
        " ",
        "www.",
        "@e.x",
        "h",
        "*",
        "_",
        "~",
        "&lt;",
        ":",
        "//",
        "http:",
    ]
)
texts = st.one_of(st.text(), st.lists(pieces, max_size=12).map("".join), st.sampled_from(HOSTILE))


def tokens(markdown: str) -> Iterator[Token]:
    """Give all tokens of a text, inline ones instead of those that hold them."""
    for token in MARKDOWN.parse(markdown):
        yield from token.children if token.children is not None else [token]


def assert_text_only(markdown: str, *more: str) -> None:
    """Make sure that nothing is shown but text, code, and tokens of the kinds that are named."""
    for token in tokens(markdown):
        kind = token.type.removesuffix("_open").removesuffix("_close")
        assert kind in {*HARMLESS, "paragraph", *more}, f"{kind} in {markdown!r}"
        if token.type == "text":
            assert not AUTOLINK.search(token.content), markdown


TABLE = ("table", "thead", "tbody", "tr", "th", "td")


def cells(markdown: str) -> list[list[str]]:
    """Return what is in a table's cells."""
    rows: list[list[str]] = []
    for token in MARKDOWN.parse(markdown):
        if token.type == "tr_open":
            rows.append([])
        elif token.type == "inline" and rows:
            rows[-1].append("".join(child.content for child in token.children or ()))
    return rows


def shown(text: str) -> str:
    """Return a text without the signs that have no width."""
    return text.replace("\u2060", "")


@given(texts)
def test_plain_text_is_shown_as_it_is(text: str) -> None:
    assert_text_only(plain(text))
    assert shown("".join(token.content for token in tokens(plain(text)))) == printable(text)


@given(texts)
def test_code_is_shown_as_it_is(text: str) -> None:
    assert_text_only(code(text))
    assert shown("".join(token.content for token in tokens(code(text)))) == printable(text)


@given(st.lists(st.lists(texts, min_size=2, max_size=2), min_size=1, max_size=3))
@example([["a\\", "b|"], ["\\|", "`|`"]])
def test_cells_of_code_stay_in_their_cells(rows: list[list[str]]) -> None:
    written = table([code("[a](http://e.x)"), "b"], [[code(cell) for cell in row] for row in rows])
    assert_text_only(written, *TABLE)
    assert [[shown(cell) for cell in row] for row in cells(written)][1:] == [
        [printable(cell) for cell in row] for row in rows
    ]


@given(texts)
def test_a_block_of_code_ends_where_its_text_ends(text: str) -> None:
    (token,) = MARKDOWN.parse(block(text, "sql"))
    assert (token.type, token.info) == ("fence", "sql")


@pytest.mark.parametrize("text", ["plain words, of 3.5 %", "column `a`: added", "a_b*c|d\\e <f> [g](h) #1 - x!"])
def test_text_of_ours_is_read_as_it_was_written(text: str) -> None:
    assert shown("".join(token.content for token in tokens(plain(text)))) == text
    (row,) = cells(table([code(text)], []))
    assert [shown(cell) for cell in row] == [text]


@pytest.fixture(params=HOSTILE)
def hostile(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def pages(metadata: dict[str, Any]) -> list[str]:
    """Return the Markdown in metadata."""
    return [entry.value for entry in metadata.values() if isinstance(entry, dg.MarkdownMetadataValue)]


def test_a_hostile_record_is_text_on_each_page(hostile: str, catalog: LakeCatalog) -> None:
    spec = TopicTable("orders", "shop", "orders")
    catalog.ensure_namespace("shop")
    letters = pa.schema([
        ("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64()), ("error_class", pa.string()),
        ("error_message", pa.string()), ("value", pa.binary()),
    ])  # fmt: skip
    letter = {
        "topic": "orders",
        "partition": 0,
        "offset": 1,
        "error_class": "not_json",
        "error_message": hostile,
        "value": hostile.encode(),
    }
    catalog.pyiceberg.create_table(spec.dead_letter_table, letters).append(pa.Table.from_pylist([letter], letters))
    rows = pa.table({hostile: [hostile], "b": [1]})
    made = catalog.pyiceberg.create_table(spec.identifier, rows.schema)
    made.append(rows)
    with made.update_schema() as change:
        change.update_column(hostile, doc=hostile)
    where = Position(TopicIdentity("c", "t", "orders"), {0: 1})
    letter_class = DeadLetterClass("not_json", 1, 0, 1, hostile, hostile)
    its = Commit(1, (), where, 0, 0, 0, 0, 0, 0, {}, (), classes=(letter_class,))
    ends = Watermarks(where.identity, {0: 0}, {0: 1})
    report = RunReport("shop.orders", "run", {"orders": Reached(ends, where)}, [its], 1.0)
    report = replace(report, others={("shop", hostile): replace(report, table=f"shop.{hostile}")})
    described = check_result(Finding("row_count", (f"value {hostile}",), {"sample": hostile}), dg.AssetKey("a"))
    columns = about_table(made, catalog, spec.identifier)["dagster/column_schema"].columns
    markdown = [
        *pages(dead_letter_result(spec, catalog)["metadata"]),
        *pages(table_metadata(report, made, catalog, spec)),
        *pages(_of_routes(report, ())),
        str(described.description),
        *(column.description for column in columns if column.description),
    ]
    assert len(markdown) >= 5
    for text in markdown:
        assert_text_only(text, *TABLE, "strong")
