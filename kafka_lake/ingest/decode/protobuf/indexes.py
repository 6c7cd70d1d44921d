"""The prefix before a message that says which one of its schema it is."""

from pyspark.sql import Column
from pyspark.sql import functions as F

_HEADER_BYTES = 5


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
        value: A record in Confluent's format: a zero, four bytes of schema id, indexes, message. None of the indexes
            is beyond 63, else there is no answer: no schema in sane hands has as many messages.
    """
    start = F.lit(_HEADER_BYTES + 1)
    count = F.shiftright(F.conv(F.hex(F.substr(value, start, F.lit(1))), 16, 10).cast("int"), 1)
    prefix = F.substr(value, start, count + F.lit(1))
    is_whole = F.octet_length(prefix) == count + F.lit(1)
    return F.when(is_whole & F.hex(prefix).rlike("^([0-7][02468ACE])+$"), prefix)


def _zigzag(raw: bytes, start: int) -> tuple[int, int]:
    number = 0
    for shift, byte in enumerate(raw[start : start + 5]):
        number |= (byte & 0x7F) << 7 * shift
        if byte < 0x80:
            if number & 1:
                break
            return number >> 1, start + shift + 1
    raise ValueError(f"No message indexes: {raw[: start + 5].hex(' ')}")
