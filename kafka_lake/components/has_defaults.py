"""Documents that have settings for many topics. Abstract: what a topic asks of its cluster's document."""

from functools import lru_cache
from typing import Any

from pydantic import Field

from kafka_lake.components.from_document import FromDocument
from kafka_lake.config.maintenance import MaintenanceSettings


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
    return _defaults_of(_SameTree(context.component_tree)).get(cluster)


class _SameTree:
    """A tree of components, which is equal to itself alone."""

    def __init__(self, tree: Any) -> None:
        self.tree = tree

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _SameTree) and other.tree is self.tree

    def __hash__(self) -> int:
        return id(self.tree)


# Looking through all documents for each of them would take as long as there are pairs of them.
@lru_cache(maxsize=1)
def _defaults_of(same: _SameTree) -> dict[str | None, MaintenanceSettings | None]:
    return {each.name: each.maintenance for each in same.tree.get_all_components(HasDefaults)}
