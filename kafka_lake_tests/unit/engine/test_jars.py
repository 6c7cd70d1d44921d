"""Retrieving jars, with a script in place of Java and Ivy."""

import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from kafka_lake.engine import jars
from kafka_lake_tests.contract.kafka_security.certificates import Authority

# Takes the retrieve pattern, its last argument, and puts two jars there, slowly enough for a race to show.
RETRIEVES = """\
#!/bin/sh
echo run >> {runs}
for last do :; done
folder=$(dirname "$last")
sleep 0.3
mkdir -p "$folder"
echo '	[SUCCESSFUL ] org.example#beta;2.0!beta.jar (12ms)'
touch "$folder/beta-2.0.jar" "$folder/alpha-1.0.jar"
printf '%s\\n' "$@" > {arguments}
"""

FAILS = """\
#!/bin/sh
echo 'resolving'
echo '		module not found: org.example#beta;2.0'
echo '		:: UNRESOLVED DEPENDENCIES ::'
exit 1
"""


RETRIEVES_ARCHIVE = """\
#!/bin/sh
for last do :; done
folder=$(dirname "$last")
mkdir -p "$folder" "{runs}.content/lib"
touch "{runs}.content/server-1.0.jar" "{runs}.content/lib/needed.jar"
tar czf "$folder/server-1.0.tar.gz" -C "{runs}.content" .
"""

RETRIEVES_NO_ARCHIVE = """\
#!/bin/sh
for last do :; done
folder=$(dirname "$last")
mkdir -p "$folder"
echo cut short > "$folder/server-1.0.tar.gz"
"""


class FakeIvy:
    def __init__(self, folder: Path) -> None:
        self.runs = folder / "runs"
        self.arguments = folder / "arguments"
        self.java = folder / "java" / "bin" / "java"
        self.java.parent.mkdir(parents=True)
        self.behave(RETRIEVES)

    def behave(self, script: str) -> None:
        self.java.write_text(script.format(runs=self.runs, arguments=self.arguments))
        self.java.chmod(0o755)

    def times_run(self) -> int:
        return len(self.runs.read_text().splitlines()) if self.runs.exists() else 0


@pytest.fixture
def ivy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeIvy:
    fake = FakeIvy(tmp_path)
    monkeypatch.setenv("KAFKA_LAKE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("KAFKA_LAKE_IVY_SETTINGS", raising=False)
    monkeypatch.setattr(jars, "find_java", lambda: fake.java.parent.parent)
    return fake


def test_retrieves_once_and_tells_progress(ivy: FakeIvy) -> None:
    said: list[str] = []
    found = jars.ensure_jars("spark", said.append)
    assert [jar.name for jar in found] == ["alpha-1.0.jar", "beta-2.0.jar"]
    assert "  beta 2.0" in said
    said.clear()
    assert jars.ensure_jars("spark", said.append) == found
    assert (said, ivy.times_run()) == ([], 1)
    assert jars.jars_classpath("spark") == f"{found[0]}:{found[1]}"
    assert jars.spark_jars() == f"{found[0]},{found[1]}"


def test_another_ivy_file_means_other_jars(ivy: FakeIvy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = jars.ensure_jars("spark")
    changed = tmp_path / "ivy.xml"
    changed.write_bytes(jars.IVY_FILE.read_bytes() + b"\n")
    monkeypatch.setattr(jars, "IVY_FILE", changed)
    assert set(jars.ensure_jars("spark")).isdisjoint(before)
    assert ivy.times_run() == 2


def test_of_several_processes_one_retrieves(ivy: FakeIvy) -> None:
    code = (
        "from pathlib import Path; from kafka_lake.engine import jars;"
        f"jars.find_java = lambda: Path({str(ivy.java.parent.parent)!r});"
        "print(len(jars.ensure_jars('broker')))"
    )
    racers = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(4)]
    assert [racer.communicate()[0].strip() for racer in racers] == ["2"] * 4
    assert ivy.times_run() == 1


def test_failure_names_reason_log_and_remedy_and_leaves_nothing_half(ivy: FakeIvy) -> None:
    ivy.behave(FAILS)
    with pytest.raises(jars.JarsError) as failure:
        jars.ensure_jars("spark")
    log = jars.jars_root() / "ivy-spark.log"
    for part in ("module not found: org.example#beta;2.0", str(log), "KAFKA_LAKE_IVY_SETTINGS"):
        assert part in str(failure.value)
    assert "resolving" in log.read_text()
    assert not list(jars.jars_root().rglob("*partial*"))
    ivy.behave(RETRIEVES)
    assert len(jars.ensure_jars("spark")) == 2


def test_an_archive_is_unpacked_and_only_its_top_is_the_class_path(ivy: FakeIvy) -> None:
    ivy.behave(RETRIEVES_ARCHIVE)
    (jar,) = jars.ensure_jars("registry")
    assert jar.name == "server-1.0.jar"
    assert (jar.parent / "lib" / "needed.jar").is_file()
    assert not list(jars.jars_root().rglob("*.tar.gz"))
    assert jars.jars_classpath("registry") == str(jar)


def test_an_archive_that_cannot_be_unpacked_is_named_and_leaves_nothing_half(ivy: FakeIvy) -> None:
    ivy.behave(RETRIEVES_NO_ARCHIVE)
    with pytest.raises(jars.JarsError, match=r"server-1\.0\.tar\.gz .*KAFKA_LAKE_CACHE"):
        jars.ensure_jars("registry")
    assert not list(jars.jars_root().rglob("*registry*/"))
    ivy.behave(RETRIEVES_ARCHIVE)
    assert len(jars.ensure_jars("registry")) == 1


def test_only_what_every_deployment_uses_is_fetched_ahead(
    ivy: FakeIvy, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["jars"])
    jars.main()
    said = capsys.readouterr().out
    assert "spark: 2 jars ready" in said
    assert "broker: 2 jars ready" in said
    assert "registry" not in said
    assert ivy.times_run() == 2


def test_an_image_fetches_ahead_what_its_storage_needs(
    ivy: FakeIvy, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["jars", "spark", "aws"])
    jars.main()
    assert [line for line in capsys.readouterr().out.splitlines() if "ready" in line] == [
        "spark: 2 jars ready",
        "aws: 2 jars ready",
    ]
    monkeypatch.setattr(sys, "argv", ["jars", "moon"])
    with pytest.raises(SystemExit):
        jars.main()
    assert "moon isn't one of spark" in capsys.readouterr().err
    assert ivy.times_run() == 2


@pytest.mark.slow
@pytest.mark.parametrize("bundled", [True, False])
def test_java_of_the_extra_trusts_the_network_s_ca(
    bundled: bool, ivy: FakeIvy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another Java has the certificates that its machine's owner gave it."""
    monkeypatch.setenv("SSL_CERT_FILE", Authority(tmp_path).file)
    home = ivy.java.parent.parent
    if bundled:
        home = tmp_path / "cache" / "java-shim" / "of-a-version"
        shutil.copytree(ivy.java.parent.parent, home)
    monkeypatch.setattr(jars, "find_java", lambda: home)
    jars.ensure_jars("spark")
    trusted = [line for line in ivy.arguments.read_text().splitlines() if "javax.net.ssl.trustStore=" in line]
    assert len(trusted) == bundled


def test_users_ivy_settings_are_passed_on(ivy: FakeIvy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = tmp_path / "settings.xml"
    settings.touch()
    monkeypatch.setenv("KAFKA_LAKE_IVY_SETTINGS", str(settings))
    jars.ensure_jars("spark")
    arguments = ivy.arguments.read_text().splitlines()
    assert arguments[arguments.index("-settings") + 1] == str(settings)


def test_missing_ivy_settings_are_named(ivy: FakeIvy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_LAKE_IVY_SETTINGS", "/gone.xml")
    with pytest.raises(jars.JarsError, match=r"/gone\.xml"):
        jars.ensure_jars("spark")
    assert ivy.times_run() == 0


def test_every_declared_jar_has_an_exact_version_and_stands_for_itself() -> None:
    dependencies = ElementTree.parse(jars.IVY_FILE).getroot().findall("dependencies/dependency")
    assert dependencies
    for dependency in dependencies:
        assert re.fullmatch(r"[0-9.-]+(\.Final)?", dependency.get("rev", "")), dependency.get("name")
        assert dependency.get("transitive") == "false", dependency.get("name")
