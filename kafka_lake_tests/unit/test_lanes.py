"""The longer lane: each test of it has one in `make test` that shows the same in short."""

import ast
import functools
import re
from pathlib import Path

from kafka_lake_tests.contract.__main__ import FOLDERS
from kafka_lake_tests.lanes import SHOWN_IN_SHORT, shown_in_short

TESTS = Path(__file__).parents[1]


@functools.cache
def functions(file: str) -> set[str]:
    tree = ast.parse((TESTS / file).read_text(encoding="utf-8"))
    return {each.name for each in tree.body if isinstance(each, ast.FunctionDef)}


def test_each_name_is_a_test() -> None:
    for name in {*SHOWN_IN_SHORT, *SHOWN_IN_SHORT.values()}:
        file, _, function = name.partition("::")
        assert function.partition("[")[0] in functions(file), name


def test_what_shows_it_in_short_is_not_in_the_longer_lane_itself() -> None:
    for name, short in SHOWN_IN_SHORT.items():
        assert shown_in_short(f"kafka_lake_tests/{name}"), name
        assert not shown_in_short(f"kafka_lake_tests/{short}"), name


def test_each_folder_of_tests_is_in_a_target_of_make() -> None:
    folders = {each.relative_to(TESTS).parts[0] for each in TESTS.rglob("test_*.py")}
    makefile = (TESTS.parent / "Makefile").read_text(encoding="utf-8")
    told = [each.split(",") for each in re.findall(r"\$\(addprefix kafka_lake_tests/,([a-z0-9_ ]+)\)", makefile)]
    named = {name for (names,) in told for name in names.split()}
    assert folders <= named | set(re.findall(r" kafka_lake_tests/([a-z0-9_]+)", makefile))
    # All of `make test` and `make exhaustive`, but for what runs at night alone.
    assert folders - {"nightly"} <= named


def test_the_pairs_have_the_marked_tests_of_each_folder() -> None:
    marked = {
        each.relative_to(TESTS).parts[0]
        for each in TESTS.rglob("test_*.py")
        if re.search(r"mark\.(every_pair|in_contract)", each.read_text(encoding="utf-8"))
    }
    assert marked <= set(FOLDERS)
