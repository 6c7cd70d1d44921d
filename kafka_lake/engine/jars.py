"""Retrieves the jars of ``ivy.xml`` with the Ivy inside PySpark, once per user and version of that file.

Ivy verifies checksums. Where the jars come from is Ivy's default or the user's own Ivy settings
(``KAFKA_LAKE_IVY_SETTINGS``: a mirror, an offline folder). ``python -m kafka_lake.engine.jars`` fetches ahead what
every deployment uses.
"""

import argparse
import fcntl
import hashlib
import logging
import os
import re
import subprocess
import tarfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal, get_args

from kafka_lake.common import environment
from kafka_lake.common.files import cache
from kafka_lake.engine.java import find_java, is_bundled, network_trust_options
from kafka_lake.errors import JarsError, KafkaLakeError

JarConf = Literal["spark", "broker", "registry", "aws", "azure", "gcp", "postgresql"]
# What catalogs and storages need beside Spark's jars, by the artifact that has it.
_ON_DEMAND: dict[str, JarConf] = {
    "iceberg-aws-bundle": "aws",
    "iceberg-azure-bundle": "azure",
    "iceberg-gcp-bundle": "gcp",
    "postgresql": "postgresql",
}

log = logging.getLogger(__name__)

_AHEAD: tuple[JarConf, ...] = ("spark", "broker")

IVY_FILE = Path(__file__).with_name("ivy.xml")

_REASON = re.compile(r"not found:|\[FAILED|Exception|ERROR")
_FETCHED = re.compile(r"\[SUCCESSFUL \] \S+#(\S+);(\S+)!")


def _silent(_line: str) -> None: ...


def ensure_jars(conf: JarConf, tell_user: Callable[[str], None] = _silent) -> list[Path]:
    """Return the jars of one configuration of ``ivy.xml``, as `retrieve_jars` does."""
    return retrieve_jars(IVY_FILE, conf, tell_user)


def retrieve_jars(ivy_file: Path, conf: str, tell_user: Callable[[str], None] = _silent) -> list[Path]:
    """Return the jars of one configuration of an Ivy file, retrieving them first if they aren't here yet.

    Safe to call from several processes at once: one retrieves, the others wait for it.
    """
    folder = jars_root() / hashlib.sha256(ivy_file.read_bytes()).hexdigest()[:12] / conf
    if not folder.is_dir():
        with _only_one_process(jars_root()):
            if not folder.is_dir():
                _retrieve(ivy_file, conf, folder, tell_user)
    return sorted(folder.glob("*.jar"))


def jars_classpath(conf: JarConf) -> str:
    """Return the jars as one Java class path; raises what ``ensure_jars`` raises."""
    return os.pathsep.join(str(jar) for jar in ensure_jars(conf))


def spark_jars() -> str:
    """Return the value for ``spark.jars``: our jars and those of ``$KAFKA_LAKE_SPARK_JARS``, separated by commas."""
    more = [Path(text.strip()).absolute() for text in environment.SPARK_JARS.value().split(",") if text]
    if missing := [jar for jar in more if not jar.is_file()]:
        raise JarsError(f"KAFKA_LAKE_SPARK_JARS names {missing[0]}, which is not a file.", "Correct it or unset it.")
    return ",".join(str(jar) for jar in [*ensure_jars("spark"), *more])


def jars_with(classes: Mapping[str, str], there: Iterable[str]) -> list[Path]:
    """Return the jars that bring classes which are in no jar yet, retrieving them first if they aren't here."""
    given = list(there)
    wanted = {artifact for name, artifact in classes.items() if lacks(name, given)}
    jars = []
    for artifact in sorted(wanted):
        try:
            jars += ensure_jars(_ON_DEMAND[artifact], tell_user=log.info)
        except JarsError as error:
            raise JarsError(
                f"The catalog or its storage needs {artifact}. {error}",
                f"Or set KAFKA_LAKE_SPARK_JARS to the path of {artifact}'s jar.",
            ) from error
    return jars


def lacks(class_name: str, jars: Iterable[str]) -> bool:
    """Return whether a class is missing in some jars and in those of PySpark; false if that is unknown."""
    entry = f"{class_name.replace('.', '/')}.class"
    given = [Path(jar) for jar in jars if jar]
    if not all(jar.is_file() for jar in given):
        return False
    return not any(_has(jar, entry) for jar in [*given, *_ivy_jar().parent.glob("*.jar")])


def _has(jar: Path, entry: str) -> bool:
    try:
        with zipfile.ZipFile(jar) as content:
            return entry in content.NameToInfo
    except zipfile.BadZipFile:
        return False


def jars_root() -> Path:
    """Return the folder in the user's cache that holds all retrieved jars and Ivy's logs."""
    return cache() / "jars"


@contextmanager
def _only_one_process(root: Path) -> Iterator[None]:
    root.mkdir(parents=True, exist_ok=True)
    with (root / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _retrieve(ivy_file: Path, conf: str, folder: Path, tell_user: Callable[[str], None]) -> None:
    log = jars_root() / f"ivy-{conf}.log"
    tell_user(f"Retrieving the jars for {conf} (once; stored in {folder})")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder.parent, prefix=f"{conf}-partial-") as scratch:
        retrieved = Path(scratch, conf)
        lines = _run_ivy(_ivy_command(ivy_file, conf, retrieved), log, tell_user)
        if lines is None:
            _unpack(retrieved)
        if lines is not None or not any(retrieved.glob("*.jar")):
            raise JarsError(_failure(conf, log, lines or []))
        retrieved.replace(folder)
    tell_user(f"{len(list(folder.glob('*.jar')))} jars for {conf} are in {folder}")


def _unpack(folder: Path) -> None:
    """Replace the archives in a folder by what is in them."""
    for archive in folder.glob("*.tar.gz"):
        try:
            with tarfile.open(archive, "r:gz") as content:
                if hasattr(tarfile, "data_filter"):
                    content.extraction_filter = tarfile.data_filter
                # Before Python 3.11.4 there is no filter; what Ivy has verified is what its publisher made.
                content.extractall(folder)  # noqa: S202
            archive.unlink()
        except (OSError, tarfile.TarError) as error:
            raise JarsError(
                f"{archive.name} could not be unpacked in {jars_root()}: {error}.",
                "Free some space there, or set KAFKA_LAKE_CACHE to a folder with enough space, and try again.",
            ) from error


def _run_ivy(command: list[str], log: Path, tell_user: Callable[[str], None]) -> list[str] | None:
    """Run Ivy, log what it says; return its lines if it failed and ``None`` if all went well."""
    lines: list[str] = []
    with (
        log.open("w") as log_file,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as ivy,
    ):
        assert ivy.stdout is not None
        for line in ivy.stdout:
            log_file.write(line)
            lines.append(line.strip())
            if fetched := _FETCHED.search(line):
                tell_user(f"  {fetched[1]} {fetched[2]}")
    return lines if ivy.returncode != 0 else None


def _ivy_command(ivy_file: Path, conf: str, folder: Path) -> list[str]:
    java = find_java()
    trusted: list[str] = []
    if is_bundled(java):
        trusted = network_trust_options()
    command = [str(java / "bin" / "java"), *trusted, "-jar", str(_ivy_jar())]
    if settings := environment.IVY_SETTINGS.value():
        if not Path(settings).is_file():
            raise JarsError(f"KAFKA_LAKE_IVY_SETTINGS names {settings}, which is not a file. Correct it or unset it.")
        command += ["-settings", settings]
    command += ["-cache", str(cache() / "ivy"), "-ivy", str(ivy_file)]
    return [
        *command,
        "-confs",
        conf,
        "-types",
        "jar",
        "bundle",
        "tar.gz",
        "-retrieve",
        f"{folder}/[artifact]-[revision].[ext]",
    ]


def _ivy_jar() -> Path:
    spec = find_spec("pyspark")
    jars = [] if spec is None or spec.origin is None else list(Path(spec.origin).parent.glob("jars/ivy-*.jar"))
    if not jars:
        raise JarsError("There is no Ivy in the installed pyspark package: install this project's requirements.")
    return jars[0]


def _failure(conf: str, log: Path, lines: list[str]) -> str:
    reasons = [line for line in lines if _REASON.search(line)]
    shown = list(dict.fromkeys(reasons or filter(None, lines)))[-8:]
    return "\n".join(
        [
            f"The jars for {conf} could not be retrieved:",
            *(f"  {line}" for line in shown),
            f"All of it: {log}",
            "If the network failed, try again: downloaded files are kept. Without access to the default repository, "
            "set KAFKA_LAKE_IVY_SETTINGS to an Ivy settings file that names your mirror"
            " or an offline folder.",
        ]
    )


def main() -> None:
    """Retrieve jars with progress on standard output; what is not named comes once it is used."""
    parser = argparse.ArgumentParser(prog="python -m kafka_lake.engine.jars", description=main.__doc__)
    parser.add_argument(
        "confs",
        nargs="*",
        metavar="CONF",
        help=f"which ones: {', '.join(get_args(JarConf))} (default: {' '.join(_AHEAD)})",
    )
    confs = parser.parse_args().confs or _AHEAD
    if unknown := [conf for conf in confs if conf not in get_args(JarConf)]:
        parser.error(f"{unknown[0]} isn't one of {', '.join(get_args(JarConf))}")
    try:
        for conf in confs:
            jars = ensure_jars(conf, tell_user=lambda line: print(line, flush=True))
            print(f"{conf}: {len(jars)} jars ready")
    except KafkaLakeError as error:
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main()
