"""Which failures are retried, and how."""

from __future__ import annotations

import socket
import traceback
from collections.abc import Callable

import dagster as dg
import pytest
import requests
from botocore.config import Config
from botocore.exceptions import ClientError, EndpointConnectionError
from py4j.protocol import Py4JError
from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    ValidationException,
)
from pyspark.errors.exceptions.connect import AnalysisException, SparkConnectGrpcException

from topicberg import retry
from topicberg.clients import catalog
from topicberg.endpoints import Endpoints, LakeEndpoints
from topicberg.errors import (
    CommitConflictError,
    SpecError,
    ThrottledError,
    TopicbergError,
    UnreachableError,
)
from topicberg.orchestration.assets.retries import retried
from topicberg.retry import (
    CONFLICT,
    THROTTLED,
    UNREACHABLE,
    FailureKind,
    MissingFileError,
    classify,
    conflicts,
    retry_conflicts,
    with_service,
)
from topicberg.settings import Settings
from topicberg.tableflow.batch.failures import explain

NOBODY = "http://127.0.0.1:9"  # the discard port: nothing listens


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


def test_wrong_column_of_a_pipeline_shows_the_cause() -> None:
    """What Spark Connect raises: the reason, the plan, and a hundred lines of the JVM."""
    reason = "[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column with name `prise` cannot be resolved. "
    reason += "Did you mean one of the following? [`price`]. SQLSTATE: 42703"
    plan = "'Project ['prise]\n+- SubqueryAlias orders"
    text = f"{reason};\n{plan}\n\nJVM stacktrace:\norg.apache.Spark"
    with pytest.raises(TopicbergError) as raised, retried():
        raise AnalysisException(text)
    assert raised.value.message == f"Spark refuses the query: {reason}"
    assert raised.value.hint is not None
    shown = "".join(traceback.format_exception(raised.value))
    assert "org.apache" not in shown
    assert "SubqueryAlias" not in shown


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (CommitConflictError("x"), CONFLICT),
        (CommitFailedException("x"), CONFLICT),
        (CommitStateUnknownException("x"), CONFLICT),
        (ValidationException("x"), CONFLICT),
        (
            SparkConnectGrpcException(
                "(org.apache.iceberg.exceptions.ValidationException) Found conflicting files"
            ),
            CONFLICT,
        ),
        (
            SparkConnectGrpcException(
                "(org.apache.iceberg.exceptions.ValidationException) Cannot delete file where some,"
                " but not all, rows match filter"
            ),
            None,
        ),
        (Py4JError("org.apache.iceberg.exceptions.CommitFailedException: x"), CONFLICT),
        (ValueError("CommitFailedException, says a user's text"), None),
        (UnreachableError("x"), UNREACHABLE),
        (ThrottledError("x"), THROTTLED),
        (ConnectionRefusedError("x"), UNREACHABLE),
        (requests.ConnectionError("x"), UNREACHABLE),
        (EndpointConnectionError(endpoint_url="x"), UNREACHABLE),
        (ClientError({"Error": {"Code": "ThrottlingException"}}, "GetTable"), THROTTLED),
        (ClientError({"Error": {"Code": "AccessDeniedException"}}, "GetTable"), None),
        (SparkConnectGrpcException("StatusCode.UNAVAILABLE: failed to connect"), UNREACHABLE),
        (Py4JError("SdkClientException: Unable to execute HTTP request"), UNREACHABLE),
        (AnalysisException("[UNRESOLVED_COLUMN] a column `qty`"), None),
        (caused(TopicbergError("the run failed"), ConnectionResetError("x")), UNREACHABLE),
        (SpecError("x"), None),
        (TopicbergError("x"), None),
        (ValueError("Connection refused, says a user's text"), None),
        (FileNotFoundError("x"), None),
        (OSError("AWS Error NETWORK_CONNECTION during HeadObject operation"), UNREACHABLE),
        (OSError("AWS Error SLOW_DOWN during GetObject operation"), THROTTLED),
        (OSError("AWS Error ACCESS_DENIED during GetObject operation"), None),
        (OSError("Connection refused, says a user's text"), None),
    ],
)
def test_classify_of_any_error_is_its_kind(error: Exception, kind: FailureKind | None) -> None:
    assert classify(error) == kind


@pytest.mark.parametrize(
    ("error", "service"),
    [
        (OSError("AWS Error NETWORK_CONNECTION during HeadObject operation"), "the object store"),
        (Py4JError("SdkClientException: Unable to execute HTTP request"), "the object store"),
        (SparkConnectGrpcException("o.a.iceberg: Connection refused"), None),
        (
            SparkConnectGrpcException(
                "(org.apache.iceberg.exceptions.RESTException) Connection refused"
            ),
            "Iceberg's catalog",
        ),
        (OSError("AWS Error ACCESS_DENIED during GetObject operation"), None),
        (UnreachableError("Kafka does not answer"), None),
        (ValueError("x"), None),
    ],
)
def test_error_of_a_silent_service_names_it(error: Exception, service: str | None) -> None:
    reported = with_service(error)
    if service is None:
        assert reported is error
    else:
        assert isinstance(reported, UnreachableError)
        assert reported.message == f"{service} does not answer: {error}"
        assert reported.hint
        assert reported.__cause__ is error


@pytest.mark.parametrize(
    "error",
    [
        SparkConnectGrpcException(
            "(org.apache.iceberg.exceptions.NotFoundException) Location does not exist: "
            "s3://lake/orders/a.parquet"
        ),
        FileNotFoundError("Cannot open file, does not exist: s3://lake/orders/a.parquet"),
        FileNotFoundError(2, "Path does not exist 'lake/orders/a.parquet'"),
    ],
)
def test_file_of_a_table_that_is_missing_is_named(error: Exception) -> None:
    for reported in (with_service(error), explain("topic orders", error)):
        assert isinstance(reported, MissingFileError)
        assert "a file of a table is missing in the object store: " in reported.message
        assert reported.message.endswith("lake/orders/a.parquet")
        assert "restore the file" in (reported.hint or "")
    assert classify(error) is None


def test_error_of_a_client_names_its_service() -> None:
    """Its text has an address alone."""
    endpoints = Endpoints.model_validate(
        dict.fromkeys(("schema_registry", "s3", "iceberg_rest", "aws", "confluent"), NOBODY)
        | {"kafka_bootstrap": "127.0.0.1:9", "spark_connect": "sc://127.0.0.1:9"}
        | {"snowflake": {"account": "topicberg", "user": "TOPICBERG"}}
        | {"s3_access_key": "key", "s3_secret_key": "secret"}
        | {"aws_access_key": "key", "aws_secret_key": "secret"}
    )
    once = Config(retries={"total_max_attempts": 1})
    with pytest.raises(EndpointConnectionError) as glue:
        endpoints.boto3("glue", Settings(), once).get_databases()
    assert str(with_service(glue.value)).startswith("AWS does not answer: ")
    with pytest.raises(requests.ConnectionError) as refused:
        endpoints.catalog(Settings())
    assert str(with_service(refused.value)).startswith("Iceberg's catalog does not answer: ")


def test_catalog_that_is_silent_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog, "TIMEOUT_SECONDS", (5, 0.2))
    with socket.create_server(("127.0.0.1", 0)) as server:  # it takes connections
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(requests.ReadTimeout) as silent:
            LakeEndpoints(iceberg_rest=url).catalog(Settings())
    assert classify(silent.value) == UNREACHABLE
    assert str(with_service(silent.value)).startswith("Iceberg's catalog does not answer: ")


def test_wait_of_each_retry_doubles() -> None:
    assert [UNREACHABLE.wait(n) for n in range(4)] == [5, 10, 20, 40]


@pytest.mark.parametrize(
    ("error", "failures", "attempts", "success"),
    [
        (lambda: CommitConflictError("x"), 2, 3, True),
        (lambda: CommitConflictError("x"), 99, 4, False),
        (lambda: SpecError("x"), 99, 1, False),
    ],
)
def test_step_is_retried_by_the_kind_of_its_failure(
    monkeypatch: pytest.MonkeyPatch,
    error: Callable[[], Exception],
    failures: int,
    attempts: int,
    success: bool,
) -> None:
    monkeypatch.setattr(retry, "CONFLICT", FailureKind("a conflict", 3, 0.01))
    tried: list[int] = []

    @dg.asset
    @retried()
    def orders() -> dg.MaterializeResult:
        tried.append(dg.AssetExecutionContext.get().op_execution_context.retry_number)
        if len(tried) <= failures:
            raise error()
        return dg.MaterializeResult(metadata={"rows": 1})

    result = dg.materialize([orders], raise_on_error=False)
    assert result.success == success
    assert tried == list(range(attempts))


def test_conflicts_of_a_library_become_one_error() -> None:
    with (
        pytest.raises(CommitConflictError, match="table a: second") as raised,
        conflicts("table a"),
    ):
        raise CommitFailedException("second\nmore")
    assert isinstance(raised.value.__cause__, CommitFailedException)
    refused = ValueError("x")
    with pytest.raises(ValueError, match="x") as other, conflicts("table a"):
        raise refused
    assert other.value is refused


@pytest.mark.parametrize("failures", [0, 2, 3])
def test_retry_conflicts_works_until_a_commit_is_first(failures: int) -> None:
    tried: list[int] = []

    def work() -> int:
        tried.append(len(tried))
        if len(tried) <= failures:
            raise CommitConflictError(f"attempt {len(tried)}")
        return len(tried)

    if failures < 3:
        assert retry_conflicts(work, 3) == failures + 1
    else:
        with pytest.raises(CommitConflictError, match="attempt 3"):
            retry_conflicts(work, 3)
    assert len(tried) == min(failures + 1, 3)


def test_retry_conflicts_in_vain_raises_the_given_error() -> None:
    exhausted = CommitConflictError("others kept changing it", hint="try later")
    last = CommitConflictError("x")

    def work() -> None:
        raise last

    with pytest.raises(CommitConflictError) as raised:
        retry_conflicts(work, 2, exhausted=exhausted)
    assert raised.value is exhausted
    assert raised.value.__cause__ is last


def test_retry_conflicts_of_another_failure_does_not_retry() -> None:
    tried: list[int] = []

    def work() -> None:
        tried.append(1)
        raise UnreachableError("x")

    with pytest.raises(UnreachableError):
        retry_conflicts(work, 3)
    assert tried == [1]
