"""Failures of services become one message that names what to fix."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import boto3
import pytest
from moto import mock_aws
from pyiceberg.exceptions import BadRequestError, RESTError, ServerError, ServiceUnavailableError
from pyspark.errors import AnalysisException, PySparkException

from topicberg.errors import UnreachableError
from topicberg.settings import Settings
from topicberg.tableflow.batch.failures import (
    explain,
    is_ended,
    is_full,
    is_of_service,
    missing_bucket,
)

LOST = "Job aborted due to stage failure: java.io.UncheckedIOException: Failed to close\n"
GRPC = """<_InactiveRpcError of RPC that terminated with:
\tstatus = StatusCode.UNAVAILABLE
\tdetails = "failed to connect to all addresses; last error: Connection refused"
\tdebug_error_string = "UNKNOWN"
>"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (LOST + "Caused by: java.io.IOException: No space left on device", "a disk is full"),
        (LOST + "Caused by: java.io.IOException: File too large", "a disk is full"),
        (
            LOST + "S3Exception: Try again. (Service: S3, Status Code: 500, …)",
            "object store failed",
        ),
        (LOST + "S3Exception: no (Service: S3, Status Code: 403, …)", "refuses the credentials"),
        ("AWS Error INVALID_ACCESS_KEY_ID during PutObject", "refuses the credentials"),
        ("AWS Error ACCESS_DENIED during PutObject operation", "refuses the credentials"),
        ("AWS Error REQUEST_TIME_TOO_SKEWED during PutObject", "clock differs from this machine's"),
        ("[BUG] Expected sorted snapshot log entries", "clock of this machine"),
        ("RESTError 413: Received unexpected JSON Payload", "because they are too large"),
        ("AWS Error NO_SUCH_BUCKET during CreateMultipartUpload", "bucket of the table"),
        ("AWS Error INTERNAL_FAILURE during PutObject operation", "object store failed"),
        ("AWS Error NETWORK_CONNECTION during PutObject operation", "does not answer"),
        ("CommitStateUnknownException: Service failed: 500: …", "the catalog failed"),
        ("[NO_ACTIVE_SESSION] No active Spark session found.", "Spark ended and was restarted"),
        ("Cannot call methods on a stopped SparkContext.", "Spark ended and was restarted"),
        ("[INVALID_HANDLE.SESSION_CLOSED] The handle is invalid.", "Spark ended and was restarted"),
        (GRPC, "a service does not answer: failed to connect to all addresses"),
        ("('Connection aborted.', RemoteDisconnected('…'))", "a service does not answer"),
    ],
)
def test_known_failures(text: str, expected: str) -> None:
    error = explain("topic orders", RuntimeError(text))
    assert error.message.startswith("topic orders: ")
    assert expected in error.message
    assert "\n" not in error.message
    assert error.hint


@pytest.mark.parametrize("kind", [ServerError, ServiceUnavailableError])
def test_catalog_that_fails_is_named_with_where_to_look(kind: type[RESTError]) -> None:
    error = explain("topic orders", kind("ServiceUnavailableException: busy"))
    assert error.message == ("topic orders: the catalog fails: ServiceUnavailableException: busy")
    assert isinstance(error, UnreachableError)
    assert "`topicberg logs iceberg_rest`" in (error.hint or "")


def test_catalog_that_refuses_is_named_with_its_reason() -> None:
    error = explain("topic orders", BadRequestError("the schema has no field 7"))
    assert error.message == (
        "topic orders: the catalog refuses: BadRequestError: the schema has no field 7"
    )


@pytest.mark.parametrize(("bucket", "is_missing"), [("lake", False), ("gone", True)])
def test_bucket_that_does_not_exist_is_named_where_the_catalog_is_silent(
    bucket: str, is_missing: bool
) -> None:
    with mock_aws():
        client = boto3.client("s3", region_name="us-east-1")
        client.create_bucket(Bucket="lake")
        endpoints: Any = SimpleNamespace(boto3=lambda *_: client)
        error = missing_bucket("topic orders", f"s3://{bucket}/orders", endpoints, Settings())
    assert (error is not None) == is_missing
    if error is not None:
        assert error.message == "topic orders: the bucket of the table does not exist"


TASK = """Job aborted due to stage failure: Task 0 failed 1 times, most recent failure: \
Lost task 0.0 in stage 2.0 (TID 2) (localhost executor driver): org.example.KafkaException: no luck
\tat java.base/java.lang.Thread.run(Unknown Source)
Caused by: org.example.First: once
\t... 1 more
Caused by: org.example.CorruptRecordException: Record is corrupt
\t... 2 more
"""


def test_failed_task_is_reported_by_reason_and_cause() -> None:
    error = explain("topic orders", RuntimeError(TASK))
    assert error.message == (
        "topic orders: RuntimeError: org.example.KafkaException: no luck: "
        "org.example.CorruptRecordException: Record is corrupt"
    )


@pytest.mark.parametrize(
    ("text", "is_of_a_service", "is_gone"),
    [
        (LOST + "Caused by: java.io.IOException: No space left on device", True, False),
        (LOST + "S3Exception: no (Service: S3, Status Code: 403, …)", True, False),
        (LOST + "S3Exception: SlowDown (Service: S3, Status Code: 503, …)", True, False),
        (LOST + "java.net.ConnectException: Connection refused", True, False),
        ("CommitStateUnknownException: Service failed: 500: …", True, False),
        ("[INVALID_HANDLE.SESSION_CLOSED] The handle is invalid.", True, True),
        (GRPC, True, True),
        (LOST + "NotFoundException: Location does not exist: s3://lake/a.parquet", True, False),
        (LOST + "java.lang.OutOfMemoryError: Java heap space", False, False),
        (LOST + "SparkException: Python worker exited unexpectedly (crashed)", False, False),
        (TASK, False, False),
    ],
)
def test_job_that_failed_whatever_it_read(text: str, is_of_a_service: bool, is_gone: bool) -> None:
    """Otherwise, perhaps, a record is the reason."""
    error = PySparkException(text)
    assert is_of_service(error) == is_of_a_service
    assert is_ended(error) == is_gone


def test_invalid_query_is_not_blamed_on_a_record() -> None:
    assert is_of_service(AnalysisException("[DATATYPE_MISMATCH.CAST_WITHOUT_SUGGESTION] …"))


def test_full_disk_is_recognised() -> None:
    assert is_full(OSError(28, "No space left on device"))
    assert not is_full(OSError(2, "No such file or directory"))


def test_an_unknown_failure_is_one_line() -> None:
    error = explain("topic orders", ValueError("a reason\n\tat java.lang.Thread.run\n"))
    assert str(error) == "topic orders: ValueError: a reason"
    assert str(explain("topic orders", ValueError())) == "topic orders: ValueError: ValueError"
    assert len(str(explain("topic orders", ValueError("x" * 5000)))) < 400
