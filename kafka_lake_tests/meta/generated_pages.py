"""The parts of pages that are made from the code: the errors and the commands."""

import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import typer.main

import kafka_lake
from kafka_lake.cli.arguments import AsJson, Topic, Yes
from kafka_lake.cli.main import app
from kafka_lake.errors import KafkaLakeError

_PACKAGE = Path(kafka_lake.__file__).parent


def error_classes() -> list[type[KafkaLakeError]]:
    """Return all public error classes of the package: each before its subclasses."""
    for path in sorted(_PACKAGE.rglob("*.py")):
        if re.search(r"^class [A-Z]\w*Error\(\w+Error\)", path.read_text(encoding="utf-8"), re.MULTILINE):
            importlib.import_module(".".join(path.relative_to(_PACKAGE.parent).with_suffix("").parts))
    found = {each: None for each in _with_subclasses(KafkaLakeError) if each.__module__.startswith("kafka_lake.")}
    public = [each for each in found if not each.__name__.startswith("_")]
    return [*public[1:], KafkaLakeError]


def _with_subclasses(cls: type[KafkaLakeError]) -> Iterator[type[KafkaLakeError]]:
    yield cls
    for each in cls.__subclasses__():
        yield from _with_subclasses(each)


def errors() -> str:
    """Return the errors as sections in Markdown."""
    return "\n".join(_error(each) for each in error_classes())


def _error(cls: type[KafkaLakeError]) -> str:
    meaning = re.split("\n(?:Args|Attributes):", inspect.cleandoc(cls.__doc__ or ""))[0]
    retry = "*Retry.* " if cls.retry_helps else ""
    parts = [f"### {cls.__name__}", " ".join(meaning.split()), f"{retry}{cls.what_to_do}"]
    return "\n\n".join(parts) + "\n"


def commands() -> str:
    """Return the commands, their arguments and options as sections in Markdown."""
    group = typer.main.get_command(app)
    sections = []
    for name, command in group.commands.items():  # type: ignore[attr-defined]
        inner = getattr(command, "commands", None)
        if inner:
            sections += [_command(f"{name} {each}", inner[each]) for each in inner]
        else:
            sections.append(_command(name, command))
    return "\n".join(sections)


def _command(name: str, command: Any) -> str:
    shown = [parameter for parameter in command.params if not parameter.hidden and parameter.name != "help"]
    usage = " ".join([name, *filter(None, map(_usage, shown))])
    items = [_item(parameter) for parameter in shown if parameter.help not in _EXPLAINED_ONCE]
    lines = [f"## {name}", "", f"`kafka-lake {usage}`", "", _with_code(inspect.cleandoc(command.help or "")), ""]
    return "\n".join([*lines, *items, *([""] if items else [])])


_EXPLAINED_ONCE = tuple(get_args(kind)[1].help for kind in (Topic, AsJson, Yes))
"""Help texts that the beginning of the page has, for all commands."""


def _usage(parameter: Any) -> str:
    """Return an argument, or an option that the command needs or that has no item of its own."""
    if parameter.param_type_name == "argument":
        return _argument(parameter)
    if parameter.required:
        return _option(parameter)
    return f"[{_option(parameter)}]" if parameter.help in _EXPLAINED_ONCE else ""


def _with_code(text: str) -> str:
    """Return text with the names of options as code, unless they are part of code."""
    parts = re.split("(`[^`]*`)", text)
    return "".join(
        re.sub(r"(?<![\w-])(--[a-z][a-z-]+)", r"`\1`", part) if n % 2 == 0 else part for n, part in enumerate(parts)
    )


def _argument(parameter: Any) -> str:
    name = (parameter.metavar or parameter.name).upper() + ("…" if parameter.nargs == -1 else "")
    return name if parameter.required else f"[{name}]"


def _option(parameter: Any) -> str:
    value = "" if getattr(parameter, "is_flag", False) else f" {(parameter.metavar or parameter.name).upper()}"
    return ", ".join(parameter.opts) + value


def _item(parameter: Any) -> str:
    is_argument = parameter.param_type_name == "argument"
    text = _with_code(parameter.help or "")
    if not getattr(parameter, "is_flag", False) and parameter.default not in (None, "") and not parameter.required:
        text += f" Default: `{parameter.default}`."
    return f"- `{_argument(parameter) if is_argument else _option(parameter)}`: {text.strip()}"
