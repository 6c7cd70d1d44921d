"""From text to dates and times, in days and microseconds since 1970."""

from datetime import date

from kafka_lake.executors.json.misfit import MisfitError
from kafka_lake.executors.json.types import TIME

_EPOCH = date(1970, 1, 1).toordinal()


def instant_of(text: str, zoned: bool) -> tuple[int, bool]:
    """Return a time in microseconds since 1970, and whether it had more digits than that."""
    match = TIME.fullmatch(text)
    if match is None or match["clock"] is None or (match["zone"] and not zoned):
        raise MisfitError("text")
    hour, minute, second = (int(part) for part in match["clock"].split(":"))
    if hour > 23 or minute > 59 or second > 59:
        raise MisfitError("text")
    seconds = (days_of(match["date"]) * 24 + hour) * 3600 + minute * 60 + second - _offset(match["zone"] or "Z")
    fraction = match["fraction"] or ""
    return seconds * 1_000_000 + int(fraction[:6].ljust(6, "0")), bool(fraction[6:].strip("0"))


def _offset(zone: str) -> int:
    if zone in "Zz":
        return 0
    hours, minutes = int(zone[1:3]), int(zone[-2:])
    if hours > 23 or minutes > 59:
        raise MisfitError("text")
    seconds = hours * 3600 + minutes * 60
    return -seconds if zone[0] == "-" else seconds


def days_of(text: str) -> int:
    """Return a date in days since 1970.

    Raises:
        MisfitError: If no calendar has it.
    """
    try:
        return date(int(text[:4]), int(text[5:7]), int(text[8:])).toordinal() - _EPOCH
    except ValueError:
        raise MisfitError("text") from None
