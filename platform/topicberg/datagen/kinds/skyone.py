"""Bookings of the airline SkyOne; the flyers depend only on the seed."""

from functools import partial

from topicberg.datagen.airlines import bookings

records = partial(bookings, prefix="SKY1")
