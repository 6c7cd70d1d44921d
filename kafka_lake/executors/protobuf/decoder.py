"""Batches of Protobuf messages become a table's columns."""

from collections.abc import Sequence

import pyarrow as pa

from kafka_lake.executors.fit import Errors, Fit
from kafka_lake.executors.json.columns import Column
from kafka_lake.executors.json.decoder import MESSAGE, NOTHING, Decoded, small_enough
from kafka_lake.executors.protobuf.reader import MessageReader

MALFORMED = "malformed"


class ProtobufDecoder:
    """Decodes batches of Protobuf messages, without any framing, that are all of one type.

    Malformed are bytes that Google's parser refuses, messages that lack what proto2 requires, and messages with a value
    that its column can't hold, such as a time outside of the years 1 to 9999.

    Args:
        files: A serialized FileDescriptorSet, each file after those that it imports.
        columns: Those of the rows, see `kafka_lake.executors.json.columns`.
        label: What messages call the schema.
        max_bytes: Longer values are ``too_large`` and not decoded; None for no limit.

    Raises:
        UnsupportedTypeError: If the message can be no columns.
    """

    def __init__(
        self, files: bytes, name: str, columns: Sequence[Column], label: str, max_bytes: int | None = None
    ) -> None:
        self._reader = MessageReader(files, name)
        self._fit = Fit(self._reader.type, columns, label)
        self._max_bytes = max_bytes

    def decode(self, values: pa.Array) -> Decoded:
        """Decode values."""
        errors: Errors = {}
        places = small_enough(values, self._max_bytes, errors)
        payloads = values if len(places) == len(values) else values.take(pa.array(places))
        messages, at, failed = self._reader.read(payloads)
        for number, error in failed.items():
            said = f"The bytes don't decode by {self._fit.label}. {error}"
            errors[int(places[number])] = MALFORMED, said[:MESSAGE]
        return self._fit.decoded(messages, places[at], errors, count=len(values), seen=NOTHING)
