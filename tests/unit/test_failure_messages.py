"""What services say when they fail, as one message that names what to mend."""

from __future__ import annotations

import pytest

from topicberg.tableflow.failures import explain

LOST = "Job aborted due to stage failure: java.io.UncheckedIOException: Failed to close\n"
GRPC = """<_InactiveRpcError of RPC that terminated with:
\tstatus = StatusCode.UNAVAILABLE
\tdetails = "failed to connect to all addresses; last error: Connection refused"
\tdebug_error_string = "UNKNOWN"
>"""


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (LOST + "Caused by: java.io.IOException: No space left on device", "disk of Spark"),
        (LOST + "Caused by: java.io.IOException: File too large", "disk of Spark"),
        (LOST + "S3Exception: Try again. (Service: S3, Status Code: 500, …)", "object store fails"),
        (LOST + "S3Exception: no (Service: S3, Status Code: 403, …)", "refuses the credentials"),
        ("CommitStateUnknownException: Service failed: 500: …", "the catalog fails"),
        ("[NO_ACTIVE_SESSION] No active Spark session found.", "Spark ended and was started"),
        ("Cannot call methods on a stopped SparkContext.", "Spark ended and was started"),
        ("[INVALID_HANDLE.SESSION_CLOSED] The handle is invalid.", "Spark ended and was started"),
        (GRPC, "a service does not answer: failed to connect to all addresses"),
        ("('Connection aborted.', RemoteDisconnected('…'))", "a service does not answer"),
    ],
)
def test_known_failures(said: str, told: str) -> None:
    error = explain("topic orders", RuntimeError(said))
    assert error.message.startswith("topic orders: ")
    assert told in error.message
    assert "\n" not in error.message
    assert error.hint


def test_an_unknown_failure_is_one_line() -> None:
    error = explain("topic orders", ValueError("a reason\n\tat java.lang.Thread.run\n"))
    assert str(error) == "topic orders: ValueError: a reason"
    assert str(explain("topic orders", ValueError())) == "topic orders: ValueError: ValueError"
    assert len(str(explain("topic orders", ValueError("x" * 5000)))) < 400
