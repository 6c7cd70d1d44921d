"""Regular expressions of Java's as those of RE2, which Arrow has: where both certainly understand the same. Pure."""

import re

import pyarrow as pa
import pyarrow.compute as pc

_CLASS = r"\[\^?(?:[A-Za-z0-9 _@,:;/%=!~'\"<>#.+*?(){}$|-]|\\[dw.^$|?*+()\[\]{}\\/@-])+\]"
_TOKENS = re.compile(
    rf"(?P<one>[A-Za-z0-9 _@,:;/%&=!~'\"<>#-]|\\[dw.^$|?*+()\[\]{{}}\\/@-]|{_CLASS}|\.|\))"
    r"|(?P<times>(?:[?*+]|\{\d+(?:,\d*)?\})\??)"
    r"|(?P<other>\(\?:|\(|\||\^|\$)"
)
_DOT = r"[^\n\r\x{85}\x{2028}\x{2029}]"


def as_re2(regex: str) -> str | None:
    r"""Return a regular expression of Java's in RE2's words.

    One difference is left: to Java, ``$`` is also before a line break that ends the text.

    Args:
        regex: Of Java's.

    Returns:
        None if the two might understand it differently.

    >>> as_re2("^[^@]+@[a-z.]+$"), as_re2(r"\bword"), as_re2("a++")
    ('^[^@]+@[a-z.]+$', None, None)
    """
    said, at, before, depth = "", 0, "other", 0
    while at < len(regex):
        token = _TOKENS.match(regex, at)
        if token is None or token.lastgroup is None:
            return None
        if token.lastgroup == "times" and before != "one":
            return None
        if token[0] == "$" and not _nothing_follows(regex, token.end(), depth):
            return None
        depth += token[0].startswith("(") - (token[0] == ")")
        said += _DOT if token[0] == "." else token[0]
        at, before = token.end(), token.lastgroup
    try:
        pc.match_substring_regex(pa.array([""]), said)
    except pa.ArrowInvalid:
        return None
    return said


def _nothing_follows(regex: str, end: int, depth: int) -> bool:
    # What followed could take the line break.
    """Return whether a part that ends in a regular expression is the last of it, or of an alternative of the whole."""
    return not regex[end:].strip(")") or (depth == 0 and regex[end] == "|")
