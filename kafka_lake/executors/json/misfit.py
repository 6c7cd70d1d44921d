"""A value that fits none of its columns."""

from kafka_lake.executors.json.types import Kind

ANOTHER_TYPE = "on_incompatible: new_column keeps such values in a column of their own."
"""What a message about a value that fits no column ends with."""


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
