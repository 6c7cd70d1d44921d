"""What is tried again and what isn't, with the libraries' own exceptions; and how. Nobody sleeps here."""

import json
import ssl
from types import SimpleNamespace

import botocore.exceptions as botocore
import grpc
import pyspark
import pytest
import requests
from google.rpc.error_details_pb2 import ErrorInfo
from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
from pyiceberg import exceptions as iceberg
from pyspark.errors import AnalysisException, ParseException, PySparkTypeError, PythonException
from pyspark.errors.exceptions import captured
from pyspark.errors.exceptions.connect import SparkConnectGrpcException, convert_exception
from sqlalchemy import exc as sql

from kafka_lake import errors
from kafka_lake.error_classification import is_transient, kafka_data_loss
from kafka_lake.runtime.context import RetryPolicy, call

SECRET = "hush-hush"

# As Spark 4.1.3 says it when the first records of a planned range are gone.
LOST = """Some data may have been lost because they are not available in Kafka any more;
either the data was aged out by Kafka or the topic may have been deleted before all the data in the
topic was processed.
If you don't want your streaming query to fail on such cases, set the source option failOnDataLoss to false.
Reason: Could not read records in offset [6, 12) for topic partition my-shop.orders-3
with consumer group spark-kafka-relation-2eace5e1-b23f-41ce-9f00-6cd14b7dcc33-executor."""
LOSS = "topic my-shop.orders partition 3: of offsets 6 to 11 some are gone."
UNREACHABLE = (
    "org.apache.kafka.common.errors.TimeoutException: Timed out waiting for a node assignment. Call: listNodes"
)


def py4j(java: str) -> Py4JJavaError:
    """Return the error that Py4J makes of a Java exception, whose text and trace come over the gateway."""
    trace = f"{java}\n\tat org.apache.spark.sql.Writer.append(Writer.scala:1)\n"
    client = SimpleNamespace(converters=[], is_connected=True, send_command=lambda command: "ys" + escaped(trace))
    java_object = SimpleNamespace(_target_id="o9", _gateway_client=client)
    return Py4JJavaError("An error occurred while calling o75.append.\n", java_object)


def escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\r", "\\r").replace("\n", "\\n")


def connect(java: str, message: str, trace: str = "", **more: str) -> SparkConnectGrpcException:
    """Return the error that Spark Connect's client makes of a Java exception."""
    info = ErrorInfo(reason=java, metadata={"classes": json.dumps([java]), "stackTrace": trace, **more})
    return convert_exception(info, message, None, False, grpc.StatusCode.INTERNAL)


def grpc_error(code: grpc.StatusCode) -> SparkConnectGrpcException:
    return SparkConnectGrpcException("from the channel", grpc_status_code=code)


class RawRpcError(grpc.RpcError):
    def __init__(self, code: grpc.StatusCode) -> None:
        self._code = code

    def code(self) -> grpc.StatusCode:
        return self._code


def http(status: int) -> requests.HTTPError:
    response = requests.Response()
    response.status_code = status
    return requests.HTTPError(f"{status} for url", response=response)


def operational(text: str) -> sql.OperationalError:
    return sql.OperationalError("SELECT 1", {}, Exception(text))


TRANSIENT = [
    botocore.ConnectionClosedError(endpoint_url="http://glue"),
    botocore.EndpointConnectionError(endpoint_url="http://glue"),
    botocore.ReadTimeoutError(endpoint_url="http://glue"),
    errors.KafkaError("no answer"),
    errors.RegistryError("no answer"),
    errors.CatalogError("no answer"),
    errors.EngineUnavailableError("no answer"),
    iceberg.CommitFailedException("Requirement failed: branch main has changed"),
    iceberg.CommitStateUnknownException("502"),
    iceberg.ServerError("500"),
    iceberg.ServiceUnavailableError("503"),
    iceberg.TooManyRequestsError("429"),
    iceberg.WaitingForLockException("hive"),
    requests.ConnectionError("Failed to establish a new connection: [Errno 111] Connection refused"),
    requests.ReadTimeout("read timed out"),
    requests.exceptions.ChunkedEncodingError("broken"),
    http(429),
    http(503),
    operational("database is locked"),
    sql.TimeoutError("QueuePool limit reached"),
    ConnectionRefusedError(111, "Connection refused"),
    ConnectionResetError(104, "reset"),
    TimeoutError(),
    OSError("When reading information for key 'a' in bucket 'b': AWS Error SLOW_DOWN during HeadObject operation"),
    py4j(f"java.util.concurrent.ExecutionException: {UNREACHABLE}"),
    py4j("org.apache.spark.SparkException: Job aborted due to stage failure: ExecutorLostFailure (executor 1 exited)"),
    py4j("org.apache.iceberg.exceptions.CommitFailedException: Cannot commit: stale table metadata"),
    connect("java.util.concurrent.ExecutionException", UNREACHABLE),
    connect("org.apache.iceberg.exceptions.ServiceUnavailableException", "Service failed: 503"),
    connect("org.apache.spark.SparkException", "[WRITING_JOB_ABORTED] Writing job aborted. SQLSTATE: 40000"),
    grpc_error(grpc.StatusCode.UNAVAILABLE),
    RawRpcError(grpc.StatusCode.UNAVAILABLE),
]

LASTING = [
    errors.RecordTooLargeError("the record at partition 0 offset 7"),
    botocore.NoCredentialsError(),
    botocore.NoRegionError(),
    errors.UnknownTopicError("no such topic"),
    errors.AuthenticationError("refused"),
    errors.AuthorizationError("not allowed"),
    errors.RegistryRefusedError("401"),
    errors.CatalogRefusedError("401"),
    errors.UnknownSchemaError("no schema id 7"),
    errors.SchemaNotSupportedError("nested too deeply"),
    errors.ConfigurationError("unknown setting"),
    errors.DataLossError("lost"),
    errors.TopicReplacedError("another topic"),
    errors.TableError("has rows"),
    errors.AuditFailedError("a gate"),
    errors.PublishRefusedError("main moved"),
    errors.KafkaLakeError("any other"),
    iceberg.NoSuchTableError("n.t"),
    iceberg.NoSuchNamespaceError("n"),
    iceberg.ForbiddenError("403"),
    iceberg.UnauthorizedError("401"),
    iceberg.AuthorizationExpiredError("419"),
    iceberg.BadRequestError("400"),
    iceberg.OAuthError("invalid_client"),
    iceberg.ValidationError("schema"),
    requests.exceptions.SSLError("certificate verify failed"),
    requests.exceptions.InvalidURL("no host"),
    http(401),
    http(404),
    sql.IntegrityError("INSERT", {}, Exception("UNIQUE constraint failed")),
    sql.ProgrammingError("SELEC", {}, Exception("syntax")),
    FileNotFoundError(2, "No such file", "/lake/metadata.json"),
    PermissionError(13, "Permission denied", "/lake"),
    ssl.SSLCertVerificationError("certificate verify failed"),
    OSError("When reading information for key 'a' in bucket 'b': AWS Error ACCESS_DENIED during HeadObject operation"),
    AnalysisException("no such column"),
    ParseException("syntax"),
    PythonException("An exception was thrown from the Python worker."),
    PySparkTypeError("not a column"),
    Py4JNetworkError("Answer from Java side is empty"),
    Py4JError("Method nope([]) does not exist"),
    py4j(f"org.apache.spark.sql.kafka010.KafkaIllegalStateException: {LOST}"),
    py4j("java.util.concurrent.ExecutionException: org.apache.kafka.common.errors.UnknownTopicOrPartitionException: x"),
    py4j("org.apache.kafka.common.errors.TopicAuthorizationException: Not authorized to access topics: [t]"),
    py4j("org.apache.kafka.common.errors.GroupAuthorizationException: Not authorized to access group: g"),
    py4j(
        "o.S: Job aborted\nCaused by: org.apache.kafka.common.errors.SaslAuthenticationException: Authentication failed"
    ),
    py4j("org.apache.kafka.common.errors.SslAuthenticationException: SSL handshake failed"),
    py4j("org.apache.kafka.clients.consumer.OffsetOutOfRangeException: Fetch position 6 is out of range for a-0"),
    py4j("org.apache.kafka.common.config.ConfigException: Invalid value NONSENSE for configuration security.protocol"),
    py4j("org.apache.spark.SparkException: Lost task\nCaused by: java.lang.OutOfMemoryError: Java heap space"),
    py4j(
        'o.S: Lost task\nCaused by: org.apache.hadoop.fs.UnsupportedFileSystemException: No FileSystem for scheme "s3"'
    ),
    py4j(
        "software.amazon.awssdk.core.exception.SdkClientException: Unable to load region from any of the providers in x"
    ),
    py4j("org.apache.spark.SparkClassNotFoundException: [DATA_SOURCE_NOT_FOUND] Failed to find the data source: x"),
    py4j("org.apache.iceberg.exceptions.NotAuthorizedException: Not authorized: 401"),
    py4j("org.apache.iceberg.exceptions.ForbiddenException: Forbidden: 403"),
    py4j("software.amazon.awssdk.services.s3.model.S3Exception: Access Denied (Service: S3, Status Code: 403)"),
    py4j(
        "org.apache.spark.SparkException: Lost task\nCaused by: org.apache.spark.api.python.PythonException: Traceback"
    ),
    py4j("java.lang.IllegalStateException: Cannot call methods on a stopped SparkContext."),
    connect("org.apache.spark.sql.kafka010.KafkaIllegalStateException", LOST),
    connect("org.apache.spark.sql.AnalysisException", "[UNRESOLVED_COLUMN] `nope` cannot be resolved"),
    connect("org.apache.spark.api.python.PythonException", "Traceback: ConnectionError: of the user's own"),
    connect("org.apache.spark.SparkRuntimeException", "[USER_RAISED_EXCEPTION] my own SQLSTATE: P0001"),
    connect("org.apache.spark.SparkNumberFormatException", "[CAST_INVALID_INPUT] 'x' SQLSTATE: 22018"),
    connect(
        "org.apache.spark.SparkException",
        "[WRITING_JOB_ABORTED] Writing job aborted. SQLSTATE: 40000",
        "org.apache.spark.SparkException\nCaused by: org.apache.kafka.common.errors.TopicAuthorizationException: no",
    ),
    grpc_error(grpc.StatusCode.UNAUTHENTICATED),
    RawRpcError(grpc.StatusCode.PERMISSION_DENIED),
    KeyboardInterrupt(),
    SystemExit(1),
    GeneratorExit(),
    TypeError("x"),
    AttributeError("x"),
    AssertionError("x"),
    KeyError("x"),
    ZeroDivisionError("x"),
    RuntimeError("x"),
    Exception("x"),
]


def label(error: object) -> str:
    return f"{type(error).__name__}-{str(error)[:60]!r}".replace("::", ":")


@pytest.mark.parametrize("error", TRANSIENT, ids=label)
def test_what_may_be_gone_a_moment_later_is_tried_again(error):
    assert is_transient(error)


@pytest.mark.parametrize("error", LASTING, ids=label)
def test_what_somebody_must_mend_is_not_tried_again(error):
    assert not is_transient(error)


def test_a_stack_frame_is_no_cause():
    trace = f"{UNREACHABLE}\n\tat org.apache.kafka.common.errors.TopicAuthorizationException.x(A.java:1)"
    assert is_transient(py4j(trace))


def test_an_error_whose_java_virtual_machine_is_gone_is_not_tried_again():
    error = py4j(UNREACHABLE)

    def dead(command: str) -> str:
        raise ConnectionRefusedError(111, "Connection refused")

    error.java_exception._gateway_client.send_command = dead
    assert not is_transient(error)


@pytest.mark.parametrize(("cause", "transient"), [("java.lang.OutOfMemoryError: x", False), (UNREACHABLE, True)])
def test_a_cause_counts_though_spark_is_set_to_hide_it_from_the_text(monkeypatch, cause, transient):
    """That is ``spark.sql.pyspark.jvmStacktrace.enabled``."""
    conf = SimpleNamespace(pysparkJVMStacktraceEnabled=lambda: False)
    jvm = SimpleNamespace(**{"org.apache.spark.sql.internal.SQLConf": SimpleNamespace(get=lambda: conf)})
    monkeypatch.setattr(pyspark.SparkContext, "_jvm", jvm)
    monkeypatch.setattr(pyspark.SparkContext, "_gateway", SimpleNamespace())
    error = captured.QueryExecutionException("Job aborted.", f"o.a.s.SparkException: Job aborted.\nCaused by: {cause}")
    assert str(error) == "Job aborted."
    assert is_transient(error) is transient


@pytest.mark.parametrize(
    ("error", "loss"),
    [
        (py4j(f"org.apache.spark.sql.kafka010.KafkaIllegalStateException: {LOST}"), LOSS),
        (
            py4j(
                "org.apache.spark.SparkException: Job aborted due to stage failure: Lost task 0.3 in stage 1.0: "
                f"org.apache.spark.sql.kafka010.KafkaIllegalStateException: {LOST}"
            ),
            LOSS,
        ),
        (connect("org.apache.spark.sql.kafka010.KafkaIllegalStateException", LOST), LOSS),
        (
            connect(
                "org.apache.spark.SparkException",
                "[WRITING_JOB_ABORTED] Writing job aborted. SQLSTATE: 40000",
                f"x\nCaused by: org.apache.spark.sql.kafka010.KafkaIllegalStateException: {LOST}",
            ),
            LOSS,
        ),
        (
            py4j(LOST.partition("Reason:")[0] + "Reason:\nPartitions Set(a-0) have been deleted.\nmore"),
            "Partitions Set(a-0) have been deleted.",
        ),
        (
            py4j("org.apache.kafka.clients.consumer.OffsetOutOfRangeException: Fetch position 6 for partition a-0"),
            "OffsetOutOfRangeException: Fetch position 6 for partition a-0",
        ),
        (py4j(UNREACHABLE), None),
        (py4j("org.apache.kafka.common.errors.UnknownTopicOrPartitionException: gone"), None),
        (errors.DataLossError(LOST), None),
        (RuntimeError(LOST), None),
    ],
)
def test_loss_between_plan_and_read_is_recognised(error, loss):
    assert kafka_data_loss(error) == loss


class Failing:
    """Raises the given errors, one a call, and returns "done" after them."""

    def __init__(self, *failures: BaseException) -> None:
        self.failures = list(failures)
        self.calls = 0

    def __call__(self) -> str:
        self.calls += 1
        if self.calls <= len(self.failures):
            raise self.failures[self.calls - 1]
        return "done"


def attempt(function, **settings):
    """Return what `call` returned or raised, the lines it said and the seconds it wanted to sleep."""
    lines: list[str] = []
    pauses: list[float] = []
    try:
        outcome = call(RetryPolicy(**settings), lines.append, "Topic orders", function, sleep=pauses.append)
    except BaseException as error:
        outcome = error
    return outcome, lines, pauses


def test_success_says_and_waits_nothing():
    assert attempt(Failing()) == ("done", [], [])


def test_each_retry_is_told_in_one_line():
    function = Failing(errors.KafkaError("No answer.", "Check the brokers."), TimeoutError())
    outcome, lines, pauses = attempt(function)
    assert (outcome, function.calls) == ("done", 3)
    assert lines == [
        f"Topic orders: attempt 1 of 6 failed: No answer. Retrying in {pauses[0]:.1f} s.",
        f"Topic orders: attempt 2 of 6 failed: TimeoutError Retrying in {pauses[1]:.1f} s.",
    ]


def test_the_original_error_is_raised_after_the_last_attempt():
    failures = [errors.KafkaError(str(number)) for number in range(4)]
    function = Failing(*failures)
    outcome, lines, pauses = attempt(function, attempts=3)
    assert outcome is failures[2]
    assert (function.calls, len(lines), len(pauses)) == (3, 2, 2)


@pytest.mark.parametrize("error", [errors.DataLossError("lost"), KeyboardInterrupt(), TypeError("x")], ids=label)
def test_a_lasting_error_is_raised_at_once(error):
    function = Failing(error)
    assert attempt(function) == (error, [], [])
    assert function.calls == 1


def test_one_attempt_means_no_retry():
    error = errors.KafkaError("no answer")
    assert attempt(Failing(error), attempts=1) == (error, [], [])


def test_every_call_counts_its_own_attempts():
    policy, said = RetryPolicy(attempts=2), []
    for _ in range(3):
        assert call(policy, said.append, "x", Failing(TimeoutError()), sleep=lambda seconds: None) == "done"
    assert [line.partition("attempt")[2][:7] for line in said] == [" 1 of 2"] * 3


def test_pauses_are_random_below_a_bound_that_doubles_up_to_its_maximum():
    highest = [0.0] * 6
    seen = set()
    for _ in range(300):
        _, _, pauses = attempt(Failing(*[TimeoutError()] * 9), attempts=7, initial_seconds=0.5, max_seconds=6.0)
        highest = [max(pair) for pair in zip(highest, pauses, strict=True)]
        seen.update(pauses)
    for reached, bound in zip(highest, [0.5, 1, 2, 4, 6, 6], strict=True):
        assert bound * 0.9 < reached <= bound
    assert len(seen) > 1000
    assert min(seen) < 0.05


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (py4j(UNREACHABLE), f"failed: {UNREACHABLE} Retrying"),
        (
            connect("java.lang.X", UNREACHABLE, "java.lang.X\n\tat a.b(C.java:1)"),
            f"failed: (java.lang.X) {UNREACHABLE}",
        ),
        (ConnectionRefusedError(111, "Connection refused"), "failed: ConnectionRefusedError: [Errno 111] Connection"),
        (OSError("\n\n  first\nsecond"), "failed: OSError: first Retrying"),
        (OSError("x" * 1000), "xxx… Retrying"),
        (OSError(f'PlainLoginModule required username="bob" password="{SECRET}";'), 'username="bob" password=***'),
        (OSError(f"postgresql://bob:{SECRET}@db:5432/lake"), "postgresql://***@db:5432/lake"),
        (OSError(f"{{'s3.secret-access-key': '{SECRET}', 'region': 'x'}}"), "'s3.secret-access-key': ***, 'region'"),
        (OSError(f"GET https://c/v1?token={SECRET}&page=2"), "?token=***&page=2"),
        (OSError(f"header Authorization: Bearer {SECRET}"), "Authorization: Bearer ***"),
        (errors.KafkaError("Invalid username or password (as it seems)."), "Invalid username or password (as it"),
    ],
    ids=label,
)
def test_a_line_has_the_point_of_an_error_and_no_more(error, said):
    _, lines, _ = attempt(Failing(error))
    assert said in lines[0]
    assert len(lines[0]) <= 300
    assert "\n" not in lines[0]
    assert "\tat" not in lines[0]
    assert SECRET not in lines[0]
