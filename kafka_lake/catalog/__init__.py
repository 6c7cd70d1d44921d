"""The table side: catalog, schema rules (pure), positions, branches."""

from kafka_lake.catalog.catalog_properties import check_configuration

# Before any module of this package imports `pyiceberg.catalog`, which reads it too.
check_configuration()
