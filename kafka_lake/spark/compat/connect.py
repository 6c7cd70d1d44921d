"""Opens Spark Connect sessions that end when they are told to, on a channel of one's own."""

from typing import Any

from pyspark.sql.connect.client import DefaultChannelBuilder
from pyspark.sql.connect.session import SparkSession

from kafka_lake.common.tested_versions import is_tested


class _Session(SparkSession):  # type: ignore[misc]
    """A Connect session that ends only when it is told to.

    PySpark's own closes itself when it is collected as garbage. That shuts down a pool of threads that all sessions
    share, behind a lock that the collecting thread may hold just then: it would wait for itself forever.
    """

    def __del__(self) -> None:
        """Do nothing: whoever opened the session stops it."""


def open_session(channel: DefaultChannelBuilder) -> Any:
    """Return a session of a Connect server, which `make_default` makes the process's default.

    Without what `make_default` needs, it is one of PySpark's own, and the default at once: such a session may make a
    process wait forever when it is collected without having been stopped.
    """
    return _Session(channel) if _can_be_default() else SparkSession.builder.channelBuilder(channel).create()


def make_default(session: Any) -> None:
    """Make a session of `open_session` the process's default and the thread's active session.

    Private: ``SparkSession._set_default_and_active_session``. The public builder makes sessions of PySpark's own class
    the default, and no others; `open_session` takes that where this is missing, or the version wasn't tested.
    """
    if _can_be_default():
        SparkSession._set_default_and_active_session(session)


def _can_be_default() -> bool:
    return hasattr(SparkSession, "_set_default_and_active_session") and is_tested("pyspark")
