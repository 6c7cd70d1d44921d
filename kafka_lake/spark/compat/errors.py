"""What PySpark's errors know and don't tell."""


def java_trace(error: BaseException) -> str:
    """Return the Java stack trace of an error of PySpark's; empty if it has none.

    Private: ``CapturedException._stackTrace``, of a Spark in this process; errors of Spark Connect have a public
    ``getStackTrace``. Without it there is only what the error's text says, which has the trace as well unless
    ``spark.sql.pyspark.jvmStacktrace.enabled`` is false.
    """
    told = getattr(error, "getStackTrace", None)
    return str((told() if callable(told) else getattr(error, "_stackTrace", None)) or "")
