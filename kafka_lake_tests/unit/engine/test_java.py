"""The search for Java, with scripts in Java's place."""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kafka_lake.engine import java

MakeJava = Callable[..., Path]


@pytest.fixture(autouse=True)
def bare_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.setenv("KAFKA_LAKE_CACHE", str(tmp_path / "cache"))
    java.find_java.cache_clear()
    yield
    java.find_java.cache_clear()


@pytest.fixture
def make_java(tmp_path: Path) -> MakeJava:
    def make(name: str, version: str, knows_module: bool = True) -> Path:
        home = tmp_path / name
        (home / "bin").mkdir(parents=True)
        refusal = "" if knows_module else '[ "$1" = --add-modules=jdk.incubator.vector ] && exit 1\n'
        answer = f"    java.home = {home}\\n    java.specification.version = {version}\\n"
        script = home / "bin" / "java"
        script.write_text(f"#!/bin/sh\n{refusal}printf '{answer}' >&2\n")
        script.chmod(0o755)
        return home

    return make


@pytest.mark.parametrize("version", ["17", "21"])
def test_java_home_comes_first(version: str, make_java: MakeJava, monkeypatch: pytest.MonkeyPatch) -> None:
    home = make_java("chosen", version)
    monkeypatch.setenv("JAVA_HOME", str(home))
    monkeypatch.setenv("PATH", str(make_java("other", "21") / "bin"))
    assert java.find_java() == home
    assert java.java_env() == {"JAVA_HOME": str(home)}


def test_unsupported_java_home_gives_way_to_the_path(make_java: MakeJava, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(make_java("old", "1.8")))
    on_path = make_java("path", "17")
    monkeypatch.setenv("PATH", str(on_path / "bin"))
    assert java.find_java() == on_path


def test_java_on_the_path_is_followed_to_its_home(
    make_java: MakeJava, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = make_java("real", "21")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(home / "bin" / "java")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert java.find_java() == home


def test_bundled_java_gets_a_shim_that_drops_the_missing_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    echo = tmp_path / "it's here" / "java"
    echo.parent.mkdir()
    echo.write_text('#!/bin/sh\nprintf "<%s>" "$@"\n')
    echo.chmod(0o755)
    monkeypatch.setattr(java, "_bundled_java", lambda: echo)
    home = java.find_java()
    assert home.is_relative_to(tmp_path / "cache" / "java-shim")
    shim = [home / "bin" / "java", "-Xmx1g", "--add-modules=jdk.incubator.vector", "a b", ""]
    assert subprocess.check_output(shim, text=True) == "<-Xmx1g><a b><>"
    java.find_java.cache_clear()
    assert java.find_java() == home


def test_java_without_sparks_module_is_passed_over(make_java: MakeJava, monkeypatch: pytest.MonkeyPatch) -> None:
    bundled = make_java("bundled", "21")
    monkeypatch.setenv("JAVA_HOME", str(make_java("bare", "21", knows_module=False)))
    monkeypatch.setattr(java, "_bundled_java", lambda: bundled / "bin" / "java")
    assert "java-shim" in str(java.find_java())


def test_a_shim_as_java_home_stays_the_shim(monkeypatch: pytest.MonkeyPatch, make_java: MakeJava) -> None:
    real = make_java("bundled", "21", knows_module=False)
    monkeypatch.setattr(java, "_bundled_java", lambda: real / "bin" / "java")
    shim = java.find_java()
    java.find_java.cache_clear()
    monkeypatch.setenv("JAVA_HOME", str(shim))
    assert java.find_java() == shim


def test_no_java_says_what_was_looked_at_and_what_to_do(make_java: MakeJava, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "_bundled_java", lambda: None)
    monkeypatch.setenv("JAVA_HOME", "/gone")
    old = make_java("old", "11")
    monkeypatch.setenv("PATH", str(old / "bin"))
    with pytest.raises(java.JavaNotFoundError, match=rf"JAVA_HOME=/gone, {old}/bin/java.*Install one"):
        java.find_java()
