"""The parts of pages that are made from the code: the errors and the commands."""

import dataclasses
import importlib
import inspect
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import typer.main

import kafka_lake
from kafka_lake.catalog.history import LoggedCommit
from kafka_lake.cli.arguments import AsJson, Topic, Yes
from kafka_lake.cli.commands.dead_letters import DeadLetters
from kafka_lake.cli.commands.doctor import CheckResult
from kafka_lake.cli.commands.history import History
from kafka_lake.cli.commands.reset import TableReset
from kafka_lake.cli.commands.schema import TopicSchema
from kafka_lake.cli.commands.status import TopicStatus
from kafka_lake.cli.commands.topics import MatchingTopic, ValueTable
from kafka_lake.cli.main import COMMANDS, app
from kafka_lake.discovery.discover import Discovered
from kafka_lake.errors import KafkaLakeError
from kafka_lake.ingest.preview import Preview
from kafka_lake.maintenance.maintain import Due, Maintained
from kafka_lake.orchestration.runs import FailedRun
from kafka_lake.verify.report import Report

_PACKAGE = Path(kafka_lake.__file__).parent


def error_classes() -> list[type[KafkaLakeError]]:
    """Return all public error classes of the package: each before its subclasses."""
    for path in sorted(_PACKAGE.rglob("*.py")):
        if re.search(r"^class [A-Z]\w*Error\(\w+Error\)", path.read_text(encoding="utf-8"), re.MULTILINE):
            importlib.import_module(".".join(path.relative_to(_PACKAGE.parent).with_suffix("").parts))
    found = {
        subclass: None for subclass in _with_subclasses(KafkaLakeError) if subclass.__module__.startswith("kafka_lake.")
    }
    public = [class_ for class_ in found if not class_.__name__.startswith("_")]
    return [*public[1:], KafkaLakeError]


def _with_subclasses(cls: type[KafkaLakeError]) -> Iterator[type[KafkaLakeError]]:
    yield cls
    # In the order of modules, not of imports.
    for item in sorted(
        cls.__subclasses__(), key=lambda item: (item.__module__ != "kafka_lake.errors", item.__module__)
    ):
        yield from _with_subclasses(item)


def errors() -> str:
    """Return the errors as sections in Markdown."""
    return "\n".join(_error(class_) for class_ in error_classes())


def _error(cls: type[KafkaLakeError]) -> str:
    meaning = re.split("\n(?:Args|Attributes):", inspect.cleandoc(cls.__doc__ or ""))[0]
    retry = "*Retry.* " if cls.retry_helps else ""
    parts = [f"### {cls.__name__}", " ".join(meaning.split()), f"{retry}{cls.what_to_do}"]
    return "\n\n".join(parts) + "\n"


def commands() -> str:
    """Return the commands, their arguments and options as sections in Markdown."""
    group = typer.main.get_command(app)
    sections = []
    for name in COMMANDS:
        command: Any = group.get_command(None, name)  # type: ignore[attr-defined]
        inner = getattr(command, "commands", None)
        if inner:
            sections += [_command(f"{name} {subcommand}", inner[subcommand]) for subcommand in inner]
        else:
            sections.append(_command(name, command))
    return "\n".join(sections)


def _command(name: str, command: Any) -> str:
    shown = [parameter for parameter in command.params if not parameter.hidden and parameter.name != "help"]
    usage = " ".join([name, *filter(None, map(_usage, shown))])
    items = [_item(parameter) for parameter in shown if parameter.help not in _EXPLAINED_ONCE]
    lines = [f"## {name}", "", f"`kafka-lake {usage}`", "", _with_code(inspect.cleandoc(command.help or "")), ""]
    if kinds := _JSON.get(name):
        added = f" and {_ADDED[name]}" if name in _ADDED else ""
        items.append(f"- `--json`: {' or '.join(f'`{_fields(kind)}`' for kind in kinds)}{added}")
    return "\n".join([*lines, *items, *([""] if items else [])])


_JSON: dict[str, tuple[Any, ...]] = {
    "dead-letters": (list[DeadLetters],),
    "discover": (list[Discovered],),
    "doctor": (list[CheckResult],),
    "history": (History,),
    "maintain": (list[Due], list[Maintained]),
    "reset": (list[TableReset],),
    "schema": (list[TopicSchema],),
    "status": (list[TopicStatus],),
    "topics list": (list[MatchingTopic | ValueTable],),
    "topics refresh": (list[MatchingTopic | ValueTable],),
    "verify": (Report,),
}
_ADDED = {
    "discover": "`written`, the path of the document",
    "maintain": "`reasons`, a list",
    "verify": "`verified`",
}
_LATE = {"FailedRun": FailedRun, "LoggedCommit": LoggedCommit, "Preview": Preview}
"""Names that modules import for type checkers alone."""


def _fields(kind: Any) -> str:
    """Return the names of the fields of a class, of classes within it, and what is a list."""
    if dataclasses.is_dataclass(kind):
        hints = get_type_hints(kind, localns=_LATE)
        names = [(f.name, _fields(hints[f.name])) for f in dataclasses.fields(kind) if not f.name.startswith("_")]
        return "{" + ", ".join(f"{name}: {inner}" if inner else name for name, inner in names) + "}"
    inner = " or ".join(filter(None, map(_fields, get_args(kind))))
    return f"[{inner}]" if inner and get_origin(kind) in (list, tuple, Sequence) else inner


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
