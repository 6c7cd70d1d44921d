"""Versions of the packages whose private parts are used. With any other version those parts are not touched."""

import logging
import re
from functools import cache
from importlib.metadata import version

TESTED = {"dagster": ("1.13", "1.14"), "pyiceberg": ("0.12", "0.13"), "pyspark": ("4.1", "4.2")}
"""Package → the first version that the tests ran with, and the first beyond; ``pyproject.toml`` allows the same."""

_log = logging.getLogger(__name__)


@cache
def is_tested(package: str) -> bool:
    """Return whether the installed version of a package is one that its private parts were tested with.

    If it isn't, that is logged once, with the versions.
    """
    first, beyond = TESTED[package]
    installed = version(package)
    if _numbers(first) <= _numbers(installed) < _numbers(beyond):
        return True
    _log.warning(
        "%s %s is installed; kafka_lake was tested with %s and later, before %s. It doesn't use this package's "
        "private parts, so some things are slower or refused. Install a tested version to have them.",
        package,
        installed,
        first,
        beyond,
    )
    return False


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text)[:2])
