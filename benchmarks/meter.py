"""What a tree of processes has used: CPU seconds, exact to the kernel's clock tick, and memory.

CPU is what the kernel has in ``/proc/<pid>/stat`` for every process of the tree, live or not yet reaped, together with
what it has added there of the children that were reaped (``cutime``, ``cstime``). So a process that ran for a moment
between two looks counts whole, and none counts twice.
"""

import ctypes
import os
import threading
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

TICK_SECONDS = 1 / os.sysconf("SC_CLK_TCK")
_PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """Make this process the parent of descendants whose own parent ends, so that their CPU stays in its tree."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def cpu_seconds(root: int) -> float:
    """Return the CPU seconds, user and system, of a process and all that descend from it, from their start on."""
    while True:
        before = _stats()
        tree = _tree(root, before)
        # A child reaped while we looked would be missing from its parent's sum, or be in it twice.
        after = _stats()
        if tree == _tree(root, after) and all(before[pid][2] == after[pid][2] for pid in tree):
            return sum(own + reaped for _, own, reaped in (after[pid] for pid in tree)) * TICK_SECONDS


def memory_bytes(root: int) -> int:
    """Return the memory of the tree; pages that processes share count once, split among them (PSS)."""
    return sum(_pss(pid) for pid in _tree(root, _stats()))


def resident_bytes(pid: int) -> int:
    """Return the memory of one process, its share of pages that others use too (PSS)."""
    return _pss(pid)


def memory_by_program(root: int) -> dict[str, int]:
    """Return the memory of the tree as `memory_bytes` counts it, by the programs' names as the kernel has them."""
    found: dict[str, int] = {}
    for pid in _tree(root, _stats()):
        with suppress(OSError):
            name = Path("/proc", str(pid), "comm").read_text().strip()
            found[name] = found.get(name, 0) + _pss(pid)
    return found


class PeakMemory:
    """The most memory that a tree of processes had while the block ran, looked at once a second.

    Args:
        root: The tree's first process.
    """

    def __init__(self, root: int) -> None:
        self.root = root
        self.peak = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def take(self) -> int:
        """Return the peak in bytes since the last time this was asked."""
        found, self.peak = max(self.peak, memory_bytes(self.root)), 0
        return found

    def _watch(self) -> None:
        while True:
            self.peak = max(self.peak, memory_bytes(self.root))
            if self._stop.wait(1):
                return


def _stats() -> dict[int, tuple[int, int, int]]:
    """Return, for each process, its parent, its own ticks and those of its reaped children."""
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError):
                # The name of the program, in parentheses, may hold anything.
                fields = (folder / "stat").read_bytes().rpartition(b")")[2].split()
                found[int(folder.name)] = (
                    int(fields[1]),
                    int(fields[11]) + int(fields[12]),
                    int(fields[13]) + int(fields[14]),
                )
    return found


def _tree(root: int, stats: dict[int, tuple[int, int, int]]) -> set[int]:
    children: dict[int, list[int]] = {}
    for pid, (parent, _, _) in stats.items():
        children.setdefault(parent, []).append(pid)
    tree: set[int] = set()
    todo = [root] if root in stats else []
    while todo:
        pid = todo.pop()
        tree.add(pid)
        todo += children.get(pid, [])
    return tree


def _pss(pid: int) -> int:
    with suppress(OSError):
        for line in Path("/proc", str(pid), "smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0
