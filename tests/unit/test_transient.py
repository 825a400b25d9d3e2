"""Which failures are tried again, and how."""

from __future__ import annotations

from collections.abc import Callable

import dagster as dg
import pytest
import requests
from botocore.exceptions import ClientError, EndpointConnectionError
from py4j.protocol import Py4JError
from pyiceberg.exceptions import CommitFailedException
from pyspark.errors.exceptions.connect import AnalysisException, SparkConnectGrpcException

from assets.retries import retried
from topicberg import transient
from topicberg.errors import (
    CommitConflictError,
    SpecError,
    ThrottledError,
    TopicbergError,
    UnreachableError,
)
from topicberg.transient import CONFLICT, THROTTLED, UNREACHABLE, Kind, kind_of


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (CommitConflictError("x"), CONFLICT),
        (CommitFailedException("x"), CONFLICT),
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
    ],
)
def test_kinds(error: Exception, kind: Kind | None) -> None:
    assert kind_of(error) == kind


def test_the_wait_doubles() -> None:
    assert [UNREACHABLE.wait(n) for n in range(4)] == [5, 10, 20, 40]


@pytest.mark.parametrize(
    ("error", "failures", "attempts", "success"),
    [
        (lambda: CommitConflictError("x"), 2, 3, True),
        (lambda: CommitConflictError("x"), 99, 4, False),
        (lambda: SpecError("x"), 99, 1, False),
    ],
)
def test_steps_are_tried_again(
    monkeypatch: pytest.MonkeyPatch,
    error: Callable[[], Exception],
    failures: int,
    attempts: int,
    success: bool,
) -> None:
    monkeypatch.setattr(transient, "CONFLICT", Kind("a conflict", 3, 0.01))
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
