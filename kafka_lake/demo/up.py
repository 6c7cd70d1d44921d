"""The local stack that stays up: a warm Spark Connect server, Dagster, and for the demo a broker with live orders."""

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from threading import Event

from kafka_lake.demo import orders
from kafka_lake.demo.ports import Ports, check_free
from kafka_lake.demo.stack import Stack, interruptible


def stay_up(ports: Ports, demo: bool, rate: float, say: Callable[[str], None]) -> None:
    """Run the local stack until a signal or until one of its servers ends; nothing is left behind.

    A Spark Connect server is started unless ``SPARK_REMOTE`` names one.

    Args:
        ports: Where the servers listen.
        demo: Start the embedded broker too, and let orders trickle in.
        rate: Orders per second of that trickle.
        say: Called with lines for the user.

    Raises:
        KafkaLakeError: If a port is taken, or a server can't start or ends by itself.
        SystemExit: At a signal, with the shell's code for it.
    """
    connect = "SPARK_REMOTE" not in os.environ
    check_free(*([ports.broker] if demo else []), ports.ui, *([ports.connect] if connect else []))
    with interruptible(), Stack(ports, say) as stack:
        if demo:
            orders.ensure_topic(stack.start_broker(), orders.TOPIC, orders.PARTITIONS)
        if connect:
            stack.start_connect()
        url = stack.start_dagster()
        with _live_orders(ports.broker.address, rate) if demo else nullcontext() as trickle:
            say(f"All is up: {url} (Ctrl-C ends it; logs are in {stack.log_dir})")
            while True:
                stack.check()
                if trickle is not None and trickle.done():
                    trickle.result()
                time.sleep(1)


@contextmanager
def _live_orders(bootstrap: str, rate: float) -> Iterator[Future[None]]:
    stop = Event()
    with ThreadPoolExecutor(1) as pool:
        try:
            yield pool.submit(orders.trickle, bootstrap, orders.TOPIC, rate, stop)
        finally:
            stop.set()
