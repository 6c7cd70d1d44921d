"""Text for people: that of records made safe to show in a terminal or in a file, and numbers with what they count."""


def printable(text: str) -> str:
    r"""Return text that a terminal shows in one line and never obeys.

    >>> printable("a\n b\x1b[2J")
    'a b�[2J'
    """
    return "".join(c if c.isprintable() else "\ufffd" for c in " ".join(text.split()))


def counted(count: int, what: str, plural: str = "s") -> str:
    """Return a number and what it counts.

    Args:
        plural: What makes several of it.

    >>> counted(1, "row"), counted(1200, "row"), counted(2, "branch", "es")
    ('1 row', '1,200 rows', '2 branches')
    """
    return f"{count:,} {what}{'' if count == 1 else plural}"
