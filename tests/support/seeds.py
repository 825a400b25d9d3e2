"""Seeds of random cases: `make test` draws half of them, as the same ones find nothing new."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def some(seeds: Iterable[int]) -> list[Any]:
    """Return the seeds as parameters of a test."""
    slow = [pytest.mark.slow]
    return [pytest.param(seed, marks=slow * (n % 4 in (1, 2))) for n, seed in enumerate(seeds)]
