"""How Dagster shows a topic's assets: what its topic, its table and its dead letters have in common."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import dagster as dg


@dataclass(frozen=True)
class Presentation:
    """What a document says for people. Nothing of it changes what a run does.

    Args:
        tags: Of each asset, so that Dagster can select by them.
    """

    group: str
    owners: Sequence[str] = ()
    description: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)

    def asset(self, key: dg.AssetKey, description: str, kinds: set[str], **more: Any) -> dg.AssetSpec:
        """Return one of the topic's assets.

        Args:
            kinds: The systems that Dagster shows beside its name.
            more: Dagster's own arguments, as dependencies and metadata.
        """
        tags = {**self.tags, **more.pop("tags", {})}
        shown: dict[str, Any] = {"group_name": self.group, "owners": list(self.owners), "tags": tags}
        return dg.AssetSpec(key, description=description, kinds=kinds, **shown, **more)
