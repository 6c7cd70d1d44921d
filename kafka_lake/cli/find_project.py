"""Which Dagster project the command line works with: found as `dg` and `dagster` find it.

Options and Dagster's environment variables first. Then the nearest folder, upwards, with a ``pyproject.toml`` that has
``[tool.dagster]`` or ``[tool.dg.project]``, with a ``dg.toml``, or with a ``workspace.yaml``.
https://docs.dagster.io/api/clis/cli
"""

import os
import tomllib
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from kafka_lake.common import environment as variables
from kafka_lake.common.files import starting_folder
from kafka_lake.devstack.dagster_servers import CodeLocation
from kafka_lake.errors import ConfigurationError, NoProjectError

MODULE, FILE, WORKSPACE = "DAGSTER_MODULE_NAME", "DAGSTER_PYTHON_FILE", variables.WORKSPACE.name
"""Environment variables: Dagster's, and one of ours for what Dagster has only an option for."""
_ATTRIBUTE, _WORKING_DIRECTORY = "DAGSTER_ATTRIBUTE", "DAGSTER_WORKING_DIRECTORY"
_LOADED = frozenset({"python_module", "python_package", "python_file"})
_WORKSPACES = ("workspace.yaml", "workspace.yml")
_NONE_HERE = "`kafka-lake init` makes a project. Another one is named by -m MODULE, -f FILE or -w WORKSPACE."


@dataclass(frozen=True)
class Target:
    """A code location: where the definitions of a project are.

    Args:
        module: Name of the module; empty for a file.
        file: The Python file, if it is one.
        folder: Where Python is to look for modules first, absolute.
        attribute: The definitions in it; None for the only ones that it has.
        is_defs_folder: Whether the module is a package of definitions that Dagster loads all of.
        workspace: The workspace file that names it; None for none.
        name: The code location's, if ``pyproject.toml`` or the workspace file gives one.
        python: The Python that a workspace file gives for it; empty for this one.
    """

    module: str
    folder: Path
    file: Path | None = None
    attribute: str | None = None
    is_defs_folder: bool = False
    workspace: Path | None = None
    name: str = ""
    python: str = ""

    @property
    def code_location(self) -> CodeLocation:
        """What a code server loads. Its name is Dagster's, which knows sensors and runs by it."""
        kind = "--autoload-defs-module-name" if self.is_defs_folder else "-f" if self.file else "-m"
        name = self.module or (self.file.name if self.file else "")
        if self.attribute:
            name = f"{name}:{self.attribute}"
        attribute = ("-a", self.attribute) if self.attribute else ()
        options = (kind, str(self.file or self.module), "-d", str(self.folder), *attribute)
        return CodeLocation(self.name or name, options, self.python)

    def __str__(self) -> str:
        return str(self.file) if self.file else f"{self.module} in {self.folder}"


def dagster_folder(found: Sequence[Target]) -> Path:
    """Return the folder to start Dagster in: that of the workspace or the project, which has the ``.env``."""
    return found[0].workspace.parent if found[0].workspace else found[0].folder


def code_locations(found: Sequence[Target]) -> list[CodeLocation]:
    """Return what code servers load for `targets`, under the names that Dagster gives them."""
    return [each.code_location for each in found]


def other_locations(found: Sequence[Target]) -> list[Mapping[str, Any]]:
    """Return the workspace file's entries that `targets` leaves out: code servers that run elsewhere."""
    file = found[0].workspace
    return [each for each in _entries(file) if not _LOADED.intersection(each)] if file else []


def choose(
    module: str | None, file: str | None, workspace: str | None, environment: MutableMapping[str, str] = os.environ
) -> None:
    """Make what the options name the project of this process and of those that it starts."""
    given = {MODULE: module, FILE: file, WORKSPACE: workspace}
    if len(chosen := [name for name, value in given.items() if value]) > 1:
        raise ConfigurationError(
            f"Several projects are named, by {' and '.join(chosen)}.",
            "Only one of the options -m, -f and -w and of these variables may be there.",
        )
    environment.update({name: value for name, value in given.items() if value})


def project_folder() -> Path:
    """Return the folder that has the project's ``.env`` and local state: the nearest with a project, or this one.

    A workspace that is named is in a project's folder, wherever the command is given.
    """
    here = starting_folder()
    for each in (here, *here.parents):
        with suppress(ConfigurationError):
            if _in_folder(each):
                return each
    return here


def targets(folder: Path | None = None, environment: Mapping[str, str] = os.environ) -> list[Target]:
    """Return the code locations of the project at hand."""
    folder = (folder or Path.cwd()).resolve()
    where = folder / environment.get(_WORKING_DIRECTORY, "")
    attribute = environment.get(_ATTRIBUTE) or None
    if modules := environment.get(MODULE, "").split():
        return [Target(each, where, attribute=attribute) for each in modules]
    if file := environment.get(FILE):
        return [_in_file(folder / file, where, attribute)]
    if workspace := environment.get(WORKSPACE):
        return _in_workspace(folder / workspace)
    for each in (folder, *folder.parents):
        if found := _in_folder(each):
            return found
    raise NoProjectError(f"No Dagster project is in {folder} or above it.", _NONE_HERE)


def _in_folder(folder: Path) -> list[Target]:
    """Return the code locations that a folder's own files name; nothing if it has no project."""
    for name in ("pyproject.toml", "dg.toml"):
        if (file := folder / name).is_file():
            try:
                found = list(_in_toml(file))
            except (TypeError, KeyError, AttributeError) as error:
                raise ConfigurationError(f"{file} can't be read as a Dagster project: {error!r}.") from error
            if found:
                return found
    return next((_in_workspace(folder / name) for name in _WORKSPACES if (folder / name).is_file()), [])


def _in_file(file: Path, folder: Path, attribute: str | None = None) -> Target:
    if not file.is_file():
        raise ConfigurationError(f"There is no file {file}.", _NONE_HERE)
    return Target("", folder, file.resolve(), attribute)


def _in_workspace(file: Path) -> list[Target]:
    try:
        found = [target for entry in _entries(file) for target in _of_workspace(entry, file.parent.resolve())]
    except (TypeError, KeyError, AttributeError) as error:
        raise ConfigurationError(f"{file} can't be read as a workspace: {error}.") from error
    if not found:
        raise ConfigurationError(f"{file} names no Python module and no Python file under load_from.", _NONE_HERE)
    return [replace(each, workspace=file.resolve()) for each in found]


def _entries(file: Path) -> list[Any]:
    try:
        document = yaml.safe_load(file.read_text(encoding="utf-8"))
        return list(document.get("load_from") or ()) if isinstance(document, Mapping) else []
    except (OSError, UnicodeDecodeError, yaml.YAMLError, TypeError) as error:
        raise ConfigurationError(f"{file} can't be read as a workspace: {error}.") from error


def _of_workspace(entry: Any, folder: Path) -> Iterator[Target]:
    """Give what an entry names: a server of definitions has none that could be loaded here."""
    for kind, key in (("python_module", "module_name"), ("python_package", "package_name")):
        if kind in entry:
            told = _told(entry[kind], key)
            yield _named(Target(told[key], folder / told.get("working_directory", "")), told)
    if "python_file" in entry:
        told = _told(entry["python_file"], "relative_path")
        where = folder / told.get("working_directory", "")
        yield _named(_in_file(folder / told["relative_path"], where), told)


def _named(target: Target, told: Mapping[str, str]) -> Target:
    name, python = told.get("location_name", ""), told.get("executable_path", "")
    return replace(target, attribute=told.get("attribute"), name=name, python=python)


def _told(value: Any, key: str) -> dict[str, str]:
    """Return an entry's texts; any may be ``{env: NAME}``, as Dagster has it. Null counts as left out."""
    pairs = value.items() if isinstance(value, Mapping) and "env" not in value else [(key, value)]
    texts = {name: os.environ[each["env"]] if isinstance(each, Mapping) else each for name, each in pairs}
    return {name: each for name, each in texts.items() if each is not None}


def _in_toml(file: Path) -> Iterator[Target]:
    folder, (dagster, dg) = file.parent, _sections(file)
    name = dagster.get("code_location_name") or ""
    if "module_name" in dagster:
        yield Target(dagster["module_name"], folder, name=name)
    for each in dagster.get("modules", ()):
        if each.get("type") == "module":
            yield Target(each["name"], folder, name=name)
    if dg.get("directory_type") == "workspace":
        projects = ", ".join(each.get("path", "") for each in dg.get("workspace", {}).get("projects", ()))
        raise ConfigurationError(
            f"{file} is a workspace of several projects{f': {projects}' if projects else ''}.",
            "Run the command in the folder of one of them.",
        )
    project = dg.get("project", {})
    if "root_module" in project and "module_name" not in dagster and "modules" not in dagster:
        # Dagster itself reads no dg.toml.
        root, name = project["root_module"], project.get("code_location_name") or "" if file.name != "dg.toml" else ""
        if project.get("autoload_defs"):
            yield Target(project.get("defs_module", f"{root}.defs"), folder, is_defs_folder=True, name=name)
        else:
            yield Target(project.get("code_location_target_module", f"{root}.definitions"), folder, name=name)


def _sections(file: Path) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return what a file says to `dagster` and to `dg`, which may have a file of its own."""
    try:
        document = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigurationError(f"{file} can't be read: {error}.") from error
    if file.name == "dg.toml":
        return {}, document
    tools = document.get("tool", {})
    return tools.get("dagster", {}), tools.get("dg", {})


def defs_folder(file: Path) -> Path:
    """Return the folder of YAML documents that a project has."""
    for folder in file.resolve().parents:
        for name in ("pyproject.toml", "dg.toml"):
            if not (folder / name).is_file():
                continue
            told = _sections(folder / name)[1].get("project", {})
            if root := told.get("root_module"):
                parts = told.get("defs_module", f"{root}.defs").split(".")
                places = [folder.joinpath(*parts), folder.joinpath("src", *parts)]
                return next((each for each in places if each.is_dir()), places[0])
    return file.resolve().parent / "defs"
