"""Which failures are retried, and how."""

from __future__ import annotations

import socket
import traceback
from collections.abc import Callable

import dagster as dg
import pytest
import requests
from botocore.config import Config
from botocore.exceptions import EndpointConnectionError
from pyiceberg.exceptions import CommitFailedException
from pyspark.errors.exceptions.connect import AnalysisException

from topicberg.clients import catalog
from topicberg.endpoints import Endpoints, LakeEndpoints
from topicberg.errors import CommitConflictError, SpecError, TopicbergError, UnreachableError
from topicberg.errors.meaning import classify, to_report
from topicberg.errors.retry import conflicts, retry
from topicberg.errors.table import CONFLICT, UNREACHABLE, Kind
from topicberg.orchestration.assets.tables import retried
from topicberg.settings import Settings

CLOSED = "http://127.0.0.1:9"  # the discard port: nothing listens


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


def test_error_of_a_client_names_its_service() -> None:
    """Its text has an address alone."""
    endpoints = Endpoints.model_validate(
        dict.fromkeys(("schema_registry", "s3", "iceberg_rest", "aws", "confluent"), CLOSED)
        | {"kafka_bootstrap": "127.0.0.1:9", "spark_connect": "sc://127.0.0.1:9"}
        | {"snowflake": {"account": "topicberg", "user": "TOPICBERG"}}
        | {"s3_access_key": "key", "s3_secret_key": "secret"}
        | {"aws_access_key": "key", "aws_secret_key": "secret"}
    )
    once = Config(retries={"total_max_attempts": 1})
    with pytest.raises(EndpointConnectionError) as glue:
        endpoints.boto3("glue", Settings(), once).get_databases()
    assert str(to_report(glue.value)).startswith("AWS does not answer: ")
    with pytest.raises(requests.ConnectionError) as refused:
        endpoints.catalog(Settings())
    assert str(to_report(refused.value)).startswith("Iceberg's catalog does not answer: ")


def test_catalog_that_is_silent_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog, "TIMEOUT_SECONDS", (5, 0.2))
    with socket.create_server(("127.0.0.1", 0)) as server:  # it takes connections
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(requests.ReadTimeout) as silent:
            LakeEndpoints(iceberg_rest=url).catalog(Settings())
    assert classify(silent.value) == UNREACHABLE
    assert str(to_report(silent.value)).startswith("Iceberg's catalog does not answer: ")


def test_wait_of_each_retry_doubles() -> None:
    assert [UNREACHABLE.wait(n) for n in range(4)] == [5, 10, 20, 40]


@pytest.mark.parametrize(
    ("error", "failures", "attempts", "success"),
    [
        (lambda: CommitConflictError("x"), 2, 3, True),
        (lambda: CommitConflictError("x"), 99, CONFLICT.retries + 1, False),
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
    monkeypatch.setattr(Kind, "wait", lambda *_: 0.01)
    tried: list[int] = []

    @dg.asset
    @retried()
    def orders() -> dg.MaterializeResult:
        tried.append(dg.AssetExecutionContext.get().op_execution_context.retry_number)
        if len(tried) <= failures:
            raise error()
        return dg.MaterializeResult(metadata={"rows": 1})

    assert dg.materialize([orders], raise_on_error=False).success == success
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
        assert retry(work, 3) == failures + 1
    else:
        with pytest.raises(CommitConflictError, match="attempt 3"):
            retry(work, 3)
    assert len(tried) == min(failures + 1, 3)


def test_retry_conflicts_in_vain_raises_the_given_error() -> None:
    exhausted = CommitConflictError("others kept changing it", hint="try later")
    last = CommitConflictError("x")

    def work() -> None:
        raise last

    with pytest.raises(CommitConflictError) as raised:
        retry(work, 2, exhausted=exhausted)
    assert raised.value is exhausted
    assert raised.value.__cause__ is last


def test_retry_conflicts_of_another_failure_does_not_retry() -> None:
    tried: list[int] = []

    def work() -> None:
        tried.append(1)
        raise UnreachableError("x")

    with pytest.raises(UnreachableError):
        retry(work, 3)
    assert tried == [1]
