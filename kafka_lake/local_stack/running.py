"""What runs of the local stack, written to the deployment's folder so that commands beside it use the same servers."""

import fcntl
import json
import os
import time
from collections.abc import Mapping, MutableMapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import BinaryIO

from kafka_lake.common.environment import CATALOG
from kafka_lake.common.home import ensure_home, home
from kafka_lake.common.whole_file import write_private
from kafka_lake.errors import KafkaLakeError
from kafka_lake.local_stack.environment import (
    names_broker,
    names_catalog,
    names_registry,
    use_broker,
    use_catalog,
    use_registry,
)

_LOCK_SECONDS = 2.0


@dataclass(frozen=True)
class Running:
    """The servers of a local stack that are up; an address is empty where the stack has not started that server.

    Args:
        pids: Process ids by what they run.
        catalog: Properties of the embedded object store's catalog, its secret among them.
    """

    bootstrap_servers: str = ""
    registry_url: str = ""
    spark_remote: str = ""
    ui_url: str = ""
    pids: Mapping[str, int] = field(default_factory=dict)
    catalog: Mapping[str, str] = field(default_factory=dict)

    def use(self, environment: MutableMapping[str, str] = os.environ) -> None:
        """Set the variables that name these servers; a variable that is set already stays as it is."""
        if self.bootstrap_servers and not names_broker(environment):
            use_broker(self.bootstrap_servers, environment)
        if self.registry_url and not names_registry(environment):
            use_registry(self.registry_url, environment)
        if self.catalog and not names_catalog(name := CATALOG.value(environment), environment):
            use_catalog(name, self.catalog, environment)
        if self.spark_remote:
            environment.setdefault("SPARK_REMOTE", self.spark_remote)


def running() -> Running | None:
    """Return what runs in this deployment's folder; None if no stack does, or the one that did was killed."""
    path, lock = _paths()
    with suppress(FileNotFoundError, json.JSONDecodeError, TypeError):
        found = Running(**json.loads(path.read_text()))
        with lock.open("rb") as held:
            return None if _locked(held, fcntl.LOCK_SH) else found
    return None


def check_alone() -> None:
    """Check that no other stack runs in this deployment's folder.

    Raises:
        KafkaLakeError: Names the process of the other one.
    """
    if other := running():
        told = f" with its UI at {other.ui_url}" if other.ui_url else ""
        raise KafkaLakeError(
            f"A local stack runs in {home()} already: process {other.pids.get('kafka-lake')}{told}.",
            "Use that one, or end it with Ctrl-C. For a second one set KAFKA_LAKE_HOME and the ports.",
        )


class RunningFile:
    """The file that tells other processes what runs: readable by its owner alone, and true while its lock is held.

    The system gives the lock back when this process ends, also when it is killed.

    Raises:
        KafkaLakeError: If another process holds the lock.
    """

    def __init__(self) -> None:
        self._path, lock = _paths()
        ensure_home()
        self._lock = os.fdopen(os.open(lock, os.O_RDWR | os.O_CREAT, 0o600), "r+b")
        # A reader holds it for a moment.
        deadline = time.monotonic() + _LOCK_SECONDS
        while not _locked(self._lock, fcntl.LOCK_EX):
            if time.monotonic() > deadline:
                self._lock.close()
                check_alone()
                raise KafkaLakeError(f"{lock} is locked by another process.", "End it, or set KAFKA_LAKE_HOME.")
            time.sleep(0.05)

    def write(self, now: Running) -> None:
        """Replace what the file says."""
        write_private(self._path, json.dumps(asdict(now), indent=2))

    def remove(self) -> None:
        """Remove the file and give the lock back; once is enough."""
        if not self._lock.closed:
            self._path.unlink(missing_ok=True)
            self._lock.close()


def _paths() -> tuple[Path, Path]:
    return home() / "running.json", home() / "running.lock"


def _locked(file: BinaryIO, kind: int) -> bool:
    """Return whether the lock could be taken; it is held until the file is closed."""
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
