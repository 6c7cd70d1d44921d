"""JSON Schemas and parts of them by their URIs, as references name them."""

import json
from typing import Any
from urllib.parse import unquote, urljoin

_DATA = {"const", "default", "enum", "example", "examples"}
_ANCHORS = ("$anchor", "$dynamicAnchor", "$recursiveAnchor")


class SchemaError(ValueError):
    """What is wrong with a schema, without its name and a full stop."""


def parsed_schema(text: str) -> Any:
    """Return a schema's JSON.

    Raises:
        SchemaError: If it is no JSON Schema.
    """
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SchemaError(f"it is no JSON that can be parsed ({error})") from error
    if not isinstance(schema, dict | bool):
        raise SchemaError("it is no JSON Schema, which is an object or a boolean")
    return schema


class Documents:
    """Schemas and parts of them by their URIs.

    Args:
        base: The URI of the schema whose type is asked for, empty if it has none.

    Attributes:
        count: How many parts have been read.
    """

    def __init__(self, base: str) -> None:
        self.base = base
        self.count = 0
        self._by_uri: dict[str, tuple[Any, str]] = {}

    def add(self, document: Any, name: str) -> None:
        """Make a document known by its name, by its name relative to the base, and by the ids and anchors in it."""
        base = _join(self.base, name)
        self._by_uri.setdefault(name.rstrip("#"), (document, base))
        self._by_uri.setdefault(base, (document, base))
        rest = [(document, base)]
        while rest:
            part, base = rest.pop()
            if isinstance(part, dict):
                base = base_of(part, base)
                self._by_uri.setdefault(base, (part, base))
                names = [part[key] for key in _ANCHORS if isinstance(part.get(key), str)]
                names += [part[key][1:] for key in ("$id", "id") if str(part.get(key)).startswith("#")]
                self._by_uri.update((f"{base}#{each}", (part, base)) for each in names)
                rest += [(value, base) for key, value in part.items() if key not in _DATA]
            elif isinstance(part, list):
                rest += [(value, base) for value in part]

    def find(self, reference: str, base: str) -> tuple[Any, str]:
        """Return what a reference means in a place with that base URI, and the base URI there.

        Raises:
            SchemaError: If there is nothing.
        """
        uri = _join(base, reference)
        document, _, fragment = uri.partition("#")
        for known in (uri, reference, document, reference.partition("#")[0]):
            if known not in self._by_uri:
                continue
            found, base = self._by_uri[known]
            if known in (uri, reference) or not fragment:
                return found, base
            if fragment.startswith("/"):
                return self._point(found, base, fragment, reference)
        raise SchemaError(f"it refers to {reference}, which is not there")

    def _point(self, found: Any, base: str, pointer: str, reference: str) -> tuple[Any, str]:
        for escaped in unquote(pointer).split("/")[1:]:
            key = escaped.replace("~1", "/").replace("~0", "~")
            if isinstance(found, dict) and key in found:
                found = found[key]
            elif isinstance(found, list) and key in map(str, range(len(found))):
                found = found[int(key)]
            else:
                raise SchemaError(f"it refers to {reference}, which is not there")
            base = base_of(found, base)
        return found, base


def base_of(schema: Any, base: str) -> str:
    """Return the base URI within a schema, which its id may change."""
    for key in ("$id", "id"):
        if isinstance(schema, dict) and isinstance(schema.get(key), str) and not schema[key].startswith("#"):
            return _join(base, schema[key])
    return base


def _join(base: str, reference: str) -> str:
    try:
        return urljoin(base, reference).rstrip("#")
    except ValueError as error:
        raise SchemaError(f"it has the URI {reference!r} ({error})") from error
