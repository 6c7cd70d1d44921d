"""Avro schemas at random, values of them, and what those become."""

import io
import random
import string
from collections.abc import Callable
from datetime import date, datetime, timedelta
from datetime import time as clock
from decimal import Decimal
from typing import Any

import fastavro


def encode(schema: Any, *values: Any) -> list[bytes]:
    parsed, payloads = fastavro.parse_schema(schema), []
    for value in values:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, parsed, value)
        payloads.append(out.getvalue())
    return payloads


def record(**fields: Any) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": [{"name": name, "type": kind} for name, kind in fields.items()]}


def typed(base: str, logical: str, **more: Any) -> dict[str, Any]:
    return {"type": base, "logicalType": logical, **more}


def listed(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


def mapped(values: Any) -> dict[str, Any]:
    return {"type": "map", "values": values}


def varint(number: int) -> bytes:
    return encode("long", number)[0]


def unscaled(number: int) -> bytes:
    return number.to_bytes((number.bit_length() + 8) // 8, "big", signed=True)


TEXT = string.ascii_letters + "äß€🍕\x00\n\"\\'"
LONG = (-(2**63), 2**63 - 1)


class Maker:
    """Makes schemas at random, and values of them.

    Args:
        seed: Of the random numbers.
        sizes: Of arrays and maps, beside small ones.
    """

    def __init__(self, seed: int, sizes: tuple[int, ...] = ()) -> None:
        self.rnd = random.Random(seed)
        self.sizes = list(sizes)
        self.named: dict[str, Any] = {}

    def kind(self, depth: int, union: bool = True) -> Any:
        if self.named and self.rnd.random() < 0.1:
            return self.rnd.choice(list(self.named))
        makers: list[Callable[[], Any]] = [self.simple] * 5
        if depth > 0:
            makers += [
                lambda: self.record(depth - 1),
                lambda: listed(self.kind(depth - 1)),
                lambda: mapped(self.kind(depth - 1)),
            ]
        if depth > 0 and union:
            makers += [lambda: self.nullable(depth - 1)] * 2 + [lambda: self.several(depth - 1)]
        return self.rnd.choice(makers)()

    def simple(self) -> Any:
        if self.rnd.random() < 0.3:
            return self.fixed_or_enum()
        precision = self.rnd.randint(1, 45)
        scale = self.rnd.randint(0, precision)
        return self.rnd.choice([
            "boolean", "int", "long", "float", "double", "bytes", "string", "string", "string",
            *(typed("int", logical_type) for logical_type in ("date", "time-millis", "unheard-of")),
            *(typed("long", logical_type) for logical_type in (
                "time-micros", "timestamp-millis", "timestamp-micros", "timestamp-nanos",
                "local-timestamp-millis", "local-timestamp-micros",
            )),
            typed("bytes", "decimal", precision=precision, scale=scale),
        ])  # fmt: skip

    def fixed_or_enum(self) -> Any:
        precision = self.rnd.randint(1, 45)
        return self.known(self.rnd.choice([
            {"type": "fixed", "size": 19, "logicalType": "decimal", "precision": precision, "scale": precision // 2},
            {"type": "fixed", "size": self.rnd.randint(1, 5)},
            {"type": "enum", "symbols": ["RED", "green", "Blue_2"]},
        ]))  # fmt: skip

    def known(self, shell: Any) -> Any:
        name, space = f"{shell['type'].capitalize()}{self.rnd.getrandbits(40)}", self.rnd.choice(["a", "a.b"])
        self.named[f"{space}.{name}"] = kind = {**shell, "name": name, "namespace": space}
        return kind

    def record(self, depth: int) -> Any:
        names = self.rnd.sample(["a", "b", "A", "value", "end", "member0", "_x", "v"], self.rnd.randint(1, 6))
        return self.known({"type": "record", "fields": [{"name": name, "type": self.kind(depth)} for name in names]})

    def nullable(self, depth: int) -> Any:
        kind = self.kind(depth, union=False)
        return ["null", kind] if self.rnd.random() < 0.8 else [kind, "null"]

    def several(self, depth: int) -> Any:
        whole = self.rnd.choice(["int", typed("long", "time-micros"), "long"])
        makers: list[Callable[[], Any]] = [
            *((lambda kind=kind: kind) for kind in (whole, "boolean", "double", "string", "bytes", "null")),
            *([lambda: self.record(depth)] * 2),
            self.fixed_or_enum,
            lambda: listed(self.kind(depth)),
        ]
        return [make() for make in self.rnd.sample(makers, self.rnd.randint(2, 6))]

    def value(self, kind: Any) -> Any:
        """Return a value of the type, as fastavro's writer wants it."""
        kind = self.named.get(kind, kind) if isinstance(kind, str) else kind
        kind = kind if isinstance(kind, dict | list) else {"type": kind}
        if isinstance(kind, list):
            branch = self.rnd.choice(kind)
            return None if branch == "null" else (branch_name(branch), self.value(branch))
        rnd, base, logical = self.rnd, kind["type"], kind.get("logicalType")
        if logical == "decimal":
            digits = rnd.randint(1, kind["precision"])
            return Decimal(rnd.randrange(-(10**digits) + 1, 10**digits)).scaleb(-kind["scale"])
        if logical in ("time-millis", "time-micros"):
            micros = rnd.randrange(86_400_000) * 1000 if logical == "time-millis" else rnd.randrange(86_400_000_000)
            return (datetime.min + timedelta(microseconds=micros)).time()
        if logical == "date":
            return date.min + timedelta(days=rnd.randrange((date.max - date.min).days))
        if logical in TICKS:
            return rnd.randint(-30_000_000_000, 200_000_000_000) * TICKS[logical] + rnd.randrange(TICKS[logical])
        if base == "record":
            return {field["name"]: self.value(field["type"]) for field in kind["fields"]}
        if base == "array":
            return [self.value(kind["items"]) for _ in range(rnd.choice([0, 1, 3, *self.sizes]))]
        if base == "map":
            return {self.text(): self.value(kind["values"]) for _ in range(rnd.choice([0, 1, 3, *self.sizes]))}
        simple: dict[str, Callable[[], Any]] = {
            "boolean": lambda: rnd.random() < 0.5,
            "int": lambda: rnd.choice([0, -(2**31), 2**31 - 1, rnd.randint(-(2**31), 2**31 - 1)]),
            "long": lambda: rnd.choice([0, *LONG, rnd.randint(*LONG)]),
            "float": lambda: rnd.choice([0.0, float("nan"), float("-inf"), rnd.gauss(0, 1e9)]),
            "double": lambda: rnd.choice([0.0, float("nan"), float("inf"), rnd.gauss(0, 1e200)]),
            "bytes": lambda: rnd.randbytes(rnd.randrange(9)),
            "string": self.text,
            "fixed": lambda: rnd.randbytes(kind["size"]),
            "enum": lambda: rnd.choice(kind["symbols"]),
        }
        return simple[base]()

    def text(self) -> str:
        return "".join(self.rnd.choices(TEXT, k=self.rnd.randrange(9)))

    def wanted(self, kind: Any, value: Any) -> Any:
        """Return what shall become of a value that fastavro's reader gave."""
        kind = self.named.get(kind, kind) if isinstance(kind, str) else kind
        kind = kind if isinstance(kind, dict | list) else {"type": kind}
        if isinstance(kind, list):
            return self.wanted_of_union(kind, value)
        base, logical = kind["type"], kind.get("logicalType")
        if logical == "decimal":
            return value if kind["precision"] <= 38 else f"{value:f}"
        if logical in ("time-millis", "time-micros"):
            return value.strftime("%H:%M:%S.%f")
        if base == "record":
            return {field["name"]: self.wanted(field["type"], value[field["name"]]) for field in kind["fields"]}
        if base == "array":
            return [self.wanted(kind["items"], element) for element in value]
        if base == "map":
            return {key: self.wanted(kind["values"], element) for key, element in value.items()}
        return value

    def wanted_of_union(self, kinds: list[Any], value: Any) -> Any:
        solid = [item for item in kinds if item != "null"]
        if value is None:
            return None
        if isinstance(value, tuple):
            name, value = value
        else:
            bases = {bool: "boolean", float: "double", str: "string", bytes: "bytes", list: "array", clock: "long"}
            name = bases.get(type(value), "int" if "int" in kinds else "long")
        if len(solid) == 1:
            return self.wanted(solid[0], value)
        (branch,) = [item for item in solid if branch_name(item) == name]
        none = dict.fromkeys(branch_name(item).rpartition(".")[2] for item in solid)
        return {**none, name.rpartition(".")[2]: self.wanted(branch, value)}


TICKS = {
    "timestamp-millis": 1_000, "timestamp-micros": 1_000_000, "timestamp-nanos": 10,
    "local-timestamp-millis": 1_000, "local-timestamp-micros": 1_000_000,
}  # fmt: skip


def branch_name(kind: Any) -> str:
    if isinstance(kind, str):
        return kind
    return f"{kind['namespace']}.{kind['name']}" if "name" in kind else str(kind["type"])


def neat(value: Any) -> Any:
    """Return the value with what isn't equal to itself as text."""
    if isinstance(value, dict):
        return {key: neat(element) for key, element in value.items()}
    if isinstance(value, list):
        return [neat(element) for element in value]
    return "not a number" if isinstance(value, float) and value != value else value
