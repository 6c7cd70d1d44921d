"""Where Java keeps Spark's classes as it has loaded and verified them before: a start costs a third less with it.

Class data sharing of the JVM (JEP 350). An archive fits one Java, one class path; with any other the JVM reads the
classes from their jars, as it does if there is no archive. `kafka_lake.demo.rehearsal` makes one.
"""

import hashlib
from pathlib import Path

from kafka_lake.home import cache
from kafka_lake.spark.java import find_java

_SILENT = "-Xlog:cds=off -Xlog:cds+dynamic=off"


def class_archive(classpath: str) -> Path:
    """Return the archive's file for today's Java and a class path; it needn't exist.

    Args:
        classpath: What Spark gets besides its own jars.

    Raises:
        JavaNotFoundError: If there is no Java.
    """
    java = find_java()
    release = java / "release"
    told = release.read_text() if release.is_file() else ""
    key = hashlib.sha256("\n".join([str(java), told, _pyspark(), classpath]).encode())
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


def _pyspark() -> str:
    import pyspark

    return f"{pyspark.__version__} {Path(pyspark.__file__).parent}"
