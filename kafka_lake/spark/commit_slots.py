"""Commit slots: only so many commits of this machine work at once; the others wait.

Ten commits that share two cores take as long as all of them together, and what each has read is that old by then. One
after the other, each is done in a fraction of that time. No promise depends on it: a slot is not a lock.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

_POLL_SECONDS = 0.05
_FORGOTTEN_SECONDS = 600.0


class CommitSlots:
    """The queue of all processes that name the same folder. First come, first served.

    A ticket is a file there. A commit that waits touches its ticket at every poll; one that has a slot doesn't touch it
    any more. So one rule is enough: a ticket expires some time after it was touched. It bounds how long a slot is held,
    and it frees the slots of processes that died or were suspended.

    Args:
        folder: On this machine; made if it isn't there. If it can't be written, nobody waits.
        places: How many commits have a slot at once.
        longest: Seconds after which a slot keeps nobody waiting any more.
    """

    def __init__(self, folder: Path, places: int, longest: float = 5.0) -> None:
        self.folder = folder
        self.places = places
        self.longest = longest

    @contextmanager
    def take(self, sleep: Callable[[float], None] = time.sleep) -> Iterator[bool]:
        """Wait for a slot, and hold it during the block.

        Args:
            sleep: Pauses between two polls, for that many seconds; what it raises ends the wait, and leaves no ticket.

        Yields:
            Whether there was anything to wait for.
        """
        ticket, waited = self.folder / f"{time.monotonic_ns():020d}-{uuid4().hex}", False
        with suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True)
        try:
            while self._ahead(ticket) >= self.places:
                waited = True
                sleep(_POLL_SECONDS)
            yield waited
        finally:
            with suppress(OSError):
                ticket.unlink()

    def _ahead(self, ticket: Path) -> int:
        """Return how many come before a ticket, which is touched."""
        try:
            ticket.touch()
            now = ticket.stat().st_mtime
            ages = {other: now - touched for other, touched in self._others(ticket.name)}
            for name in [name for name, age in ages.items() if age > _FORGOTTEN_SECONDS]:
                (self.folder / name).unlink(missing_ok=True)
        except OSError:
            return 0
        return sum(other < ticket.name and age < self.longest for other, age in ages.items())

    def _others(self, own: str) -> Iterator[tuple[str, float]]:
        with os.scandir(self.folder) as tickets:
            for each in tickets:
                # A commit that ends meanwhile removes its ticket.
                with suppress(FileNotFoundError):
                    if each.name != own:
                        yield each.name, each.stat().st_mtime
