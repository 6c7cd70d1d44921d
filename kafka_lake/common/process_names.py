"""Names of processes by which they are found again, and missed, whatever has become of their numbers since."""

import socket
import sys
from pathlib import Path

import psutil


def name_of(process: int | None) -> str | None:
    """Return a living process's name: host, its boot, namespace, number and start; None if it is gone.

    Containers may have the same host name, and each numbers its processes from 1: the namespace tells them apart. Hosts
    may have the same name, and namespaces of the same number: the boot tells them apart.
    """
    start = _start_of(process) if process is not None else None
    return None if start is None else f"{_here()}:{process}:{start}"


def is_gone(name: str) -> bool | None:
    """Return whether a process is gone, by its name; None if it can't be told from here.

    >>> is_gone("another host:0ab52b1c:4026531836:17:123456")
    """
    here, process, _ = name.rsplit(":", 2)
    return name_of(int(process)) != name if here == _here() else None


def number_of(name: str) -> int:
    """Return the number of a process by its name."""
    return int(name.rsplit(":", 2)[1])


def _here() -> str:
    if sys.platform != "linux":
        return f"{socket.gethostname()}:{psutil.boot_time():.0f}:"
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{socket.gethostname()}:{boot}:{Path('/proc/self/ns/pid').readlink().name.strip('pid:[]')}"


def _start_of(process: int) -> str | None:
    if sys.platform != "linux":
        try:
            return f"{psutil.Process(process).create_time():.0f}"
        except psutil.NoSuchProcess:
            return None
    try:
        after_command = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # Ticks since the machine's start: unlike a time of day, it is the same whatever becomes of the clock.
    state, start = after_command[0], after_command[19]
    return None if state == "Z" else start
