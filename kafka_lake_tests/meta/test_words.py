"""No sentence of pages and docstrings has a phrase that readers have to parse twice."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BANNED = re.compile(
    r"\b([Bb]ut for|(?<![Tt]here )(?:is|are|was) (?:no|none)|of (?:ours|theirs)|[Nn]obody|[Tt]old|[Tt]ells?(?! apart)"
    r"|for each in|for want of|[Ww]hat (?:becomes|is said) of|[Ww]hatever|has it that)\b"
)
_CODE = re.compile(r"```.*?```|`[^`]*`", re.DOTALL)


@pytest.mark.parametrize(
    "page", ["README.md", "CHANGELOG.md", *(f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md"))]
)
def test_page_has_no_banned_phrase(page: str) -> None:
    text = _CODE.sub("", (ROOT / page).read_text(encoding="utf-8"))
    assert [line for line in text.splitlines() if BANNED.search(line)] == []


def test_docstrings_have_no_banned_phrase() -> None:
    assert [
        f"{path}: {line}" for path, text in _docstrings() for line in text.splitlines() if BANNED.search(line)
    ] == []


def _docstrings() -> Iterator[tuple[Path, str]]:
    for path in (ROOT / "kafka_lake").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and (text := ast.get_docstring(node)):
                yield path.relative_to(ROOT), _CODE.sub("", text)
