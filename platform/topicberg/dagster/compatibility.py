"""What is done without where Dagster lacks a private part: one warning says what, and why.

Private parts may differ in each minor version of Dagster. A module that uses some checks them when
it is imported, and raises :class:`ImportError`; the importer falls back to what Dagster offers
publicly. Only the guard of the web server has no fallback (:mod:`topicberg.dagster.webserver`).
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

from topicberg.errors import TopicbergError

logger = logging.getLogger(__name__)
_logged: set[str] = set()


def require_attributes(owner: Any, *names: str) -> None:
    """Raise ImportError if a class or a module of Dagster lacks what is used of it."""
    for name in names:
        if not hasattr(owner, name):
            raise ImportError(f"{getattr(owner, '__name__', type(owner).__name__)} has no {name}")


def require_parameters(function: Callable[..., Any], count: int) -> None:
    """Raise ImportError if something of Dagster does not take so many arguments by position."""
    try:
        inspect.signature(function).bind(*[None] * count)
    except TypeError as error:
        raise ImportError(f"{function.__name__}: {error}") from None


def degradation(effect: str, error: ImportError | NotImplementedError) -> str:
    """Return the warning: what this version of Dagster, or the storage of an instance, makes slower
    or leaves out. Dagster+ refuses some calls of code locations and runs."""
    if isinstance(error, NotImplementedError):
        return f"The storage of this instance of Dagster refuses a call: {effect} ({error})"
    return (
        f"Dagster {version('dagster')} differs from the versions that topicberg was tested with: "
        f"{effect} ({error}). `topicberg constraints` prints the tested versions"
    )


def warn_degraded(effect: str, error: ImportError | NotImplementedError) -> None:
    """Log the warning, once in each process."""
    if effect not in _logged:
        _logged.add(effect)
        logger.warning(degradation(effect, error))


def moved(module: str) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a module whose classes are in topicberg-local."""

    def refuse(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise TopicbergError(
            f"dagster.yaml names {module}, which topicberg does not have",
            hint=f"write {module.replace('topicberg', 'topicberg_local', 1)} in its place, which "
            "`topicberg[local]` installs",
        )

    return refuse
