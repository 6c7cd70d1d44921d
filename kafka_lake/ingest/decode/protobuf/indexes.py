"""The prefix before a message that says which one of its schema it is."""

from pyspark.sql import Column
from pyspark.sql import functions as F

_HEADER_BYTES = 5
_INDEX_BYTES = 5
# A number that isn't negative, as a zigzag varint: bytes from 80 on, then one below; the first one is even.
_INDEX_IN_HEX = "(?:[0-7][02468ACE]|[89A-F][02468ACE](?:[89A-F].){0,3}[0-7].)"


def index_prefix(value: Column) -> Column:
    """Return the bytes of a record's message indexes, for `message_indexes`; null if it has none.

    Args:
        value: A record in Confluent's format: a zero, four bytes of schema id, indexes, message. There are at most 63
            indexes, as many as messages can be nested.
    """
    first = F.hex(F.substring(value, _HEADER_BYTES + 1, 1))
    count = F.shiftright(F.conv(first, 16, 10).cast("int"), 1)
    rest = F.hex(F.substr(value, F.lit(_HEADER_BYTES + 2), count * _INDEX_BYTES))
    pattern = F.concat(F.lit(f"^({_INDEX_IN_HEX}){{"), count.cast("string"), F.lit("}"))
    indexes = F.when(count == 0, F.lit("")).otherwise(F.regexp_substr(rest, pattern))
    # Null if the pattern doesn't match.
    return F.when(first.rlike("^[0-7][02468ACE]$"), F.unhex(F.concat(first, indexes)))
