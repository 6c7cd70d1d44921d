"""What a rule names in Python's words, ``module:name``; and the error if it can't be had."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from kafka_lake.common.errors import ConfigurationError

# Pandera sets them as it is imported: the session that comes next would be bound to this machine's own address.
_NOT_THEIRS = ("SPARK_LOCAL_IP", "PYARROW_IGNORE_TIMEZONE")


def referenced(setting: str, reference: str) -> Any:
    """Return what ``module:name`` names.

    Args:
        setting: The kind of rule, for errors.
        reference: Of an importable module.

    Raises:
        ConfigurationError: If there is none.
    """
    module, _, name = reference.partition(":")
    try:
        with environment_kept():
            return getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise cannot_be(setting, reference, f"it can't be imported ({error})") from error


def cannot_be(setting: str, reference: str, why: str, extra: str = "") -> ConfigurationError:
    """Return the error about a suite or schema that can't be had.

    Args:
        setting: The kind of rule.
        reference: As the settings have it.
        why: What is wrong.
        extra: The package's extra that has what is missing; empty if nothing is.
    """
    remedy = f"Install it where runs are: pip install 'kafka-lake[{extra}]'." if extra else f"Correct {setting}: of it."
    return ConfigurationError(f"rules: {setting}: {reference}: {why}.", f"Nothing was published. {remedy}")


@contextmanager
def environment_kept() -> Iterator[None]:
    """Leave the environment variables as they were that Pandera sets where it is imported."""
    before = {name: os.environ.get(name) for name in _NOT_THEIRS}
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
