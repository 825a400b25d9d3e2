"""The failure policy: which failures a retry may resolve, and how the work is retried.

A service that does not answer, a commit that came second, a vendor that throttles: the same work
succeeds later. All else (a wrong spec, a function that does not fit its data, refused credentials)
fails the same way again, so it is reported at once.

:func:`classify` is the one classifier. A failed step is retried by
``orchestration/assets/retries.py``, work that met another commit by :func:`retry_conflicts`.
Clients of one vendor's API have the waits that the vendor asks for (``clients/confluent.py``,
``deploy``).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from tenacity import (
    RetryCallState,
    Retrying,
    retry_if_exception_type,
    stop_after_attempt,
    wait_none,
)
from tenacity.wait import wait_base

from topicberg.clients.answers import raised_in
from topicberg.clients.aws import BUSY
from topicberg.clients.refusals import login_refusal
from topicberg.connections import CertificateError, NotFoundError, connection_error
from topicberg.errors import (
    CommitConflictError,
    LoginError,
    ThrottledError,
    TopicbergError,
    UnreachableError,
    causes,
    first_line,
)
from topicberg.settings import see_whether_it_runs

logger = logging.getLogger(__name__)
Result = TypeVar("Result")


class MissingFileError(TopicbergError):
    """A file of a table is missing in the object store."""


@dataclass(frozen=True)
class FailureKind:
    """A kind of failure that a retry may resolve; the wait doubles with each retry."""

    name: str
    retries: int
    first_wait_seconds: float

    def wait(self, retry: int) -> float:
        """Return the seconds before a retry; the first retry has number 0."""
        return self.first_wait_seconds * 2.0**retry


CONFLICT = FailureKind("another commit came first", retries=5, first_wait_seconds=1)
UNREACHABLE = FailureKind("a service does not answer", retries=4, first_wait_seconds=5)
UNRESOLVED = FailureKind("a host name does not resolve", retries=3, first_wait_seconds=3)
"""A resolver may be restarting; a wrong name is reported within a minute."""
THROTTLED = FailureKind("a service throttles requests", retries=5, first_wait_seconds=10)

_CONFLICT = re.compile(
    r"ValidationException(?!\)?:? Cannot delete file where some)"
    r"|CommitFailedException|Cannot commit"
)
"""What Iceberg's library in Spark says; Spark Connect and py4j pass it on as text.

A file that an overwrite would have to split is not a conflict: the table's partitions are too long.
"""
_THROTTLING = re.compile(rf"{BUSY.pattern}|status.?code.?429|AWS Error (SLOW_DOWN|THROTTLING)")
_SILENT = re.compile(
    r"StatusCode\.UNAVAILABLE|Connection (refused|reset|aborted)|UnknownHost|failed to connect|"
    r"Unable to execute HTTP request|INVALID_HANDLE\.SESSION|SparkContext was shut down|"
    r"Lost executor|ExecutorLostFailure|Status Code: 50[0-4]|"
    r"AWS Error (NETWORK_CONNECTION|INTERNAL_FAILURE|SERVICE_UNAVAILABLE|REQUEST_TIMEOUT)",
    re.IGNORECASE,
)
_SERVICES = (
    *("pyspark", "py4j", "grpc", "botocore", "pyiceberg", "snowflake", "urllib3"),
    "confluent_kafka",
)
"""Libraries whose errors are classified by their text: they have one class for everything.

py4j raises those of a Spark that is not behind Spark Connect, as in a job of EMR Serverless.
"""
_SPARK = ("pyspark", "py4j")
_AT_ONCE = wait_none()
_MISSING_FILE = re.compile(
    r"(?:Location does not exist: |Cannot open file, does not exist: |Path does not exist ')"
    r"((?:s3[an]?://)?[^\s']+/[^\s']+)"
)
"""What Iceberg's library in Spark, PyIceberg and PyArrow say of it."""
_CATALOG, _SPARK_SERVICE = "Iceberg's catalog", "Spark"
_OF_SPARK_ITSELF = re.compile(r"DNS resolution failed|failed to connect to all addresses")
"""What the client of Spark Connect says of Spark, not of what Spark uses."""
_NAMED_BY_TEXT = (
    ("the object store", re.compile(r"AWS Error [A-Z_]+ during|awssdk|SdkClientException")),
    (_CATALOG, re.compile(r"org\.apache\.iceberg\.(rest\.|exceptions\.RESTException)")),
)
"""What Spark, the catalog and PyArrow pass on of the services behind them."""
_NAMED_BY_CLIENT = (
    (_CATALOG, "pyiceberg.catalog"),
    ("AWS", "botocore"),
    ("Snowflake", "snowflake.connector"),
    (_SPARK_SERVICE, "pyspark"),
)
_CONFLICT_CLASSES = frozenset(
    {
        "pyiceberg.exceptions.CommitFailedException",
        "pyiceberg.exceptions.CommitStateUnknownException",
        "pyiceberg.exceptions.ValidationException",
    }
)
"""Of an unknown state, the newest metadata tell whether the commit was done."""
_SILENT_CLASSES = frozenset(
    {
        "botocore.exceptions.EndpointConnectionError",
        "botocore.exceptions.ConnectTimeoutError",
        "botocore.exceptions.ReadTimeoutError",
        "botocore.exceptions.ConnectionClosedError",
        "pyiceberg.exceptions.ServerError",
        "pyiceberg.exceptions.ServiceUnavailableError",
        "requests.exceptions.ConnectionError",
        "requests.exceptions.ConnectTimeout",
        "requests.exceptions.ReadTimeout",
        "snowflake.connector.errors.OperationalError",
    }
)
"""By exact name, so that no library is imported, and no subclass such as an SSL error counts."""


def classify(error: BaseException) -> FailureKind | None:
    """Return the kind of a failure, from the error and its causes; None: no retry resolves it."""
    if is_refused(error):
        return None
    if any(isinstance(each, NotFoundError) for each in (*causes(error), _not_reached(error))):
        return UNRESOLVED
    for each in causes(error):
        if kind := _classify(each):
            return kind
    return None


def is_refused(error: BaseException) -> bool:
    """Return whether a login or a certificate is not accepted, so that no retry succeeds."""
    if any(isinstance(each, LoginError) for each in causes(error)):
        return True
    return login_refusal(error) is not None or isinstance(_not_reached(error), CertificateError)


def _classify(error: BaseException) -> FailureKind | None:
    """Return the kind of one error: by its type, and by its text where the type says nothing."""
    if isinstance(error, CommitConflictError):
        return CONFLICT
    if isinstance(error, ThrottledError):
        return THROTTLED
    if isinstance(error, UnreachableError | ConnectionError | TimeoutError):
        return UNREACHABLE
    name = f"{type(error).__module__}.{type(error).__name__}"
    if name in _CONFLICT_CLASSES:
        return CONFLICT
    if name in _SILENT_CLASSES:
        return UNREACHABLE
    if name.startswith(_SERVICES) or _of_arrow(error):
        text = str(error)
        if _THROTTLING.search(text):
            return THROTTLED
        if _SILENT.search(text):
            return UNREACHABLE
        if name.startswith(_SPARK) and _CONFLICT.search(text):
            return CONFLICT
    return None


# --- commits ---


@contextmanager
def conflicts(subject: str) -> Iterator[None]:
    """Raise the libraries' errors of a commit that came second as one of topicberg's.

    :param subject: the object, as in ``table shop.orders``
    :raises CommitConflictError: another commit came first
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, TopicbergError) or _classify(error) is not CONFLICT:
            raise
        raise CommitConflictError(f"{subject}: {first_line(error)}") from error


def retry_conflicts(
    work: Callable[[], Result],
    attempts: int,
    *,
    wait: wait_base = _AT_ONCE,
    exhausted: CommitConflictError | None = None,
) -> Result:
    """Do the work again while another commit comes first.

    :param work: reads the newest state each time; see :func:`conflicts`
    :param exhausted: raised after the last attempt, instead of its error
    :raises CommitConflictError: every attempt met another commit
    """

    def log(state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        logger.info("%s; attempt %d of %d", error, state.attempt_number + 1, attempts)

    retrying = Retrying(
        retry=retry_if_exception_type(CommitConflictError),
        stop=stop_after_attempt(attempts),
        wait=wait,
        before_sleep=log,
        reraise=True,
    )
    try:
        return retrying(work)
    except CommitConflictError as error:
        if exhausted is None:
            raise
        raise exhausted from error


# --- messages ---


def unavailable_service(error: BaseException) -> str | None:
    """Return which service did not answer, of an error of a vendor's client; None: it is unknown.

    The clients' texts name an address at best, often that of another service.
    """
    for each in causes(error):
        for service, pattern in _NAMED_BY_TEXT:
            if pattern.search(str(each)):
                return service
    for each in causes(error):
        for service, library in _NAMED_BY_CLIENT:
            if raised_in(each.__traceback__, library):
                return service
    return None


def availability_hint(service: str | None) -> str:
    """Return the hint of an error about a service that does not answer."""
    if service == _CATALOG:  # it tries for minutes to read a table's metadata, without an error
        return see_whether_it_runs(f"{service}, with the object store (s3) that it reads,")
    return see_whether_it_runs(service or "every service")


def with_service(error: BaseException) -> BaseException:
    """Return the error to report: it says which service was not found, refuses or does not answer,
    if a vendor's client raised it.
    """
    if any(isinstance(each, TopicbergError) for each in causes(error)):
        return error
    known = login_refusal(error) or _not_reached(error, asks=True) or _missing_file(error)
    if known is not None:
        return known
    service = unavailable_service(error)
    if service is None or classify(error) != UNREACHABLE:
        return error
    reason = first_line(error)[:300]
    named = UnreachableError(
        f"{service} does not answer: {reason}", hint=availability_hint(service)
    )
    named.__cause__ = error
    return named


def _not_reached(error: BaseException, *, asks: bool = False) -> TopicbergError | None:
    """Return the error of a server that is not found or not trusted, of a vendor's client.

    :param asks: whether the server may be asked for its certificate, which takes seconds
    """
    service = unavailable_service(error)
    if service is None:
        return None
    if service == _SPARK_SERVICE and _OF_SPARK_ITSELF.search(str(error)) is None:
        service = "a server that Spark uses"
    unreachable = connection_error(service, error, asks=asks)
    if unreachable is not None:
        unreachable.__cause__ = error
    return unreachable


def _missing_file(error: BaseException) -> MissingFileError | None:
    """Return the error of a file that a table has, and the object store has not."""
    for each in causes(error):
        name = f"{type(each).__module__}.{type(each).__name__}"
        is_of_client = isinstance(each, FileNotFoundError) or name.startswith(_SERVICES)
        if not is_of_client or (match := _MISSING_FILE.search(str(each))) is None:
            continue
        missing = MissingFileError(
            f"a file of a table is missing in the object store: {match[1]}",
            hint="restore the file, if the bucket has versions; else drop the table: the engine "
            "ingests what Kafka still has, and derived tables are computed again",
        )
        missing.__cause__ = error
        return missing
    return None


def without_jvm(error: BaseException) -> BaseException:
    """Return an analysis error of Spark as one message, without plan and stack trace of the JVM.

    Any other error is returned unchanged: its trace may be what explains it.
    """
    if not type(error).__module__.startswith("pyspark"):
        return error
    from pyspark.errors import AnalysisException, ParseException

    if not isinstance(error, AnalysisException | ParseException):
        return error
    text = str(error).partition("JVM stacktrace:")[0].strip()
    reason = next(iter(text.splitlines()), type(error).__name__).rstrip(";")
    cut = TopicbergError(
        f"Spark refuses the query: {reason}",
        hint="correct the name or expression in the function of the table, or in what it reads",
    )
    cut.__suppress_context__ = True
    return cut


def _of_arrow(error: BaseException) -> bool:
    """Return whether it is PyArrow's error of the object store, which has no class of its own."""
    return type(error) is OSError and "AWS Error " in str(error)
