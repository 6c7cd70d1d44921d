"""A server that is started again when it ends, as one of the local stack is."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kafka_lake.devstack.supervision import Supervision
from kafka_lake.engine.server import ConnectServer


@contextmanager
def supervised(server: ConnectServer, tell: Callable[[str], None] = print) -> Iterator[ConnectServer]:
    """Run a Connect server during the block."""
    supervision, ended = Supervision(tell), threading.Event()
    supervision.add("Spark Connect", server.start(), max_deaths=10)

    def check() -> None:
        while not ended.wait(0.2):
            supervision.check()

    checking = threading.Thread(target=check, daemon=True)
    checking.start()
    try:
        yield server
    finally:
        ended.set()
        checking.join()
        supervision.stop()
