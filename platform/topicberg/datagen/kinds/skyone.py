"""Bookings of the airline SkyOne."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

from topicberg.datagen.airlines import bookings

PREFIX = "SKY1"


def records(random: Random, seed: int) -> Iterator[dict[str, Any]]:
    """Yield endless bookings; the flyers depend only on the seed."""
    return bookings(random, seed, PREFIX)
