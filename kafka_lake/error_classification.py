"""Classification of errors by their types and messages: temporary or lasting, caused by a record or a system."""

import re

import requests
from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]
from pyiceberg import exceptions as iceberg
from pyspark.errors import AnalysisException, PySparkException, PythonException
from sqlalchemy import exc as sql

from kafka_lake.catalog.backends import S3, storage_of
from kafka_lake.common.environment import catalog_variable, own_variables
from kafka_lake.common.logs import without_secret_values, without_secrets
from kafka_lake.engine.interop import java_trace
from kafka_lake.errors import (
    AuthenticationError,
    AuthorizationError,
    CatalogError,
    CatalogRefusedError,
    ConfigurationError,
    EngineUnavailableError,
    KafkaError,
    KafkaLakeError,
    RegistryError,
    RegistryRefusedError,
    UnknownSchemaError,
    UnknownTopicError,
)
from kafka_lake.kafka.cluster import KafkaCluster
from kafka_lake.kafka.explain import Right, identity, missing_right

LINE_LENGTH = 300
"""Most characters of a line in a log."""

_TEMPORARY_ERRORS = (KafkaError, RegistryError, CatalogError, EngineUnavailableError)
_LASTING_ERRORS = (
    UnknownTopicError,
    AuthenticationError,
    AuthorizationError,
    UnknownSchemaError,
    RegistryRefusedError,
    CatalogRefusedError,
)

_PROGRAMMING_ERRORS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    NameError,
    NotImplementedError,
    TypeError,
    ValueError,
)

_LASTING_SYSTEM_ERRORS = (
    FileExistsError,
    FileNotFoundError,
    IsADirectoryError,
    NotADirectoryError,
    PermissionError,
    requests.exceptions.SSLError,
)

_TEMPORARY_CATALOG_ERRORS = (
    iceberg.CommitFailedException,
    iceberg.CommitStateUnknownException,
    iceberg.ServerError,
    iceberg.ServiceUnavailableError,
    iceberg.TooManyRequestsError,
    iceberg.WaitingForLockException,
    sql.OperationalError,
    sql.TimeoutError,
)

# gRPC status codes (https://grpc.io/docs/guides/status-codes/) that a retry doesn't change.
_LASTING_GRPC_CODES = {"INVALID_ARGUMENT", "PERMISSION_DENIED", "UNAUTHENTICATED", "UNIMPLEMENTED"}

# Spark wraps causes into general errors, in other classes in the process than through Connect. The text names the
# cause in both.
_LASTING_CAUSE = re.compile(
    r"(?:Authentication|Authorization|NotAuthorized|Forbidden|AccessDenied)Exception\b"
    r"|UnknownTopicOrPartitionException|UnknownTopicIdException|OffsetOutOfRangeException|failOnDataLoss"
    r"|\bAccess ?Denied\b|ACCESS_DENIED|InvalidAccessKeyId|INVALID_ACCESS_KEY_ID|SignatureDoesNotMatch|NoSuchBucket"
    r"|OutOfMemoryError|ClassNotFoundException|NoClassDefFoundError|NoSuchMethodError|UnsupportedClassVersionError"
    r"|UnsupportedFileSystemException|Unable to load region from any of the providers"
    r"|common\.config\.ConfigException|api\.python\.PythonException|stopped SparkContext|SparkContext was shut down"
    r"|java\.lang\.ArithmeticException"
    # The standard's classes for data, user code, syntax and missing features; P0 is the query's own raise_error.
    r"|SQLSTATE: (?:22|38|39|42|0A|P0)"
)

_SYSTEM_GRPC_CODES = _LASTING_GRPC_CODES | {"CANCELLED", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED", "UNAVAILABLE"}

# Messages that name a system or another writer as the cause; any other error may be caused by a record.
_SYSTEM_CAUSE = re.compile(
    r"(?:Authentication|Authorization|NotAuthorized|Forbidden|AccessDenied)Exception\b"
    r"|\bAccess ?Denied\b|ACCESS_DENIED|InvalidAccessKeyId|INVALID_ACCESS_KEY_ID|SignatureDoesNotMatch|NoSuchBucket"
    r"|OutOfMemoryError|No space left on device|Disk quota exceeded|Too many open files"
    r"|ClassNotFoundException|NoClassDefFoundError|NoSuchMethodError|UnsupportedClassVersionError"
    r"|org\.apache\.kafka\.|failOnDataLoss|org\.apache\.iceberg\.exceptions\.|org\.apache\.hadoop\.fs\."
    r"|java\.(?:net\.\w+|sql\.SQL\w*|io\.(?:\w*IO|FileNotFound))Exception|software\.amazon\.awssdk"
    r"|java\.util\.concurrent\.TimeoutException|InterruptedException|ExecutorLostFailure|FetchFailed"
    # Missing columns and tables, whatever the records are.
    r"|UNRESOLVED_|PARSE_SYNTAX_ERROR"
    r"|stopped SparkContext|SparkContext was shut down|ModuleNotFoundError|ImportError"
    # Services that user code calls, and memory.
    r"|\bConnection\w*Error\b|\b\w*Timeout(?:Error)?\b|\b\w*MemoryError\b|\b\w*OperationalError\b|\bgaierror\b"
    r"|\bURLError\b|\bHTTPError\b|\bRemoteDisconnected\b|\b(?:OS|IO)Error: \[Errno|can't start new thread"
    r"|PYTHON_VERSION_MISMATCH|TABLE_OR_VIEW_NOT_FOUND|INVALID_HANDLE|java\.nio\.|Failed to get broadcast"
    r"|on <module 'pyspark"
    r"|Ref does not exist|Cannot fast-forward|Cannot use branch|to unknown snapshot|Cannot find (?:the )?snapshot"
)
# Workers that don't start; a record may have killed one that exits unexpectedly.
_NO_WORKERS = re.compile(r"\A(?!.*Python worker exited unexpectedly).*java\.io\.EOFException", re.DOTALL)

# Messages of an engine whose process ended, or that ran out of memory.
_DIED = re.compile(
    r"OutOfMemoryError|ExecutorLostFailure|stopped SparkContext|SparkContext was shut down|INVALID_HANDLE"
)

_STACK_FRAME = re.compile(r"^\s+at .*$", re.MULTILINE)

_RAISED = re.compile(r"^Traceback \(most recent call last\):\n(?:[ \t].*\n|\n)*(\S.*)$", re.MULTILINE)

_LOST_RANGE = re.compile(r"Could not read records in offset \[(\d+), (\d+)\) for topic partition (\S+)-(\d+)")
_LOST = re.compile(r"failOnDataLoss to false\.\s+Reason:\s*([^\n]+)|(OffsetOutOfRangeException[^\n]*)")

_OVERFLOW = re.compile(r"java\.lang\.ArithmeticException: long overflow")


def is_transient(error: BaseException) -> bool:
    """Return whether the same attempt may succeed a moment later."""
    if isinstance(error, KafkaLakeError):
        return isinstance(error, _TEMPORARY_ERRORS) and not isinstance(error, _LASTING_ERRORS)
    if isinstance(error, PySparkException | Py4JError) or _grpc_code(error):
        return _spark_may_recover(error)
    if isinstance(error, (*_PROGRAMMING_ERRORS, *_LASTING_SYSTEM_ERRORS)):
        return False
    if isinstance(error, requests.exceptions.HTTPError):
        return error.response is not None and error.response.status_code in (408, 429, 500, 502, 503, 504)
    if isinstance(error, OSError):
        # Arrow and file systems raise plain OSError when a store denies access.
        return not _LASTING_CAUSE.search(str(error))
    if type(error).__module__ == "botocore.exceptions":
        # botocore is optional, so its classes are compared by name.
        return bool({base.__name__ for base in type(error).__mro__} & {"ConnectionError", "HTTPClientError"})
    return isinstance(error, _TEMPORARY_CATALOG_ERRORS)


def may_be_a_record(error: BaseException) -> bool:
    """Return whether a record may be the cause of an error of staging."""
    if isinstance(error, (KafkaLakeError, ImportError, MemoryError, NotImplementedError, OSError, sql.SQLAlchemyError)):
        return False
    if type(error).__module__ == iceberg.__name__:
        return isinstance(error, iceberg.ValidationError)
    if type(error).__module__.startswith("botocore."):
        return False
    if isinstance(error, Py4JError) and not isinstance(error, Py4JJavaError):
        return False
    if isinstance(error, PySparkException | Py4JError) or _grpc_code(error):
        text = _text(error)
        is_system = _grpc_code(error) in _SYSTEM_GRPC_CODES or _SYSTEM_CAUSE.search(text) or _NO_WORKERS.search(text)
        return not is_system
    return isinstance(error, Exception)


def engine_died(error: BaseException) -> bool:
    """Return whether the engine, or one of its processes, may have died."""
    if isinstance(error, KafkaLakeError):
        return isinstance(error, EngineUnavailableError)
    if isinstance(error, Py4JError) and not isinstance(error, Py4JJavaError):
        return True
    if isinstance(error, PySparkException | Py4JError) or _grpc_code(error):
        return _grpc_code(error) == "UNAVAILABLE" or bool(_DIED.search(_text(error)))
    return isinstance(error, ConnectionError)


def kafka_data_loss(error: BaseException) -> str | None:
    """Return the loss if Spark's Kafka source failed because planned offsets are gone (its ``failOnDataLoss``)."""
    if not isinstance(error, PySparkException | Py4JJavaError):
        return None
    text = _text(error)
    if found := _LOST_RANGE.search(text):
        start, end, topic, partition = found.groups()
        return f"topic {topic} partition {partition}: of offsets {start} to {int(end) - 1} some are gone."
    if found := _LOST.search(text):
        return clipped(found[1] or found[2], LINE_LENGTH)
    return None


def may_be_a_record_time(error: BaseException) -> bool:
    """Return whether a record's Kafka timestamp is the cause: Spark's conversion to microseconds overflows."""
    return bool(_OVERFLOW.search(java_text(error) or ""))


def java_text(error: BaseException) -> str | None:
    """Return the text of an error of Spark with its Java causes; None for other errors."""
    return _text(error) if isinstance(error, PySparkException | Py4JJavaError) or _grpc_code(error) else None


def _spark_may_recover(error: BaseException) -> bool:
    if isinstance(error, (AnalysisException, PythonException, *_PROGRAMMING_ERRORS)):
        return False
    if isinstance(error, Py4JError) and not isinstance(error, Py4JJavaError):
        # The JVM of this process is gone; only a new process has another one.
        return False
    return _grpc_code(error) not in _LASTING_GRPC_CODES and not _LASTING_CAUSE.search(_text(error))


def _grpc_code(error: BaseException) -> str:
    """Return the status code of a gRPC error, raw or as Spark Connect wraps it; empty for other errors."""
    ask = getattr(error, "getGrpcStatusCode", None) or getattr(error, "code", None)
    code = ask() if callable(ask) else None
    return str(getattr(code, "name", ""))


def _text(error: BaseException) -> str:
    """Return the text of an error with its Java causes, without stack frames."""
    try:
        # Whether str(error) contains the trace depends on Spark's settings.
        return _STACK_FRAME.sub("", f"{error}\n{java_trace(error)}")
    except Exception as unreadable:
        # PySpark gets the text from the JVM, which may be gone.
        return f"stopped SparkContext: {type(unreadable).__name__}"


def headline(error: BaseException | None) -> str:
    """Return the most informative line of an error, without stack trace and secrets."""
    if isinstance(error, PySparkException | Py4JJavaError) and (raised := _RAISED.findall(_text(error))):
        # The exception of user code; Spark's first line names only the Python worker.
        return without_secrets(str(raised[-1]))
    lines = [line.strip() for line in _message(error).splitlines() if line.strip()]
    if isinstance(error, Py4JJavaError) and len(lines) > 1:
        # The first line names a Py4J object, the second the Java exception.
        lines = [lines[1].removeprefix(":").strip()]
    name = type(error).__name__
    line = lines[0] if lines else name
    if not isinstance(error, KafkaLakeError | PySparkException | Py4JJavaError) and lines:
        line = f"{name}: {line}"
    return without_secrets(line)


def _message(error: BaseException | None) -> str:
    return error.message if isinstance(error, KafkaLakeError) else _text(error) if error else ""


def clipped(text: str, length: int) -> str:
    """Return a text, cut to a length."""
    return text if len(text) <= length else text[: max(length - 1, 0)] + "…"


# Packages whose errors are about a system, and not about a bug of this program.
_SYSTEM_PACKAGES = {
    "botocore",
    "confluent_kafka",
    "grpc",
    "pyarrow",
    "py4j",
    "pyiceberg",
    "pyspark",
    "requests",
    "sqlalchemy",
    "thrift",
    "urllib3",
}


def user_message(error: BaseException) -> str | None:
    """Return the message for the user, without secrets; None for a bug of this program."""
    if isinstance(error, KafkaLakeError):
        return without_secret_values(str(error))
    if isinstance(error, OSError) or type(error).__module__.partition(".")[0] in _SYSTEM_PACKAGES:
        return f"{headline(error).rstrip('.')}. `kafka-lake doctor` checks each system."
    return None


_NO_REGION = "Unable to load region from any of the providers"
_NO_FILE_SYSTEM = re.compile(r"No FileSystem for scheme \"(\w+)\"")

_TOPIC = re.compile(r"TopicAuthorizationException: Not authorized to access topics: \[([^\]]+)\]")
_GROUP = re.compile(r"GroupAuthorizationException: Not authorized to access group: (\S+)")
_REFUSED = re.compile(r"(?:Sasl|Ssl)\w*AuthenticationException: ([^\n]+)")
_STORE = re.compile(r"KafkaException: (Failed to load (?:PEM )?SSL \w*store[^\n]*|[^\n]*Invalid PEM \w*store[^\n]*)")


def files_out_of_reach(error: BaseException, table: str, catalog: str) -> KafkaLakeError | None:
    """Return the error for the user if Spark lacks the configuration of a table's storage."""
    text, setting = java_text(error) or "", catalog_variable(catalog)
    if _NO_REGION in text:
        return ConfigurationError(
            f"Table {table}: Spark doesn't know the S3 region of its files.",
            f"Set {setting}S3__REGION. Stores other than AWS usually accept any region. Nothing was written.",
        )
    scheme = _NO_FILE_SYSTEM.search(text)
    if not scheme:
        return None
    storage = storage_of(scheme[1])
    remedy = f"Set {setting}IO_IMPL to the Java class that reads and writes there, and give Spark its jar."
    if storage is S3:
        remedy = f"Set {setting}S3__REGION: any setting of S3 gives Spark its client."
    elif storage:
        remedy = f"Set {setting}IO_IMPL={storage.java_files}; Spark then gets its jar."
    return ConfigurationError(
        f"Table {table}: its files are at {scheme[1]}://, and Spark has no client for this scheme.",
        f"{remedy} Nothing was written.",
    )


def refused_by_kafka(error: BaseException, topic: str, cluster: KafkaCluster) -> KafkaLakeError | None:
    """Return the error for the user if the brokers refused Spark."""
    text = java_text(error)
    found = None if text is None else _refused(text, topic, cluster)
    return found and own_variables(found, cluster.name)


def _refused(text: str, topic: str, cluster: KafkaCluster) -> KafkaLakeError | None:
    properties = cluster.properties
    where = f"Reading topic {topic} in Spark: the cluster at {cluster.bootstrap_servers}"
    if found := _TOPIC.search(text):
        return missing_right(where, Right("READ", "topic", found[1]), properties)
    if found := _GROUP.search(text):
        return missing_right(where, Right("READ", "group", found[1]), properties)
    if found := _STORE.search(text):
        return ConfigurationError(
            f"{where} can't be reached: {found[1].strip().rstrip('.')}.",
            "Copy the file to the same path on each machine that Spark runs on. Or set the certificate's text in "
            "KAFKA_LAKE_KAFKA_SSL_CA_PEM.",
        )
    if found := _REFUSED.search(text):
        return AuthenticationError(
            f"{where} refused {identity(properties)}: {found[1].strip().rstrip('.')}.",
            "If the password or the certificate has changed, restart this process with the new one. The next run "
            "continues at the table's position.",
        )
    return None
