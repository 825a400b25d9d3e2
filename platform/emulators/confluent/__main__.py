"""``python -m emulators.confluent --host 127.0.0.1 --port P --state-dir D``.

From the environment: the settings of whoever started the stack (``TOPICBERG_…``), and
``TOPICBERG_STAND_IN_API_KEY``, ``…_API_SECRET`` (the first Cloud key) and ``…_ADMIN_TOKEN``.
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

_KEY = "TOPICBERG_STAND_IN_API_KEY"
_SECRET = "TOPICBERG_STAND_IN_API_SECRET"  # noqa: S105
_TOKEN = "TOPICBERG_STAND_IN_ADMIN_TOKEN"  # noqa: S105
STOP_SECONDS = 3
"""How long running requests have to end when the server is stopped."""


def serve(host: str, port: int, folder: Path) -> None:
    """Serve until SIGTERM.

    :raises StackError: something is missing in the environment, the port is taken, or the state is
        damaged
    """
    missing = [name for name in (_KEY, _SECRET, _TOKEN) if not os.environ.get(name)]
    if missing:
        raise StackError(f"not set in the environment: {', '.join(missing)}")

    import uvicorn

    from emulators.confluent.account import Account
    from emulators.confluent.keys import Bootstrap
    from emulators.confluent.server import Server
    from topicberg.settings import settings

    try:
        listener = socket.create_server((host, port))
    except OSError as error:
        raise StackError(
            f"the Confluent emulator cannot listen on {host}:{port}: {error}"
        ) from None
    account = Account(folder, settings(), f"http://{host}:{port}")
    # What this process starts must not inherit them.
    bootstrap = Bootstrap(os.environ.pop(_KEY), os.environ.pop(_SECRET))
    endpoints = Server(account, bootstrap, os.environ.pop(_TOKEN))
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
    for worker in (endpoints.generators, endpoints.tables, thread):
        worker.start()
    while thread.is_alive() and not stop.wait(0.5):
        pass
    server.should_exit = True
    for worker in (endpoints.generators, endpoints.tables):
        worker.stop()
        worker.join(STOP_SECONDS)
    thread.join(STOP_SECONDS + 1)
    account.close()


def main() -> None:
    parser = argparse.ArgumentParser(prog="emulators.confluent", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--state-dir", type=Path, required=True)
    arguments = parser.parse_args()
    log_to_stderr(
        logging.INFO,
        "%(asctime)s %(levelname)s %(name)s %(message)s",
        {"httpx2": logging.WARNING},  # of the registry's client
    )
    try:
        serve(arguments.host, arguments.port, arguments.state_dir)
    except StackError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
