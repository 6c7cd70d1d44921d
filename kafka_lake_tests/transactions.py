"""The end of a transaction, as readers see it: it comes after the producer's call has returned."""

import time
from collections.abc import Mapping

from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec


def await_transactions(bootstrap_servers: str, partitions: Mapping[str, int], seconds: float = 60) -> None:
    """Wait until no transaction is open any more in these topics.

    A coordinator answers as soon as its own log says how a transaction ends, and only then writes the markers into the
    partitions (KIP-98); the last stable offset stands still until they are there.

    Args:
        bootstrap_servers: The brokers.
        partitions: How many partitions each topic has.
        seconds: For how long.

    Raises:
        TimeoutError: If one stays open.
    """
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})
    members = {TopicPartition(name, p): OffsetSpec.latest() for name, count in partitions.items() for p in range(count)}
    deadline = time.monotonic() + seconds
    while True:
        ends = []
        for isolation in (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED):
            found = admin.list_offsets(members, isolation_level=isolation, request_timeout=20)
            ends.append([future.result(20).offset for future in found.values()])
        if ends[0] == ends[1]:
            return
        if time.monotonic() > deadline:
            raise TimeoutError("a transaction stays open")
        time.sleep(0.05)
