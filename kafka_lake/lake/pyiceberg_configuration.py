"""PyIceberg's own configuration: variables and ``.pyiceberg.yaml``. What is wrong with it is told without its content.

PyIceberg reads it when `pyiceberg.catalog` is imported (``_ENV_CONFIG = Config()``), and an error of its parser shows
the line, which may have a password in it. So this package reads it first.
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pyiceberg.utils.config import PYICEBERG, PYICEBERG_HOME, PYICEBERG_YML, Config

from kafka_lake.errors import ConfigurationError

_Found = TypeVar("_Found")


def check_configuration() -> None:
    """Read PyIceberg's configuration.

    Raises:
        ConfigurationError: If a file or a variable of it is wrong.
    """
    _told_without_content(Config)


def catalog_configuration(name: str) -> Mapping[str, Any] | None:
    """Return what PyIceberg's configuration says of a catalog; None if that is nothing.

    Args:
        name: The catalog's, with hyphens where variables have underscores.

    Raises:
        ConfigurationError: If a file or a variable of it is wrong.
    """
    return _told_without_content(lambda: Config().get_catalog_config(name))


def _told_without_content(read: Callable[[], _Found]) -> _Found:
    try:
        return read()
    except Exception as error:
        wrong = _explained(error)
    # Outside of the block, so that no log shows PyIceberg's error as its cause.
    raise wrong


def _explained(error: Exception) -> ConfigurationError:
    # As PyIceberg looks for it.
    folders = (os.environ.get(PYICEBERG_HOME), Path.home(), Path.cwd())
    files = [Path(folder, PYICEBERG_YML) for folder in folders if folder]
    file = next((each for each in files if each.is_file()), Path(PYICEBERG_YML))
    if mark := getattr(error, "context_mark", None) or getattr(error, "problem_mark", None):
        return ConfigurationError(
            f"{file}, line {mark.line + 1}: PyIceberg can't read this YAML.",
            "It takes no {…}, […], tags, anchors or repeated names, and both quotes of a text belong on its line.",
        )
    if isinstance(error, OSError):
        return ConfigurationError(f"{file} can't be read: {error.strerror}.", "Give this user the right to read it.")
    if isinstance(error, UnicodeDecodeError):
        return ConfigurationError(f"{file} is not UTF-8.", "Save it as UTF-8.")
    if isinstance(error, ValueError) and (short := _short_variables()):
        return ConfigurationError(
            f"The environment variable {short[0]} names no property of a catalog.",
            f"Unset it, and name the catalog and the property: {PYICEBERG.upper()}CATALOG__LAKE__URI.",
        )
    return ConfigurationError(
        f"{file}: PyIceberg finds a value where the names of catalogs and their properties belong.",
        "Write catalog:, below it the catalog's name, and below that its properties.",
    )


def _short_variables() -> list[str]:
    """Return the variables of catalogs that stop before a property's name."""
    ours = [name for name in os.environ if name.lower().startswith(f"{PYICEBERG}catalog")]
    return [name for name in ours if len(name.lower().removeprefix(PYICEBERG).split("__", maxsplit=2)) < 3]
