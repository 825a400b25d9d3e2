"""Stock trades with the fields and values of Confluent's Datagen quickstart ``STOCK_TRADES``.

Datagen's ranges exclude their upper end (avro-random-generator: ``min + nextInt(max - min)``), so
its ``quantity`` of 1 to 5000 is 1 to 4999, and its ``price`` of 5 to 1000 is 5 to 999 pennies.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

from topicberg import generator

SIDES = ("BUY", "SELL")
SYMBOLS = ("ZBZX", "ZJZZT", "ZTEST", "ZVV", "ZVZZT", "ZWZZT", "ZXZZT")
ACCOUNTS = ("ABC123", "LMN456", "XYZ789")
USERS = tuple(f"User_{number}" for number in range(1, 10))
QUANTITY = (1, 5000)
PRICE = (5, 1000)


@generator
def stock_trades(random: Random, seed: int) -> Iterator[dict[str, Any]]:
    """Yield endless trades; every field is uniform, independent of the others and of the seed."""
    chance = random.random  # int(chance() * n): a third of the time that randrange(n) takes
    min_quantity, quantities = QUANTITY[0], QUANTITY[1] - QUANTITY[0]
    min_price, prices = PRICE[0], PRICE[1] - PRICE[0]
    while True:
        yield {
            "side": SIDES[int(chance() * len(SIDES))],
            "quantity": min_quantity + int(chance() * quantities),
            "symbol": SYMBOLS[int(chance() * len(SYMBOLS))],
            "price": min_price + int(chance() * prices),
            "account": ACCOUNTS[int(chance() * len(ACCOUNTS))],
            "userid": USERS[int(chance() * len(USERS))],
        }
