"""A schema is read once, part by part, into how its values are read; what can't be columns is refused."""

import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pyspark.sql import types as T

from kafka_lake.common.errors import SchemaNotSupportedError
from kafka_lake.ingest.decode.avro.debezium_values import VARIABLE_SCALE_DECIMAL, variable_scale_decimal
from kafka_lake.ingest.decode.avro.decimals import decimal_value
from kafka_lake.ingest.decode.avro.nested import (
    Member,
    array_value,
    element_value,
    map_value,
    record_value,
    union_value,
)
from kafka_lake.ingest.decode.avro.scalars import (
    DURATION_TYPE,
    PRIMITIVES,
    duration_value,
    primitive_value,
    uuid_of_bytes,
)
from kafka_lake.ingest.decode.avro.value import NULL, Value, avro_field
from kafka_lake.kafka.schemas import WriterSchema

_WIDENED = {frozenset({"int", "long"}): T.LongType(), frozenset({"float", "double"}): T.DoubleType()}
_NAMED = ("record", "error", "enum", "fixed")
_NAME = re.compile(r"[^\W\d]\w*")
_MAX_TYPES = 20_000
_MAX_DEPTH = 100
REMEDY = "Take the topic with `format: bytes` and decode it in a transform, or let the writer change its schema."


class SchemaReader:
    """Reads a schema once; refuses what can't be columns.

    Attributes:
        count: How many types it has.
        is_recursive: Whether a type contains itself; it is read as text there, which `executors.avro` writes.
    """

    def __init__(self, schema: WriterSchema) -> None:
        self.label = schema.label
        self.named: dict[str, tuple[Mapping[str, Any], str]] = {}
        self.open: list[str] = []
        self.count = 0
        self.is_recursive = False
        for name, text in schema.references.items():
            self._define(self._parsed(text, f" refers to {name}, which"), "")
        self.text = self._parsed(schema.text, "")
        self._define(self.text, "")

    def root(self) -> Value:
        """Return how values of the schema are read.

        Raises:
            SchemaNotSupportedError: If it can be no columns.
        """
        value = self._read(self.text, "", ())
        if isinstance(value.avro, dict) and value.avro.get("fields") == []:
            return Value(value.avro, T.StructType([]))
        if isinstance(value.type, T.NullType):
            raise self._error((), "is null: there is nothing that could be a column")
        return value

    def _parsed(self, text: str, what: str) -> Any:
        try:
            return json.loads(text)
        except ValueError as error:
            raise SchemaNotSupportedError(f"Avro: {self.label}{what} is no JSON: {error}.", REMEDY) from None

    def _error(self, path: Sequence[str], what: str) -> SchemaNotSupportedError:
        at = f", {'.'.join(path)}" if path else ""
        return SchemaNotSupportedError(f"Avro: {self.label}{at}: the type {what}.", REMEDY)

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
        if self.named.setdefault(full, (node, namespace))[0] != node:
            raise self._error((), f"{full} is defined twice")
        return full.rpartition(".")[0]

    def inline(self, node: Any, namespace: str, defined: set[str]) -> Any:
        """Return a part of the schema, with types that are named and not yet defined written out."""
        if isinstance(node, list):
            return [self.inline(each, namespace, defined) for each in node]
        if isinstance(node, str):
            full = self._known(node, namespace)
            return node if full is None else full if full in defined else self.inline(*self.named[full], defined)
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
        return next((full for full in (f"{namespace}.{name}", name) if full in self.named), None)

    def _read(self, node: Any, namespace: str, path: tuple[str, ...]) -> Value:
        self.count += 1
        if self.count > _MAX_TYPES or len(path) > _MAX_DEPTH:
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
            return map_value(element_value(self._part(node, "values", namespace, (*path, "value"))))
        return self._reference(node, namespace, path)

    def _part(self, node: Mapping[str, Any], key: str, namespace: str, path: tuple[str, ...]) -> Value:
        if key not in node:
            raise self._error(path[:-1], f"has no {key}: {_shown(node)}")
        return self._read(node[key], namespace, path)

    def _reference(self, node: Mapping[str, Any], namespace: str, path: tuple[str, ...]) -> Value:
        kind = node["type"]
        if kind == "null":
            return NULL
        if kind in PRIMITIVES:
            return primitive_value(kind, node, f"d{self.count}")
        full = self._known(kind, namespace)
        if full is None:
            raise self._error(path, f"is unknown: {_shown(kind)}")
        return self._definition(*self.named[full], path)

    def _definition(self, node: Mapping[str, Any], namespace: str, path: tuple[str, ...]) -> Value:
        full = full_name(node, namespace)
        if full in self.open:
            self.is_recursive = True
            return Value("string", T.StringType())
        name = f"t{self.count}"
        if node["type"] == "enum":
            return self._enum(node, name, path)
        if node["type"] == "fixed":
            return self._fixed(node, name, path)
        if node.get("logicalType") == VARIABLE_SCALE_DECIMAL:
            return variable_scale_decimal(name)
        self.open.append(full)
        value = self._record(node, full.rpartition(".")[0], name, path)
        self.open.pop()
        return value

    def _enum(self, node: Mapping[str, Any], name: str, path: Sequence[str]) -> Value:
        symbols = node.get("symbols")
        if not isinstance(symbols, list) or not all(isinstance(s, str) and _NAME.fullmatch(s) for s in symbols):
            raise self._error(path, f"has no symbols, or invalid ones: {_shown(symbols)}")
        if len(set(symbols)) < len(symbols):
            raise self._error(path, f"has a symbol twice: {_shown(symbols)}")
        return Value({"type": "enum", "name": name, "symbols": symbols}, T.StringType())

    def _fixed(self, node: Mapping[str, Any], name: str, path: Sequence[str]) -> Value:
        size = node.get("size")
        if not isinstance(size, int) or size < 0:
            raise self._error(path, f"has no size, or an invalid one: {_shown(size)}")
        avro = {"type": "fixed", "name": name, "size": size}
        logical = node.get("logicalType")
        if logical == "decimal" and (found := decimal_value(avro, node, math.floor(math.log10(2) * (8 * size - 1)))):
            return found
        if logical == "uuid" and size == 16:
            return Value(avro, T.StringType(), uuid_of_bytes)
        if logical == "duration" and size == 12:
            return Value(avro, DURATION_TYPE, duration_value)
        return Value(avro, T.BinaryType(), takes_bytes=size > 0)

    def _record(self, node: Mapping[str, Any], namespace: str, name: str, path: tuple[str, ...]) -> Value:
        fields = node.get("fields")
        if not isinstance(fields, list):
            raise self._error(path, "has no fields")
        names = [self._field_name(field, path) for field in fields]
        if len(set(names)) < len(names):
            raise self._error(path, f"has the field {Counter(names).most_common(1)[0][0]} twice")
        # Spark finds no field whose name another one has, but for its case.
        clash = len({each.lower() for each in names}) < len(names)
        parts = []
        for number, field in enumerate(fields):
            value = self._part(field, "type", namespace, (*path, field["name"]))
            if value is not NULL:
                parts.append(Member(field["name"], f"f{number}" if clash else field["name"], value, field.get("doc")))
        avro = {"type": "record", "name": name, "fields": [avro_field(part.raw, part.value.avro) for part in parts]}
        return replace(record_value(parts, avro), takes_bytes=any(part.value.takes_bytes for part in parts))

    def _field_name(self, field: Any, path: Sequence[str]) -> str:
        name = field.get("name") if isinstance(field, dict) else None
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise self._error(path, f"has a field without a valid name: {_shown(field)}")
        return name

    def _array(self, element: Value, path: Sequence[str]) -> Value:
        if not element.takes_bytes:
            # A few bytes could claim billions of elements.
            raise self._error(path, "is an array whose elements take no bytes")
        return array_value(element_value(element))

    def _union(self, node: list[Any], namespace: str, path: tuple[str, ...]) -> Value:
        name = f"u{self.count}"
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
        values = [value for value in branches if value is not NULL]
        if not several:
            return replace((values or branches)[0], avro=[branch.avro for branch in branches], takes_bytes=True)
        widened = _WIDENED.get(frozenset(solid))
        if widened is not None and all(value.avro == kind for value, kind in zip(values, solid, strict=True)):
            return Value([branch.avro for branch in branches], widened)
        return union_value(branches, list(labels.values()), name)

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
