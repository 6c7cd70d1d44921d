"""Spark's Python daemon, with what tasks need imported once (``spark.python.daemon.module``).

Spark's own daemon forks a worker for each task, and each worker imports pyarrow, pandas and PyIceberg: two CPU-seconds.
Here the daemon imports them, and its workers have them. A Connect server has a daemon for each session and never ends
it, so a daemon ends itself after two minutes without a worker; Spark starts another one when it needs it.
"""

import gc
import os
import signal
import sys
from contextlib import suppress
from importlib import import_module
from importlib.machinery import PathFinder
from pathlib import Path

_IMPORTED = ("pandas", "pyarrow.json", "pyarrow.parquet", "pyiceberg.io.pyarrow", "pyiceberg_core", "pyspark.worker")
# Spark itself ends workers that have had no task for a minute.
_UNUSED_SECONDS = 60.0


def main() -> None:
    """Import what tasks need and be the daemon, until Spark closes standard input or the daemon is unused.

    Not documented: ``pyspark.daemon.manager``, which that module calls when Spark runs it by itself.
    """
    _leave_zips()
    _import_all()
    # Only here, since it must not come from a zip file.
    from pyspark.daemon import manager

    signal.signal(signal.SIGALRM, _end_if_unused)
    # Forked workers don't have the timer.
    signal.setitimer(signal.ITIMER_REAL, _UNUSED_SECONDS, _UNUSED_SECONDS)
    manager()


_was_unused = False


def _end_if_unused(*_: object) -> None:
    """End this process if it has had no worker at two looks in a row."""
    global _was_unused
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        if _was_unused:
            signal.setitimer(signal.ITIMER_REAL, 0)
            sys.exit()
        _was_unused = True
    else:
        _was_unused = False


def _leave_zips() -> None:
    """Import PySpark from its package instead of the zip files in it, which Spark puts before all else.

    Before each task a worker has Python read each zip file's directory again, once for each package in it: 50 ms.
    """
    installed = PathFinder.find_spec("pyspark", [entry for entry in sys.path if not entry.endswith(".zip")])
    if installed is None or installed.origin is None:
        return
    zips = Path(installed.origin).parent / "python" / "lib"
    sys.path[:] = [entry for entry in sys.path if Path(entry).parent != zips]
    for entry in [entry for entry in sys.path_importer_cache if Path(entry).parent == zips]:
        del sys.path_importer_cache[entry]


def _import_all() -> None:
    """Import what tasks need, and have the garbage collector leave that alone.

    Otherwise it looks at all objects of all modules after each task: 60 ms.
    """
    gc.disable()
    for module in _IMPORTED:
        # If something is missing, the tasks that need it say so.
        with suppress(ImportError):
            import_module(module)
    gc.freeze()
    gc.enable()


if __name__ == "__main__":
    main()
