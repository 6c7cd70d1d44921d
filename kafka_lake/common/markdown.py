"""Tables of the documentation, as Markdown."""

from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[str]], code: int = 0) -> str:
    """Return a table, without a line end behind it.

    Args:
        head: The columns' names.
        rows: Their cells.
        code: How many of the first columns are code.
    """
    lines = [head, ["---"] * len(head)]
    lines += [[f"`{cell}`" if cell and n < code else cell for n, cell in enumerate(row)] for row in rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
