"""The Iceberg catalog as a Dagster resource."""

from pydantic import Field

from kafka_lake.catalog.catalog_properties import catalog_name, properties_from_environment
from kafka_lake.catalog.lake_catalog import LakeCatalog
from kafka_lake.common import environment
from kafka_lake.orchestration.resources import FixedResource


class CatalogResource(FixedResource):
    """The Iceberg catalog of the deployment.

    The environment's settings are read when the catalog is opened, so that secrets are part of no stored
    configuration; ``properties`` given here win over them.
    """

    name: str = Field(default_factory=catalog_name, description="The catalog's name, in Spark and PyIceberg.")
    properties: dict[str, str] = Field(
        default_factory=dict,
        description="Iceberg's standard catalog properties; no secrets, those belong in PYICEBERG_CATALOG__*.",
    )

    def open(self) -> LakeCatalog:
        """Return the catalog; nothing is asked of it yet.

        Raises:
            ConfigurationError: If its type is unknown, a property is missing, or one can't be passed to Spark. The last
                doesn't apply to a Connect server, which gets the catalog when it starts.
        """
        catalog = LakeCatalog(self.name, properties_from_environment(self.name, self.properties))
        if not environment.SPARK_REMOTE.value():
            # Or PyIceberg would go on alone, and a run that needs Spark would fail later.
            catalog.for_spark()
        return catalog
