"""The embedded broker, for a command that needs brokers."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kafka_lake.common.server_process import port_open
from kafka_lake.errors import EmbeddedBrokerStoppedError
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
def broker_at_hand(
    ports: Ports, tell_user: Callable[[str], None], servers: str | None = None, *, starts: bool
) -> Iterator[None]:
    """Run the block with the embedded broker up, if that is the configured cluster.

    Args:
        tell_user: Called with a line for the user when the broker is started.
        servers: Brokers of the configured cluster; by default what the environment says.
        starts: Start the broker if it isn't up; it is stopped after the block.

    Raises:
        EmbeddedBrokerStoppedError: If the broker isn't up and shall not be started.
    """
    if not is_embedded(ports, servers):
        yield
        return
    if servers is None and not names_broker():
        use_broker(ports.broker.address)
    if port_open(ports.broker.number):
        yield
        return
    if not starts:
        raise EmbeddedBrokerStoppedError(
            f"The embedded broker at {ports.broker.address} isn't running.",
            "`kafka-lake up` starts it. For brokers of your own, set KAFKA_LAKE_BOOTSTRAP_SERVERS.",
        )
    with interruptible(), Stack(ports, tell_user) as stack:
        stack.start_broker()
        yield
