"""Markdown for pages: tables of the documentation, and text of others that means nothing to a browser.

Dagster's pages render metadata and descriptions as GitHub's Markdown. What a record, a field or a schema says there
must be no link, no image and no HTML: `code` and `plain` make it text.
"""

import re
from collections.abc import Iterable, Sequence

from kafka_lake.common.text import printable

# It has no width, and ends what GitHub's Markdown would take for an address: it makes links of those by themselves.
_JOINER = "\u2060"
_ADDRESS = re.compile(r"(?<=http:)(?=//)|(?<=https:)(?=//)|(?<=www)(?=\.)|(?<=@)", re.IGNORECASE)
_SIGNS = re.compile(r"[\\`*\[\]<~]|&(?=[#\w])|(?<![^\W_])_+|_+(?![^\W_])")
_AT_THE_BEGINNING = re.compile(r"^(\d*)(?=[-+#=>.):])")


def table(head: Sequence[str], rows: Iterable[Sequence[str]], code: int = 0) -> str:
    """Return a table, without a line end behind it."""
    lines = [head, ["---"] * len(head)]
    lines += [[f"`{cell}`" if cell and n < code else cell for n, cell in enumerate(row)] for row in rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def code(text: str) -> str:
    """Return text as code in one line, in which nothing has a meaning, also in a cell of a `table`; empty if it is.

    >>> code("a"), code("a `b`"), code(" ")
    ('`a`', '`` a `b` ``', '')
    """
    # A backslash before a pipe would be read as another escape than the table's.
    shown = printable(text).replace("\\|", f"\\{_JOINER}|")
    if not shown:
        return ""
    longest = max((len(each) for each in re.findall("`+", shown)), default=0)
    fence, space = "`" * (longest + 1), " " if "`" in (shown[0], shown[-1]) else ""
    return f"{fence}{space}{shown}{space}{fence}"


def plain(text: str) -> str:
    r"""Return text in one line that is shown as it stands.

    >>> plain("column order_id: [a] became *"), plain("- x"), plain("1. x")
    ('column order_id: \\[a\\] became \\*', '\\- x', '1\\. x')
    """
    shown = _SIGNS.sub(lambda found: "".join(f"\\{sign}" for sign in found[0]), printable(text))
    return _ADDRESS.sub(_JOINER, _AT_THE_BEGINNING.sub(r"\1\\", shown))


def block(text: str, language: str) -> str:
    """Return text of several lines as code in a language; whatever is in it, the code ends where the text does."""
    fence = "`" * max(3, *(len(each) + 1 for each in re.findall("`+", text)), 3)
    return f"{fence}{language}\n{text}\n{fence}"
