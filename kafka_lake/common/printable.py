"""Text of others, such as records, made safe to show in a terminal or in a file for people."""


def printable(text: str) -> str:
    r"""Return text that a terminal shows in one line and never obeys.

    >>> printable("a\n b\x1b[2J")
    'a b�[2J'
    """
    return "".join(c if c.isprintable() else "\ufffd" for c in " ".join(text.split()))
