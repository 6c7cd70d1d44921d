"""Starts the JVM of a Spark in this process before there is a session."""

from functools import cache

from pyspark import SparkConf, SparkContext

from kafka_lake.common.tested_versions import is_tested


def ensure_jvm() -> None:
    """Start this process's JVM by the arguments in ``PYSPARK_SUBMIT_ARGS``; does nothing if there is one.

    Private: ``SparkContext._ensure_initialized``. All that is public starts a context with the JVM, and gives the JVM
    each setting as an argument, for every account of the machine to read. Without it, or with a version that wasn't
    tested, a context is started with no setting but its name, so with those of the arguments' properties file; once in
    a process. A process in which others had a Spark before then gets a context with the settings of that one's JVM.
    """
    if hasattr(SparkContext, "_ensure_initialized") and is_tested("pyspark"):
        SparkContext._ensure_initialized()
    else:
        _start_context()


@cache
def _start_context() -> None:
    SparkContext.getOrCreate(SparkConf().setAppName("kafka_lake"))
