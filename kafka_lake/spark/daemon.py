"""Starts Spark's Python workers quickly: forked from a process that has imported what they need.

Spark's own Python daemon forks a worker for each task, and each imports pyarrow, pandas and PyIceberg again, some
two CPU-seconds. This one has imported them (``spark.python.daemon.module``).

A Connect server has a daemon for each of its sessions. There the first leaves a fork server behind, which forks the
daemons of later sessions. A daemon gets its session's environment, folder and standard streams, and so is in
everything that session's own. The fork server itself is in no session's folder: Spark removes that with the session.
It ends with Spark's JVM, and serves this user's processes only. It needs Linux. What fails in it is said on standard
error, which is the server's log, and the daemon that was asked for then imports what it needs itself. Spark never
ends the daemon of a session that is over. So a daemon ends itself when it has had no worker for a while; Spark starts
another one if it is needed after all.
"""

import errno
import gc
import json
import os
import select
import signal
import socket
import struct
import sys
import traceback
from contextlib import suppress
from importlib import import_module
from importlib.machinery import PathFinder
from pathlib import Path
from typing import NoReturn

from kafka_lake.spark.compat.workers import serve_workers

FORK_SERVER = "KAFKA_LAKE_PYTHON_FORK_SERVER"
"""Environment variable, whatever its value: a fork server is asked for."""

_IMPORTED = ("pandas", "pyarrow.json", "pyarrow.parquet", "pyiceberg.io.pyarrow", "pyiceberg_core", "pyspark.worker")
_STREAMS = [0, 1, 2]
# Spark itself ends workers that have had no task for a minute.
_UNUSED_SECONDS = 30.0
_CREDENTIALS = struct.Struct("3i")


def main() -> None:
    """Be the Python daemon that Spark asked for, here or in a process that the fork server forks."""
    jvm, forks = os.getppid(), sys.platform == "linux" and FORK_SERVER in os.environ
    if forks and _forked_by_server(jvm):
        return
    _leave_zips()
    _import_all()
    if forks and os.fork() == 0:
        # Twice, so that it isn't a worker of this daemon's.
        if os.fork() == 0:
            _be_fork_server(jvm)
        os._exit(0)
    _be_daemon()


def _address(jvm: int) -> str:
    # In Linux's abstract namespace, where nothing is left behind; containers may share that, but not their processes.
    return f"\0kafka_lake/python/{Path('/proc/self/ns/pid').readlink()}/{jvm}"


def _is_ours(connection: socket.socket) -> bool:
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return bool(_CREDENTIALS.unpack(found)[1] == os.getuid())


def _forked_by_server(jvm: int) -> bool:
    """Have the fork server fork the daemon, and stay as long as that lives; false if there is none, or it can't."""
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(_address(jvm))
        except ConnectionRefusedError:
            return False
        if not _is_ours(connection):
            return False
        told = json.dumps({"folder": str(Path.cwd()), "environment": dict(os.environ)}).encode()
        forked = b""
        # A fork server that fails closes the connection, whatever is on its way.
        with suppress(ConnectionError):
            socket.send_fds(connection, [b"\0"], _STREAMS)
            connection.sendall(told)
            connection.shutdown(socket.SHUT_WR)
            forked = connection.recv(1)
        if not forked:
            print(
                "kafka_lake: the fork server forked no Python daemon; this one imports the packages itself.",
                file=sys.stderr,
            )
            return False
        # Spark takes the process that it has started for the daemon; the streams tell that one when this one is gone.
        with suppress(ConnectionError):
            connection.recv(1)
    return True


def _be_fork_server(jvm: int) -> NoReturn:
    """Fork daemons until the JVM is gone."""
    try:
        _serve(jvm)
    except BaseException:
        _tell("The fork server ends")
    os._exit(0)


def _serve(jvm: int) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        try:
            listener.bind(_address(jvm))
            ended = os.pidfd_open(jvm)
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.ESRCH):
                # Another one was first, or the JVM is gone already.
                return
            raise
        listener.listen()
        # By -m, Python looks for modules in the folder that it was started in; that is the first session's.
        first = str(Path.cwd())
        os.chdir("/")
        with Path(os.devnull).open() as nothing:
            os.dup2(nothing.fileno(), 0)
        os.dup2(2, 1)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        while ended not in select.select([listener.fileno(), ended], [], [])[0]:
            try:
                _fork_daemon(listener, first)
            except OSError:
                # Short of memory, processes or files for the moment: who asked for this daemon goes on without.
                _tell("The fork server could fork no Python daemon")


def _fork_daemon(listener: socket.socket, first: str) -> None:
    connection, _ = listener.accept()
    with connection:
        if not _is_ours(connection) or os.fork() != 0:
            return
        code = 1
        try:
            listener.close()
            _, streams, _, _ = socket.recv_fds(connection, 1, len(_STREAMS))
            told = b"".join(iter(lambda: connection.recv(65536), b""))
            for own, given in zip(_STREAMS, streams, strict=True):
                os.dup2(given, own)
                os.close(given)
            _become(first, **json.loads(told))
            connection.sendall(b"\0")
            _be_daemon()
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else 0
        except BaseException:
            _tell("A forked Python daemon ends")
        finally:
            os._exit(code)


def _tell(what: str) -> None:
    print(f"kafka_lake: {what}, since:\n{traceback.format_exc()}", file=sys.stderr, flush=True)


def _become(first: str, folder: str, environment: dict[str, str]) -> None:
    sys.path[:] = [folder if entry == first else entry for entry in sys.path]
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)


def _be_daemon() -> None:
    unused = False

    def end_if_unused(*_: object) -> None:
        nonlocal unused
        unused, before = not _has_children(), unused
        if unused and before:
            signal.setitimer(signal.ITIMER_REAL, 0)
            sys.exit()

    # Forked workers don't have the timer.
    signal.signal(signal.SIGALRM, end_if_unused)
    signal.setitimer(signal.ITIMER_REAL, _UNUSED_SECONDS, _UNUSED_SECONDS)
    serve_workers()


def _has_children() -> bool:
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return False
    return True


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

    Else it looks after each task at all objects of all modules: 60 ms.
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
