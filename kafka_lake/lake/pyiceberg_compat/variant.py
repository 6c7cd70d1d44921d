"""Has PyIceberg know the type ``variant`` of Iceberg v3, so that it can load tables that have such columns.

What a variant holds stays Spark's to read and write: PyIceberg reads the table's other columns, evolves it, and
refuses this one by name.
"""

from collections.abc import Callable, Mapping
from functools import wraps
from importlib.metadata import version
from typing import Any, Literal

import pyarrow as pa
import pyiceberg.io.pyarrow
import pyiceberg.types
from pydantic import Field
from pyiceberg.schema import Schema
from pyiceberg.typedef import TableVersion
from pyiceberg.types import IcebergType, ListType, MapType, NestedField, PrimitiveType

from kafka_lake.common.tested_versions import TESTED, is_tested
from kafka_lake.errors import ConfigurationError, TableError

_FIELD_ID = b"PARQUET:field_id"
_PARTS_OF_A_VARIANT = {"metadata", "value", "typed_value"}
_taught = False


class VariantType(PrimitiveType):
    """A value of any type, with its type beside it (https://iceberg.apache.org/spec/#semi-structured-types)."""

    root: Literal["variant"] = Field(default="variant")

    def minimum_format_version(self) -> TableVersion:
        """Return the Iceberg format version that the type came with."""
        return 3


def teach_pyiceberg() -> None:
    """Make this process's PyIceberg know the type; once is enough, again changes nothing.

    From then on metadata of tables with variants load, a schema's JSON says ``variant`` again, and the other columns
    can be selected. Selecting a variant raises TableError, where PyIceberg alone couldn't even load the table.

    Private: ``_ConvertToArrowSchema.before_field``; and ``IcebergType.handle_primitive_type``, the constructors of
    ``ListType`` and ``MapType``, and ``pyarrow_to_schema``, which are public but not meant to be replaced. PyIceberg
    takes no types of others. Without them, with a version that wasn't tested, or with one that knows the type itself,
    nothing is replaced: tables without variants work as ever, and for others PyIceberg says what it can't do.
    """
    global _taught
    if _taught or not _can_be_taught():
        return
    _taught = True
    # What PyIceberg looks up at the time of a call.
    types: Any = IcebergType
    parse = types.handle_primitive_type
    types.handle_primitive_type = staticmethod(
        lambda kind, handler: VariantType() if kind == "variant" else parse(kind, handler)
    )
    lists: Any = ListType
    lists.__init__ = _with_variant(lists.__init__, "element")
    maps: Any = MapType
    maps.__init__ = _with_variant(maps.__init__, "value")
    reading: Any = pyiceberg.io.pyarrow
    reading._ConvertToArrowSchema.before_field = _refuse
    reading.pyarrow_to_schema = _with_opaque_variants(reading.pyarrow_to_schema)


def require_variants() -> None:
    """Make sure that tables with variants can be loaded, before one is made.

    Raises:
        ConfigurationError: If they can't.
    """
    teach_pyiceberg()
    if not _taught and not hasattr(pyiceberg.types, "VariantType"):
        first, beyond = TESTED["pyiceberg"]
        raise ConfigurationError(
            f"PyIceberg {version('pyiceberg')} doesn't load tables with variants.",
            f"Install pyiceberg>={first},<{beyond}, or use format: string.",
        )


def _can_be_taught() -> bool:
    private = hasattr(pyiceberg.io.pyarrow, "_ConvertToArrowSchema") and hasattr(IcebergType, "handle_primitive_type")
    return private and not hasattr(pyiceberg.types, "VariantType") and is_tested("pyiceberg")


def _with_variant(make: Callable[..., None], key: str) -> Callable[..., None]:
    @wraps(make)
    def with_variant(self: Any, *args: Any, **data: Any) -> None:
        if data.get(key) == "variant":
            data[key] = VariantType()
        make(self, *args, **data)

    return with_variant


def _refuse(_: Any, field: NestedField) -> None:
    if isinstance(field.field_type, VariantType):
        raise TableError(
            f"Column {field.name} (field {field.field_id}) is a variant, which PyIceberg can't read.",
            "Select other columns, with scan(selected_fields=…), or read the table with Spark.",
        )


def _with_opaque_variants(read: Callable[..., Schema]) -> Callable[..., Schema]:
    @wraps(read)
    def with_opaque_variants(schema: pa.Schema, *args: Any, **options: Any) -> Schema:
        return read(pa.schema([_opaque(field) for field in schema], schema.metadata), *args, **options)

    return with_opaque_variants


def _opaque(field: pa.Field) -> pa.Field:
    """Return a file's field with its variants as mere bytes: what they are made of has no field ids."""
    kind = field.type
    if pa.types.is_struct(kind):
        inner = [kind.field(i) for i in range(kind.num_fields)]
        if _has_id(field) and not any(_has_id(f) for f in inner) and _is_variant(inner):
            return field.with_type(pa.binary())
        return field.with_type(pa.struct([_opaque(f) for f in inner]))
    if pa.types.is_map(kind):
        return field.with_type(pa.map_(kind.key_field, _opaque(kind.item_field), kind.keys_sorted))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        make = pa.large_list if pa.types.is_large_list(kind) else pa.list_
        return field.with_type(make(_opaque(kind.value_field)))
    return field


def _is_variant(inner: list[pa.Field]) -> bool:
    names: Mapping[str, pa.Field] = {f.name: f for f in inner}
    return "metadata" in names and set(names) <= _PARTS_OF_A_VARIANT and pa.types.is_binary(names["metadata"].type)


def _has_id(field: pa.Field) -> bool:
    return _FIELD_ID in (field.metadata or {})
