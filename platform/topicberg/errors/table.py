"""What an error of another program means: one table, which :mod:`.meaning` reads from the top.

Sources: the AWS APIs' "Common errors"; Iceberg's and Spark's exceptions; librdkafka's error codes;
Snowflake, "Troubleshooting the connector" and its errors 390100 to 390499, which are about logins.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial

from topicberg.errors import (
    CommitConflictError,
    LoginError,
    MissingFileError,
    ThrottledError,
    TopicbergError,
    UnreachableError,
)
from topicberg.errors.aws import EXPIRED, NO_TOKEN, refusal_of


@dataclass(frozen=True)
class Kind:
    """A kind of failure; without retries, the same work fails the same way again."""

    name: str
    retries: int = 0
    first_wait_seconds: float = 0
    raises: type[TopicbergError] = TopicbergError

    def wait(self, retry: int) -> float:
        """Return the seconds before a retry, which double; the first retry has number 0."""
        return self.first_wait_seconds * 2.0**retry


CONFLICT = Kind("another commit came first", 5, 1, CommitConflictError)
UNREACHABLE = Kind("a service does not answer", 4, 5, UnreachableError)
UNRESOLVED = Kind("a host name does not resolve", 3, 3, UnreachableError)
"""A resolver may be restarting; a wrong name is reported within a minute."""
THROTTLED = Kind("a service throttles requests", 5, 10, ThrottledError)
LOGIN = Kind("a login, or what it may do, is refused", raises=LoginError)
FULL, MEMORY = Kind("a disk is full"), Kind("Spark has too little memory")
ENDED = Kind("Spark ended, and its sessions with it")
MISSING_FILE = Kind("a file of a table is missing", raises=MissingFileError)
OTHER = Kind("a retry does not resolve it")

EXISTS = Kind("the object exists, e.g. by an earlier request whose response was lost")
MISSING, DENIED = Kind("the object does not exist"), Kind("the login may not send this request")
EVENTUAL = Kind("what was created or changed seconds ago is not known everywhere yet")
UNACCEPTED = Kind("a refusal that may be about something new")
"""No vendor documents a code or a text that tells it from a final one, so the caller has to know
whether something is new."""
UNANSWERED, BROKEN = Kind("the request may have been carried out"), Kind("the session is broken")


class ErrorRow:
    """A row of the table; the first one that matches an error applies to it.

    :param by: who raises it: what its class begins with, the module included (regular expression)
    :param text: what ``code number status: text`` of the error has (the same, in any case)
    :param kinds: the message is that of the first one
    :param says: message and hint, with ``{service}``, the ``{reason}`` in one line, the ``{line}``
        that matches, ``{match}``, and of AWS ``{code}`` and ``{operation}``; without a hint, it is
        how to see whether the service runs; empty: the error's own text is as good
    """

    def __init__(self, by: str, text: str, *kinds: Kind, says: str = "") -> None:
        self._by = re.compile(by)
        self._text = re.compile(text, re.IGNORECASE | re.DOTALL)
        self.kinds = kinds
        self.message, _, self.hint = says.partition(" → ")

    def search(self, error: BaseException) -> re.Match[str] | None:
        """Return where the text of an error matches; None: the row is about another error."""
        return self._text.search(text_of(error)) if self._by.match(class_of(error)) else None


def class_of(error: BaseException) -> str:
    """Return the class of an error, with its module; what it is, where it has no class of its own
    (Arrow's errors of S3) or one for each code (AWS's)."""
    if type(error) is OSError and "AWS Error " in str(error):
        return "pyarrow.OSError"
    if refusal_of(error)[0]:
        return "botocore.exceptions.ClientError"
    return f"{type(error).__module__}.{type(error).__name__}".removeprefix("builtins.")


def text_of(error: BaseException) -> str:
    """Return the numbers of an error, as far as it has them, and its text."""
    code, _, status = refusal_of(error)
    if code:
        return f"{code} {status}: {error}"
    numbers = (getattr(error, name, None) for name in ("errno", "sqlstate", "status"))
    return f"{' '.join(str(each) for each in numbers if isinstance(each, int | str))}: {error}"


_SPARK, _STORE = "pyspark|py4j", "pyspark|py4j|pyarrow"
"""py4j raises the errors of a Spark that is not behind Spark Connect, as in a job of EMR."""
_CLIENTS = f"{_STORE}|grpc|botocore|pyiceberg|snowflake|urllib3|cimpl"
"""Libraries whose errors are recognized by their text: they have one class for everything.
``cimpl`` is the module of confluent_kafka's errors."""
_CONFLUENT, _BOTOCORE = r"topicberg\.clients\.confluent\.", r"botocore\.exceptions\."
_any, _spark, _store = (partial(ErrorRow, by) for by in (_CLIENTS, _SPARK, _STORE))
_catalog, _snowflake = (partial(ErrorRow, by) for by in (f"{_SPARK}|pyiceberg", r"snowflake\."))
_aws = partial(ErrorRow, rf"{_BOTOCORE}ClientError$")
_SILENT = "{service} does not answer: {reason}"
_BUSY = r"(Throttl|TooManyRequests|RequestLimitExceeded|SLOW_?DOWN|\b429:|status.?code.?429)"
CLOCKS_DIFFER = r"Expected sorted (snapshot|previous metadata) log|Invalid (snapshot|update) timest"
"""What Iceberg's libraries say of a snapshot that is older than the newest one of its table."""
NO_CAPACITY = re.compile(
    rf"{_BUSY}|MaxCapacityExceeded|exceeded maximumCapacity|concurrent vCPU|ServiceQuotaExceeded|"
    "Rate exceeded",
    re.IGNORECASE,
)  # EMR Serverless has one state for every failure and does not list its texts: known ones.

QUERY = ErrorRow(
    r"pyspark\.errors\.exceptions\.\w+\.(Analysis|Parse|TempTableAlreadyExists)Exception",
    "",
    OTHER,
    says="Spark refuses the query: {reason} → correct the name or expression in the function of "
    "the table, or in what it reads",
)

TABLE = (
    QUERY,
    # Of an unknown state, the newest metadata tell whether the commit was done.
    ErrorRow(r"pyiceberg.*\.(CommitFailed|CommitStateUnknown|Validation)Exception", "", CONFLICT),
    # Its text may have the first failure, such as a full disk, as a cause.
    _spark(
        r"Could not initialize class ([\w.$]+)",
        OTHER,
        says="Spark cannot use {match} since an earlier failure, such as a full disk → start Spark "
        "again (locally `topicberg down`, then `topicberg up`); nothing of the batch was committed",
    ),
    ErrorRow(
        rf"{_CLIENTS}|OSError",
        r"No space left on device|Disk quota exceeded|File too large|DiskOutOfSpace|"
        r"insufficient.?storage",
        FULL,
        says="a disk is full: that of the engine, of Spark or of the object store → free some "
        "space; nothing of the batch was committed",
    ),
    _any(
        r"NoSuchBucket|NO_SUCH_BUCKET|bucket does not exist|HeadBucket operation: Not Found",
        MISSING,
        says="the bucket of the table does not exist → see whether the state folder of the local "
        "stack, or the store, was moved; restore the bucket; if it is lost, drop the table",
    ),
    ErrorRow(
        rf"{_CLIENTS}|FileNotFoundError",
        r"(?:Location does not exist: |Cannot open file, does not exist: |Path does not exist ')"
        r"((?:s3[an]?://)?[^\s']+/[^\s']+)",
        MISSING_FILE,
        says="a file of a table is missing in the object store: {match} → restore the file, if the "
        "bucket has versions; else drop the table: the engine ingests what Kafka still has, and "
        "derived tables are computed again",
    ),
    # The next rows are about AWS's SDK for Python.
    ErrorRow(
        rf"{_BOTOCORE}({'|'.join(NO_TOKEN)}|NoCredentialsError|PartialCredentialsError)",
        "",
        LOGIN,
        says="the login to AWS failed: {reason} → set the keys, the profile (AWS_PROFILE) or the "
        "role of this process; `aws sts get-caller-identity` tries them",
    ),
    _aws(
        rf"^({'|'.join(EXPIRED)}|UnrecognizedClientException|InvalidClientTokenId|"
        r"InvalidAccessKeyId|InvalidSignatureException|SignatureDoesNotMatch|AuthFailure|"
        r"InvalidToken|RequestTimeTooSkewed|MissingAuthenticationToken|IncompleteSignature|"
        r"OptInRequired) ",
        LOGIN,
        says="AWS refuses the login ({operation}): {code}: {reason} → check the keys, the profile "
        "(AWS_PROFILE) or the role of this process: `aws sts get-caller-identity` tries them; and "
        "the clock of this machine",
    ),
    _aws(
        "^(AccessDenied|AccessDeniedException|UnauthorizedOperation) ",
        LOGIN,
        DENIED,
        says="AWS does not allow {operation}: {code}: {reason} → grant this right to the role or "
        "user that topicberg uses",
    ),
    _aws(
        rf"^[^:]*{_BUSY}",
        THROTTLED,
        UNANSWERED,
        says="AWS throttles requests ({operation}): {code}: {reason}",
    ),
    _aws(
        "^(EntityAlreadyExists|AlreadyExistsException|ResourceExistsException|OperationAborted|"
        "ParameterAlreadyExists|BucketAlreadyOwnedByYou) ",
        EXISTS,
    ),
    # Athena says so of a workgroup.
    _aws("^InvalidRequestException .*already created", EXISTS, EVENTUAL),
    _aws("^NoSuchEntity ", MISSING, EVENTUAL),
    _aws("^(EntityNotFound|ResourceNotFound)Exception |^ParameterNotFound ", MISSING),
    # A principal that IAM does not know yet is called a malformed policy; a secret's stage that
    # has moved already, an invalid parameter. Tableflow may write to its bucket for a while after
    # it was disabled.
    _aws(
        "^(MalformedPolicyDocument|DeleteConflict|BucketNotEmpty|InvalidParameterException|"
        "InvalidRequestException|ConcurrentModification|ConcurrentModificationException) ",
        EVENTUAL,
    ),
    _aws(r"^\S* 5\d\d:", UNREACHABLE, UNANSWERED, says="AWS fails: {code}: {reason}"),
    ErrorRow(
        rf"{_BOTOCORE}(EndpointConnection|ConnectTimeout)Error", "", UNREACHABLE, says=_SILENT
    ),
    ErrorRow(
        rf"{_BOTOCORE}(HTTPClient|ReadTimeout|ConnectionClosed|ResponseStreaming)Error",
        "",
        UNREACHABLE,
        UNANSWERED,
        says=_SILENT,
    ),
    # Of Confluent Cloud, a 403 does not say that an object is deleted: the key may lack the right.
    ErrorRow(f"{_CONFLUENT}GoneError", "^404", MISSING, EVENTUAL),
    ErrorRow(f"{_CONFLUENT}(Gone|Credentials)Error", "", EVENTUAL),
    ErrorRow(f"{_CONFLUENT}ConflictError", "", EXISTS),
    ErrorRow(f"{_CONFLUENT}FailedError", "", UNACCEPTED),
    ErrorRow(f"{_CONFLUENT}ApiError", "^400.*already exists", EXISTS, UNACCEPTED),
    ErrorRow(f"{_CONFLUENT}ApiError", "^(400|422)", UNACCEPTED),
    ErrorRow(r"topicberg\..*\.(Uncertain|Garbled|Answer)Error$", "", UNREACHABLE, UNANSWERED),
    # Of Snowflake, the number of the error comes first: statements have numbers as well.
    _snowflake(
        r"^390422\b|is not allowed to access Snowflake",
        LOGIN,
        says="Snowflake refuses the address of this machine: {reason} → add it to the network "
        "policy of the account or of the user",
    ),
    _snowflake(
        r"^390[1-4]\d\d\b|JWT token is invalid|Incorrect username",
        LOGIN,
        says="Snowflake refuses the login: {reason} → check TOPICBERG_SNOWFLAKE_USER, and "
        "_PASSWORD or _PRIVATE_KEY, and that the user is neither disabled nor locked (DESC USER)",
    ),
    _snowflake(
        r"\b290404\b|Verify the account name|404 Not Found.*login-request",
        LOGIN,
        says="Snowflake does not know the account: {reason} → check TOPICBERG_SNOWFLAKE_ACCOUNT, "
        "which is ORGANIZATION-ACCOUNT",
    ),
    # SQLSTATE 42710: the object exists, and the role may not see it. Number 1003: the statement
    # cannot be parsed.
    ErrorRow(r"snowflake.*\.ProgrammingError$", r"^\S* 42710\b", EXISTS, UNACCEPTED),
    ErrorRow(r"snowflake.*\.ProgrammingError$", r"^(?!1003\b)", UNACCEPTED),
    ErrorRow(
        r"snowflake.*\.(?!(Programming|Database|Data|Integrity|Internal|NotSupported)Error)\w+$",
        "",
        UNREACHABLE,
        UNANSWERED,
        BROKEN,
        says=_SILENT,
    ),
    # The next rows are about Iceberg's catalog and the object store, as their clients in Python and
    # Java report them.
    _any(
        CLOCKS_DIFFER,
        OTHER,
        says="the catalog refuses the commit because the clock of this machine, or of who "
        "committed last, is wrong: {line} → correct the clock that differs, for instance with NTP",
    ),
    # A file that an overwrite would have to split does not conflict: the table's partitions are too
    # long.
    _spark(
        r"ValidationException(?!\)?:? Cannot delete file where some)|CommitFailedException|"
        r"Cannot commit",
        CONFLICT,
    ),
    _catalog(
        r"RESTError 413|(Request Entity|Payload|Content|metadata[\w. ]{0,30}) too large|"
        r"metadata[\w. ]{0,60}(exceeds|limit)",
        OTHER,
        says="the catalog refuses the table's metadata because they are too large: {line} → run "
        "`topicberg tableflow maintain TOPIC`, which expires snapshots; if it recurs, raise "
        "tableflow.commit_interval_seconds, or lower tableflow.retention_ms",
    ),
    _store(
        "RequestTimeTooSkewed|REQUEST_TIME_TOO_SKEWED|Signature not yet current",
        LOGIN,
        says="the object store refuses the request because its clock differs from this machine's: "
        "{line} → correct this machine's clock, for instance with NTP",
    ),
    _store(
        "SignatureDoesNotMatch|InvalidAccessKeyId|Access.?Denied|Status Code: 40[13]|"
        "Expired.?Token|InvalidToken|AWS Error (INVALID_|ACCESS_DENIED|SIGNATURE_|"
        "REQUEST_EXPIRED|UNRECOGNIZED_|MISSING_AUTHENTICATION)",
        LOGIN,
        says="the object store refuses the credentials: {line} → check the access key of the "
        "deployment and the policy of the bucket; if the catalog gives out the keys "
        "(TOPICBERG_ICEBERG_REST_DELEGATION), check the role that the catalog assumes",
    ),
    _store(_BUSY, THROTTLED, says="the object store throttles requests: {line}"),
    _store(
        r"Service: S3, Status Code: 5\d\d|AWS Error (INTERNAL_|SERVICE_UNAVAILABLE)",
        UNREACHABLE,
        says="the object store failed: {line} → read `topicberg logs s3` for the reason, most "
        "often a full disk",
    ),
    _spark(
        "NotAuthorizedException|Not authorized",
        LOGIN,
        says="the catalog or its OAuth server refuses the login of Spark: {line} → check "
        "TOPICBERG_ICEBERG_REST_OAUTH and _TOKEN",
    ),
    _catalog(
        "ForbiddenException|ForbiddenError|UnauthorizedError|"
        "read.?only (database|catalog|file system)|attempt to write a readonly database",
        LOGIN,
        says="the catalog refuses to write: {line} → grant the principal of "
        "TOPICBERG_ICEBERG_REST_OAUTH, _TOKEN or _ROLE_ARN the right to create and commit tables",
    ),
    ErrorRow(
        f"{_SPARK}|cimpl",
        "SaslAuthenticationException|(Topic|Group)AuthorizationException|_AUTHENTICATION|"
        "(TOPIC|GROUP)_AUTHORIZATION_FAILED",
        LOGIN,
        says="Kafka refuses the credentials: {line} → check TOPICBERG_KAFKA_API_KEY and "
        "_API_SECRET, or the other settings of the login, and the right to read the topic",
    ),
    # Spark ended; in the second row, during a job, and takes long to start again.
    _spark(
        "NO_ACTIVE_SESSION|SESSION_NOT_FOUND|SESSION_CLOSED|SESSION_CHANGED|INVALID_HANDLE|"
        "stopped SparkContext|SparkContext was shut down",
        UNREACHABLE,
        ENDED,
        says="Spark ended and was restarted, or has dropped the session → wait: the work is done "
        "again in a new session",
    ),
    ErrorRow(
        rf"{_SPARK}|grpc",
        r"StatusCode\.UNAVAILABLE|failed to connect to all addresses",
        UNREACHABLE,
        ENDED,
        says="Spark does not answer: {reason}",
    ),
    _spark(
        "MemoryError|Java heap space",
        MEMORY,
        says="Spark does not have enough memory for the batch → lower tableflow.commit_max_bytes, "
        "or give Spark more memory",
    ),
    _spark(
        r"CommitStateUnknown|Service failed: 5\d\d",
        UNREACHABLE,
        says="the catalog failed: {line} → read `topicberg logs iceberg_rest` for the reason; "
        "whether the commit succeeded is checked before anything is written again",
    ),
    ErrorRow(
        "pyiceberg.*(ServiceUnavailable|Server)Error",
        "",
        UNREACHABLE,
        says="the catalog fails: {reason} → read the catalog's log for the reason (of the local "
        "stack: `topicberg logs iceberg_rest`)",
    ),
    _any(_BUSY, THROTTLED, says="{service} throttles requests: {reason}"),
    _any(
        "Connection (refused|reset|aborted)|UnknownHost|failed to connect|Read timed out|"
        "Unable to execute HTTP request|Lost executor|ExecutorLostFailure|Status Code: 50[0-4]|"
        "AWS Error (NETWORK_CONNECTION|REQUEST_TIMEOUT)|"
        "code=_(TRANSPORT|ALL_BROKERS_DOWN|TIMED_OUT),",
        UNREACHABLE,
        says=_SILENT,
    ),
    # By exact name: no subclass such as an SSL error counts.
    ErrorRow(
        r"requests.*\.(ConnectionError|ConnectTimeout|ReadTimeout)$", "", UNREACHABLE, says=_SILENT
    ),
)
