"""Components whose settings are models of `config`, and that know which YAML document they are loaded from."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import dagster as dg
from jinja2 import StrictUndefined, Template
from pydantic import BaseModel, PrivateAttr, ValidationError

from kafka_lake.config.settings import Settings, is_template, message, refuse


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
        values = dict[str, str]()
        given = rendered(context, model.model_dump(by_alias=True, exclude_unset=True, warnings=False), values)
        try:
            return cls(**given)
        except ValidationError as error:
            wrong = [(each["loc"], without_values(message(each), values)) for each in error.errors()]
        # Not within the block: the error that shows values would be told as its context.
        refuse(cls, wrong)
        raise AssertionError("something is wrong")

    @classmethod
    def load(cls, attributes: BaseModel | None, context: dg.ComponentLoadContext) -> Self:
        """Return the component of a document, which remembers where that is."""
        component = super().load(attributes, context)
        path = context.component_path.file_path
        component._place = path / "defs.yaml" if path.is_dir() else path
        component._context = context
        return component


def rendered(context: dg.ResolutionContext, value: Any, values: dict[str, str]) -> Any:
    """Return a value with the templates in it rendered as text: ``"3"`` is no number, and ``"None"`` not nothing.

    Args:
        values: Gets what was rendered, with its template.
    """
    if isinstance(value, Mapping):
        return {key: rendered(context.at_path(key), each, values) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [rendered(context.at_path(number), each, values) for number, each in enumerate(value)]
    if not is_template(value):
        return value
    # By Dagster first: its errors name file and line, and only it can give nothing, a list or a mapping.
    found = context.resolve_value(value)
    if isinstance(found, bool | int | float):
        found = Template(value, undefined=StrictUndefined).render(**context.scope)
    if isinstance(found, str):
        values[found] = value
    return found


def without_values(text: str, values: Mapping[str, str]) -> str:
    """Return what is wrong with settings, their templates in the place of what these gave, which may be secret.

    Args:
        values: What was rendered, with its template.
    """
    for value in sorted(filter(None, values), key=len, reverse=True):
        for shown in (value, repr(value)[1:-1]):
            # Not within words: a value may be a single letter.
            text = re.sub(rf"(?<!\w){re.escape(shown)}(?!\w)", lambda _, of=value: values[of], text)  # type: ignore[misc]
    return text
