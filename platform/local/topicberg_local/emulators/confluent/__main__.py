"""``python -m topicberg_local.emulators.confluent --host 127.0.0.1 --port P --state-dir D``.

From the environment: the settings of whoever started the stack (``TOPICBERG_…``), and
``TOPICBERG_EMULATOR_API_KEY``, ``…_API_SECRET`` (the first Cloud key) and ``…_ADMIN_TOKEN``.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from topicberg_local.emulators import process

_KEY = "TOPICBERG_EMULATOR_API_KEY"
_SECRET = "TOPICBERG_EMULATOR_API_SECRET"  # noqa: S105
_TOKEN = "TOPICBERG_EMULATOR_ADMIN_TOKEN"  # noqa: S105


def serve(host: str, port: int, folder: Path) -> None:
    """Serve until SIGTERM.

    :raises StackError: something is missing in the environment, the port is taken, or the state is
        damaged
    """
    process.require_variables((_KEY, _SECRET, _TOKEN))

    from topicberg.settings import settings
    from topicberg_local.emulators.confluent.account import Account
    from topicberg_local.emulators.confluent.keys import Bootstrap
    from topicberg_local.emulators.confluent.server import Server

    listener = process.listen("Confluent", host, port)
    account = Account(folder, settings(), f"http://{host}:{port}")
    # What this process starts must not inherit them.
    bootstrap = Bootstrap(os.environ.pop(_KEY), os.environ.pop(_SECRET))
    endpoints = Server(account, bootstrap, os.environ.pop(_TOKEN))
    workers = (endpoints.generators, endpoints.tables)

    def interrupt() -> None:
        for worker in workers:
            worker.stop()

    for worker in workers:
        worker.start()
    process.run(endpoints.application(), listener, interrupt)
    for worker in workers:
        worker.join(process.STOP_SECONDS)
    account.close()


if __name__ == "__main__":
    levels = {"httpx": logging.WARNING, "httpx2": logging.WARNING}  # of the registry's client
    process.main("topicberg_local.emulators.confluent", __doc__, serve, levels)
