"""Errors of the HTTP library that confluent-kafka asks a schema registry by."""

import sys


def http_errors(name: str) -> tuple[type[Exception], ...]:
    """Return the exception class of a name, as ``except`` takes it.

    confluent-kafka uses httpx2 if it is installed, else httpx, and says in a private module which one that is. Here
    it is asked which of them are imported, as the one in use is. With a version that uses neither there are none.

    Args:
        name: Of a class that both have, as ``HTTPError``.

    >>> http_errors("NoSuchError")
    ()
    """
    found = (getattr(sys.modules.get(library), name, None) for library in ("httpx2", "httpx"))
    return tuple(each for each in found if each is not None)
