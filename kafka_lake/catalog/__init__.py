"""Iceberg: the catalog, tables with their columns, branches, positions and history."""

from kafka_lake.catalog.catalog_properties import check_configuration

# Before any module of this package imports `pyiceberg.catalog`, which reads it too.
check_configuration()
