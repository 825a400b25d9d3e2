"""Failures of other services as messages that name the cause and the remediation."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from pyiceberg.exceptions import RESTError, ServerError, ServiceUnavailableError

from topicberg import retry
from topicberg.connections import NotFoundError
from topicberg.errors import LoginError, TopicbergError, UnreachableError
from topicberg.iceberg import clocks

if TYPE_CHECKING:
    from pyspark.errors import PySparkException

    from topicberg.endpoints import Endpoints
    from topicberg.settings import Settings


@dataclass(frozen=True)
class _Known:
    pattern: str
    message: str
    hint: str
    is_quoted: bool = False
    """Whether the message ends with what the service says."""

    def search(self, text: str) -> re.Match[str] | None:
        return re.search(self.pattern, text, re.IGNORECASE)

    def reason(self, text: str) -> str:
        """Return the part of an error's text that says why, or nothing."""
        if not self.is_quoted or not (match := self.search(text)):
            return ""
        line = text[text.rfind("\n", 0, match.start()) + 1 :].partition("\n")[0].strip()
        begin = max(0, line.find(match[0]) - 100)
        return f": {'… ' if begin else ''}{line[begin : begin + 300]}"


# What Spark Connect reports for a session that its server does not have any more.
_SPARK_ENDED = (
    r"NO_ACTIVE_SESSION|SESSION_NOT_FOUND|SESSION_CLOSED|SESSION_CHANGED|INVALID_HANDLE|"
    r"stopped SparkContext"
)
_SPARK_GONE = r"StatusCode\.UNAVAILABLE|failed to connect to all addresses"
"""What its client reports when Spark ended during a job and takes long to start again."""
_OUT_OF_MEMORY = "MemoryError|Java heap space"

_SPACE = _Known(
    r"No space left on device|Disk quota exceeded|File too large|DiskOutOfSpace|"
    r"insufficient.?storage",
    "a disk is full: that of the engine, of Spark or of the object store",
    "free some space; nothing of the batch was committed, the engine writes it again",
)

# The first that matches applies, so more specific patterns come first.
_KNOWN = (
    _SPACE,
    _Known(
        r"NoSuchBucket|AWS Error NO_SUCH_BUCKET|bucket does not exist",
        "the bucket of the table does not exist",
        "restore the bucket, or drop the table to start again in a new bucket",
    ),
    _Known(
        r"RequestTimeTooSkewed|REQUEST_TIME_TOO_SKEWED|Signature not yet current",
        "the object store refuses the request because its clock differs from this machine's",
        "correct this machine's clock, for instance with NTP",
        is_quoted=True,
    ),
    _Known(
        clocks.REFUSED.pattern,
        "the catalog refuses the commit because the clock of this machine, or of who committed "
        "last, is wrong",
        "correct the clock that differs, for instance with NTP",
        is_quoted=True,
    ),
    _Known(
        r"RESTError 413|(Request Entity|Payload|Content|metadata[\w. ]{0,30}) too large|"
        r"metadata[\w. ]{0,60}(exceeds|limit)",
        "the catalog refuses the table's metadata because they are too large",
        "run `topicberg tableflow maintain TOPIC`, which expires snapshots; if it recurs, raise "
        "tableflow.commit_interval_seconds, or lower tableflow.retention_ms",
        is_quoted=True,
    ),
    _Known(
        r"SignatureDoesNotMatch|InvalidAccessKeyId|Access.?Denied|"
        r"Status Code: 40[13]|Expired.?Token|InvalidToken|"
        r"AWS Error (INVALID_|ACCESS_DENIED|SIGNATURE_|REQUEST_EXPIRED|UNRECOGNIZED_|"
        r"MISSING_AUTHENTICATION)",
        "the object store refuses the credentials",
        "check the access key of the deployment and the policy of the bucket; if the catalog gives "
        "out the keys (TOPICBERG_ICEBERG_REST_DELEGATION), check the role that the catalog assumes",
        is_quoted=True,
    ),
    _Known(
        r"Service: S3, Status Code: 5\d\d|AWS Error (INTERNAL_|SERVICE_UNAVAILABLE|SLOW_DOWN)",
        "the object store failed",
        "read `topicberg logs s3` for the reason, most often a full disk; the engine writes the "
        "batch again",
    ),
    _Known(
        r"NotAuthorizedException|Not authorized",
        "the catalog or its OAuth server refuses the login of Spark",
        "check TOPICBERG_ICEBERG_REST_CLIENT_ID, _CLIENT_SECRET, _SCOPE and _TOKEN",
        is_quoted=True,
    ),
    _Known(
        r"ForbiddenException|ForbiddenError|UnauthorizedError|"
        r"read.?only (database|catalog|file system)|attempt to write a readonly database",
        "the catalog refuses to write",
        "grant the principal of TOPICBERG_ICEBERG_REST_CLIENT_ID, _TOKEN or _ROLE_ARN the right to "
        "create and commit tables",
        is_quoted=True,
    ),
    _Known(
        r"SaslAuthenticationException|TopicAuthorizationException|GroupAuthorizationException|"
        r"_AUTHENTICATION|TOPIC_AUTHORIZATION_FAILED",
        "Kafka refuses the credentials",
        "check TOPICBERG_KAFKA_API_KEY and _API_SECRET, or the other settings of the login, and "
        "the right to read the topic",
        is_quoted=True,
    ),
    _Known(
        _OUT_OF_MEMORY,
        "Spark does not have enough memory for the batch",
        "lower tableflow.commit_max_bytes, or give Spark more memory",
    ),
    _Known(
        r"CommitStateUnknown|Service failed: 5\d\d",
        "the catalog failed",
        "read `topicberg logs iceberg_rest` for the reason; the engine checks whether its commit "
        "succeeded before it writes again",
    ),
    _Known(
        _SPARK_ENDED,
        "Spark ended and was restarted, or has dropped the engine's session",
        "wait: the engine writes the batch again in a new session",
    ),
)
_CONNECTION = re.compile(
    r"Connection (refused|aborted|reset)|UnknownHost|Unable to execute HTTP request|"
    r"Read timed out|AWS Error (NETWORK_CONNECTION|REQUEST_TIMEOUT)",
    re.IGNORECASE,
)


_FAILED_TASK = re.compile(
    r"^.*Job aborted due to stage failure.*Lost task .*?\): (.+)$", re.MULTILINE
)
"""The line of Spark's driver that ends with the reason of the task."""


def is_full(error: BaseException) -> bool:
    """Return whether a disk is full."""
    return _SPACE.search(str(error)) is not None


def is_ended(error: PySparkException) -> bool:
    """Return whether Spark ended, so that its sessions are gone."""
    return re.search(f"{_SPARK_ENDED}|{_SPARK_GONE}", str(error)) is not None


def is_of_service(error: PySparkException) -> bool:
    """Return whether a job failed whatever it reads: a service does not answer, refuses or is full.

    Else, perhaps, a record is the reason.
    """
    from pyspark.errors import AnalysisException, ParseException

    text = str(error)
    if is_ended(error) or is_full(error) or isinstance(error, AnalysisException | ParseException):
        return True
    if re.search(_OUT_OF_MEMORY, text):
        return False
    if _CONNECTION.search(text) or any(known.search(text) for known in _KNOWN):
        return True
    return (
        retry.classify(error) in (retry.THROTTLED, retry.UNREACHABLE)
        or retry.with_service(error) is not error
    )


@contextmanager
def explained(subject: str) -> Iterator[None]:
    """Raise errors of the catalog and the store as :func:`explain` words them.

    :raises TopicbergError: the catalog or the store refuses, or does not answer
    """
    try:
        yield
    except (RESTError, OSError) as error:
        raise explain(subject, error) from error


def explain(subject: str, error: BaseException) -> TopicbergError:
    """Return an error of Spark, the catalog or the store at e.g. ``topic orders`` as a message."""
    text = str(error)
    clear = retry.with_service(error)
    if isinstance(clear, LoginError | NotFoundError | retry.MissingFileError):
        return type(clear)(f"{subject}: {clear.message}", hint=clear.hint)
    for known in _KNOWN:
        if known.search(text):
            return TopicbergError(
                f"{subject}: {known.message}{known.reason(text)}", hint=known.hint
            )
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if details := re.search(r'^\s*details = "(.+)"', text, re.MULTILINE):  # an error of gRPC
        lines = [details[1]]
    reason = lines[0][:300] if lines else type(error).__name__
    if task := _FAILED_TASK.search(text):
        causes = re.findall(r"^Caused by: (.+)$", text, re.MULTILINE)
        reason = ": ".join(part.strip()[:200] for part in (task[1], *causes[-1:]))
    if isinstance(error, RESTError):
        return _of_catalog(subject, error, reason)
    if _CONNECTION.search(text) or retry.classify(error) == retry.UNREACHABLE:
        service = retry.unavailable_service(error)
        return UnreachableError(
            f"{subject}: {service or 'a service'} does not answer: {reason}",
            hint=f"{retry.availability_hint(service)}; the engine then writes the batch again",
        )
    return TopicbergError(f"{subject}: {type(error).__name__}: {reason}")


def missing_bucket(
    subject: str, location: str, endpoints: Endpoints, config: Settings
) -> TopicbergError | None:
    """Return the error of a bucket that does not exist; None: it exists, or the store does not say.

    A catalog that reads a table's metadata from it may try for minutes, and answer nothing.

    :param location: of the table
    """
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError, ClientError

    options = Config(connect_timeout=3, read_timeout=3, retries={"total_max_attempts": 1})
    try:
        store = endpoints.boto3("s3", config, options)
        store.head_bucket(Bucket=urlsplit(location).netloc)
    except ClientError as error:
        if error.response["ResponseMetadata"]["HTTPStatusCode"] == HTTPStatus.NOT_FOUND:
            return explain(subject, RuntimeError("NoSuchBucket"))
    except BotoCoreError:
        return None
    return None


def _of_catalog(subject: str, error: RESTError, reason: str) -> TopicbergError:
    """Return the catalog's own error; its client has a class for each kind of status."""
    if isinstance(error, ServiceUnavailableError | ServerError):
        return UnreachableError(
            f"{subject}: the catalog fails: {reason}",
            hint="read the catalog's log for the reason (of the local stack: "
            "`topicberg logs iceberg_rest`); the engine checks whether its commit succeeded before "
            "it writes again",
        )
    return TopicbergError(f"{subject}: the catalog refuses: {type(error).__name__}: {reason}")
