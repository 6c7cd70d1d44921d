"""What may be quoted of records outside of their tables: in Dagster's log and on its pages, and in errors. Pure.

The dead-letter table keeps all bytes regardless.
"""

import re
from collections.abc import Sequence

from kafka_lake.errors import ConfigurationError
from kafka_lake.formats.task.error_classes import SAMPLE_CHARACTERS

_LAST_WORD = re.compile(r'[^\s",:;]*$')


def quoted(text: str, samples: bool, mask: Sequence[str]) -> str:
    r"""Return what may be quoted of a record, or of what is said about it: nothing, or the text masked.

    What stands at the end of a text that was cut may be the beginning of something that the mask would find: the last
    word goes, too.

    >>> quoted('{"card": "4111-1111"}', True, [r"\d[\d-]+"]), quoted("a" * 198 + " 4", True, ["4111"])[-4:]
    ('{"card": "***"}', 'aa …')
    """
    if not samples:
        return ""
    if mask and len(text) >= SAMPLE_CHARACTERS:
        text = _LAST_WORD.sub("…", text, count=1)
    for pattern in mask:
        text = re.sub(pattern, "***", text)
    return text


def check_mask(pattern: str) -> None:
    """Check that a mask is a regular expression."""
    try:
        re.compile(pattern)
    except re.error as error:
        raise ConfigurationError(
            f"{pattern!r} isn't a regular expression: {error}.", "Use the syntax of Python's module re."
        ) from error
