"""Failures of services become one message that names what to fix."""

from __future__ import annotations

import pytest
from pyspark.errors import AnalysisException, PySparkException

from topicberg.tableflow.failures import blame, explain

LOST = "Job aborted due to stage failure: java.io.UncheckedIOException: Failed to close\n"
GRPC = """<_InactiveRpcError of RPC that terminated with:
\tstatus = StatusCode.UNAVAILABLE
\tdetails = "failed to connect to all addresses; last error: Connection refused"
\tdebug_error_string = "UNKNOWN"
>"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (LOST + "Caused by: java.io.IOException: No space left on device", "disk of Spark"),
        (LOST + "Caused by: java.io.IOException: File too large", "disk of Spark"),
        (
            LOST + "S3Exception: Try again. (Service: S3, Status Code: 500, …)",
            "object store failed",
        ),
        (LOST + "S3Exception: no (Service: S3, Status Code: 403, …)", "refuses the credentials"),
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
    ("text", "blamed"),
    [
        (LOST + "Caused by: java.io.IOException: No space left on device", "space"),
        (LOST + "S3Exception: no (Service: S3, Status Code: 403, …)", "service"),
        (LOST + "S3Exception: SlowDown (Service: S3, Status Code: 503, …)", "service"),
        (LOST + "java.net.ConnectException: Connection refused", "service"),
        (LOST + "SaslAuthenticationException: no", "service"),
        ("CommitStateUnknownException: Service failed: 500: …", "service"),
        ("[INVALID_HANDLE.SESSION_CLOSED] The handle is invalid.", "memory"),
        (LOST + "java.lang.OutOfMemoryError: Java heap space", "memory"),
        (GRPC, "memory"),
        (TASK, "batch"),
        (LOST + "java.lang.ArithmeticException: long overflow", "batch"),
    ],
)
def test_a_failed_job_is_blamed(text: str, blamed: str) -> None:
    assert blame(PySparkException(text)) == blamed


def test_invalid_query_is_not_blamed_on_a_record() -> None:
    assert blame(AnalysisException("[DATATYPE_MISMATCH.CAST_WITHOUT_SUGGESTION] …")) == "service"


def test_an_unknown_failure_is_one_line() -> None:
    error = explain("topic orders", ValueError("a reason\n\tat java.lang.Thread.run\n"))
    assert str(error) == "topic orders: ValueError: a reason"
    assert str(explain("topic orders", ValueError())) == "topic orders: ValueError: ValueError"
    assert len(str(explain("topic orders", ValueError("x" * 5000)))) < 400
