"""What all types of documents share: loading, templates, clusters, and files that keep names of topics and tables."""

import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from inspect import getdoc
from pathlib import Path
from typing import Any, ClassVar, Self

import dagster as dg
from dagster.components import AssetAttributesModel
from dagster.components.utils import TranslatorResolvingInfo
from dagster.components.utils.project_paths import get_local_state_path
from jinja2 import StrictUndefined, Template
from pydantic import BaseModel, Field, GetJsonSchemaHandler, PrivateAttr, ValidationError
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import core_schema

from kafka_lake.common.files import write_atomic
from kafka_lake.config.systems import Cluster
from kafka_lake.errors import ConfigurationError
from kafka_lake.orchestration.resources import KafkaResource, RegistryResource
from kafka_lake.routing.by_value import PREFIX
from kafka_lake.spec.maintenance import Maintenance
from kafka_lake.spec.settings import Settings, Text, has_templates, is_template, message, refuse


def cache_topics(state: Path, names: Sequence[str]) -> None:
    """Write the names to a file."""
    write_atomic(state, json.dumps({"topics": list(names)}))


def cached_topics(state: Path, document: str) -> tuple[str, ...]:
    """Return the names that `cache_topics` wrote."""
    try:
        names = json.loads(state.read_text())["topics"]
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise TypeError("it isn't a list of names")
    except (ValueError, TypeError, KeyError, OSError) as error:
        raise ConfigurationError(
            f"{document}: the cached topic names in {state} can't be read: {type(error).__name__}.",
            "Delete that file, and run `kafka-lake topics refresh`. Until then, no topic is known.",
        ) from error
    return tuple(names)


def cache_routes(state: Path, properties: Mapping[str, str]) -> None:
    """Write to a file the tables by value that a topic's own table knows."""
    settings = {key: text for key, text in properties.items() if key.startswith(PREFIX)}
    write_atomic(state, json.dumps(settings, indent=1))


def cached_routes(state: Path) -> Mapping[str, str]:
    """Return what `cache_routes` wrote; nothing if it hasn't yet."""
    try:
        found = json.loads(state.read_text()) if state.exists() else {}
        if not isinstance(found, dict) or not all(isinstance(json.loads(text), dict) for text in found.values()):
            raise TypeError("it isn't a mapping")
    except (ValueError, TypeError, OSError) as error:
        raise ConfigurationError(
            f"the cached tables of tables_by in {state} can't be read: {type(error).__name__}.",
            "Delete that file, and run `kafka-lake topics refresh`. Until then, these tables aren't assets.",
        ) from error
    return found


def state_of_document(project_root: Path, document: Path, topic: str) -> Path:
    """Return where Dagster keeps that, for the topic of a document."""
    # The same on each machine.
    where = document.relative_to(project_root) if document.is_relative_to(project_root) else document
    return get_local_state_path(f"KafkaTopic[{where.as_posix()} of {topic}]", project_root)


class FromDocument(dg.Component, Settings, dg.Resolvable):
    """A component that remembers where its document is. Abstract: its kinds say what they build.

    Dagster validates a document by the component's own fields, so that errors have the lines of nested settings too.
    """

    produces: ClassVar[tuple[str, ...]] = ("asset", "asset_check")
    first_fields: ClassVar[frozenset[str]] = frozenset()
    """The settings that forms show at once; the others are under Advanced. No setting holds a secret."""

    _place: Path = PrivateAttr(default_factory=Path)
    _context: Any = PrivateAttr(default=None)

    @classmethod
    def get_spec(cls) -> dg.ComponentTypeSpec:
        """Return how `dg list components` and Dagster's pages show the type."""
        return dg.ComponentTypeSpec(
            description=(getdoc(cls) or "").partition("\n\n")[0],
            tags=["kafka", "iceberg", "spark"],
            owners=["team:kafka-lake"],
            produces=cls.produces,
        )

    @classmethod
    def get_form_config(cls) -> dg.ComponentFormConfig:
        """Return the name of the type in forms."""
        return dg.ComponentFormConfig(label=" ".join(re.findall("[A-Z][a-z]*", cls.__name__)))

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """Return the schema of the settings, with what forms need."""
        found = super().__get_pydantic_json_schema__(schema, handler)
        whole, advanced = handler.resolve_ref_schema(found), dg.ComponentFormConfig(advanced=True)
        whole |= cls.get_form_config().to_component_json_schema_extra()
        for name in whole.get("properties", {}).keys() - cls.first_fields:
            whole["properties"][name] |= advanced.to_field_json_schema_extra()
        return found

    @classmethod
    def model(cls) -> type[BaseModel]:
        """Return by what Dagster validates a document: the component's own fields."""
        return cls

    @classmethod
    def resolve_from_model(cls, context: dg.ResolutionContext, model: BaseModel) -> Self:
        """Return the component of a document's settings, with their templates rendered."""
        written = model.model_dump(by_alias=True, exclude_unset=True, warnings=False)
        if isinstance(model, cls) and not has_templates(written):
            return model
        values = dict[str, str]()
        given = rendered(context, written, values)
        try:
            return cls(**given)
        except ValidationError as error:
            wrong = [(detail["loc"], without_values(message(detail), values)) for detail in error.errors()]
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

    @property
    def shown(self) -> str:
        """Return where the document is, as users name it."""
        return "/".join(self._place.parts[-3:])


class AssetDocument(FromDocument):
    """A document of tables, whose assets may be changed."""

    translation: AssetAttributesModel | Text | None = Field(  # type: ignore[valid-type]
        default=None,
        description="Changes the assets of the tables: `key`, `key_prefix`, `group_name`, `kinds`, `tags`, `metadata` "
        "and other attributes of Dagster's assets. Templates may use `spec`, the asset, and `table`, the table's "
        "settings.",
        examples=[{"key": "bronze/{{ table.table }}", "kinds": ["iceberg"]}],
    )

    _translation: TranslatorResolvingInfo | None = PrivateAttr(default=None)

    @classmethod
    def resolve_from_model(cls, context: dg.ResolutionContext, model: BaseModel) -> Self:
        """Return the component of a document's settings; `translation` is rendered for each table later."""
        translation = getattr(model, "translation", None)
        if translation is None:
            return super().resolve_from_model(context, model)
        model = model.model_copy(update={"translation": None})
        model.model_fields_set.discard("translation")
        component = super().resolve_from_model(context, model)
        # Its templates have kept the combined settings from being checked.
        refuse(cls, component.problems())
        component._translation = TranslatorResolvingInfo(translation, context, model_key="translation")
        return component

    def translated(self, asset: dg.AssetSpec, table: object) -> dg.AssetSpec:
        """Return the asset of a table as `translation` changes it."""
        scope = {"spec": asset, "table": table}
        return asset if self._translation is None else self._translation.get_asset_spec(asset, scope)


def rendered(context: dg.ResolutionContext, value: Any, values: dict[str, str]) -> Any:
    """Return a value with the templates in it rendered as text: ``"3"`` stays text, and so does ``"None"``."""
    if isinstance(value, Mapping):
        return {
            rendered(context, key, values): rendered(context.at_path(key), setting, values)
            for key, setting in value.items()
        }
    if isinstance(value, list | tuple):
        return [rendered(context.at_path(number), element, values) for number, element in enumerate(value)]
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
    """Return the problems of settings, with templates instead of their values, which may be secret."""
    for value in sorted(filter(None, values), key=len, reverse=True):
        for shown in (value, repr(value)[1:-1]):
            # Not within words: a value may be a single letter.
            text = re.sub(rf"(?<!\w){re.escape(shown)}(?!\w)", lambda _, of=value: values[of], text)  # type: ignore[misc]
    return text


class ClusterDocument(FromDocument, Cluster):
    """A cluster's document, as its topics use it."""

    def kafka(self) -> KafkaResource:
        """Return how the cluster is reached."""
        raise NotImplementedError

    def registry(self) -> RegistryResource:
        """Return how the cluster's schema registry is reached."""
        raise NotImplementedError


def cluster_maintenance(context: Any, cluster: str | None) -> Maintenance | None:
    """Return the maintenance that a cluster's document sets for its topics' tables; None without such settings."""
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
def _defaults_of(same: _SameTree) -> dict[str | None, Maintenance | None]:
    return {cluster.name: cluster.maintenance for cluster in same.tree.get_all_components(ClusterDocument)}
