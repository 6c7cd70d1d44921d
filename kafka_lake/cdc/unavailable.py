"""Values that a source didn't send, since they haven't changed."""

from pyspark.sql import types as T

_ALWAYS_SENT = (T.NumericType, T.BooleanType, T.DateType, T.TimestampType, T.TimestampNTZType)


def may_be_unavailable(kind: T.DataType) -> bool:
    """Return whether a column's values may be stored beside their row in PostgreSQL, so that some aren't sent."""
    return not isinstance(kind, _ALWAYS_SENT)
