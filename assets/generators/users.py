"""Users with the fields and values of Confluent's Datagen quickstart ``USERS``.

Each record is a new version of one of a few users.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

from assets.generators.stock_trades import USERS
from topicberg import generator

REGIONS = tuple(f"Region_{number}" for number in range(1, 10))
GENDERS = ("MALE", "FEMALE", "OTHER")
REGISTERED = (1_487_715_775_521, 1_519_273_364_600)
"""First and last time of registration, ms since 1970."""


@generator
def users(random: Random, seed: int) -> Iterator[dict[str, Any]]:
    """Yield endless versions; every field is uniform, whatever the seed."""
    while True:
        yield {
            "registertime": random.randint(*REGISTERED),
            "userid": random.choice(USERS),
            "regionid": random.choice(REGIONS),
            "gender": random.choice(GENDERS),
        }
