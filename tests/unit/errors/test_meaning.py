"""The table of what other programs' errors mean, fed with errors as they raise them."""

from __future__ import annotations

from typing import Any

import pytest
import requests
from botocore.exceptions import (
    ClientError,
    CredentialRetrievalError,
    EndpointConnectionError,
    NoCredentialsError,
    ReadTimeoutError,
    SSOTokenLoadError,
)
from confluent_kafka import KafkaError, KafkaException
from py4j.protocol import Py4JError
from pyiceberg.exceptions import (
    BadRequestError,
    CommitFailedException,
    CommitStateUnknownException,
    ServerError,
    ServiceUnavailableError,
    ValidationException,
)
from pyspark.errors import PySparkException
from pyspark.errors.exceptions.connect import (
    AnalysisException,
    PythonException,
    SparkConnectGrpcException,
)
from snowflake.connector.errors import DatabaseError, OperationalError, ProgrammingError

from topicberg.clients.answers import UnknownNamesError, unusable
from topicberg.clients.confluent import (
    ApiError,
    ConflictError,
    CredentialsError,
    FailedError,
    GoneError,
    UncertainError,
)
from topicberg.errors import (
    CommitConflictError,
    LoginError,
    MissingFileError,
    SpecError,
    ThrottledError,
    TopicbergError,
    UnreachableError,
)
from topicberg.errors.meaning import classify, explain, is_of_service, is_refused, means, to_report
from topicberg.errors.table import (
    BROKEN,
    CONFLICT,
    DENIED,
    ENDED,
    EVENTUAL,
    EXISTS,
    FULL,
    MISSING,
    THROTTLED,
    UNACCEPTED,
    UNANSWERED,
    UNREACHABLE,
    Kind,
)

LOST = "Job aborted due to stage failure: java.io.UncheckedIOException: Failed to close\n"
GRPC = """<_InactiveRpcError of RPC that terminated with:
\tstatus = StatusCode.UNAVAILABLE
\tdetails = "failed to connect to all addresses; last error: Connection refused"
\tdebug_error_string = "UNKNOWN"
>"""
TASK = """Job aborted due to stage failure: Task 0 failed 1 times, most recent failure: \
Lost task 0.0 in stage 2.0 (TID 2) (localhost executor driver): org.example.KafkaException: no luck
\tat java.base/java.lang.Thread.run(Unknown Source)
Caused by: org.example.First: once
\t... 1 more
Caused by: org.example.CorruptRecordException: Record is corrupt
\t... 2 more
"""
ICEBERG = "(org.apache.iceberg.exceptions.ValidationException) "
MISSING_FILE = "a file of a table is missing in the object store: "


def aws(code: str, message: str = "no", status: int = 400, retries: int = 0) -> ClientError:
    metadata: Any = {"HTTPStatusCode": status, "RetryAttempts": retries}
    details: Any = {"Error": {"Code": code, "Message": message}, "ResponseMetadata": metadata}
    return ClientError(details, "GetTable")


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


def spark(text: str) -> SparkConnectGrpcException:
    return SparkConnectGrpcException(text)


def kafka(code: int, text: str) -> KafkaException:
    return KafkaException(KafkaError(code, text))


@pytest.mark.parametrize(
    ("error", "kind", "says", "fix"),
    [
        # Iceberg's commits
        (CommitFailedException("x"), CONFLICT, "the catalog refuses: CommitFailedExcept", ""),
        (CommitStateUnknownException("x"), CONFLICT, "the catalog refuses: CommitState", ""),
        (ValidationException("x"), CONFLICT, "", ""),
        (spark(f"{ICEBERG}Found conflicting files"), CONFLICT, "", ""),
        (spark(f"{ICEBERG}Cannot delete file where some, but not all, rows match"), None, "", ""),
        (Py4JError("org.apache.iceberg.exceptions.CommitFailedException: x"), CONFLICT, "", ""),
        (spark("CommitStateUnknownException: Service failed: 500: …"), UNREACHABLE, "failed", "s"),
        # the catalog
        (ServerError("ServerError: busy"), UNREACHABLE, "catalog fails: ServerError: busy", "log"),
        (ServiceUnavailableError("busy"), UNREACHABLE, "the catalog fails: busy", "iceberg_rest"),
        (BadRequestError("no field 7"), None, "refuses: BadRequestError: no field 7", ""),
        (BadRequestError("[BUG] Expected sorted snapshot log entries"), None, "clock of", "NTP"),
        (BadRequestError("RESTError 413: Received unexpected JSON"), None, "too large", "maintain"),
        (spark("NotAuthorizedException: Not authorized: no"), None, "the login of Spark", "_OAUTH"),
        (spark("ForbiddenException: Forbidden: read only"), None, "refuses to write", "grant"),
        # the object store, as Spark and Arrow report it
        (spark(f"{LOST}Caused by: No space left on device"), None, "disk is full", "free"),
        (spark(f"{LOST}Caused by: java.io.IOException: File too large"), None, "is full", "free"),
        (OSError(28, "No space left on device"), None, "a disk is full", "free some space"),
        (spark(f"{LOST}(Service: S3, Status Code: 500, …)"), UNREACHABLE, "store failed", "s3"),
        (spark(f"{LOST}no (Service: S3, Status Code: 403, …)"), None, "the credentials", "key"),
        (spark(f"{LOST}SlowDown (Service: S3, Status Code: 503)"), THROTTLED, "throttles", ""),
        (OSError("AWS Error INVALID_ACCESS_KEY_ID during Put"), None, "the credential", "key"),
        (OSError("AWS Error ACCESS_DENIED during GetObject"), None, "refuses the cr", "key"),
        (OSError("AWS Error REQUEST_TIME_TOO_SKEWED during Put"), None, "clock differs", "NTP"),
        (OSError("AWS Error NO_SUCH_BUCKET during Create"), None, "bucket of the table", "restore"),
        (ClientError({"Error": {"Code": "404", "Message": "Not Found"}}, "HeadBucket"), None,
         "bucket of the table", "restore"),
        (OSError("AWS Error INTERNAL_FAILURE during Put"), UNREACHABLE, "store failed", "log"),
        (OSError("AWS Error NETWORK_CONNECTION during HeadObject operation"), UNREACHABLE,
         "the object store does not answer: AWS Error NETWORK", "whether the object store"),
        (OSError("AWS Error SLOW_DOWN during GetObject"), THROTTLED, "store throttle", ""),
        (spark(f"{LOST}NotFoundException: Location does not exist: s3://lake/orders/a.parquet"),
         None, f"{MISSING_FILE}s3://lake/orders/a.parquet", "restore the file"),
        (FileNotFoundError("Cannot open file, does not exist: s3://lake/orders/a.parquet"),
         None, f"{MISSING_FILE}s3://lake/orders/a.parquet", "restore the file"),
        (FileNotFoundError(2, "Path does not exist 'lake/orders/a.parquet'"),
         None, f"{MISSING_FILE}lake/orders/a.parquet", "restore the file"),
        # Spark
        (spark("StatusCode.UNAVAILABLE: failed to connect"), UNREACHABLE, "does not answer", ""),
        (spark(GRPC), UNREACHABLE, "Spark does not answer: failed to connect to all addresses", ""),
        (spark("[NO_ACTIVE_SESSION] No active Spark session"), UNREACHABLE, "Spark ended", "wait"),
        (spark("Cannot call methods on a stopped SparkContext."), UNREACHABLE, "ended and", "wait"),
        (spark("[INVALID_HANDLE.SESSION_CLOSED] The handle"), UNREACHABLE, "Spark ended", "wait"),
        (spark("java.lang.OutOfMemoryError: Java heap space"), None, "enough memory", "lower"),
        (Py4JError("SdkClientException: Unable to execute HTTP request"), UNREACHABLE, "store", ""),
        (AnalysisException("[UNRESOLVED_COLUMN] a `qty`;\n'Project"), None, "query: [UN", "name"),
        (PySparkException(TASK), None, "PySparkException: org.example.KafkaException: no luck: "
         "org.example.CorruptRecordException: Record is corrupt", ""),
        # Kafka
        (kafka(KafkaError._AUTHENTICATION, "SASL handshake failed"), None,
         "Kafka refuses the credentials", "TOPICBERG_KAFKA_API_KEY"),
        (kafka(KafkaError._TRANSPORT, "x"), UNREACHABLE, "Kafka does not answer", "Kafka"),
        # AWS
        (EndpointConnectionError(endpoint_url="x"), UNREACHABLE, "a service does not answer", ""),
        (aws("ThrottlingException"), THROTTLED, "AWS throttles requests", ""),
        (aws("InternalServiceException", "busy", 500), UNREACHABLE, "AWS fails", ""),
        (aws("EntityNotFoundException", "Table a not found."), None, "Table a not found.", ""),
        (aws("UnrecognizedClientException", "The security token is invalid."), None,
         "AWS refuses the login (GetTable): UnrecognizedClientException: The security", "sts get-"),
        (aws("ExpiredTokenException", "expired"), None, "AWS refuses the login", "aws sso login"),
        (aws("AccessDeniedException", "User a is not authorized to perform glue:GetTable"), None,
         "not allow GetTable: AccessDeniedException: User a is not authorized", "grant this right"),
        (NoCredentialsError(), None, "login to AWS failed: Unable to locate", "profile"),
        (SSOTokenLoadError(error_msg="Token for a"), None, "login to AWS failed", "aws sso login"),
        # Snowflake
        (DatabaseError("Incorrect username or password was specified.", errno=390100), None,
         "Snowflake refuses the login", "TOPICBERG_SNOWFLAKE_USER"),
        (DatabaseError("JWT token is invalid. [x]", errno=390144), None, "the login", "_USER"),
        (OperationalError("IP 1.2.3.4 is not allowed to access Snowflake.", errno=390422), None,
         "refuses the address of this machine", "network policy"),
        (OperationalError("404 Not Found: post a/session/v1/login-request", errno=290404), None,
         "Snowflake does not know the account", "_ACCOUNT"),
        (DatabaseError("Numeric value '390123' is not recognized", errno=100038), None, "39", ""),
        # HTTP, and what says it itself
        (requests.ConnectionError("('Connection aborted.', …)"), UNREACHABLE, "not answer", ""),
        (ConnectionRefusedError("x"), UNREACHABLE, "ConnectionRefusedError: x", ""),
        (UnreachableError("x"), UNREACHABLE, "x", ""),
        (CommitConflictError("x"), CONFLICT, "x", ""),
        (ThrottledError("x"), THROTTLED, "x", ""),
        (caused(TopicbergError("the run failed"), ConnectionResetError()), UNREACHABLE, "run", ""),
        (SpecError("x"), None, "x", ""),
        (unusable("Glue GetTable", "an object"), UNREACHABLE, "unexpected response", "address"),
        # texts of users
        (ValueError("CommitFailedException, Connection refused"), None, "ValueError: Commit", ""),
        (OSError("Connection refused, says a user's text"), None, "OSError: Connection", ""),
        (FileNotFoundError("x"), None, "FileNotFoundError: x", ""),
        (ValueError("a reason\n\tat java.lang.Thread.run\n"), None, "ValueError: a reason", ""),
        (ValueError(), None, "ValueError: ValueError", ""),
    ],
)  # fmt: skip
def test_meaning_of_real_error_says_cause_fix_and_whether_to_retry(
    error: Exception, kind: Kind | None, says: str, fix: str
) -> None:
    assert classify(error) is kind
    known = explain("topic orders", error)
    assert known.message.startswith("topic orders: ")
    assert says in known.message
    assert "\n" not in known.message
    assert len(known.message) < 500
    assert fix in (known.hint or "")
    assert bool(fix) <= bool(known.hint)
    if isinstance(known, LoginError):
        assert is_refused(error)
    if kind is not None and kind is not CONFLICT and not isinstance(error, ConnectionError):
        assert isinstance(known, kind.raises | type(error))


def test_explain_long_text_is_shortened() -> None:
    assert len(str(explain("topic orders", ValueError("x" * 5000)))) < 400


@pytest.mark.parametrize(
    ("error", "kinds"),
    [
        (GoneError("404", status=404), {MISSING, EVENTUAL}),
        (GoneError("403: you may not delete it", status=403), {EVENTUAL}),
        (CredentialsError("401", status=401), {EVENTUAL}),
        (ConflictError("409", status=409), {EXISTS}),
        (FailedError("connector c is FAILED: no reason is given"), {UNACCEPTED}),
        (ApiError("400: topic a already exists", status=400), {EXISTS, UNACCEPTED}),
        (ApiError("422: display_name must not be empty", status=422), {UNACCEPTED}),
        (ApiError("400 Invalid replication factor (40002)", status=400), {UNACCEPTED}),
        (ProgrammingError("Database 'A' does not exist", errno=2003, sqlstate="02000"),
         {UNACCEPTED}),
        (ApiError("there are 2 environments named demo"), set()),
        (ApiError("does not have access", status=500), set()),
        (UncertainError("502", status=502), {UNANSWERED}),
        (unusable("Glue GetTable", "an object"), {UNANSWERED}),
        (UnknownNamesError("Snowflake (DESC USER U): unknown names"), set()),
        (TopicbergError("not authorized"), set()),
        (aws("NoSuchEntity"), {MISSING, EVENTUAL}),
        (aws("NoSuchBucket"), {MISSING}),
        (aws("MalformedPolicyDocument"), {EVENTUAL}),
        (aws("BucketNotEmpty"), {EVENTUAL}),
        (aws("InvalidRequestException", "WorkGroup is already created"), {EXISTS, EVENTUAL}),
        (aws("EntityAlreadyExists"), {EXISTS}),
        (aws("AccessDenied"), {DENIED}),
        (aws("ServiceUnavailable", status=503), {UNANSWERED}),
        (ReadTimeoutError(endpoint_url="x"), {UNANSWERED}),
        (EndpointConnectionError(endpoint_url="x"), set()),
        (OperationalError("the connection is broken"), {UNANSWERED, BROKEN}),
        (ProgrammingError("Object 'A' already exists.", errno=2002, sqlstate="42710"),
         {EXISTS, UNACCEPTED}),
        (ProgrammingError("Insufficient privileges to operate on integration", errno=3001),
         {UNACCEPTED}),
        (ProgrammingError("syntax error line 1 at position 7", errno=1003), set()),
    ],
)  # fmt: skip
def test_means_of_vendors_error_is_what_it_says_of_the_object(
    error: Exception, kinds: set[Kind]
) -> None:
    every = {MISSING, EVENTUAL, EXISTS, DENIED, UNACCEPTED, UNANSWERED, BROKEN}
    assert {kind for kind in every if means(error, kind)} == kinds


@pytest.mark.parametrize(
    ("text", "is_of_a_service", "kind"),
    [
        (f"{LOST}Caused by: java.io.IOException: No space left on device", True, FULL),
        (f"{LOST}S3Exception: no (Service: S3, Status Code: 403, …)", True, None),
        (f"{LOST}java.net.ConnectException: Connection refused", True, None),
        ("CommitStateUnknownException: Service failed: 500: …", True, None),
        ("[INVALID_HANDLE.SESSION_CLOSED] The handle is invalid.", True, ENDED),
        (GRPC, True, ENDED),
        (f"{LOST}NotFoundException: Location does not exist: s3://lake/a.parquet", True, None),
        (f"{LOST}java.lang.OutOfMemoryError: Java heap space", False, None),
        (f"{LOST}SparkException: Python worker exited unexpectedly (crashed)", False, None),
        (TASK, False, None),
    ],
)
def test_is_of_service_of_job_that_may_have_failed_by_a_record_is_false(
    text: str, is_of_a_service: bool, kind: Kind | None
) -> None:
    error = PySparkException(text)
    assert is_of_service(error) == is_of_a_service
    assert means(error, FULL) == (kind is FULL)
    assert means(error, ENDED) == (kind is ENDED)


def test_is_of_service_of_invalid_query_is_true() -> None:
    assert is_of_service(AnalysisException("[DATATYPE_MISMATCH.CAST_WITHOUT_SUGGESTION] …"))


@pytest.mark.parametrize(
    "error",
    [
        spark("o.a.iceberg: Connection refused"),  # by whom is unknown
        aws("EntityNotFoundException", "Table a not found."),
        PythonException("Access Denied, says a function"),
        UnreachableError("Kafka does not answer"),
        ValueError("x"),
    ],
)
def test_to_report_of_unknown_error_is_the_error(error: Exception) -> None:
    assert to_report(error) is error


def test_to_report_of_missing_file_has_its_class_and_its_cause() -> None:
    error = FileNotFoundError("Cannot open file, does not exist: s3://lake/orders/a.parquet")
    known = to_report(error)
    assert isinstance(known, MissingFileError)
    assert known.__cause__ is error


def test_is_refused_of_silent_metadata_server_is_false() -> None:
    silent = CredentialRetrievalError(provider="container-role", error_msg="Connection refused")
    assert not is_refused(silent)
