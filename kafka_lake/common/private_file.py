"""Files that hold secrets: readable by their owner alone from the moment they are there."""

import os
from pathlib import Path


def write_private(path: Path, text: str) -> None:
    """Write a file that its owner alone can read, in place of the one that is there.

    Args:
        path: The file; its folder is there.
        text: All of it.
    """
    new = path.with_name(f"{path.name}.new")
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
    new.replace(path)
