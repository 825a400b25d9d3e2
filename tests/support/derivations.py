"""Derived tables whose hours a test computes, instead of Spark."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from topicberg.transforms import derived
from topicberg.transforms.derived import WrittenWindow
from topicberg.transforms.windows import Window


def compute_by(patch: pytest.MonkeyPatch, write: Callable[[list[Window]], WrittenWindow]) -> None:
    """Let a function write all hours of a run at once, until the test ends."""
    patch.setattr(derived, "_portions", lambda *given: [given[-1]])
    patch.setattr(derived, "_write", lambda _, __, ___, windows: write(windows))
