"""Text for people: times, counts, ranges of offsets, and text from records made safe for terminals and Markdown.

Dagster renders metadata and descriptions as GitHub's Markdown. Text from records and schemas must not become links,
images or HTML there: `code` and `plain` escape it.
"""

import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from decimal import Decimal

from kafka_lake.errors import ConfigurationError

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def seconds_of(text: str) -> float:
    """Return a duration in seconds.

    >>> seconds_of("500ms"), seconds_of("0s"), seconds_of("30m"), seconds_of("1.5h"), seconds_of("7d")
    (0.5, 0.0, 1800.0, 5400.0, 604800.0)
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)", text.strip(), re.ASCII)
    if match is None:
        raise ConfigurationError(
            f"{text!r} is not a duration.", "Write a number and ms, s, m, h or d: 500ms, 30s, 10m, 24h, 7d."
        )
    return float(match[1]) * _UNITS[match[2]]


_CRON = (
    (0, 59, ""),
    (0, 23, ""),
    (1, 31, ""),
    (1, 12, "jan feb mar apr may jun jul aug sep oct nov dec"),
    (0, 7, "sun mon tue wed thu fri sat"),
)
"""The least and the greatest number of each field of a cron expression, and names of numbers."""
_CRON_WORDS = ("@hourly", "@daily", "@midnight", "@weekly", "@monthly", "@yearly", "@annually")


def is_cron(text: str) -> bool:
    """Return whether a text is a cron expression: five fields, or a word such as ``@daily``.

    Dagster takes more: croniter's L, # and ? too.

    >>> is_cron("*/5 8-18 * * mon-fri"), is_cron("@daily"), is_cron("0 25 * * *")
    (True, True, False)
    """
    fields = text.lower().split()
    if len(fields) != len(_CRON):
        return text in _CRON_WORDS
    has_day = not (fields[2] in ("30", "31") and fields[3] in ("2", "feb"))
    return has_day and all(_is_cron_field(text, *kind) for text, kind in zip(fields, _CRON, strict=True))


def _is_cron_field(text: str, low: int, high: int, names: str) -> bool:
    numbers = {name: str(number) for number, name in enumerate(names.split(), low)}
    for part in re.sub(r"\b[a-z]+\b", lambda word: numbers.get(word[0], word[0]), text).split(","):
        found = re.fullmatch(r"(?:\*|([0-9]+)(?:-([0-9]+))?)(?:/([0-9]+))?", part)
        if found is None:
            return False
        bounds, step = [int(number) for number in found.group(1, 2) if number], int(found[3] or 1)
        if step < 1 or any(not low <= number <= high for number in bounds):
            return False
    return True


def rough(seconds: float) -> str:
    """Return an approximate duration.

    >>> [rough(seconds) for seconds in (0.2, 45, 100, 3600, 9000, 200_000)]
    ['1 s', '45 s', '2 min', '60 min', '2.5 h', '2.3 days']
    """
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    if seconds < 5400:
        return f"{round(seconds / 60)} min"
    return f"{seconds / 3600:.1f} h" if seconds < 86_400 else f"{seconds / 86_400:.1f} days"


def printable(text: str) -> str:
    r"""Return text in one line without control characters.

    >>> printable("a\n b\x1b[2J")
    'a b�[2J'
    """
    return "".join(c if c.isprintable() else "\ufffd" for c in " ".join(text.split()))


def counted(count: int, what: str, plural: str = "s") -> str:
    """Return a number with its noun.

    >>> counted(1, "row"), counted(1200, "row"), counted(2, "branch", "es")
    ('1 row', '1,200 rows', '2 branches')
    """
    return f"{count:,} {what}{'' if count == 1 else plural}"


def offset_span(start: int, end: int | None) -> str:
    """Return the first and the last of some offsets; ``end`` is exclusive, and None if it is unknown.

    >>> offset_span(3, 9), offset_span(3, 4), offset_span(3, None)
    ('3 to 8', '3', 'from 3 on')
    """
    if end is None:
        return f"from {start:,} on"
    return f"{start:,} to {end - 1:,}" if end - start > 1 else f"{start:,}"


def limit_of(text: int | str | None, setting: str) -> int | float | None:
    """Return a limit as a count (int) or a share (float, 0 to 1); None for no limit.

    >>> limit_of(100, "x"), limit_of("5%", "x"), limit_of(None, "x")
    (100, 0.05, None)
    """
    if text is None:
        return None
    match = re.fullmatch(r"(?:(?P<count>\d+)|(?P<share>\d+(?:\.\d+)?)\s*%)", str(text).strip())
    if match and match["count"]:
        return int(match["count"])
    if match and float(match["share"]) <= 100:
        return float(Decimal(match["share"]) / 100)
    raise ConfigurationError(
        f"{setting}: {text!r} isn't a limit.", "Write a number such as 100, or a share such as 5%."
    )


def is_over(limit: int | float | None, count: int, of: int) -> bool:
    """Return whether a count is above a limit that `limit_of` gave.

    >>> is_over(0.29, 29, of=100), is_over(0.29, 30, of=100), is_over(5, 6, of=100), is_over(None, 6, of=6)
    (False, True, True, False)
    """
    if isinstance(limit, float):
        # 0.29 * 100 is less than 29, and 29 / 100 is 0.29: a quotient is the float that is nearest.
        return count > 0 and (of <= 0 or count / of > limit)
    return limit is not None and count > limit


# Without width. It interrupts addresses, which GitHub's Markdown would make links.
_JOINER = "\u2060"
_ADDRESS = re.compile(r"(?<=http:)(?=//)|(?<=https:)(?=//)|(?<=www)(?=\.)|(?<=@)", re.IGNORECASE)
_SIGNS = re.compile(r"[\\`*\[\]<~]|&(?=[#\w])|(?<![^\W_])_+|_+(?![^\W_])")
_AT_THE_BEGINNING = re.compile(r"^(\d*)(?=[-+#=>.):])")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table without a final line end."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def code(text: str) -> str:
    """Return text as inline code, also for a cell of a `table`; empty for empty text.

    >>> code("a"), code("a `b`"), code(" ")
    ('`a`', '`` a `b` ``', '')
    """
    # Otherwise the backslash would end the table's escape of the pipe.
    shown = printable(text).replace("\\|", f"\\{_JOINER}|")
    if not shown:
        return ""
    longest = max((len(ticks) for ticks in re.findall("`+", shown)), default=0)
    fence, space = "`" * (longest + 1), " " if "`" in (shown[0], shown[-1]) else ""
    return f"{fence}{space}{shown}{space}{fence}"


def plain(text: str) -> str:
    r"""Return text in one line, escaped.

    >>> plain("column order_id: [a] became *"), plain("- x"), plain("1. x")
    ('column order_id: \\[a\\] became \\*', '\\- x', '1\\. x')
    """
    shown = _SIGNS.sub(lambda found: "".join(f"\\{sign}" for sign in found[0]), printable(text))
    return _ADDRESS.sub(_JOINER, _AT_THE_BEGINNING.sub(r"\1\\", shown))


def block(text: str, language: str) -> str:
    """Return text as a code block; fences in the text don't end it."""
    fence = "`" * max(3, *(len(ticks) + 1 for ticks in re.findall("`+", text)), 3)
    return f"{fence}{language}\n{text}\n{fence}"


def start_timestamp_ms(text: str, setting: str = "start") -> int:
    """Return an ISO 8601 time as milliseconds since the epoch; without a zone it is UTC.

    >>> start_timestamp_ms("2026-01-01T00:00:00")
    1767225600000
    """
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise ConfigurationError(
            f"{setting}: {text!r} is neither earliest, latest nor an ISO 8601 time.",
            "Write for example 2026-01-31T00:00:00Z.",
        ) from error
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def readable(iceberg_type: str) -> str:
    """Return an Iceberg type as text without field ids and the word optional.

    >>> readable("struct<11: topic: optional string, 12: partition: optional int>")
    'struct<topic: string, partition: int>'
    """
    return re.sub(
        r"\d+: ([^:]+): (?:optional |(required) )", lambda m: f"{m[1]}: {m[2] + ' ' if m[2] else ''}", iceberg_type
    )
