"""Documents that have settings for many topics. Abstract: what a topic asks of its cluster's document."""

from typing import Any

from pydantic import Field

from kafka_lake.components.from_document import FromDocument
from kafka_lake.components.maintenance_settings import MaintenanceSettings


class HasDefaults(FromDocument):
    """A document with settings of a cluster's topics, which those of a topic override one by one."""

    name: Any = None
    maintenance: MaintenanceSettings | None = Field(
        default=None,
        description="Defaults for `maintenance:` of the cluster's topics. A topic's own settings override them, one "
        "by one.",
        examples=[{"expire_after": "30d", "window": "01:00-05:00"}],
    )


def cluster_maintenance(context: Any, cluster: str | None) -> MaintenanceSettings | None:
    """Return what the document of a cluster says of the maintenance of its topics' tables; None if nothing.

    Args:
        context: Of the load of a document; None where there is no project.
        cluster: The cluster's name; None if it has none.
    """
    if context is None:
        return None
    found = context.component_tree.get_all_components(HasDefaults)
    return next((each.maintenance for each in found if each.name == cluster), None)
