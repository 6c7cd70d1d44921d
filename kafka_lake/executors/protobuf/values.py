"""Batches of Protobuf messages become a table's columns."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kafka_lake.executors.fit import Errors, Fit, small_enough
from kafka_lake.executors.json.columns import Column
from kafka_lake.executors.json.decoder import NOTHING, Decoded
from kafka_lake.executors.protobuf.decoder import arrow_type, decoder

MALFORMED = "malformed"


class ProtobufDecoder:
    """Decodes batches of Protobuf messages, without any framing, that are all of one type.

    Args:
        files: A serialized FileDescriptorSet, each file after those that it imports.
        name: The message's full name.
        columns: Those of the rows, see `kafka_lake.executors.json.columns`.
        label: What messages call the schema.
        max_bytes: Longer values are ``too_large`` and not decoded; None for no limit.
    """

    def __init__(
        self, files: bytes, name: str, columns: Sequence[Column], label: str, max_bytes: int | None = None
    ) -> None:
        # A cluster's machines need its package for topics of this format alone.

        self._decode = decoder(files, name)
        self._fit = Fit(arrow_type(files, name), columns, label)
        self._max_bytes = max_bytes

    def decode(self, values: pa.Array) -> Decoded:
        """Decode values.

        Args:
            values: Binary; nulls are tombstones.
        """
        errors: Errors = {}
        places = small_enough(values, self._max_bytes, errors)
        found, said = self._decode(values.take(pa.array(places))).flatten()
        good = pc.is_valid(found).to_numpy(zero_copy_only=False)
        start = f"The bytes don't decode by {self._fit.label}."
        for number in np.flatnonzero(~good).tolist():
            why = said[number].as_py()
            errors[int(places[number])] = MALFORMED, f"{start} {why}" if why else start
        return self._fit.decoded(found.filter(pa.array(good)), places[good], errors, len(values), NOTHING)
