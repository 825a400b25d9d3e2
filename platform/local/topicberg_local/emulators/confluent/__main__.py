"""``python -m topicberg_local.emulators.confluent --host 127.0.0.1 --port P --state-dir D``.

From the environment: the settings of whoever started the stack (``TOPICBERG_…``), and
``TOPICBERG_EMULATOR_API_KEY``, ``…_API_SECRET`` (the first Cloud key), ``…_ADMIN_TOKEN``, and
``…_KAFKA_PORT`` and ``…_KAFKA_LISTENER``: where clients with a key connect, and where the broker
expects them.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from topicberg_local.emulators import process

_KEY = "TOPICBERG_EMULATOR_API_KEY"
_SECRET = "TOPICBERG_EMULATOR_API_SECRET"  # noqa: S105
_TOKEN = "TOPICBERG_EMULATOR_ADMIN_TOKEN"  # noqa: S105
_KAFKA_PORT = "TOPICBERG_EMULATOR_KAFKA_PORT"
_KAFKA_LISTENER = "TOPICBERG_EMULATOR_KAFKA_LISTENER"


def serve(host: str, port: int, folder: Path) -> None:
    """Serve until SIGTERM.

    :raises StackError: something is missing in the environment, the port is taken, or the state is
        damaged
    """
    process.require_variables((_KEY, _SECRET, _TOKEN, _KAFKA_PORT, _KAFKA_LISTENER))

    from topicberg.settings import settings
    from topicberg_local.emulators.confluent.account import Account
    from topicberg_local.emulators.confluent.kafka_gateway import KafkaGateway
    from topicberg_local.emulators.confluent.kafka_rights import KafkaRights
    from topicberg_local.emulators.confluent.keys import Bootstrap
    from topicberg_local.emulators.confluent.server import Server

    listener = process.listen("Confluent", host, port)
    kafka_port = int(os.environ[_KAFKA_PORT])
    kafka = process.listen("Confluent", host, kafka_port)
    account = Account(folder, settings(), f"http://{host}:{port}", f"{host}:{kafka_port}")
    gateway = KafkaGateway(account, kafka, int(os.environ[_KAFKA_LISTENER]))
    # What this process starts must not inherit them.
    bootstrap = Bootstrap(os.environ.pop(_KEY), os.environ.pop(_SECRET))
    endpoints = Server(account, bootstrap, os.environ.pop(_TOKEN))
    workers = (endpoints.generators, endpoints.tables, KafkaRights(account), gateway)
    process.run(endpoints.application(), listener, workers)
    account.store.close()


if __name__ == "__main__":
    levels = {"httpx": logging.WARNING, "httpx2": logging.WARNING}  # they log each request
    process.main("topicberg_local.emulators.confluent", __doc__, serve, levels)
