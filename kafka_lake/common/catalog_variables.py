"""The environment variables that PyIceberg reads a catalog's properties from. Pure.

https://py.iceberg.apache.org/configuration/#environment-variables
"""


def catalog_variable(catalog: str, name: str = "") -> str:
    """Return the variable of a catalog's property; how the names of all of them begin, without one.

    >>> catalog_variable("my-lake", "s3.access-key-id"), catalog_variable("lake")
    ('PYICEBERG_CATALOG__MY_LAKE__S3__ACCESS_KEY_ID', 'PYICEBERG_CATALOG__LAKE__')
    """
    return "__".join(["PYICEBERG_CATALOG", *map(_shouted, (catalog, name))])


def _shouted(name: str) -> str:
    # What PyIceberg turns back.
    return name.upper().replace(".", "__").replace("-", "_")
