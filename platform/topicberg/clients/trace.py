"""A line for each request to a vendor, for ``topicberg deploy --debug``. No line holds a secret.

Bodies and headers are never in it, since keys and logins are there. A statement for Snowflake is,
with its secrets masked by their names; what is known as a secret is redacted besides.
"""

from __future__ import annotations

import logging
import re
import time
from typing import Any

logger = logging.getLogger("topicberg.requests")
_SECRETS = re.compile(
    r"(\w*(?:SECRET|PASSWORD|TOKEN|PRIVATE_KEY|PUBLIC_KEY)\w*\s*=\s*)'(?:[^'\\]|\\.|'')*'",
    re.IGNORECASE,
)


def enable() -> None:
    """Send the lines to standard error."""
    from topicberg.security.redaction import log_to_stderr

    log_to_stderr(logging.WARNING, "%(asctime)s %(message)s", {logger.name: logging.DEBUG})


def confluent(request: str, status: int, began: float) -> None:
    """:param request: method and address, without the query"""
    logger.debug("Confluent: %s: %d, %s", request, status, _spent(began))


def snowflake(statement: str, role: str, began: float) -> None:
    masked = _SECRETS.sub(r"\1'***'", " ".join(statement.split()))
    logger.debug("Snowflake as %s: %s: %s", role, masked, _spent(began))


def aws(client: Any) -> None:
    """Trace the requests of a boto3 client."""
    client.meta.events.register("after-call", _aws_answered)
    client.meta.events.register("after-call-error", _aws_failed)


def _aws_answered(http_response: Any, model: Any, parsed: Any, **_: Any) -> None:
    error = (parsed or {}).get("Error", {}).get("Code", "")
    service, status = model.service_model.service_id, http_response.status_code
    logger.debug("AWS: %s %s: %d %s", service, model.name, status, error)


def _aws_failed(exception: BaseException, event_name: str, **_: Any) -> None:
    operation = event_name.removeprefix("after-call-error.")
    logger.debug("AWS: %s: %s", operation, type(exception).__name__)


def _spent(began: float) -> str:
    return f"{1000 * (time.monotonic() - began):.0f} ms"
