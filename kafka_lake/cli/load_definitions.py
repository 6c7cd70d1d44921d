"""Loads the definitions of a code location, as Dagster does, and reports errors with file and line."""

import gc
import re
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, cached_property
from importlib import import_module
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import dagster as dg
import yaml
from dagster.components.definitions import LazyDefinitions
from dagster.components.resolved.errors import ResolutionException
from dagster_shared.error import DagsterUnresolvableSymbolError
from pydantic import ValidationError

from kafka_lake.cli.find_project import Target, defs_folder
from kafka_lake.cli.output import note
from kafka_lake.errors import ConfigurationError
from kafka_lake.orchestration import DerivedTable, KafkaCluster, KafkaTopic, KafkaTopics
from kafka_lake.spec.settings import located, message

_AT = re.compile(r"^`?(?P<where>.*?) at (?P<file>.+):(?P<line>\d+)`?$")
_COMPONENT = re.compile(r"component (?P<folder>\S+?)\[(?P<document>\d+)\]")
_TEMPLATE = re.compile(
    r"(?P<file>.+):(?P<line>\d+) - attributes\.(?P<where>\S+)\n.*?^\s*\|?\s*\^ (?P<problem>[^\n]+)",
    re.DOTALL | re.MULTILINE,
)
_SYMBOL = re.compile(r"`(?P<module>[\w.]+)`(?: has no attribute `(?P<name>\w+)`)?")


def explanation(error: BaseException, folder: Path) -> ConfigurationError | None:
    """Return the error of definitions as one message with file and line, if it can be located."""
    chain = list(_causes(error))
    document = next(filter(None, (_document(cause, folder) for cause in chain)), None)
    for cause in chain:
        if isinstance(cause, yaml.MarkedYAMLError) and (mark := cause.problem_mark):
            problem = ": ".join(part for part in (cause.context, cause.problem) if part)
            return _located(Path(mark.name), mark.line + 1, f"no YAML: {problem}")
        if isinstance(cause, ValidationError) and (explained := _invalid_settings(cause, document)):
            return explained
        if isinstance(cause, ResolutionException) and (template := _TEMPLATE.match(str(cause))):
            file, line = Path(template["file"]), int(template["line"])
            return _located(file, line, f"{template['where']}: {_reason(chain, template['problem'].strip())}")
        if isinstance(cause, DagsterUnresolvableSymbolError) and (explained := _unknown_type(cause, folder)):
            return explained
        if isinstance(cause, ConfigurationError):
            return cause
    return _in_python(chain, folder) or _empty_document(chain, folder)


def _reason(chain: list[BaseException], problem: str) -> str:
    """Return the reason of an invalid setting. For nested settings, Dagster's own message lacks it."""
    invalid = next((cause for cause in chain if isinstance(cause, ValidationError)), None)
    if invalid is None or "ValidationError" not in problem:
        return problem
    return "; ".join(error["msg"].removeprefix("Value error, ").rstrip(".") for error in invalid.errors())


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _document(error: BaseException, folder: Path) -> tuple[Path, int] | None:
    """Return file and first line of the YAML document that an error is about."""
    component = _COMPONENT.search(str(error))
    if component is None or not (file := folder / component["folder"] / "defs.yaml").exists():
        return None
    documents = list(yaml.compose_all(file.read_text(), yaml.SafeLoader))
    return file, documents[int(component["document"])].start_mark.line + 1


def _invalid_settings(error: ValidationError, document: tuple[Path, int] | None) -> ConfigurationError | None:
    problems: dict[tuple[Path, int], str] = {}
    for detail in error.errors(include_url=False):
        path = detail["loc"]
        if at := _AT.match(str(path[-1]) if path else ""):
            where = at["where"].removeprefix("attributes.").removeprefix("attributes").split(".")
            # A value that fits no member of a union has an error for each member; the first is enough.
            problems.setdefault((Path(at["file"]), int(at["line"])), located(where, message(detail)))
        elif document:
            file, first = document
            setting = next((str(name) for name in reversed(path) if isinstance(name, str)), None)
            line = _line_of(file, first, setting) if setting else first
            problems.setdefault((file, line), located(path, message(detail)))
    if not problems:
        return None
    ((file, line), problem), *more = sorted(problems.items())
    return _located(file, line, "; ".join([problem.rstrip("."), *(f"line {n}: {text}" for (_, n), text in more)]))


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
                return _located(file, number, f"{line.strip()}: there is no such component")
    return None


def _in_python(chain: list[BaseException], folder: Path) -> ConfigurationError | None:
    for error in chain:
        for frame in reversed(traceback.extract_tb(error.__traceback__)):
            if Path(frame.filename).is_relative_to(folder):
                return _located(Path(frame.filename), frame.lineno or 0, f"{type(error).__name__}: {error}")
    return None


def _empty_document(chain: list[BaseException], folder: Path) -> ConfigurationError | None:
    if not any("No components found in YAML file" in str(cause) for cause in chain):
        return None
    empty = (file for file in sorted(folder.rglob("defs.yaml")) if not list(yaml.safe_load_all(file.read_text())))
    return next((_located(file, 1, "there is no document in it") for file in empty), None)


def _located(file: Path, line: int, problem: str) -> ConfigurationError:
    shown = file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file
    end = "" if problem.endswith("?") else "."
    return ConfigurationError(f"{shown}, line {line}: {problem.rstrip('.')}{end}")


# A project's own function loads the folder, and takes no argument.
_is_command = ContextVar("is_command", default=False)


class _NoDefinitions(dg.Component):
    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        return dg.Definitions()


class _ValidDocuments(dg.ComponentTree):
    """The documents without topics and derived tables that don't load; each is reported once.

    Patterns are left out with the first topic: it would get the pattern's table.
    """

    @cached_property
    def invalid(self) -> set[Any]:
        return set()

    @cached_property
    def errors(self) -> dict[str, ConfigurationError]:
        return {}

    def get_all_components(self, of_type: type[Any]) -> list[Any]:
        pairs = self.find_root_decl().iterate_loc_component_decl_pairs()
        loaded = [self.load_component(loc) for loc, decl in pairs if issubclass(decl.component_type, of_type)]
        return [item for item in loaded if isinstance(item, of_type) and not (self.invalid and _has_pattern(item))]

    def load_structural_component_at_loc(self, loc: Any) -> dg.Component:
        try:
            return super().load_structural_component_at_loc(loc)
        except Exception as error:
            if not self._leaves_out(loc, error):
                raise
            self.invalid.add(loc)
            return _NoDefinitions()

    def build_defs_at_path(self, loc: Any) -> dg.Definitions:
        if loc in self.invalid or (self.invalid and _has_pattern(self.load_component(loc))):
            return dg.Definitions()
        try:
            return super().build_defs_at_path(loc)
        except Exception as error:
            if not self._leaves_out(loc, error):
                raise
            return dg.Definitions()

    def _leaves_out(self, loc: Any, error: Exception) -> bool:
        # Documents have keys within their file.
        if getattr(loc, "instance_key", None) is None:
            return False
        explained = explanation(error, self.defs_module_path)
        kind = self.find_decl_at_path(loc).component_type
        if explained is None or not issubclass(kind, KafkaTopic | KafkaTopics | DerivedTable):
            return False
        self.errors[str(explained)] = explained
        return True


def _has_pattern(component: dg.Component) -> bool:
    return isinstance(component, KafkaTopics) or (isinstance(component, KafkaTopic) and component.pattern is not None)


def load_from_defs_folder(*, path_within_project: Path) -> dg.Definitions:
    """Load definitions as `dagster.load_from_defs_folder` does; the error of a document names file and line first.

    Raises:
        ConfigurationError: If a document is invalid. Commands leave it out instead where they can.
    """
    tree = (_ValidDocuments if _is_command.get() else dg.ComponentTree).for_project(path_within_project)
    with _explained(tree.defs_module_path), _without_garbage_collection():
        for loc, decl in tree.find_root_decl().iterate_loc_component_decl_pairs():
            # Dagster would look through all documents for each of them.
            tree.state_tracker.set_cache_data(loc, component_decl=decl)
        loaded = tree.build_defs()
        if not isinstance(tree, _ValidDocuments):
            return loaded
        tables = [found for kind in (KafkaTopic, KafkaTopics, DerivedTable) for found in tree.get_all_components(kind)]
        if tree.errors and not (tables and tree.get_all_components(KafkaCluster)):
            # There is nothing to go on with.
            raise next(iter(tree.errors.values()))
        for error in tree.errors:
            _note_once(f"Left out: {error}")
        return loaded


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Don't look for garbage in the block: nearly all that loading makes stays, and looking takes a sixth of it."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


_note_once = cache(note)


def definitions(at: Target) -> dg.Definitions:
    """Return the definitions of a code location, without documents that commands can do without."""
    before = _is_command.set(True)
    try:
        return _definitions(at)
    finally:
        _is_command.reset(before)


def _definitions(at: Target) -> dg.Definitions:
    _make_importable(at)
    module = _module(at)
    names = [at.attribute] if at.attribute else sorted(vars(module))
    candidates = [
        value for name in names if isinstance(value := getattr(module, name, None), dg.Definitions | LazyDefinitions)
    ]
    # The same object may have several names.
    if len({id(value) for value in candidates}) != 1:
        raise ConfigurationError(
            f"{at} has {len(candidates) or 'no'} Definitions{' in ' + at.attribute if at.attribute else ''}.",
            "It needs one, as an object or as a function with @dg.definitions.",
        )
    loaded = evaluated(candidates[0]) if isinstance(candidates[0], LazyDefinitions) else candidates[0]
    if not isinstance(loaded, dg.Definitions):
        raise ConfigurationError(f"{at} returns a repository, not Definitions.", "Return dg.Definitions instead.")
    return loaded


@cache
def evaluated(lazy: Any) -> Any:
    """Return the definitions of a function with ``@dg.definitions``, which a command needs several times."""
    return lazy()


def _make_importable(at: Target) -> None:
    # As for dg, a project with its packages in src needs no installation.
    for folder in (at.folder / "src", at.folder):
        if folder.is_dir() and str(folder) not in sys.path:
            sys.path.insert(0, str(folder))


def _module(at: Target) -> ModuleType:
    if at.file is None:
        try:
            return import_module(at.module)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{at.module}.".startswith(f"{error.name}."):
                raise
            raise ConfigurationError(
                f"Python doesn't find the module {error.name} with the definitions.",
                f"Install the project in {at.folder} into this environment, as with `pip install -e .`.",
            ) from error
    spec = spec_from_file_location(at.file.stem, at.file)
    if spec is None or spec.loader is None:
        raise ConfigurationError(f"{at.file} is not a Python file.")
    module = sys.modules[spec.name] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def file_of(at: Target) -> Path:
    """Return the path of the file with a code location's definitions, which may not exist."""
    if at.file:
        return at.file
    _make_importable(at)
    try:
        spec = find_spec(at.module)
    except ModuleNotFoundError:
        spec = None
    return Path(spec.origin) if spec and spec.origin else at.folder / "definitions.py"


@contextmanager
def explained_errors(at: Target) -> Iterator[None]:
    """Run a block that loads definitions: hide Dagster's beta warnings, and raise its errors with file and line."""
    with _explained(defs_folder(file_of(at))):
        yield


@contextmanager
def _explained(folder: Path) -> Iterator[None]:
    try:
        with warnings.catch_warnings():
            for kind in (dg.BetaWarning, dg.PreviewWarning):
                warnings.simplefilter("ignore", kind)
            yield
    except Exception as error:
        explained = explanation(error, folder)
        if explained is None or explained is error:
            raise
        raise explained from error
