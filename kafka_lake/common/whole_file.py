"""Files that are there as a whole or not at all, whoever reads them meanwhile."""

from pathlib import Path
from uuid import uuid4


def write_whole(path: Path, text: str) -> None:
    """Write a file in one step: who reads it has what was there before, or all of the new text.

    Args:
        path: The file; its folder is there.
        text: What it is to have.

    Raises:
        OSError: If it can't be written. It is as it was then.
    """
    partial = path.with_name(f".{path.name}.{uuid4().hex}")
    try:
        partial.write_text(text)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
