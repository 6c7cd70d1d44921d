"""Files that are there as a whole or not at all, and files that only their owner reads."""

import os
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


def write_private(path: Path, text: str) -> None:
    """Write a file that its owner alone can read, in place of the one that is there.

    Args:
        path: The file; its folder is there.
    """
    new = path.with_name(f"{path.name}.new")
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
    new.replace(path)
