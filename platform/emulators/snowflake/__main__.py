"""``python -m emulators.snowflake --host 127.0.0.1 --port P --state-dir D``.

From the environment: ``TOPICBERG_SNOWFLAKE_USER`` and ``…_PASSWORD`` (who may log in),
``TOPICBERG_S3_ENDPOINT`` and ``TOPICBERG_AWS_ENDPOINT`` (URLs of the object store and of Glue),
``AWS_ACCESS_KEY_ID``, ``AWS_SECRET_ACCESS_KEY`` and ``AWS_REGION``.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import socket
import sys
import threading
from pathlib import Path

from topicberg.errors import StackError
from topicberg.security.logs import log_to_stderr

_NEEDED = (
    "TOPICBERG_SNOWFLAKE_USER",
    "TOPICBERG_SNOWFLAKE_PASSWORD",
    "TOPICBERG_S3_ENDPOINT",
    "TOPICBERG_AWS_ENDPOINT",
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
)


STOP_SECONDS = 3
"""How long running statements have to end when the server is stopped."""


def serve(host: str, port: int, folder: Path) -> None:
    """Serve until SIGTERM.

    :raises StackError: something is missing in the environment, the port is taken, or the state is
        damaged
    """
    missing = [name for name in _NEEDED if not os.environ.get(name)]
    if missing:
        raise StackError(f"not set in the environment: {', '.join(missing)}")

    import uvicorn

    from emulators.snowflake.account import Account
    from emulators.snowflake.logins import Logins
    from emulators.snowflake.refresher import Refresher
    from emulators.snowflake.server import Server
    from emulators.snowflake.tables import restore

    try:
        listener = socket.create_server((host, port))
    except OSError as error:
        raise StackError(
            f"the Snowflake emulator cannot listen on {host}:{port}: {error}"
        ) from None
    account = Account(folder)
    restore(account)
    logins = Logins(
        account,
        os.environ["TOPICBERG_SNOWFLAKE_USER"],
        os.environ["TOPICBERG_SNOWFLAKE_PASSWORD"],
    )
    refresher = Refresher(account)
    refresher.start()
    endpoints = Server(account, logins)
    server = uvicorn.Server(
        uvicorn.Config(
            endpoints.application(), log_level="warning", timeout_graceful_shutdown=STOP_SECONDS
        )
    )
    # In a thread, because in the main one uvicorn would handle the signals, and die of them.
    thread = threading.Thread(target=server.run, args=([listener],), name="server", daemon=True)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    thread.start()
    while thread.is_alive() and not stop.wait(0.5):
        pass
    endpoints.interrupt()
    server.should_exit = True
    thread.join(STOP_SECONDS + 1)
    refresher.stop()
    account.close()


def main() -> None:
    parser = argparse.ArgumentParser(prog="emulators.snowflake", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--state-dir", type=Path, required=True)
    arguments = parser.parse_args()
    noisy = ("botocore", "snowflake.connector", "sqlglot", "fakesnow")
    log_to_stderr(
        logging.INFO,
        "%(asctime)s %(levelname)s %(name)s %(message)s",
        dict.fromkeys(noisy, logging.ERROR),
    )
    try:
        serve(arguments.host, arguments.port, arguments.state_dir)
    except StackError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
