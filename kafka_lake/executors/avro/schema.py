"""A schema is read once, part by part, into what reads its values; what can't be columns is refused."""

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from kafka_lake.executors.avro.decimals import ScaledDecimals
from kafka_lake.executors.avro.nested import Array, Map, Member, Optional, Record, Several, Widened
from kafka_lake.executors.avro.reader import NULL, Reader, UnsupportedTypeError
from kafka_lake.executors.avro.recursion import Within
from kafka_lake.executors.avro.scalars import PRIMITIVES, Enums, fixed, primitive

VARIABLE_SCALE_DECIMAL = "io.debezium.data.VariableScaleDecimal"
_WIDENED = {frozenset({"int", "long"}): pa.int64(), frozenset({"float", "double"}): pa.float64()}
_NAMED = ("record", "error", "enum", "fixed")
_NAME = re.compile(r"[^\W\d]\w*")
_MAX_TYPES = 20_000
_MAX_DEPTH = 100


class SchemaReader:
    """Reads a schema once; refuses what can't be columns.

    Args:
        label: What messages call the schema.
        references: Schemas that it refers to, by their names in the registry.

    Raises:
        UnsupportedTypeError: If a text is no JSON, or a type is defined twice.
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
        """Return what reads values of the schema: structs of its fields, or of one ``value`` if it is no record.

        Raises:
            UnsupportedTypeError: If it can be no columns.
        """
        try:
            reader = self._read(self._schema, "", ())
        except RecursionError:
            raise UnsupportedTypeError(f"Avro: {self._label} is nested too deeply.") from None
        if pa.types.is_null(reader.type):
            raise self._error((), "is null: there is nothing that could be a column")
        return reader.at_root() if isinstance(reader, Record) else reader

    def inlined(self) -> str:
        """Return the schema's text with the types that it refers to written out where each is first used."""
        return json.dumps(self.inline(self._schema, "", set()))

    def _parsed(self, text: str, what: str) -> Any:
        try:
            return json.loads(text)
        except ValueError as error:
            raise UnsupportedTypeError(f"Avro: {self._label}{what} is no JSON: {error}.") from None
        except RecursionError:
            raise UnsupportedTypeError(f"Avro: {self._label} is nested too deeply.") from None

    def _error(self, path: Sequence[str], what: str) -> UnsupportedTypeError:
        at = f", {'.'.join(path)}" if path else ""
        return UnsupportedTypeError(f"Avro: {self._label}{at}: the type {what}.")

    def _define(self, node: Any, namespace: str) -> None:
        if isinstance(node, list):
            for each in node:
                self._define(each, namespace)
        elif isinstance(node, dict):
            if node.get("type") in _NAMED:
                namespace = self._name(node, namespace)
                fields = node.get("fields")
                self._define([f["type"] for f in fields or [] if isinstance(f, dict) and "type" in f], namespace)
            for key in ("type", "items", "values"):
                self._define(node.get(key), namespace)

    def _name(self, node: Mapping[str, Any], namespace: str) -> str:
        full = full_name(node, namespace)
        if not full or not all(_NAME.fullmatch(part) for part in full.split(".")):
            raise self._error((), f"has the invalid name {full!r}")
        if self._named.setdefault(full, (node, namespace))[0] != node:
            raise self._error((), f"{full} is defined twice")
        return full.rpartition(".")[0]

    def inline(self, node: Any, namespace: str, defined: set[str]) -> Any:
        """Return a part of the schema, with types that are named and not yet defined written out."""
        if isinstance(node, list):
            return [self.inline(each, namespace, defined) for each in node]
        if isinstance(node, str):
            full = self._known(node, namespace)
            return node if full is None else full if full in defined else self.inline(*self._named[full], defined)
        if not isinstance(node, dict):
            return node
        if node.get("type") in _NAMED:
            full = full_name(node, namespace)
            defined.add(full)
            namespace, _, name = full.rpartition(".")
            node = {**node, "name": name, "namespace": namespace}
            fields = node.get("fields")
            if isinstance(fields, list):
                node["fields"] = [{**f, "type": self.inline(f.get("type"), namespace, defined)} for f in fields]
            return node
        parts = {key: self.inline(node[key], namespace, defined) for key in ("type", "items", "values") if key in node}
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
            return self._reference({"type": node}, namespace, path)
        if not isinstance(node, dict) or "type" not in node:
            raise self._error(path, f"is no Avro type: {_shown(node)}")
        kind = node["type"]
        if isinstance(kind, dict | list):
            return self._read(kind, namespace, path)
        if kind in _NAMED:
            return self._definition(node, namespace, path)
        if kind == "array":
            return self._array(self._part(node, "items", namespace, (*path, "element")), path)
        if kind == "map":
            return Map(self._part(node, "values", namespace, (*path, "value")))
        return self._reference(node, namespace, path)

    def _part(self, node: Mapping[str, Any], key: str, namespace: str, path: tuple[str, ...]) -> Reader:
        if key not in node:
            raise self._error(path[:-1], f"has no {key}: {_shown(node)}")
        return self._read(node[key], namespace, path)

    def _reference(self, node: Mapping[str, Any], namespace: str, path: tuple[str, ...]) -> Reader:
        kind = node["type"]
        if kind == "null":
            return NULL
        if kind in PRIMITIVES:
            return primitive(kind, node)
        full = self._known(kind, namespace)
        if full is None:
            raise self._error(path, f"is unknown: {_shown(kind)}")
        return self._definition(*self._named[full], path)

    def _definition(self, node: Mapping[str, Any], namespace: str, path: tuple[str, ...]) -> Reader:
        full = full_name(node, namespace)
        if full in self._open:
            return Within(node, namespace, self._resolved)
        if node["type"] == "enum":
            return self._enum(node, path)
        if node["type"] == "fixed":
            return self._fixed(node, path)
        if node.get("logicalType") == VARIABLE_SCALE_DECIMAL:
            return ScaledDecimals()
        self._open.append(full)
        reader = self._record(node, full.rpartition(".")[0], path)
        self._open.pop()
        return reader

    def _resolved(self, kind: Any, namespace: str) -> tuple[Any, str]:
        """Return a type itself, without what is merely said of it, and the namespace that its parts are in."""
        while isinstance(kind, dict) and isinstance(kind["type"], dict | list):
            kind = kind["type"]
        name = kind["type"] if isinstance(kind, dict) else kind
        if isinstance(name, str) and name not in _NAMED and (full := self._known(name, namespace)):
            kind, namespace = self._named[full]
            name = kind["type"]
        if isinstance(kind, dict) and name in _NAMED:
            namespace = full_name(kind, namespace).rpartition(".")[0]
        return kind, namespace

    def _enum(self, node: Mapping[str, Any], path: Sequence[str]) -> Reader:
        symbols = node.get("symbols")
        if not isinstance(symbols, list) or not all(isinstance(s, str) and _NAME.fullmatch(s) for s in symbols):
            raise self._error(path, f"has no symbols, or invalid ones: {_shown(symbols)}")
        if len(set(symbols)) < len(symbols):
            raise self._error(path, f"has a symbol twice: {_shown(symbols)}")
        return Enums(symbols)

    def _fixed(self, node: Mapping[str, Any], path: Sequence[str]) -> Reader:
        size = node.get("size")
        if not isinstance(size, int) or size < 0:
            raise self._error(path, f"has no size, or an invalid one: {_shown(size)}")
        return fixed(node, size)

    def _record(self, node: Mapping[str, Any], namespace: str, path: tuple[str, ...]) -> Reader:
        fields = node.get("fields")
        if not isinstance(fields, list):
            raise self._error(path, "has no fields")
        names = [self._field_name(field, path) for field in fields]
        if len(set(names)) < len(names):
            raise self._error(path, f"has the field {Counter(names).most_common(1)[0][0]} twice")
        members = [
            Member(name, self._part(field, "type", namespace, (*path, name)), field.get("doc"))
            for name, field in zip(names, fields, strict=True)
        ]
        return Record(members)

    def _field_name(self, field: Any, path: Sequence[str]) -> str:
        name = field.get("name") if isinstance(field, dict) else None
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise self._error(path, f"has a field without a valid name: {_shown(field)}")
        return name

    def _array(self, element: Reader, path: Sequence[str]) -> Reader:
        if not element.takes_bytes:
            # A few bytes could claim billions of elements.
            raise self._error(path, "is an array whose elements take no bytes")
        return Array(element)

    def _union(self, node: list[Any], namespace: str, path: tuple[str, ...]) -> Reader:
        if not node or any(isinstance(each, list) for each in node):
            raise self._error(path, "is an empty union, or one within another")
        kinds = [self._kind(each, namespace) for each in node]
        if len(set(kinds)) < len(kinds):
            raise self._error(path, f"is a union with {Counter(kinds).most_common(1)[0][0]} twice")
        solid = [kind for kind in kinds if kind != "null"]
        labels = dict(zip(solid, _labels(solid), strict=True))
        several = len(solid) > 1
        branches = [self._read(each, namespace, (*path, labels[kind]) if several and kind in labels else path)
                    for each, kind in zip(node, kinds, strict=True)]  # fmt: skip
        if not several:
            return Optional(branches)
        widened = _WIDENED.get(frozenset(solid))
        if widened is not None and all(branch.primitive == kind for branch, kind in zip(branches, kinds, strict=True)):
            return Widened(branches, widened)
        return Several(branches, list(labels.values()))

    def _kind(self, node: Any, namespace: str) -> str:
        """Return what no other branch of a union may be: the unnamed type, or the full name."""
        kind = node["type"] if isinstance(node, dict) and "type" in node else node
        if isinstance(kind, dict | list):
            return self._kind(kind, namespace)
        if kind in _NAMED:
            return full_name(node, namespace)
        return str(kind) if kind in PRIMITIVES else self._known(str(kind), namespace) or str(kind)


def full_name(node: Mapping[str, Any], namespace: str) -> str:
    """Return the full name of a record, enum or fixed.

    Args:
        node: As the schema has it.
        namespace: Of what it stands in.
    """
    name, space = str(node.get("name", "")), node.get("namespace", namespace)
    return name if "." in name or not space else f"{space}.{name}"


def _labels(kinds: Sequence[str]) -> list[str]:
    """Return a name for each branch of a union, different but for the case.

    >>> _labels(["int", "shop.Order", "old.order", "Map"])
    ['int', 'shop_Order', 'old_order', 'Map']
    """
    short = [kind.rpartition(".")[2] for kind in kinds]
    often = Counter(each.lower() for each in short)
    names = [each if often[each.lower()] == 1 else kind.replace(".", "_")
             for each, kind in zip(short, kinds, strict=True)]  # fmt: skip
    found: list[str] = []
    for name in names:
        others = {each.lower() for each in found}
        found.append(next(n for n in (name, *(f"{name}_{i}" for i in range(2, 999))) if n.lower() not in others))
    return found


def _shown(node: Any) -> str:
    text = json.dumps(node)
    return text if len(text) <= 80 else text[:79] + "…"
