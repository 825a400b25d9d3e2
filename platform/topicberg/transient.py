"""Which failures pass by themselves, and how long that may take.

A service that does not answer, a commit that came second, a vendor that asks to slow down: the same
work succeeds later. All else (a wrong spec, a function that does not fit its data, refused
credentials) fails the same way again, so it is told at once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from topicberg.clients.answers import raised_in
from topicberg.errors import CommitConflictError, ThrottledError, TopicbergError, UnreachableError


@dataclass(frozen=True)
class Kind:
    """A kind of failure that passes; the wait doubles from one attempt to the next."""

    name: str
    retries: int
    first_wait_seconds: float

    def wait(self, retry: int) -> float:
        """Seconds before a retry; the first one is 0."""
        return self.first_wait_seconds * 2.0**retry


CONFLICT = Kind("another commit came first", retries=5, first_wait_seconds=1)
UNREACHABLE = Kind("a service does not answer", retries=4, first_wait_seconds=5)
THROTTLED = Kind("a service asks to slow down", retries=5, first_wait_seconds=10)

_THROTTLING = re.compile(
    r"Throttl|TooManyRequests|RequestLimitExceeded|SlowDown|status.?code.?429|"
    r"AWS Error (SLOW_DOWN|THROTTLING)"
)
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
"""Libraries whose errors are judged by their text: they have one class for everything.

py4j raises those of a Spark that is not behind Spark Connect, as in a job of EMR Serverless.
"""
_CATALOG = "Iceberg's catalog"
_NAMED_BY_TEXT = (
    ("the object store", re.compile(r"AWS Error [A-Z_]+ during|awssdk|SdkClientException")),
    (_CATALOG, re.compile(r"org\.apache\.iceberg\.(rest\.|exceptions\.RESTException)")),
)
"""What Spark, the catalog and PyArrow pass on of the services behind them."""
_NAMED_BY_CLIENT = (
    (_CATALOG, "pyiceberg.catalog"),
    ("AWS", "botocore"),
    ("Snowflake", "snowflake.connector"),
    ("Spark", "pyspark"),
)
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


def kind_of(error: BaseException) -> Kind | None:
    """The kind of a failure that passes; None: it fails the same way again."""
    for each in _causes(error):
        if isinstance(each, CommitConflictError):
            return CONFLICT
        if isinstance(each, ThrottledError):
            return THROTTLED
        if isinstance(each, UnreachableError | ConnectionError | TimeoutError):
            return UNREACHABLE
        name = f"{type(each).__module__}.{type(each).__name__}"
        if name == "pyiceberg.exceptions.CommitFailedException":
            return CONFLICT
        if name in _SILENT_CLASSES:
            return UNREACHABLE
        if name.startswith(_SERVICES) or _of_arrow(each):
            if _THROTTLING.search(str(each)):
                return THROTTLED
            if _SILENT.search(str(each)):
                return UNREACHABLE
    return None


def silent_service(error: BaseException) -> str | None:
    """Who did not answer, of a failure that a vendor's client tells; None: nobody knows.

    The clients' texts name an address at best, often of another service than was asked.
    """
    for each in _causes(error):
        for service, pattern in _NAMED_BY_TEXT:
            if pattern.search(str(each)):
                return service
    for each in _causes(error):
        for service, library in _NAMED_BY_CLIENT:
            if raised_in(each.__traceback__, library):
                return service
    return None


def where_to_look(service: str | None) -> str:
    """A hint for who meets a service that does not answer."""
    if service == _CATALOG:  # it tries for minutes to read a table's metadata, and says nothing
        return "`topicberg status` shows whether it runs, and the object store (s3) that it reads"
    return f"`topicberg status` shows {'whether it runs' if service else 'which'}"


def said(error: BaseException) -> BaseException:
    """The failure as people are told it: of a vendor's client that has no answer, who is silent."""
    if any(isinstance(each, TopicbergError) for each in _causes(error)):
        return error
    service = silent_service(error)
    if service is None or kind_of(error) != UNREACHABLE:
        return error
    reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
    named = UnreachableError(
        f"{service} does not answer: {reason[:300]}",
        hint=where_to_look(service),
    )
    named.__cause__ = error
    return named


def without_jvm(error: BaseException) -> BaseException:
    """Return an analysis error of Spark as one message, without plan and stack trace of the JVM.

    Any other error as it is: its trace may be what explains it.
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
    """PyArrow has no class of its own for what the object store says."""
    return type(error) is OSError and "AWS Error " in str(error)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
