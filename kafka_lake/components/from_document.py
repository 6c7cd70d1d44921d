"""Components that know which YAML document they are loaded from, so that errors can name it."""

from pathlib import Path
from typing import Any, Self

import dagster as dg
from pydantic import BaseModel, PrivateAttr


class FromDocument(dg.Component, dg.Model, dg.Resolvable):
    """A component that remembers where its document is. Abstract: its kinds say what they build."""

    _place: Path = PrivateAttr(default_factory=Path)
    _context: Any = PrivateAttr(default=None)

    @classmethod
    def load(cls, attributes: BaseModel | None, context: dg.ComponentLoadContext) -> Self:
        """Return the component of a document, which remembers where that is."""
        component = super().load(attributes, context)
        path = context.component_path.file_path
        component._place = path / "defs.yaml" if path.is_dir() else path
        component._context = context
        return component
