"""Inputs: JSON objects of every shape and bytes that are nearly some, each from a seed and a number alone.

`CORPUS` holds inputs that once broke something, by name. `payload` gives one at random: an object of odd fields, of the
fields of `FIELDS`, or of both; one in four is damaged.
"""

import json
import random
import string
from collections.abc import Callable

Values = Callable[[random.Random], str]

DEEPEST = 100
LONG_NAME = "n" * 70_000
INTERNAL = (
    "_kafka", "decoded", "error_class", "error_message", "__kafka_lake_parsed", "_corrupt", "value", "key", "_error",
    "_file", "offset", "new", "in", "element",
)  # fmt: skip
NAMES = (
    "", "a", "a.b", "b", "A", "a b", "a`b", "a'b", 'a\\"b', "a\\\\b", "\\u0000", "\\n",
    "ü", "\\ud83c\\udf55", "🍕", "a.element", "id", "ID", "Id", "iD", "s", "0", *INTERNAL,
)  # fmt: skip

INTEGERS = tuple(
    str(sign * (base + step))
    for base in (0, 2**7, 2**8, 2**15, 2**16, 2**24, 2**31, 2**32, 2**53, 2**63, 2**64, 10**18, 10**37, 10**38, 10**39)
    for step in (-2, -1, 0, 1, 2)
    for sign in (1, -1)
)
REALS = (
    "-0", "-0.0", "0.0", "0e0", "3.0", "1e3", "1E+3", "1e-3", "1.50", "0.1", "0.10", "0.30000000000000004", "0.1e1",
    "1e400", "-1e400", "1e-400", "1e308", "1.7976931348623157e308", "1.7976931348623159e308", "5e-324", "4.9e-324",
    "2e-324", "2.2250738585072014e-308", "3.4028235e38", "3.4028236e38", "1e38", "1e39", "1e37", "16777217.0", "0.3",
    "9007199254740993.0", "9007199254740992.0", "123456789.123456789", "1234567.12", "99.999", "12.345", "1e22", "1e23",
    "0.1234567890123456789", "3.141592653589793238462643383279502884197", "1" * 38, "1" * 39, "9" * 400,
    "0." + "1" * 400, "1e999999", "1e-999999", "100e-2", "1.0e2", "123.456e3", "9999999.99", "99999999.99",
)  # fmt: skip
TIMES = (
    "2026-01-02", "2026-01-02T03:04:05", "2026-01-02 03:04:05", "2026-01-02T03:04:05Z", "2026-01-02t03:04:05z",
    "2026-01-02Z", "2026-01-02z", "2026-01-02ZZ", "2026-02-30Z", "0000-01-01Z", "2026-01-02+00:00", "2026-01-02 Z",
    "2026-01-02T03:04:05+05:30", "2026-01-02T03:04:05-0530", "2026-01-02T03:04:05+05", "2026-01-02T03:04:05.1Z",
    "2026-01-02T03:04:05.123456Z", "2026-01-02T03:04:05.1234567Z", "2026-01-02T03:04:05.123456000Z",
    "2026-01-02T03:04:05.123456789123", "2026-01-02T03:04:05.Z", "2026-01-02T03:04", "2026-01-02T03", "03:04:05",
    "2026-01-02 garbage", "2026-01-02T", "2026-02-30", "2026-13-01", "2024-02-29", "2023-02-29", "2026-1-2",
    "2026-01-02  03:04:05", " 2026-01-02", "2026-01-02 ", "0001-01-01", "0000-01-01", "9999-12-31", "10000-01-01",
    "0001-01-01T00:00:00Z", "0000-12-31T23:59:59Z", "9999-12-31T23:59:59.999999Z", "10000-01-01T00:00:00Z",
    "0001-01-01T00:00:00+01:00", "9999-12-31T23:59:59-01:00", "2026-01-02T24:00:00Z", "2026-01-02T23:59:60Z",
    "2026-01-02T03:60:00Z", "2026-01-02T03:04:05+24:00", "2026-01-02T03:04:05+05:60", "1767323045", "1767323045123",
    "-2026-01-02", "+2026-01-02", "epoch", "now", "today", "2026-W01-1", "2026-002", "20260102T030405Z", "1582-10-10",
    "2026-01-02T03:04:05 Z", "2026-01-02T03:04:05 Europe/Berlin", "2026-01-02T03:04:05[UTC]", "٢٠٢٦-01-02",
)  # fmt: skip
TEXTS = (
    "", " ", "a", "true", "null", "NaN", "Infinity", "-Infinity", "1", "1.5", "1e400", "{}", "[]", '{\\"a\\":1}',
    "\\u0000", "\\u001f", "\\u0080", "\\ud83c\\udf55", "ü", "🍕", "\\\\", "\\/", "\\b\\f\\n\\r\\t", "YWJj", "YWJ",
    "YW Jj", "YWJj\\n", "-12.50", "12.5", "\\ufeff", "\\uffff", "x" * 9000,
)  # fmt: skip
HALVES = ("\\ud800", "\\udc00", "a\\udfffb", "\\udf55\\ud83c", "\\uD83C")
CONSTANTS = (
    "NaN", "Infinity", "-Infinity", "+1", "01", ".5", "1.",
    "0x1F", "1_000", "True", "None", "undefined", "'a'", "1e", "--1",
)  # fmt: skip

_CHARACTERS = "ab ü€\U0001f355\x00\"'\\{}[]:,."
_NUMBERS: tuple[Values, ...] = (
    lambda r: r.choice(INTEGERS),
    lambda r: r.choice(REALS),
    lambda r: str(r.randint(-1000, 1000)),
    lambda r: repr(r.uniform(-1e6, 1e6)),
    lambda r: repr(r.choice((1, -1)) * 10 ** r.uniform(-320, 308)),
    lambda r: f"{r.randint(0, 10 ** r.randint(1, 20))}.{''.join(r.choices(string.digits, k=r.randint(1, 25)))}",
    lambda r: f"{r.randint(-99, 99)}e{r.randint(-330, 330)}",
    # About as many digits as a double holds, with and without an exponent.
    lambda r: f"{r.randint(10**14, 10**18)}e{r.randint(-40, 40)}",
    lambda r: f"{r.randint(0, 99)}.{r.randint(10**13, 10**17)}{r.choice(('', f'e{r.randint(-320, 308)}'))}",
    lambda r: f"{r.randint(0, 10 ** r.randint(1, 24))}e{r.randint(-30, 30)}",
)


def number(r: random.Random) -> str:
    return r.choice(_NUMBERS)(r)


def whole(r: random.Random) -> str:
    return r.choice(INTEGERS) if r.random() < 0.3 else str(r.randint(-128, 127))


def text(r: random.Random) -> str:
    if r.random() < 0.3:
        drawn = "".join(r.choices(_CHARACTERS, k=r.randint(0, 12)))
        return json.dumps(drawn, ensure_ascii=r.random() < 0.5)
    return f'"{r.choice(TEXTS)}"'


def time(r: random.Random) -> str:
    if r.random() < 0.4:
        day = f"{r.randint(1, 9999):04}-{r.randint(1, 12):02}-{r.randint(1, 28):02}"
        clock = f"{r.randint(0, 23):02}:{r.randint(0, 59):02}:{r.randint(0, 59):02}"
        digits = "." + "".join(r.choices(string.digits, k=r.randint(1, 9))) if r.random() < 0.5 else ""
        zone = r.choice(("", "Z", "+00:00", "-00:00", "+14:00", "-12:30"))
        return f'"{day}{r.choice("T ")}{clock}{digits}{zone}"'
    return f'"{r.choice(TIMES)}"'


def scalar(r: random.Random) -> str:
    kind = r.random()
    if kind < 0.35:
        return number(r)
    if kind < 0.65:
        return text(r)
    if kind < 0.8:
        return time(r)
    return r.choice(("true", "false", "null", "[]", "{}"))


def value(r: random.Random, levels: int = 4) -> str:
    if levels == 0 or r.random() < 0.6:
        return scalar(r)
    if r.random() < 0.5:
        if r.random() < 0.5:
            one = r.choice((number, text, time, lambda q: value(q, levels - 1)))
            return "[" + ",".join(one(r) for _ in range(r.randint(0, 4))) + "]"
        return "[" + ",".join(value(r, levels - 1) for _ in range(r.randint(0, 4))) + "]"
    return pairs(r, [(name(r), value(r, levels - 1)) for _ in range(r.randint(0, 4))])


def name(r: random.Random) -> str:
    return r.choice(NAMES) if r.random() < 0.7 else "".join(r.choices("abcdefgh", k=2))


def pairs(r: random.Random, fields: list[tuple[str, str]], twice: bool = False) -> str:
    """Return an object, of each name the first, unless one may be there twice."""
    kept = fields if twice else list(dict(reversed(fields)).items())
    space = r.choice(("", "", "", " ", "\n\t", " \r\n "))
    return "{" + f",{space}".join(f'"{key}"{space}:{space}{member}' for key, member in kept) + space + "}"


def struct(r: random.Random) -> str:
    inner = pairs(r, [("d", number(r)), *([("new", value(r, 1))] if r.random() < 0.1 else [])])
    return pairs(r, [("a", whole(r)), ("b", text(r)), ("c", r.choice((inner, "null")))])


FIELDS: dict[str, Values] = {
    "bo": lambda r: r.choice(("true", "false")),
    "i": whole,
    "l": whole,
    "f": number,
    "d": number,
    "de": number,
    "d0": whole,
    "t": text,
    "bi": lambda r: r.choice(('"YWJj"', '""', '"AAECAw=="')),
    "da": time,
    "ts": time,
    "tn": time,
    "li": lambda r: "[" + ",".join(r.choice((whole(r), "null")) for _ in range(r.randint(0, 3))) + "]",
    "lt": lambda r: "[" + ",".join(text(r) for _ in range(r.randint(0, 3))) + "]",
    "m": lambda r: pairs(r, [(name(r), number(r)) for _ in range(r.randint(0, 3))]),
    "st": struct,
    "ls": lambda r: "[" + ",".join(struct(r) for _ in range(r.randint(0, 2))) + "]",
}
"""Fields that the topics of the fuzz declare, and values that mostly are of their types."""


def obj(r: random.Random) -> str:
    """Return an object: of declared fields, of any, or of both."""
    fields = []
    if r.random() < 0.7:
        few = r.sample(list(FIELDS), r.choice((1, 1, 2, 3)))
        fields += [(field, FIELDS[field](r) if r.random() < 0.9 else value(r)) for field in few]
    if not fields or r.random() < 0.4:
        fields += [(name(r), value(r)) for _ in range(r.randint(0, 4))]
    return pairs(r, fields)


def nested(r: random.Random) -> str:
    levels = r.choice((2, 10, 20, 21, 33, 34, 63, 64, 65, DEEPEST))
    if r.random() < 0.3:
        return '{"deep":' + "[" * (levels - 1) + scalar(r) + "]" * (levels - 1) + "}"
    return '{"a":' * levels + scalar(r) + "}" * levels


def _cut(r: random.Random, content: bytes) -> bytes:
    return content[: r.randrange(len(content))] if content else b""


def _flipped(r: random.Random, content: bytes) -> bytes:
    found = bytearray(content)
    for _ in range(r.randint(1, 3) if found else 0):
        found[r.randrange(len(found))] ^= 1 << r.randrange(8)
    return bytes(found)


def _part_twice(r: random.Random, content: bytes) -> bytes:
    start, end = sorted((r.randint(0, len(content)), r.randint(0, len(content))))
    return content[:end] + content[start:]


def _field_twice(r: random.Random, _: bytes) -> bytes:
    one = r.choice((*FIELDS, "k"))
    inner = pairs(r, [(one, value(r, 1)), ("other", scalar(r)), (one, value(r, 1))], twice=True)
    within = [f'{{"{field}":{item}}}' for field in ("st", "m", "t", "x") for item in (inner, f"[{inner}]")]
    return r.choice((inner, inner, *within)).encode()


_DAMAGE: tuple[Callable[[random.Random, bytes], bytes], ...] = (
    _cut,
    _cut,
    _flipped,
    _part_twice,
    _field_twice,
    lambda r, c: c.replace(b'"', b"'"),
    lambda r, c: c + c,
    lambda r, c: c + r.choice((b"\n", b" ")) + c,
    lambda r, c: c + r.choice((b" x", b",", b"}", b"\x00", b"//", b" \t\r\n", b"\xc2\xa0")),
    lambda r, c: r.choice((b"\xef\xbb\xbf", b"\xff\xfe", b"\x00", b"\x0b", b" \n", b"[")) + c,
    lambda r, c: c.replace(b"a", r.choice((b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xc0\xaf", b"\x01"))),
    lambda r, c: pairs(r, [(r.choice(list(FIELDS)), r.choice(CONSTANTS))]).encode(),
    lambda r, c: pairs(r, [(r.choice((*FIELDS, "x")), f'"{r.choice(HALVES)}"')]).encode(),
    lambda r, c: pairs(r, [(r.choice(HALVES), scalar(r))]).encode(),
    lambda r, c: c.replace(b"}", b",}"),
    lambda r, c: c.replace(b":", b":/**/"),
    lambda r, c: scalar(r).encode(),
    lambda r, c: b"[" + c + b"]",
    lambda r, c: r.randbytes(r.choice((0, 1, 5, 40))),
    lambda r, c: c.decode(errors="replace").encode("utf-16"),
)


def payload(seed: int, index: int) -> bytes:
    """Return one input. The same arguments give the same bytes."""
    r = random.Random(f"{seed}/{index}")
    kind = r.random()
    if kind < 0.03:
        return nested(r).encode()
    if kind < 0.031:
        return pairs(r, [(LONG_NAME, scalar(r)), ("l", "1")]).encode()
    content = obj(r).encode()
    return r.choice(_DAMAGE)(r, content) if kind > 0.75 else content


TAME = ("bo", "i", "l", "d", "de", "d0", "t", "da", "ts", "tn", "li", "lt", "st", "ls")
"""Fields whose columns a fast parser takes, which leaves a batch alone that has much else in it."""


def tame_payload(seed: int, index: int) -> bytes:
    """Return an input that mostly is a whole object of fields in `TAME`; one in a hundred is any `payload`."""
    r = random.Random(f"tame {seed}/{index}")
    if r.random() < 0.01:
        return payload(seed, index)
    few = r.sample(TAME, r.choice((1, 1, 2)))
    return pairs(r, [(field, _MILD.get(field, FIELDS[field])(r)) for field in few]).encode()


_MILD: dict[str, Values] = {
    "i": lambda r: str(r.randint(-(2**31), 2**31 - 1)),
    "l": lambda r: str(r.randint(-(2**63), 2**63 - 1)),
    "de": lambda r: f"{r.randint(-999999, 999999)}.{r.randint(0, 99):02}",
    "d0": lambda r: str(r.randint(-(10**18), 10**18)),
    "li": lambda r: "[" + ",".join(str(r.randint(-99, 99)) for _ in range(r.randint(0, 3))) + "]",
    "da": lambda r: f'"{r.randint(1, 9999):04}-{r.randint(1, 12):02}-{r.randint(1, 28):02}"',
    "st": lambda r: pairs(r, [("a", str(r.randint(-99, 99))), ("b", text(r)), ("c", pairs(r, [("d", number(r))]))]),
    "ls": lambda r: "[" + _MILD["st"](r) + "]",
}

CORPUS: dict[str, bytes] = {
    "field twice": b'{"l":1,"k":1,"k":2,"other":"x"}',
    "declared field twice": b'{"l":1,"l":2}',
    "single quotes": b"{'l':1,'other':'x'}",
    "twice within an object": b'{"l":1,"st":{"a":1,"a":2}}',
    "new field in the object of a misfit": b'{"st":{"a":"no number","new":7}}',
    "dotted twin": b'{"a.b":1,"a":{"b":2}}',
    "34 levels": b'{"a":' * 34 + b"1" + b"}" * 34,
    "64 levels": b'{"a":' * 64 + b"1" + b"}" * 64,
    "65 levels": b'{"a":' * 65 + b"1" + b"}" * 65,
    "name with half a surrogate": b'{"\\ud800":1}',
    "text with half a surrogate": b'{"t":"\\ud800"}',
    "internal names": b'{"_kafka":1,"decoded":2,"error_class":3,"__kafka_lake_parsed":4,"_corrupt":5}',
    "long name": b'{"' + LONG_NAME.encode() + b'":1}',
    "time of day": b'{"ts":"03:04:05","tn":"03:04:05"}',
    "epoch milliseconds": b'{"ts":1767323045123}',
    "year 0": b'{"ts":"0000-01-01T00:00:00Z","da":"0000-01-01"}',
    "year 10000": b'{"ts":"10000-01-01T00:00:00Z"}',
    "before year 1": b'{"ts":"0001-01-01T00:00:00+01:00"}',
    "after year 9999": b'{"ts":"9999-12-31T23:59:59-01:00"}',
    "date with garbage": b'{"da":"2026-01-02 garbage"}',
    "date with time": b'{"da":"2026-01-02T03:04:05Z"}',
    "nanoseconds": b'{"ts":"2026-01-02T03:04:05.123456789Z"}',
    "beyond 2^53": b'{"d":9007199254740993,"f":16777217}',
    "long fraction": b'{"d":0.1234567890123456789}',
    "infinity": b'{"d":1e400,"f":1e39}',
    "nothing": b'{"d":1e-400}',
    "38 digits": b'{"d":12345678901234567890123456789012345678}',
    "text that is no number": b'{"d":"NaN","l":"Infinity"}',
    "digits beyond the scale": b'{"de":12.345}',
    "cases": b'{"id":1,"ID":2,"Id":3}',
    "empty": b'{"e":[],"o":{}}',
    "two objects": b'{"l":1}{"l":2}',
    "byte order mark": b'\xef\xbb\xbf{"l":1}',
}
"""What once was lost, altered or in the way, by name."""
