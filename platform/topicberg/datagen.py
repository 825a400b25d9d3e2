"""Generated records, by functions of the project.

A generator is a function of a module that ``generators`` of ``[tool.topicberg]`` names::

    @generator
    def orders(random: Random, seed: int) -> Iterator[dict[str, Any]]:
        "Orders of ten customers."
        for order_id in itertools.count():
            yield {"order_id": order_id, "customer": f"customer {random.randrange(10)}"}

It yields endless records, without side effects. All randomness is taken from ``random``, which
differs in every run; what stays the same over all runs (e.g. which users exist) is derived from
``seed``. A topic's spec names it: ``generator: {kind: orders}``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

from topicberg.errors import SpecError, TopicbergError
from topicberg.project import members
from topicberg.settings import Settings, settings

Records = Iterator[dict[str, Any]]


@dataclass(frozen=True)
class Generator:
    """A function of a project that generates records."""

    records: Callable[[Random, int], Records]

    @property
    def name(self) -> str:
        return self.records.__name__

    def __call__(self, random: Random, seed: int) -> Records:
        return self.records(random, seed)


def generator(records: Callable[[Random, int], Records]) -> Generator:
    """Make a function ``records(random, seed)`` a kind of generated records, of its name."""
    return Generator(records)


def kind_names(config: Settings | None = None) -> list[str]:
    """Return the kinds of the project; raise SpecError if a module cannot be imported, or two
    modules define one kind."""
    return sorted(_generators(config))


def record_generator(kind: str, config: Settings | None = None) -> Generator:
    """Return the generator of a kind: an endless, pure stream of records; raise TopicbergError if
    there is no such kind."""
    generators = _generators(config)
    if kind not in generators:
        names = ", ".join(sorted(generators))
        raise TopicbergError(
            f"there is no generator kind {kind!r}",
            hint=f"use one of {names}"
            if names
            else "name a module that has one in `generators` of [tool.topicberg]",
        )
    return generators[kind]


def _generators(config: Settings | None) -> dict[str, Generator]:
    config = config or settings()
    generators: dict[str, Generator] = {}
    for module, generator in members(config.project_root, config.project.generators, Generator):
        if generators.setdefault(generator.name, generator) is not generator:
            raise SpecError(
                f"{module}: another module has a generator {generator.name} as well",
                hint="rename one of the functions",
            )
    return generators
