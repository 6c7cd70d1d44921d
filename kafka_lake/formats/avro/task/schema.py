"""Builds readers of values from a schema. Types that no column can hold are an error."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from kafka_lake.formats.avro.task.nested import Array, Map, Member, Record, Union
from kafka_lake.formats.avro.task.readers import (
    PRIMITIVES,
    VARIABLE_SCALE_DECIMAL,
    Reader,
    enums,
    fixed,
    primitive,
    variable_scale_decimals,
)

_NAMED = ("record", "error", "enum", "fixed")
_MAX_TYPES, _MAX_DEPTH = 20_000, 100


class UnsupportedTypeError(ValueError):
    """A schema is invalid, or has a type that no column can hold; the message says where."""


class SchemaReader:
    """Reads a schema.

    Args:
        references: Schemas that it refers to, by name in the registry.
    """

    def __init__(self, label: str, text: str, references: Mapping[str, str] | None = None) -> None:
        self._label = label
        self._named: dict[str, tuple[Mapping[str, Any], str]] = {}
        self._open: list[str] = []
        self._count = 0
        for name, referred in (references or {}).items():
            self._define(self._parsed(referred, f" refers to {name}, which"), "")
        self._schema = self._parsed(text, "")
        self._define(self._schema, "")

    def root(self) -> Reader:
        """Return the reader of the schema's values."""
        try:
            reader = self._read(self._schema, "", ())
        except RecursionError:
            raise UnsupportedTypeError(f"Avro: {self._label} is nested too deeply.") from None
        if pa.types.is_null(reader.type):
            raise self._error((), "is null, which no column can hold")
        return reader.at_root() if isinstance(reader, Record) else reader

    def inlined(self) -> str:
        """Return the schema's text with each named type defined where it is first used."""
        return json.dumps(self._inlined(self._schema, "", set()))

    def _parsed(self, text: str, what: str) -> Any:
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            raise UnsupportedTypeError(f"Avro: {self._label}{what} isn't JSON: {error}.") from None

    def _error(self, path: Sequence[str], what: str) -> UnsupportedTypeError:
        at = f", {'.'.join(path)}" if path else ""
        return UnsupportedTypeError(f"Avro: {self._label}{at}: the type {what}.")

    def _define(self, node: Any, namespace: str) -> None:
        """Register the named types in a part of the schema."""
        if isinstance(node, list):
            for branch in node:
                self._define(branch, namespace)
        elif isinstance(node, dict):
            if node.get("type") in _NAMED:
                full = full_name(node, namespace)
                if self._named.setdefault(full, (node, namespace))[0] != node:
                    raise self._error((), f"{full} is defined twice")
                namespace = full.rpartition(".")[0]
                self._define(
                    [f["type"] for f in node.get("fields") or [] if isinstance(f, dict) and "type" in f], namespace
                )
            for key in ("type", "items", "values"):
                self._define(node.get(key), namespace)

    def _inlined(self, node: Any, namespace: str, defined: set[str]) -> Any:
        """Return a part of the schema with the definitions of named types that aren't yet defined."""
        if isinstance(node, list):
            return [self._inlined(branch, namespace, defined) for branch in node]
        if isinstance(node, str):
            full = self._known(node, namespace)
            return node if full is None else full if full in defined else self._inlined(*self._named[full], defined)
        if not isinstance(node, dict):
            return node
        if node.get("type") in _NAMED:
            full = full_name(node, namespace)
            defined.add(full)
            namespace, _, name = full.rpartition(".")
            node = {**node, "name": name, "namespace": namespace}
            fields = node.get("fields")
            if isinstance(fields, list):
                node["fields"] = [{**f, "type": self._inlined(f.get("type"), namespace, defined)} for f in fields]
            return node
        parts = {
            key: self._inlined(node[key], namespace, defined) for key in ("type", "items", "values") if key in node
        }
        return {**node, **parts}

    def _known(self, name: str, namespace: str) -> str | None:
        return next((full for full in (f"{namespace}.{name}", name) if full in self._named), None)

    def _read(self, node: Any, namespace: str, path: tuple[str, ...]) -> Reader:
        self._count += 1
        if self._count > _MAX_TYPES or len(path) > _MAX_DEPTH:
            raise self._error((), f"has more than {_MAX_TYPES} parts, or is nested more than {_MAX_DEPTH} deep")
        if isinstance(node, list):
            return self._union(node, namespace, path)
        if isinstance(node, str):
            node = {"type": node}
        if not isinstance(node, dict) or "type" not in node:
            raise self._error(path, f"isn't an Avro type: {_shown(node)}")
        kind = node["type"]
        if isinstance(kind, dict | list):
            return self._read(kind, namespace, path)
        if kind in _NAMED:
            return self._definition(node, namespace, path)
        if kind in PRIMITIVES:
            return primitive(kind, node)
        if kind == "array":
            element = self._read(self._part(node, "items", path), namespace, (*path, "element"))
            if not element.takes_bytes or pa.types.is_null(element.type):
                # A few bytes could claim billions of elements.
                raise self._error(path, "is an array whose elements take no bytes, or are all null")
            return Array(element)
        if kind == "map":
            return Map(self._read(self._part(node, "values", path), namespace, (*path, "value")))
        full = self._known(str(kind), namespace)
        if full is None:
            raise self._error(path, f"is unknown: {_shown(kind)}")
        return self._definition(*self._named[full], path)

    def _part(self, node: Mapping[str, Any], key: str, path: Sequence[str]) -> Any:
        if key not in node:
            raise self._error(path, f"has no {key}: {_shown(node)}")
        return node[key]

    def _definition(self, node: Mapping[str, Any], namespace: str, path: tuple[str, ...]) -> Reader:
        full = full_name(node, namespace)
        if full in self._open:
            raise self._error(path, f"{full} contains itself, which no table can hold")
        if node["type"] == "enum":
            return enums([str(symbol) for symbol in self._part(node, "symbols", path)])
        if node["type"] == "fixed":
            size = self._part(node, "size", path)
            if not isinstance(size, int) or size < 0:
                raise self._error(path, f"has an invalid size: {_shown(size)}")
            return fixed(node, size)
        if node.get("logicalType") == VARIABLE_SCALE_DECIMAL:
            return variable_scale_decimals()
        self._open.append(full)
        reader = self._record(node, full.rpartition(".")[0], path)
        self._open.pop()
        return reader

    def _record(self, node: Mapping[str, Any], namespace: str, path: tuple[str, ...]) -> Reader:
        fields = self._part(node, "fields", path)
        members: list[Member] = []
        for field in fields:
            if not isinstance(field, dict) or not isinstance(field.get("name"), str):
                raise self._error(path, f"has a field without a name: {_shown(field)}")
            here = (*path, field["name"])
            reader = self._read(self._part(field, "type", here), namespace, here)
            members.append(Member(field["name"], reader, field.get("doc")))
        (twin, count), *_ = [*Counter(member.name for member in members).most_common(1), ("", 0)]
        if count > 1:
            raise self._error(path, f"has the field {twin} twice")
        return Record(members)

    def _union(self, node: list[Any], namespace: str, path: tuple[str, ...]) -> Reader:
        if not node or any(isinstance(branch, list) for branch in node):
            raise self._error(path, "is an empty union, or one within another")
        kinds = [self._kind(branch, namespace) for branch in node]
        types = [kind for kind in kinds if kind != "null"]
        if len(set(kinds)) < len(kinds):
            raise self._error(path, f"is a union with {Counter(kinds).most_common(1)[0][0]} twice")
        labels = dict(zip(types, _labels(types), strict=True))
        branches = [
            self._read(branch, namespace, (*path, labels[kind]) if len(types) > 1 and kind in labels else path)
            for branch, kind in zip(node, kinds, strict=True)
        ]
        return Union(branches, list(labels.values()))

    def _kind(self, node: Any, namespace: str) -> str:
        """Return the name of a branch's type, which must be unique in a union."""
        kind = node["type"] if isinstance(node, dict) and "type" in node else node
        if isinstance(kind, dict | list):
            return self._kind(kind, namespace)
        if kind in _NAMED:
            return full_name(node, namespace)
        return str(kind) if kind in PRIMITIVES else self._known(str(kind), namespace) or str(kind)


def full_name(node: Mapping[str, Any], namespace: str) -> str:
    """Return the full name of a record, enum or fixed."""
    name, space = str(node.get("name", "")), node.get("namespace", namespace)
    return name if "." in name or not space else f"{space}.{name}"


def _labels(kinds: Sequence[str]) -> list[str]:
    """Return a name for each branch of a union; the names are unique in any case.

    >>> _labels(["int", "shop.Order", "old.order", "Map"])
    ['int', 'shop_Order', 'old_order', 'Map']
    """
    short = [kind.rpartition(".")[2] for kind in kinds]
    often = Counter(name.lower() for name in short)
    labels: list[str] = []
    for name, kind in zip(short, kinds, strict=True):
        label = name if often[name.lower()] == 1 else kind.replace(".", "_")
        taken = {used.lower() for used in labels}
        labels.append(next(n for n in (label, *(f"{label}_{i}" for i in range(2, 999))) if n.lower() not in taken))
    return labels


def _shown(node: Any) -> str:
    text = json.dumps(node)
    return text if len(text) <= 80 else text[:79] + "…"
