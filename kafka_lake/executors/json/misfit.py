"""A value that fits none of its columns."""

from kafka_lake.executors.json.types import Kind


class MisfitError(Exception):
    """A value fits none of its columns.

    Args:
        kind: The type of what doesn't fit.
        partly: Whether that is a part of the value only.
    """

    def __init__(self, kind: Kind, partly: bool = False) -> None:
        super().__init__()
        self.kind = kind
        self.partly = partly
