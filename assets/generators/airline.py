"""Bookings like those of the airlines of the Flink kickstarter, for both airlines."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from random import Random
from string import ascii_uppercase
from typing import Any

from topicberg import generator

# fmt: off
AIRPORTS = (
    "ATL", "DFW", "DEN", "ORD", "LAX", "CLT", "MCO", "LAS", "PHX", "MIA",
    "SEA", "IAH", "JFK", "EWR", "FLL", "MSP", "SFO", "DTW", "BOS", "SLC",
    "PHL", "BWI", "TPA", "SAN", "LGA", "MDW", "BNA", "IAD", "DCA", "AUS",
)
# fmt: on
FLYERS = 100
HORIZON_DAYS = 365
TIME_FORMAT = "%Y-%m-%d %H:%M:%S"
MIN_PRICE, MAX_PRICE = 500, 1499
FLIGHT_NUMBERS = 1000


def flyers(seed: int) -> list[str]:
    """Return the e-mail addresses of a seed: the same for both airlines, and in every run."""
    random = Random(f"flyers/{seed}")
    return [f"{_letters(random, 5)}@email.com" for _ in range(FLYERS)]


def bookings(random: Random, seed: int, prefix: str) -> Iterator[dict[str, Any]]:
    """Yield endless bookings of flights that depart within a year.

    :param prefix: begins flight numbers and confirmation codes
    """
    today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    emails = flyers(seed)
    while True:
        departure_airport = random.choice(AIRPORTS)
        arrival_airport = random.choice([a for a in AIRPORTS if a != departure_airport])
        departure = today + timedelta(
            days=random.randrange(HORIZON_DAYS),
            hours=random.randrange(24),
            minutes=random.randrange(60),
        )
        duration = timedelta(hours=random.randint(1, 21), minutes=random.randrange(60))
        yield {
            "email_address": random.choice(emails),
            "departure_time": departure.strftime(TIME_FORMAT),
            "departure_airport_code": departure_airport,
            "arrival_time": (departure + duration).strftime(TIME_FORMAT),
            "arrival_airport_code": arrival_airport,
            "flight_duration": duration // timedelta(minutes=1),
            "flight_number": f"{prefix}{random.randrange(FLIGHT_NUMBERS)}",
            "confirmation_code": prefix + _letters(random, 6),
            "ticket_price": Decimal(random.randint(MIN_PRICE, MAX_PRICE)),
            "aircraft": f"Aircraft{_letters(random, 3)}",
            "booking_agency_email": random.choice(emails),
        }


def _letters(random: Random, length: int) -> str:
    return "".join(random.choices(ascii_uppercase, k=length))


@generator
def skyone(random: Random, seed: int) -> Iterator[dict[str, Any]]:
    """Yield bookings of the airline SkyOne; the flyers depend only on the seed."""
    return bookings(random, seed, "SKY1")


@generator
def sunset(random: Random, seed: int) -> Iterator[dict[str, Any]]:
    """Yield bookings of the airline Sunset, with the same flyers."""
    return bookings(random, seed, "SUN")
