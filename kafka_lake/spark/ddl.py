"""Types in Spark's DDL. Spark's own text of a type has the names of fields as they are, which records may give."""

import re

from pyspark.sql import types as T

_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def ddl(kind: T.DataType) -> str:
    """Return a type in Spark's DDL, names quoted where they must be.

    >>> ddl(T.ArrayType(T.StructType([T.StructField("zip code", T.LongType())])))
    'array<struct<`zip code`:bigint>>'
    """
    if isinstance(kind, T.StructType):
        return f"struct<{','.join(f'{ddl_name(f.name)}:{ddl(f.dataType)}' for f in kind.fields)}>"
    if isinstance(kind, T.ArrayType):
        return f"array<{ddl(kind.elementType)}>"
    if isinstance(kind, T.MapType):
        return f"map<{ddl(kind.keyType)},{ddl(kind.valueType)}>"
    return str(kind.simpleString())


def ddl_name(name: str) -> str:
    """Return a name in Spark's DDL, quoted where it must be."""
    return name if _PLAIN_NAME.fullmatch(name) else f"`{name.replace('`', '``')}`"
