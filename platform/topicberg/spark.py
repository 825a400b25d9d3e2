"""Sessions of Spark through Spark Connect."""

from __future__ import annotations

import atexit
import logging
import os
import re
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from topicberg.errors import TopicbergError, UnreachableError, see_whether_it_runs
from topicberg.errors.connections import connection_error

if TYPE_CHECKING:
    import pyspark.sql.functions as F
    from pyspark.sql import SparkSession, Window
else:

    class _Late:
        """A name of PySpark that is imported at its first use: the import takes a second."""

        def __init__(self, module: str, name: str = "") -> None:
            self._module, self._name = module, name

        def __getattr__(self, name: str) -> Any:
            if name.startswith("__"):  # e.g. of pickle, before there are any attributes
                raise AttributeError(name)
            module = import_module(self._module)
            return getattr(getattr(module, self._name) if self._name else module, name)

    F, Window = _Late("pyspark.sql.functions"), _Late("pyspark.sql.window", "Window")

__all__ = [
    "NO_SUBSTITUTION",
    "F",
    "Window",
    "check_spark",
    "for_connect",
    "missing_module",
    "new_session",
    "quote",
    "without_token",
]

CONNECT_MODE = "SPARK_CONNECT_MODE_ENABLED"
"""Variable that lets the functions of pyspark.sql build expressions for Spark Connect."""
_MISSING = re.compile(r"ModuleNotFoundError: No module named '([^']+)'")

NO_SUBSTITUTION = {"spark.sql.variable.substitute": "false"}
"""Spark would replace ``${env:…}`` in SQL text by the variables of its process."""


def without_token(remote: str) -> str:
    """Return the address without its parameters, which may hold a token."""
    address = urlsplit(remote)
    return f"{address.scheme}://{address.netloc}"


def check_spark(remote: str, timeout: float = 5.0) -> None:
    """Fail at once if nothing listens: a Spark Connect client would retry for ten minutes.

    :param remote: ``sc://host:port``
    :raises TopicbergError: the deployment has none
    :raises UnreachableError: no connection within ``timeout`` seconds
    """
    if not remote:
        raise TopicbergError(
            "this deployment has no Spark Connect endpoint; EMR Serverless computes only "
            "derived tables",
            hint="set TOPICBERG_SPARK_REMOTE, and TOPICBERG_COMPUTE=emr to keep the derived tables "
            "on EMR Serverless",
        )
    address = urlsplit(remote)
    try:
        socket.create_connection((address.hostname or "", address.port or 15002), timeout).close()
    except OSError as error:
        raise connection_error("Spark", error, address=address.netloc) or UnreachableError(
            f"Spark does not answer at {without_token(remote)}: {error}",
            hint=see_whether_it_runs("Spark", starts=True),
        ) from None


def new_session(
    remote: str, conf: Mapping[str, str] | None = None, *, give_up_after: float = 60.0
) -> SparkSession:
    """Return a session of its own, with its own configuration and temporary views.

    :param conf: further properties, as of :meth:`topicberg.endpoints.LakeEndpoints.spark_session`
    :param give_up_after: seconds for which the client retries if Spark ends
    :raises UnreachableError: Spark does not answer
    """
    from pyspark.logger import PySparkLogger
    from pyspark.sql.connect.client.retries import DefaultPolicy
    from pyspark.sql.connect.session import SparkSession as ConnectSession

    check_spark(remote)
    os.environ[CONNECT_MODE] = "1"  # as getOrCreate() does
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        # They print every error, with both stack traces, before a caller can handle it.
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL)
    # It closes a pool of threads that all sessions share, in whatever thread garbage is collected.
    # If a thread of the pool waits for that thread, no session of the process continues.
    ConnectSession.__del__ = _left_to_stop  # type: ignore[method-assign]
    builder = ConnectSession.builder.remote(remote)
    session = builder.config(map={**NO_SUBSTITUTION, **(conf or {})}).create()
    # Its exit handler keeps every session in memory until the process ends, stopped or not. Spark
    # drops a session's cached models with the session. Nothing public removes the handler.
    atexit.unregister(session.client._cleanup_ml_cache)
    wait = 2000  # milliseconds between two attempts
    session.client.set_retry_policies(
        [DefaultPolicy(max_backoff=wait, max_retries=max(1, int(give_up_after * 1000 / wait)))]
    )
    return session  # type: ignore[return-value]


@contextmanager
def for_connect() -> Iterator[None]:
    """Let modules make functions and expressions of Spark when they are imported: without a
    session, PySpark takes them for those of a Spark in this process, which only a job run of EMR
    has."""
    pyspark = sys.modules.get("pyspark.sql.session")
    if CONNECT_MODE in os.environ or (pyspark and pyspark.SparkSession.getActiveSession()):
        yield
        return
    os.environ[CONNECT_MODE] = "1"
    try:
        yield
    finally:
        del os.environ[CONNECT_MODE]


def missing_module(text: str) -> str | None:
    """Return the module that Python did not find, if this is what an error says."""
    return found[1] if (found := _MISSING.search(text)) else None


def _left_to_stop(_: object) -> None:
    """Do nothing: the owner of a session stops it."""


def quote(*parts: str) -> str:
    """Return an identifier for Spark SQL, e.g. for ``quote("lkc-local", "t")``."""
    return ".".join("`" + part.replace("`", "``") + "`" for part in parts)
