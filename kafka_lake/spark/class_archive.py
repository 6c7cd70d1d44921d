"""Where Java keeps Spark's classes as it has loaded and verified them before: a start costs a third less with it.

Class data sharing of the JVM (JEP 350). An archive fits one Java and the files of one class path, whose sizes and times
the JVM compares; with any other it reads the classes from their jars, as it does if there is no archive.
`kafka_lake.demo.cds_archive` makes one.
"""

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

from kafka_lake.common.home import cache
from kafka_lake.spark.java import find_java

_SILENT = "-Xlog:cds=off -Xlog:cds+dynamic=off"


def class_archive(classpath: str) -> Path:
    """Return the archive's file for today's Java and a class path as its files are now; it needn't exist.

    Args:
        classpath: What Spark gets besides its own jars.

    Raises:
        JavaNotFoundError: If there is no Java.
    """
    java = find_java()
    release = java / "release"
    told = release.read_text() if release.is_file() else ""
    key = hashlib.sha256("\n".join([str(java), told, *_files(classpath)]).encode())
    return cache() / "classes" / f"spark-{key.hexdigest()[:12]}.jsa"


def archive_options(classpath: str) -> str:
    """Return the JVM's options for using the archive; none if there is no archive; raises `JavaNotFoundError`."""
    archive = class_archive(classpath)
    # Options are words, which Spark splits at blanks.
    usable = archive.is_file() and not any(letter.isspace() for letter in str(archive))
    return f"-XX:SharedArchiveFile={archive} {_SILENT}" if usable else ""


def training_options(archive: Path) -> str:
    """Return the JVM's options for writing an archive when it ends."""
    return f"-XX:ArchiveClassesAtExit={archive} {_SILENT}"


def _files(classpath: str) -> Iterator[str]:
    import pyspark

    spark = sorted(Path(pyspark.__file__).parent.glob("jars/*.jar"))
    for jar in [*spark, *map(Path, classpath.split(os.pathsep))]:
        yield f"{jar} {_state(jar)}"


def _state(jar: Path) -> str:
    try:
        found = jar.stat()
    except OSError:
        return ""
    return f"{found.st_size} {int(found.st_mtime)}"
