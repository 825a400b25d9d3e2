"""What an error of another program means, by the rows of :mod:`.table`.

:func:`classify` says whether a retry may resolve a failure, :func:`means` what a vendor says of an
object, :func:`to_report` and :func:`explain` what users read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from topicberg.errors import (
    CommitConflictError,
    LoginError,
    NotFoundError,
    ThrottledError,
    TopicbergError,
    UnreachableError,
    causes,
    first_line,
    raised_in,
    see_whether_it_runs,
    table,
)
from topicberg.errors.aws import login_hint, refusal_of
from topicberg.errors.connections import connection_error, line_around
from topicberg.errors.table import ErrorRow, Kind, class_of

_OWN: tuple[tuple[type[BaseException] | tuple[type[BaseException], ...], Kind], ...] = (
    (LoginError, table.LOGIN),
    (NotFoundError, table.UNRESOLVED),
    (CommitConflictError, table.CONFLICT),
    (ThrottledError, table.THROTTLED),
    ((UnreachableError, ConnectionError, TimeoutError), table.UNREACHABLE),
)  # topicberg's errors, and Python's.
_CATALOG, _SPARK_SERVICE = "Iceberg's catalog", "Spark"
_OF_SPARK_ITSELF = re.compile(r"DNS resolution failed|failed to connect to all addresses")
"""What the client of Spark Connect says of Spark, not of what Spark uses."""
_NAMED_BY_TEXT = (
    ("the object store", re.compile(r"AWS Error [A-Z_]+ during|awssdk|SdkClientException")),
    ("Kafka", re.compile(r"KafkaError\{code=")),
    (_CATALOG, re.compile(r"org\.apache\.iceberg\.(rest\.|exceptions\.RESTException)")),
)  # What librdkafka says, and what Spark, the catalog and PyArrow pass on of services behind them.
_NAMED_BY_CLIENT = (
    (_CATALOG, "pyiceberg.catalog"),
    ("AWS", "botocore"),
    ("Snowflake", "snowflake.connector"),
    (_SPARK_SERVICE, "pyspark"),
)
_OF_FUNCTION = ".PythonException"
"""What a function raised in a worker of Spark: its text may be the user's."""
_GRPC = re.compile(r'^\s*details = "(.+)"', re.MULTILINE)
_FAILED_TASK = re.compile(
    r"^.*Job aborted due to stage failure.*Lost task .*?\): (.+)$", re.MULTILINE
)  # The line of Spark's driver that ends with the reason of the task.


def _row_of(error: BaseException) -> tuple[ErrorRow, re.Match[str]] | None:
    matches = ((row, row.search(error)) for row in table.TABLE)
    return next(((row, match) for row, match in matches if match is not None), None)


def means(error: BaseException, *kinds: Kind) -> bool:
    """Return whether an error, whatever caused it, is of one of these kinds."""
    matched = _row_of(error)
    return matched is not None and not set(kinds).isdisjoint(matched[0].kinds)


def _kinds(error: BaseException) -> Iterator[Kind]:
    """Yield the kinds of an error and of its causes."""
    if (reached := _not_reached(error)) is not None:
        yield table.UNRESOLVED if isinstance(reached, NotFoundError) else table.LOGIN
    is_explained = class_of(error).endswith(_OF_FUNCTION)
    for each in causes(error):
        # An error of topicberg has said already what a refused login means for it.
        is_explained |= isinstance(each, TopicbergError)
        if own := [kind for types, kind in _OWN if isinstance(each, types)]:
            yield own[0]
        elif matched := _row_of(each):
            yield from (
                kind for kind in matched[0].kinds if not (is_explained and kind is table.LOGIN)
            )


def classify(error: BaseException) -> Kind | None:
    """Return the kind of a failure that a retry may resolve; None: no retry does, e.g. of a refused
    login, whatever else is in the chain of causes."""
    kinds = [*_kinds(error)]
    retried = [kind for kind in kinds if kind.retries and table.LOGIN not in kinds]
    return table.UNRESOLVED if table.UNRESOLVED in retried else next(iter(retried), None)


def is_refused(error: BaseException) -> bool:
    """Return whether a login or a certificate is not accepted, so that no retry succeeds."""
    return table.LOGIN in _kinds(error)


def is_of_service(error: BaseException) -> bool:
    """Return whether a job of Spark failed whatever it reads: a service does not answer, refuses or
    is full. Else, perhaps, a record is the reason."""
    return not means(error, table.MEMORY) and (
        _row_of(error) is not None or _not_reached(error) is not None
    )


def is_of_vendor(error: BaseException) -> bool:
    """Return whether it is an error of AWS's or Snowflake's client, or of the way to them."""
    return class_of(error).startswith(("botocore.", "snowflake.connector."))


def to_report(error: BaseException) -> BaseException:
    """Return the error to report instead: it names the service, the cause and the fix. It is the
    error itself if that does so, or if the table does not have it."""
    if any(isinstance(each, TopicbergError) for each in causes(error)):
        return error
    return _explained(error, is_users=True) or error


def explain(subject: str, error: BaseException, *, rights: str | None = None) -> TopicbergError:
    """Return any error as a message about e.g. ``topic orders``; ``rights``: the hint if AWS does
    not allow the request."""
    own = (each for each in causes(error) if isinstance(each, TopicbergError))
    if (known := next(own, None) or _explained(error)) is None:
        refuses = "the catalog refuses: " if class_of(error).startswith("pyiceberg") else ""
        return TopicbergError(f"{subject}: {refuses}{type(error).__name__}: {_reason(error)}")
    hint = rights if rights and means(error, table.DENIED) else known.hint
    return type(known)(f"{subject}: {known.message}", hint=hint)


@contextmanager
def explained(subject: str) -> Iterator[None]:
    """Raise errors of the catalog and the store as :func:`explain` words them."""
    from pyiceberg.exceptions import RESTError

    try:
        yield
    except (RESTError, OSError) as error:
        raise explain(subject, error) from error


@contextmanager
def aws_explained(subject: str, rights: str) -> Iterator[None]:
    """Raise errors of AWS's client as :func:`explain` words them."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        yield
    except (BotoCoreError, ClientError) as error:
        raise explain(subject, error, rights=rights) from None


def availability_hint(service: str | None) -> str:
    """Return the hint of an error about a service that does not answer."""
    if service == _CATALOG:  # it tries for minutes to read a table's metadata, without an error
        return see_whether_it_runs(f"{service}, with the object store (s3) that it reads,")
    return see_whether_it_runs(service or "every service")


def _explained(error: BaseException, *, is_users: bool = False) -> TopicbergError | None:
    """Return the error that says what an error means, perhaps of what a user's function reads;
    None: the table does not have it."""
    if (reached := _not_reached(error, asks=True)) is not None:
        return reached
    service = _service_of(error)
    matches = ((each, _row_of(each)) for each in causes(error))
    explaining = ((each, *matched) for each, matched in matches if matched and matched[0].message)
    for each, row, match in explaining:
        is_named = service is not None or not row.message.startswith("{service}")
        if is_users and (class_of(each).endswith(_OF_FUNCTION) or not is_named):
            return None
        code, message, _ = refusal_of(each)
        known = row.kinds[0].raises(
            row.message.format(
                service=service or "a service",
                reason=message or code or _reason(each),
                line=line_around(match, 100, 300),
                match=match[1] if match.re.groups else "",
                code=code,
                operation=getattr(each, "operation_name", ""),
            ),
            hint=login_hint(each) or row.hint or availability_hint(service),
        )
        known.__cause__ = None if row is table.QUERY else error
        known.__suppress_context__ = True  # of a query, the trace of the JVM
        return known
    return None


def _reason(error: BaseException) -> str:
    """Return why, in one line: without a plan or a trace of the JVM, or what gRPC adds."""
    text = str(error)
    if details := _GRPC.search(text):
        return details[1][:300]
    if task := _FAILED_TASK.search(text):
        caused_by = re.findall(r"^Caused by: (.+)$", text, re.MULTILINE)
        return ": ".join(part.strip()[:200] for part in (task[1], *caused_by[-1:]))
    return first_line(error)[:300].rstrip(";")


def _service_of(error: BaseException) -> str | None:
    """Return which service an error is about; its text has an address at best, often another's."""
    chain = [*causes(error)]
    by_text = (s for each in chain for s, text in _NAMED_BY_TEXT if text.search(str(each)))
    traces = [each.__traceback__ for each in chain]
    by_client = (s for trace in traces for s, lib in _NAMED_BY_CLIENT if raised_in(trace, lib))
    return next(by_text, None) or next(by_client, None)


def _not_reached(error: BaseException, *, asks: bool = False) -> TopicbergError | None:
    """Return the error of a server that is not found or not trusted; asking it takes seconds."""
    service = _service_of(error)
    if service == _SPARK_SERVICE and _OF_SPARK_ITSELF.search(str(error)) is None:
        service = "a server that Spark uses"
    unreachable = connection_error(service, error, asks=asks) if service else None
    if unreachable is not None:
        unreachable.__cause__ = error
    return unreachable
