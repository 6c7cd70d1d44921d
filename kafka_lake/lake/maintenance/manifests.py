"""Rewrite manifests: a query that begins with many small ones asks the storage for each."""

from typing import Any

from kafka_lake.lake.catalog import LakeCatalog


def rewrite_manifests(spark: Any, catalog: LakeCatalog, identifier: tuple[str, str]) -> None:
    """Put the entries of a table's manifests into fewer ones, by Iceberg's own procedure. Rows stay as they are.

    Args:
        spark: Runs the procedure (https://iceberg.apache.org/docs/latest/spark-procedures/#rewrite_manifests).
        catalog: Where the table is.
        identifier: Namespace and name of the table.

    Raises:
        Exception: Whatever Spark raises. The manifests are as they were.
    """
    spark.sql(catalog.call("rewrite_manifests", identifier, use_caching="false")).collect()
