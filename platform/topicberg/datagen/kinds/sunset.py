"""Bookings of the airline Sunset; the flyers depend only on the seed."""

from functools import partial

from topicberg.datagen.airlines import bookings

records = partial(bookings, prefix="SUN")
