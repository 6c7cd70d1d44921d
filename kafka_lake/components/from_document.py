"""Components whose settings are models of `config`, and that know which YAML document they are loaded from."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import dagster as dg
from jinja2 import StrictUndefined, Template
from pydantic import BaseModel, PrivateAttr

from kafka_lake.config.settings import Settings, is_template


class FromDocument(dg.Component, Settings, dg.Resolvable):
    """A component that remembers where its document is. Abstract: its kinds say what they build.

    Dagster validates a document by the component's own fields, so that errors have the lines of nested settings too.
    """

    _place: Path = PrivateAttr(default_factory=Path)
    _context: Any = PrivateAttr(default=None)

    @classmethod
    def model(cls) -> type[BaseModel]:
        """Return by what Dagster validates a document: the component's own fields."""
        return cls

    @classmethod
    def resolve_from_model(cls, context: dg.ResolutionContext, model: BaseModel) -> Self:
        """Return the component of a document's settings, with their templates rendered."""
        return cls(**rendered(context, model.model_dump(by_alias=True, exclude_unset=True, warnings=False)))

    @classmethod
    def load(cls, attributes: BaseModel | None, context: dg.ComponentLoadContext) -> Self:
        """Return the component of a document, which remembers where that is."""
        component = super().load(attributes, context)
        path = context.component_path.file_path
        component._place = path / "defs.yaml" if path.is_dir() else path
        component._context = context
        return component


def rendered(context: dg.ResolutionContext, value: Any) -> Any:
    """Return a value with the templates in it rendered as text: ``"3"`` is no number, and ``"None"`` not nothing."""
    if isinstance(value, Mapping):
        return {key: rendered(context.at_path(key), each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [rendered(context.at_path(number), each) for number, each in enumerate(value)]
    if not is_template(value):
        return value
    # By Dagster first: its errors name file and line, and only it can give nothing, a list or a mapping.
    found = context.resolve_value(value)
    if isinstance(found, bool | int | float):
        return Template(value, undefined=StrictUndefined).render(**context.scope)
    return found
