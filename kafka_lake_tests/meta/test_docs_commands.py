"""Every `kafka-lake` line of the pages is one that the command line takes, as far as its arguments go."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer import Exit
from typer.core import TyperGroup
from typer.main import get_command

from kafka_lake.cli.main import app

ROOT = Path(__file__).parents[2]
# commands.md is written from the command line itself.
_DOCS = [path for path in sorted((ROOT / "docs").rglob("*.md")) if path.name != "commands.md"]
PAGES = [*_DOCS, *(ROOT / name for name in ("README.md", "CONTRIBUTING.md"))]
_NAME = "kafka-lake "
_USAGE = 2


def test_lines_of_pages_are_found_and_wrong_ones_named() -> None:
    text = (
        "Say `kafka-lake query` or `kafka-lake query a\n'SELECT 1'`; `kafka-lake …` is any.\n\n```bash\n"
        'kafka-lake up  # stays\nA=1 kafka-lake topic \\\n  tail x | head\neval "$(kafka-lake env --secrets)"\n```\n'
    )
    assert [*lines_of(text)] == ["query", "query a 'SELECT 1'", "…", "up  # stays", "topic    tail x ", "env --secrets"]
    assert [refusal(line) for line in lines_of(text)] == [""] * 6
    assert "Missing parameter: sql" in refusal("query 'SELECT 1'")
    assert "No such option: --nothing" in refusal("topic tail x --nothing")
    assert "No such command 'quarry'" in refusal("quarry")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_command_line_takes_the_lines_of_a_page(page: Path) -> None:
    refused = {line: why for line in lines_of(page.read_text()) if (why := refusal(line))}
    assert refused == {}


def lines_of(text: str) -> Iterator[str]:
    """Give what comes after `kafka-lake` in code, inline or in a block."""
    blocks = re.findall(r"^ *```(?:bash|sh|console)\n(.*?)^ *```", text, re.DOTALL | re.MULTILINE)
    inline = re.findall(r"(?<!`)`([^`]+)`(?!`)", re.sub(r"^ *```.*?^ *```", "", text, flags=re.DOTALL | re.MULTILINE))
    # What stands for an argument is one.
    code = [re.sub("<[^>]*>", "ARGUMENT", " ".join(item.split("\n"))) for item in inline if item.startswith(_NAME)]
    code += [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    code += re.findall(r"^    (kafka-lake .*)$", text, re.MULTILINE)
    for line in code:
        yield from re.findall(r"(?:^|[\s(])kafka-lake ([^|)&;<>]*)", line)


def refusal(line: str) -> str:
    """Return why the command line doesn't take a line; empty if it does. A command's name alone is a mention of it."""
    words = shlex.split(line, comments=True)
    command, context, name = get_command(app), None, "kafka-lake"
    try:
        while True:
            context = command.make_context(name, [*words], parent=context)
            if not isinstance(command, TyperGroup):
                return ""
            name, command, words = command.resolve_command(context, [*context._protected_args, *context.args])
    except (Exit, SystemExit):
        # After --help and --version.
        return ""
    except Exception as error:
        if getattr(error, "exit_code", None) != _USAGE:
            raise
        reported = str(error)
        if any(f"No such command '{any_command}'" in reported for any_command in ("…", "COMMAND")):
            return ""
        return "" if not words and "No such command" not in reported else reported
