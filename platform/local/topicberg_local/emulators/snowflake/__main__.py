"""``python -m topicberg_local.emulators.snowflake --host 127.0.0.1 --port P --state-dir D``.

From the environment: ``TOPICBERG_SNOWFLAKE_USER`` and ``…_PASSWORD`` (who may log in),
``TOPICBERG_S3_ENDPOINT`` and ``TOPICBERG_AWS_ENDPOINT`` (URLs of the object store and of Glue),
``AWS_ACCESS_KEY_ID``, ``AWS_SECRET_ACCESS_KEY`` and ``AWS_REGION``. Optional:
``TOPICBERG_SNOWFLAKE_SIGV4_PROPERTIES``, ``GLUE`` or ``API`` (see :class:`.account.Account`).
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from topicberg_local.emulators import process


def serve(host: str, port: int, folder: Path) -> None:
    """Serve until SIGTERM; raises StackError: it cannot begin."""
    user, password, *_ = process.require_variables(
        "TOPICBERG_SNOWFLAKE_USER",
        "TOPICBERG_SNOWFLAKE_PASSWORD",
        "TOPICBERG_S3_ENDPOINT",
        "TOPICBERG_AWS_ENDPOINT",
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
    )

    from topicberg_local.emulators.snowflake.account import Account
    from topicberg_local.emulators.snowflake.linked import Refresher
    from topicberg_local.emulators.snowflake.logins import Logins
    from topicberg_local.emulators.snowflake.server import Server
    from topicberg_local.emulators.snowflake.tables import restore

    listener = process.listen("Snowflake", host, port)
    account = Account(folder, os.environ.get("TOPICBERG_SNOWFLAKE_SIGV4_PROPERTIES", "GLUE"))
    restore(account)
    server = Server(account, Logins(account, user, password))
    process.run(server.application(), listener, [Refresher(account)], server.interrupt)
    account.close()


if __name__ == "__main__":
    noisy = ("botocore", "snowflake.connector", "sqlglot", "fakesnow")
    process.main(
        "topicberg_local.emulators.snowflake", __doc__, serve, dict.fromkeys(noisy, logging.ERROR)
    )
