"""Arrow's parser of JSON: one row for each value, or what stopped it."""

import re
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.json as pj

_ROW = re.compile(r"in row (\d+)$")


@dataclass(frozen=True)
class Stop:
    """Why Arrow's parser took no more.

    Args:
        row: The value that stopped it; None if it doesn't say.
        said: Its message, empty if it was not stopped.
        unknown: Names of fields that it found and that have no column.
    """

    row: int | None = None
    said: str = ""
    unknown: tuple[str, ...] = ()


def read_json(block: pa.Buffer, fields: pa.Schema, unexpected: str) -> tuple[pa.Table | None, Stop]:
    """Return what Arrow's parser makes of a block; or None and what stopped it.

    Args:
        block: JSON objects, one in a line.
        fields: The fields to look for.
        unexpected: What it does with others: ``ignore``, ``error`` or ``infer``.
    """
    try:
        return (
            pj.read_json(
                pa.BufferReader(block),
                pj.ReadOptions(use_threads=False, block_size=block.size + 1),
                pj.ParseOptions(explicit_schema=fields, unexpected_field_behavior=unexpected),
            ),
            Stop(),
        )
    except (pa.ArrowException, UnicodeDecodeError) as error:
        match = _ROW.search(str(error))
        return None, Stop(int(match[1]) if match else None, str(error))
