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


def serve(host: str, port: int, folder: Path) -> None:
    """Serve until SIGTERM; raises StackError: it cannot begin."""
    names = ("API_KEY", "API_SECRET", "ADMIN_TOKEN", "KAFKA_PORT", "KAFKA_LISTENER")
    variables = [f"TOPICBERG_EMULATOR_{name}" for name in names]
    key, secret, token, kafka_port, kafka_listener = process.require_variables(*variables)
    for variable in variables:  # what this process starts must not inherit them
        del os.environ[variable]

    from topicberg.settings import settings
    from topicberg_local.emulators.confluent.account import Account
    from topicberg_local.emulators.confluent.kafka_gateway import KafkaGateway, KafkaRights
    from topicberg_local.emulators.confluent.keys import Bootstrap
    from topicberg_local.emulators.confluent.server import Server

    listener = process.listen("Confluent", host, port)
    kafka = process.listen("Confluent", host, int(kafka_port))
    account = Account(folder, settings(), f"http://{host}:{port}", f"{host}:{kafka_port}")
    gateway = KafkaGateway(account, kafka, int(kafka_listener))
    endpoints = Server(account, Bootstrap(key, secret), token)
    workers = (endpoints.generators, endpoints.tables, KafkaRights(account), gateway)
    process.run(endpoints.application(), listener, workers)
    account.close()


if __name__ == "__main__":
    levels = {"httpx": logging.WARNING, "httpx2": logging.WARNING}  # they log each request
    process.main("topicberg_local.emulators.confluent", __doc__, serve, levels)
