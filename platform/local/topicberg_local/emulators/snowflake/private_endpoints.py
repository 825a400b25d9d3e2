"""Endpoints of AWS PrivateLink in Snowflake's network; they reach what the local stack has.

https://docs.snowflake.com/en/user-guide/private-manage-endpoints-aws
"""

from __future__ import annotations

import json
import uuid
from fnmatch import fnmatchcase

from topicberg_local.emulators.snowflake import errors
from topicberg_local.emulators.snowflake.account import Account, Context
from topicberg_local.emulators.snowflake.sql import Stream
from topicberg_local.emulators.store import Stored

PROVISION = "SYSTEM$PROVISION_PRIVATELINK_ENDPOINT"
_ENDPOINT, _ADMIN = "PRIVATELINK ENDPOINT", "ACCOUNTADMIN"


def call_provision(account: Account, context: Context, stream: Stream) -> str:
    """``SYSTEM$PROVISION_PRIVATELINK_ENDPOINT('service', 'host')``.

    :raises ProgrammingError: the role may not, the arguments are wrong, or the endpoint exists
    """
    texts = stream.many(stream.string)
    if context.role != _ADMIN:
        raise errors.invalid_request(f"{PROVISION} needs the role {_ADMIN}.")
    if len(texts) != 2 or not texts[0].startswith("com.amazonaws."):
        raise errors.invalid_request(f"{PROVISION} needs a service of AWS and a host.")
    service, host = texts
    if host.endswith(".amazonaws.com") and ".s3." in host and not host.startswith("*."):
        raise errors.invalid_request("The host of Amazon S3 must begin with a wildcard.")
    with account.store.lock:
        if account.store.get(_ENDPOINT, (host,)) is not None:
            raise errors.invalid_request(f"There is an endpoint for {host}.")
        account.store.put(Stored(_ENDPOINT, (host,), {"SERVICE": service}))
    return json.dumps({"resourceId": f"vpce-{uuid.uuid4().hex[:17]}", "endpointHost": host})


def problem(account: Account, host: str) -> str | None:
    """Return why a host cannot be reached privately; None: there is an endpoint for it."""
    if any(fnmatchcase(host, endpoint.name[0]) for endpoint in account.store.all(_ENDPOINT)):
        return None
    return f"There is no private connectivity endpoint for the host {host}."
