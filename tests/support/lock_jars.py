"""Resolves ``jars.toml`` into ``jars.lock``: ``make jars``."""

from __future__ import annotations

import tomllib
from fnmatch import fnmatch
from pathlib import Path

from jgo.parse import Coordinate as JgoCoordinate
from pydantic import BaseModel, ConfigDict, TypeAdapter

from topicberg_local.jars import LOCK_FILE, Coordinate, JarsLock, Pin, maven_context, sha256

SOURCE = LOCK_FILE.with_name("jars.toml")


class Bundle(BaseModel):
    """One table of ``jars.toml``."""

    model_config = ConfigDict(extra="forbid")

    coordinates: list[str]
    transitive: bool = False
    exclude: list[str] = []
    plain: list[str] = []


def resolve(bundle: Bundle) -> list[Coordinate]:
    """Return the bundle's files in class-path order; versions as Maven would mediate them."""
    requested = [Coordinate.parse(text) for text in bundle.coordinates]
    plain = [Coordinate.parse(text) for text in bundle.plain]
    if not bundle.transitive:
        return requested + plain
    context = maven_context()
    inputs = [
        context.create_dependency(
            JgoCoordinate(c.group, c.artifact, c.version, c.classifier or None, c.extension)
        )
        for c in requested
    ]
    _, transitive = context.resolver.resolve(inputs)
    coordinates = [
        Coordinate(a.groupId, a.artifactId, a.version, a.classifier, a.packaging)
        for a in (dependency.artifact for dependency in transitive)
    ]
    artifacts = {(c.group, c.artifact) for c in requested + plain}
    resolved = [
        c
        for c in coordinates
        if (c.group, c.artifact) not in artifacts
        and not any(fnmatch(f"{c.group}:{c.artifact}", pattern) for pattern in bundle.exclude)
    ]
    return requested + resolved + plain


def main() -> None:
    bundles = TypeAdapter(dict[str, Bundle]).validate_python(tomllib.loads(SOURCE.read_text()))
    resolved, context = {name: resolve(bundle) for name, bundle in bundles.items()}, maven_context()
    files = {}
    for coordinate in sorted({c for members in resolved.values() for c in members}):
        path = Path(coordinate.of(context).resolve())
        files[str(coordinate)] = Pin(sha256=sha256(path), size=path.stat().st_size)
    lock = JarsLock(
        bundles={name: [str(c) for c in members] for name, members in resolved.items()}, files=files
    )
    LOCK_FILE.write_text(lock.model_dump_json(indent=1) + "\n")


if __name__ == "__main__":
    main()
