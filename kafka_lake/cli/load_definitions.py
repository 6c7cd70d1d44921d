"""Loads the definitions of a code location, as Dagster does, and explains what is wrong with them."""

import re
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import dagster as dg
import yaml
from dagster.components.definitions import LazyDefinitions
from dagster.components.resolved.errors import ResolutionException
from dagster_shared.error import DagsterUnresolvableSymbolError
from pydantic import ValidationError

from kafka_lake.cli.find_project import Target, defs_folder
from kafka_lake.config.settings import located, message
from kafka_lake.errors import ConfigurationError

_AT = re.compile(r"^`?(?P<where>.*?) at (?P<file>.+):(?P<line>\d+)`?$")
_COMPONENT = re.compile(r"component (?P<folder>\S+?)\[(?P<document>\d+)\]")
_TEMPLATE = re.compile(
    r"(?P<file>.+):(?P<line>\d+) - attributes\.(?P<where>\S+)\n.*?^\s*\|?\s*\^ (?P<problem>[^\n]+)",
    re.DOTALL | re.MULTILINE,
)
_SYMBOL = re.compile(r"`(?P<module>[\w.]+)`(?: has no attribute `(?P<name>\w+)`)?")


def explanation(error: BaseException, folder: Path) -> ConfigurationError | None:
    """Return what is wrong with the definitions, in one line with file and line."""
    chain = list(_causes(error))
    document = next(filter(None, (_document(each, folder) for each in chain)), None)
    for each in chain:
        if isinstance(each, yaml.MarkedYAMLError) and (mark := each.problem_mark):
            problem = ": ".join(part for part in (each.context, each.problem) if part)
            return _broken(Path(mark.name), mark.line + 1, f"no YAML: {problem}")
        if isinstance(each, ValidationError) and (found := _refused_settings(each, document)):
            return found
        if isinstance(each, ResolutionException) and (template := _TEMPLATE.match(str(each))):
            file, line = Path(template["file"]), int(template["line"])
            return _broken(file, line, f"{template['where']}: {_reason(chain, template['problem'].strip())}")
        if isinstance(each, DagsterUnresolvableSymbolError) and (found := _unknown_type(each, folder)):
            return found
        if isinstance(each, ConfigurationError):
            return each
    return _in_python(chain, folder) or _empty_document(chain, folder)


def _reason(chain: list[BaseException], problem: str) -> str:
    """Return what is wrong with a setting: of settings within a setting, Dagster tells only that something is."""
    refused = next((each for each in chain if isinstance(each, ValidationError)), None)
    if refused is None or "ValidationError" not in problem:
        return problem
    return "; ".join(each["msg"].removeprefix("Value error, ").rstrip(".") for each in refused.errors())


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _document(error: BaseException, folder: Path) -> tuple[Path, int] | None:
    """Return file and first line of the YAML document that Dagster was at."""
    found = _COMPONENT.search(str(error))
    if found is None or not (file := folder / found["folder"] / "defs.yaml").exists():
        return None
    documents = list(yaml.compose_all(file.read_text(), yaml.SafeLoader))
    return file, documents[int(found["document"])].start_mark.line + 1


def _refused_settings(error: ValidationError, document: tuple[Path, int] | None) -> ConfigurationError | None:
    told: dict[tuple[Path, int], str] = {}
    for each in error.errors(include_url=False):
        place = each["loc"]
        if at := _AT.match(str(place[-1]) if place else ""):
            where = at["where"].removeprefix("attributes.").removeprefix("attributes").split(".")
            # A value that fits no member of a union is refused once for each; the first tells enough.
            told.setdefault((Path(at["file"]), int(at["line"])), located(where, message(each)))
        elif document:
            file, first = document
            setting = next((str(name) for name in reversed(place) if isinstance(name, str)), None)
            line = _line_of(file, first, setting) if setting else first
            told.setdefault((file, line), located(place, message(each)))
    if not told:
        return None
    (file, line), text = min(told.items())
    others = [f"line {n}: {other}" for (f, n), other in sorted(told.items()) if (f, n) != (file, line)]
    return _broken(file, line, "; ".join([text.rstrip("."), *others]))


def _line_of(file: Path, first: int, setting: str) -> int:
    lines = file.read_text().splitlines()
    return next(
        (n for n, line in enumerate(lines[first - 1 :], first) if line.strip().startswith(f"{setting}:")), first
    )


def _unknown_type(error: DagsterUnresolvableSymbolError, folder: Path) -> ConfigurationError | None:
    symbol = _SYMBOL.search(str(error))
    if symbol is None:
        return None
    name = f"{symbol['module']}.{symbol['name'] or ''}"
    for file in sorted(folder.rglob("*.yaml")):
        for number, line in enumerate(file.read_text().splitlines(), 1):
            if line.startswith("type:") and name in line:
                return _broken(file, number, f"{line.strip()}: there is no such component")
    return None


def _in_python(chain: list[BaseException], folder: Path) -> ConfigurationError | None:
    for error in chain:
        for frame in reversed(traceback.extract_tb(error.__traceback__)):
            if Path(frame.filename).is_relative_to(folder):
                return _broken(Path(frame.filename), frame.lineno or 0, f"{type(error).__name__}: {error}")
    return None


def _empty_document(chain: list[BaseException], folder: Path) -> ConfigurationError | None:
    if not any("No components found in YAML file" in str(each) for each in chain):
        return None
    empty = (file for file in sorted(folder.rglob("defs.yaml")) if not list(yaml.safe_load_all(file.read_text())))
    return next((_broken(file, 1, "there is no document in it") for file in empty), None)


def _broken(file: Path, line: int, problem: str) -> ConfigurationError:
    shown = file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file
    return ConfigurationError(f"{shown}, line {line}: {problem.rstrip('.')}.")


def definitions(at: Target) -> dg.Definitions:
    """Return what a code location defines."""
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
