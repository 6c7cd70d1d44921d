"""Serves Spark's requests for Python workers, as its own daemon does."""

import runpy


def serve_workers() -> None:
    """Be the Python daemon of PySpark, until Spark closes standard input.

    Not documented: ``pyspark.daemon.manager``, which that module calls when it is run, as Spark runs it by itself.
    Without it, the module is run in this process: the same, but for what Python needs to read it once more. A version
    that wasn't tested makes no difference, since whatever it has is what Spark would have started.
    """
    try:
        from pyspark.daemon import manager
    except ImportError:
        runpy.run_module("pyspark.daemon", run_name="__main__", alter_sys=True)
    else:
        manager()
