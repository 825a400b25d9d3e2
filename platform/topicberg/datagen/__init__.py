"""Generated records: one module of :mod:`topicberg.datagen.kinds` for each kind of them."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterator
from importlib import import_module
from random import Random
from typing import Any

from topicberg.datagen import kinds
from topicberg.errors import TopicbergError

Records = Iterator[dict[str, Any]]


def kind_names() -> list[str]:
    """Return the modules of :mod:`topicberg.datagen.kinds`, without importing them."""
    return sorted(module.name for module in pkgutil.iter_modules(kinds.__path__))


def record_generator(kind: str) -> Callable[[Random, int], Records]:
    """Return the function ``records(random, seed)`` of a kind: an endless, pure stream of records.

    :raises TopicbergError: there is no such kind
    """
    if kind not in kind_names():
        raise TopicbergError(
            f"there is no generator kind {kind!r}", hint=f"use one of {', '.join(kind_names())}"
        )
    generator: Callable[[Random, int], Records] = import_module(f"{kinds.__name__}.{kind}").records
    return generator
