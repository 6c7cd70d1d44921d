"""Each example in a docstring is true, wherever its module has moved to."""

import doctest
from importlib import import_module
from pathlib import Path

import pytest

import kafka_lake

_PACKAGE = Path(kafka_lake.__file__).parent
_MODULES = sorted(
    ".".join(path.relative_to(_PACKAGE.parent).with_suffix("").parts)
    for path in _PACKAGE.rglob("*.py")
    if ">>> " in path.read_text(encoding="utf-8")
)


def test_there_are_examples() -> None:
    assert "kafka_lake.common.offsets" in _MODULES


@pytest.mark.parametrize("module", _MODULES)
def test_doctests(module: str) -> None:
    result = doctest.testmod(import_module(module))
    assert result.attempted > 0
    assert result.failed == 0
