"""When maintenance may begin: a part of each day. Pure."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, time, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from kafka_lake.common.errors import ConfigurationError

_TEXT = re.compile(r"(?P<begin>\d{1,2}:\d{2})\s*-\s*(?P<end>\d{1,2}:\d{2})(?:\s+(?P<zone>\S+))?")


@dataclass(frozen=True)
class Window:
    """A part of each day, beyond midnight if it ends before it begins.

    Args:
        begin: Its first minute.
        end: The minute behind it.
        zone: Whose time that is.
    """

    begin: time
    end: time
    zone: tzinfo

    def has(self, seconds: float) -> bool:
        """Return whether a moment, in seconds since 1970, is in it.

        >>> at = datetime(2026, 1, 1, 3, tzinfo=UTC).timestamp()
        >>> window_of("01:00-05:00").has(at), window_of("22:00-02:00").has(at)
        (True, False)
        """
        now = datetime.fromtimestamp(seconds, self.zone).time()
        if self.begin < self.end:
            return self.begin <= now < self.end
        return now >= self.begin or now < self.end


def window_of(text: str) -> Window:
    """Return the window that a text tells.

    Args:
        text: As ``01:00-05:00``, which is UTC, or with a zone behind it: ``22:00-04:30 Europe/Berlin``.

    Raises:
        ConfigurationError: If it tells none.

    >>> window_of("22:00-04:30").end
    datetime.time(4, 30)
    """
    match = _TEXT.fullmatch(text.strip())
    remedy = "Write when it begins and ends, as in 01:00-05:00; with a time zone, as in 22:00-04:30 Europe/Berlin."
    if match is None:
        raise ConfigurationError(f"{text!r} is no part of a day.", remedy)
    try:
        zone = ZoneInfo(match["zone"]) if match["zone"] else UTC
        begin, end = (datetime.strptime(match[name], "%H:%M").time() for name in ("begin", "end"))
    except (ValueError, ZoneInfoNotFoundError, OSError) as error:
        raise ConfigurationError(f"{text!r} is no part of a day: {error}.", remedy) from error
    if begin == end:
        raise ConfigurationError(f"{text!r} has no minute in it.", remedy)
    return Window(begin, end, zone)
