"""The prefix before a message that says which one of its schema it is."""

from pyspark.sql import Column
from pyspark.sql import functions as F

_HEADER_BYTES = 5
_INDEX_BYTES = 5
# A number that isn't negative, as a zigzag varint: bytes from 80 on, then one below; the first one is even.
_INDEX_IN_HEX = "(?:[0-7][02468ACE]|[89A-F][02468ACE](?:[89A-F].){0,3}[0-7].)"


def message_indexes(prefix: bytes) -> tuple[tuple[int, ...], int]:
    r"""Return the message indexes that bytes begin with, and how many bytes they take.

    Confluent's rule: the number of indexes, then each, as zigzag varints; ``[0]``, the most frequent, is a mere 0
    (https://docs.confluent.io/platform/current/schema-registry/fundamentals/serdes-develop/index.html#wire-format).

    Raises:
        ValueError: If they begin with none.

    >>> message_indexes(b"\x00rest"), message_indexes(b"\x04\x02\x00rest")
    (((0,), 1), ((1, 0), 3))
    """
    count, end = _zigzag(prefix, 0)
    indexes = []
    for _ in range(count):
        index, end = _zigzag(prefix, end)
        indexes.append(index)
    return tuple(indexes) or (0,), end


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


def _zigzag(raw: bytes, start: int) -> tuple[int, int]:
    number = 0
    for shift, byte in enumerate(raw[start : start + 5]):
        number |= (byte & 0x7F) << 7 * shift
        if byte < 0x80:
            if number & 1:
                break
            return number >> 1, start + shift + 1
    raise ValueError(f"No message indexes: {raw[: start + 5].hex(' ')}")
