"""Teaches PyIceberg the type ``variant`` of Iceberg v3, so that it can load tables that have such columns.

What a variant holds stays Spark's to read and write: PyIceberg reads the table's other columns, and refuses this one
by name.
"""

from typing import Literal

from pydantic import Field
from pyiceberg.types import PrimitiveType


class VariantType(PrimitiveType):
    """A value of any type, with its type beside it (https://iceberg.apache.org/spec/#semi-structured-types)."""

    root: Literal["variant"] = Field(default="variant")
