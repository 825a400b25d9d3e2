"""What installed packages need, and these in turn."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from importlib.metadata import Distribution, PackageNotFoundError, distribution


def needed(
    wanted: Iterable[str], without: Collection[str], environment: Mapping[str, str] | None = None
) -> dict[str, Distribution | None]:
    """Return packages and all that they need, by name; None: it is not installed here.

    :param wanted: requirements, such as ``confluent-kafka[avro]``
    :param without: names of packages that are left out, with what only these need
    :param environment: of markers, where it differs from this Python's (PEP 508)
    """
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    distributions: dict[str, Distribution | None] = {}
    extras_of: dict[str, set[str]] = {}
    left = [Requirement(text) for text in wanted]
    while left:
        requirement = left.pop()
        name = canonicalize_name(requirement.name)
        new = {"", *requirement.extras} - extras_of.get(name, set())
        if name in without or not new:
            continue
        extras_of.setdefault(name, set()).update(new)
        try:
            installed = distribution(name)
        except PackageNotFoundError:
            distributions[name] = None
            continue
        distributions[name] = installed
        for text in installed.requires or ():
            needs = Requirement(text)
            markers = [{**(environment or {}), "extra": extra} for extra in new]
            if needs.marker is None or any(map(needs.marker.evaluate, markers)):
                left.append(needs)
    return distributions
