"""The embedded broker, for a command that needs brokers."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kafka_lake.common.server_process import port_open
from kafka_lake.kafka.security.properties import properties_from_env
from kafka_lake.local_stack.environment import names_broker, use_broker
from kafka_lake.local_stack.ports import Ports
from kafka_lake.local_stack.stack import Stack, interruptible


def is_embedded(ports: Ports, servers: str | None = None) -> bool:
    """Return whether the embedded broker is the configured cluster. Arguments as for `broker_at_hand`."""
    if servers is None and names_broker():
        servers = properties_from_env()["bootstrap.servers"]
    return servers in (None, ports.broker.address)


@contextmanager
def broker_at_hand(ports: Ports, tell_user: Callable[[str], None], servers: str | None = None) -> Iterator[None]:
    """Run the block with the embedded broker up, if that is the configured cluster and it isn't up anyway.

    Args:
        ports: The local stack's ports.
        tell_user: Called with a line for the user when the broker is started.
        servers: Brokers of the configured cluster; by default what the environment says.
    """
    if not is_embedded(ports, servers):
        yield
        return
    if servers is None and not names_broker():
        use_broker(ports.broker.address)
    if port_open(ports.broker.number):
        yield
        return
    with interruptible(), Stack(ports, tell_user) as stack:
        stack.start_broker()
        yield
