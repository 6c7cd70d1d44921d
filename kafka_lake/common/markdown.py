"""Markdown for the documentation and for Dagster's pages.

Dagster renders metadata and descriptions as GitHub's Markdown. Text from records and schemas must not become links,
images or HTML there: `code` and `plain` escape it.
"""

import re
from collections.abc import Iterable, Sequence

from kafka_lake.common.text import printable

# Without width. It interrupts addresses, which GitHub's Markdown would make links.
_JOINER = "\u2060"
_ADDRESS = re.compile(r"(?<=http:)(?=//)|(?<=https:)(?=//)|(?<=www)(?=\.)|(?<=@)", re.IGNORECASE)
_SIGNS = re.compile(r"[\\`*\[\]<~]|&(?=[#\w])|(?<![^\W_])_+|_+(?![^\W_])")
_AT_THE_BEGINNING = re.compile(r"^(\d*)(?=[-+#=>.):])")


def table(head: Sequence[str], rows: Iterable[Sequence[str]], code: int = 0) -> str:
    """Return a table without a final line end; the first ``code`` columns are code."""
    lines = [head, ["---"] * len(head)]
    lines += [[f"`{cell}`" if cell and n < code else cell for n, cell in enumerate(row)] for row in rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def code(text: str) -> str:
    """Return text as inline code, also for a cell of a `table`; empty for empty text.

    >>> code("a"), code("a `b`"), code(" ")
    ('`a`', '`` a `b` ``', '')
    """
    # Otherwise the backslash would end the table's escape of the pipe.
    shown = printable(text).replace("\\|", f"\\{_JOINER}|")
    if not shown:
        return ""
    longest = max((len(each) for each in re.findall("`+", shown)), default=0)
    fence, space = "`" * (longest + 1), " " if "`" in (shown[0], shown[-1]) else ""
    return f"{fence}{space}{shown}{space}{fence}"


def plain(text: str) -> str:
    r"""Return text in one line, escaped.

    >>> plain("column order_id: [a] became *"), plain("- x"), plain("1. x")
    ('column order_id: \\[a\\] became \\*', '\\- x', '1\\. x')
    """
    shown = _SIGNS.sub(lambda found: "".join(f"\\{sign}" for sign in found[0]), printable(text))
    return _ADDRESS.sub(_JOINER, _AT_THE_BEGINNING.sub(r"\1\\", shown))


def block(text: str, language: str) -> str:
    """Return text as a code block; fences in the text don't end it."""
    fence = "`" * max(3, *(len(each) + 1 for each in re.findall("`+", text)), 3)
    return f"{fence}{language}\n{text}\n{fence}"
