"""Which Dagster project the command line works with: found as `dg` and `dagster` find it.

Options and Dagster's environment variables first, then the nearest folder, upwards, with a ``workspace.yaml`` or a
``pyproject.toml`` that has ``[tool.dagster]`` or ``[tool.dg.project]``.
https://docs.dagster.io/api/clis/cli
"""

import os
import tomllib
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import yaml

from kafka_lake.common.errors import ConfigurationError

MODULE, FILE, WORKSPACE = "DAGSTER_MODULE_NAME", "DAGSTER_PYTHON_FILE", "DAGSTER_WORKSPACE"
"""Dagster's environment variables."""

_NONE_HERE = "`kafka-lake init` makes a project. Another one is named by -m MODULE, -f FILE or -w WORKSPACE."


class NoProjectError(ConfigurationError):
    """No Dagster project is where the command was given, and none was named. Nothing has been started."""

    what_to_do: ClassVar[str] = (
        "Run the command in a folder of the project, or name the project: `kafka-lake -m MODULE …`, `-f FILE`, "
        "`-w WORKSPACE`. `kafka-lake init` makes a new project."
    )


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
    """

    module: str
    folder: Path
    file: Path | None = None
    attribute: str | None = None
    is_defs_folder: bool = False
    workspace: Path | None = None

    def __str__(self) -> str:
        return str(self.file) if self.file else self.module

    @property
    def dagster_options(self) -> list[str]:
        """The options by which `dagster dev` loads it, and what its workspace has beside it."""
        if self.workspace:
            return ["-w", str(self.workspace)]
        where = ["-d", str(self.folder)]
        if self.is_defs_folder:
            return ["--autoload-defs-module-name", self.module, *where]
        what = ["-f", str(self.file)] if self.file else ["-m", self.module]
        return [*what, *where, *(["-a", self.attribute] if self.attribute else [])]


def choose(
    module: str | None, file: str | None, workspace: str | None, environment: MutableMapping[str, str] = os.environ
) -> None:
    """Make what the options name the project of this process and of those that it starts.

    Raises:
        ConfigurationError: If they name several.
    """
    given = {MODULE: module, FILE: file, WORKSPACE: workspace}
    if len(chosen := [name for name, value in given.items() if value]) > 1:
        raise ConfigurationError(
            f"Several projects are named, by {' and '.join(chosen)}.",
            "Only one of the options -m, -f and -w and of these variables may be there.",
        )
    environment.update({name: value for name, value in given.items() if value})


def project_folder() -> Path:
    """Return the folder that has the project's ``.env`` and local state: the nearest with a project, or this one."""
    here = Path.cwd()
    for each in (here, *here.parents):
        if (each / "workspace.yaml").is_file() or _is_project(each / "pyproject.toml"):
            return each
    return here


def _is_project(file: Path) -> bool:
    with suppress(ConfigurationError):
        return file.is_file() and bool(list(_in_pyproject(file)))
    return False


def targets(folder: Path | None = None, environment: Mapping[str, str] = os.environ) -> list[Target]:
    """Return the code locations of the project at hand.

    Args:
        folder: Where to look; the working directory by default.
        environment: Dagster's variables, which come first.

    Raises:
        ConfigurationError: If there is no project, or what names it can't be read.
    """
    folder = (folder or Path.cwd()).resolve()
    if module := environment.get(MODULE):
        return [Target(module, folder)]
    if file := environment.get(FILE):
        return [_in_file(folder / file, folder)]
    if workspace := environment.get(WORKSPACE):
        return _in_workspace(folder / workspace)
    for each in (folder, *folder.parents):
        if (workspace_file := each / "workspace.yaml").is_file():
            return _in_workspace(workspace_file)
        if (project := each / "pyproject.toml").is_file() and (found := list(_in_pyproject(project))):
            return found
    raise NoProjectError(f"No Dagster project is in {folder} or above it.", _NONE_HERE)


def _in_file(file: Path, folder: Path, attribute: str | None = None) -> Target:
    if not file.is_file():
        raise ConfigurationError(f"There is no file {file}.", _NONE_HERE)
    return Target("", folder, file.resolve(), attribute)


def _in_workspace(file: Path) -> list[Target]:
    try:
        document = yaml.safe_load(file.read_text())
    except (OSError, yaml.YAMLError) as error:
        raise ConfigurationError(f"{file} can't be read as a workspace: {error}.") from error
    entries = document.get("load_from") if isinstance(document, Mapping) else None
    found = [target for entry in entries or () for target in _of_workspace(entry, file.parent.resolve())]
    if not found:
        raise ConfigurationError(f"{file} names no Python module and no Python file under load_from.", _NONE_HERE)
    return [replace(each, workspace=file.resolve()) for each in found]


def _of_workspace(entry: Any, folder: Path) -> Iterator[Target]:
    """Give what an entry names: a server of definitions has none that could be loaded here."""
    for kind, key in (("python_module", "module_name"), ("python_package", "package_name")):
        if isinstance(entry, Mapping) and kind in entry:
            told = entry[kind] if isinstance(entry[kind], Mapping) else {key: entry[kind]}
            yield Target(told[key], folder / told.get("working_directory", ""), attribute=told.get("attribute"))
    if isinstance(entry, Mapping) and "python_file" in entry:
        told = entry["python_file"]
        told = told if isinstance(told, Mapping) else {"relative_path": told}
        yield _in_file(
            folder / told["relative_path"], folder / told.get("working_directory", ""), told.get("attribute")
        )


def _in_pyproject(file: Path) -> Iterator[Target]:
    try:
        tools = tomllib.loads(file.read_text()).get("tool", {})
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise ConfigurationError(f"{file} can't be read: {error}.") from error
    folder, dagster, dg = file.parent, tools.get("dagster", {}), tools.get("dg", {})
    if "module_name" in dagster:
        yield Target(dagster["module_name"], folder)
    for each in dagster.get("modules", ()):
        if each.get("type") == "module":
            yield Target(each["name"], folder)
    if dg.get("directory_type") == "workspace":
        projects = ", ".join(each.get("path", "") for each in dg.get("workspace", {}).get("projects", ()))
        raise ConfigurationError(
            f"{file} is a workspace of several projects{f': {projects}' if projects else ''}.",
            "Run the command in the folder of one of them.",
        )
    project = dg.get("project", {})
    if "root_module" in project and "module_name" not in dagster and "modules" not in dagster:
        root = project["root_module"]
        if project.get("autoload_defs"):
            yield Target(project.get("defs_module", f"{root}.defs"), folder, is_defs_folder=True)
        else:
            yield Target(project.get("code_location_target_module", f"{root}.definitions"), folder)


def defs_folder(file: Path) -> Path:
    """Return the folder of YAML documents that a project has.

    Args:
        file: Where its definitions are.

    Returns:
        What the nearest ``pyproject.toml`` with ``[tool.dg.project]`` names, below itself or its ``src``; without one,
        ``defs`` beside the file. It need not exist.
    """
    for folder in file.resolve().parents:
        if (project := folder / "pyproject.toml").is_file():
            told = tomllib.loads(project.read_text()).get("tool", {}).get("dg", {}).get("project", {})
            if root := told.get("root_module"):
                parts = told.get("defs_module", f"{root}.defs").split(".")
                places = [folder.joinpath(*parts), folder.joinpath("src", *parts)]
                return next((each for each in places if each.is_dir()), places[0])
    return file.resolve().parent / "defs"
