"""Loads the definitions of a code location, as Dagster does, and explains what is wrong with them."""

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import dagster as dg
from dagster.components.definitions import LazyDefinitions

from kafka_lake.cli.explain import explanation
from kafka_lake.cli.find_project import Target, defs_folder
from kafka_lake.common.errors import ConfigurationError


def definitions(at: Target) -> dg.Definitions:
    """Return what a code location defines.

    Args:
        at: The code location.

    Raises:
        ConfigurationError: If it has no definitions, or several.
        Exception: Whatever loading them raises: see `loading`.
    """
    _make_importable(at)
    if at.is_defs_folder:
        return dg.load_from_defs_folder(path_within_project=at.folder)
    module = _module(at)
    names = [at.attribute] if at.attribute else sorted(vars(module))
    found = [
        each for name in names if isinstance(each := getattr(module, name, None), dg.Definitions | LazyDefinitions)
    ]
    # The same object may have several names.
    if len({id(each) for each in found}) != 1:
        raise ConfigurationError(
            f"{at} has {len(found) or 'no'} Definitions{' in ' + at.attribute if at.attribute else ''}.",
            "It needs one, as an object or as a function with @dg.definitions.",
        )
    (one, *_) = found
    loaded = one() if isinstance(one, LazyDefinitions) else one
    if not isinstance(loaded, dg.Definitions):
        raise ConfigurationError(f"{at} has no Definitions but a repository.", "Return dg.Definitions instead.")
    return loaded


def _make_importable(at: Target) -> None:
    # A project whose packages are in src needs no installation then, as for dg.
    for each in (at.folder / "src", at.folder):
        if each.is_dir() and str(each) not in sys.path:
            sys.path.insert(0, str(each))


def _module(at: Target) -> ModuleType:
    if at.file is None:
        try:
            return import_module(at.module)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{at.module}.".startswith(f"{error.name}."):
                raise
            raise ConfigurationError(
                f"Python finds no module {error.name}, where the definitions are.",
                f"Install the project in {at.folder} into this environment, as with `pip install -e .`.",
            ) from error
    spec = spec_from_file_location(at.file.stem, at.file)
    if spec is None or spec.loader is None:
        raise ConfigurationError(f"{at.file} is no Python file.")
    module = sys.modules[spec.name] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def file_of(at: Target) -> Path:
    """Return the file that has a code location's definitions, or where it would be."""
    if at.file:
        return at.file
    _make_importable(at)
    try:
        spec = find_spec(at.module)
    except ModuleNotFoundError:
        spec = None
    return Path(spec.origin) if spec and spec.origin else at.folder / "definitions.py"


@contextmanager
def loading(at: Target) -> Iterator[None]:
    """Run the block, which loads definitions, without Dagster's remarks on itself, its errors explained."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", dg.BetaWarning)
            yield
    except Exception as error:
        explained = explanation(error, defs_folder(file_of(at)))
        if explained is None:
            raise
        raise explained from error
