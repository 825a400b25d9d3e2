"""The last valid topic specs: Dagster continues with them while a spec file is invalid.

Every run loads the project again; without the kept specs, one invalid file would make the runs of
all topics fail. They are in the state directory; if it has none (in a new container), a topic whose
spec is invalid is left out.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from topicberg.errors import SpecError, TopicbergError
from topicberg.files import files_below, update_file
from topicberg.project import FILE
from topicberg.settings import Settings
from topicberg.topics.deadletters import dead_letter_specs
from topicberg.topics.discovery import index_file
from topicberg.topics.loader import Problem, check_topics
from topicberg.topics.sources import component_files
from topicberg.topics.spec import TopicSpec
from topicberg.wording import listed

logger = logging.getLogger(__name__)

Built = TypeVar("Built")
Files = tuple[tuple[str, int, int, int], ...]
MAX_SHOWN = 5
"""Problems, or topics, in one message or alert: a fleet has many."""


@dataclass(frozen=True)
class KnownSpecs:
    """The specs that there are while some files are invalid."""

    specs: list[TopicSpec]
    """The valid ones, and the last valid ones of the others."""
    left_out: frozenset[str] = frozenset()
    """Topics whose spec is invalid and was never valid."""
    problem: str | None = None
    """The errors of the files, in one line."""
    kept: frozenset[str] = frozenset()
    """Topics whose last valid spec stays in use."""

    @property
    def message(self) -> str | None:
        """The errors, and what follows for the topics; None: there are none."""
        parts = (
            ("the last valid specs stay in use of", self.kept),
            ("left out, as they were never valid:", self.left_out),
        )
        follows = (f"{what} {listed(sorted(names), MAX_SHOWN)}" for what, names in parts if names)
        return None if self.problem is None else "; ".join((self.problem, *follows))


def build_with_kept(
    config: Settings,
    build: Callable[[KnownSpecs], Built],
    *,
    keeps: bool = True,
    report: Callable[[str], None] = logger.error,
) -> Built:
    """Build something from all specs; for an invalid one, from the last that was valid.

    :param build: raises :class:`SpecError` if the specs do not fit each other or the derived tables
    :param keeps: whether specs from which it was built are kept for later
    :param report: gets a message about invalid specs
    :raises SpecError: it cannot be built, and there is no earlier version to use
    """
    specs, problems = check_topics(config)
    known = _with_kept(config, specs, problems)
    try:
        built = build(known)
        if keeps:
            _write(config, known.specs)
    except SpecError as error:
        if not (kept := _read(config)):
            raise
        reason = "; ".join(filter(None, (known.problem, error.message)))
        known = KnownSpecs(
            _completed([], list(kept.values())), known.left_out, reason, frozenset(kept)
        )
        try:
            built = build(known)
        except TopicbergError:
            raise error from None
    if known.message is not None:
        report(known.message)
    return built


class SpecsInUse:
    """The valid specs with the last valid ones of the others, and the errors of the spec files with
    what follows (None: there are none). They are read again only when a file has changed."""

    def __init__(self) -> None:
        self._files: Files | None = None
        self._found: tuple[list[TopicSpec], str | None] = [], None

    def read(self, config: Settings) -> tuple[list[TopicSpec], str | None]:
        if (files := spec_files(config, _file(config))) != self._files:
            self._files = files
            try:
                known = _with_kept(config, *check_topics(config))
                self._found = known.specs, known.message
            except TopicbergError as error:
                self._found = [], str(error)
        return self._found


def spec_files(config: Settings, *more: Path) -> Files:
    """Return path, time of change, size and inode of the files of specs and of schemas, of what was
    discovered, and of more files and folders. Schemas may be in folders of their own."""
    entries: list[Path | os.DirEntry[str]] = [
        index_file(config),
        config.project_root / FILE,
        *component_files(config),
        *more,
        *files_below(config.schemas_dir),
    ]
    for folder in (config.topics_dir, *more):
        with suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as listing:
            entries += listing
    files = []
    for entry in entries:
        with suppress(OSError):
            stat = entry.stat()
            files.append((os.fspath(entry), stat.st_mtime_ns, stat.st_size, stat.st_ino))
    return tuple(sorted(files))


def _with_kept(config: Settings, specs: list[TopicSpec], problems: Sequence[Problem]) -> KnownSpecs:
    """Return the valid specs, with the last valid ones of the topics that have problems."""
    if not problems:
        return KnownSpecs(specs)
    wrong = {name for problem in problems for name in problem.names}
    valid = {spec.name for spec in specs}
    specs = _completed(specs, [spec for n, spec in _read(config).items() if n in wrong])
    kept = frozenset(wrong & ({spec.name for spec in specs} - valid))
    return KnownSpecs(specs, frozenset(wrong - kept - valid), _joined(problems), kept)


def _joined(problems: Sequence[Problem]) -> str:
    """Return problems in one line: the first of them, where a fleet has many."""
    more = len(problems) - MAX_SHOWN
    rest = [f"and {more} more: run `topicberg topics validate`"] if more > 0 else []
    return "; ".join([*map(str, problems[:MAX_SHOWN]), *rest])


def _completed(specs: list[TopicSpec], kept: list[TopicSpec]) -> list[TopicSpec]:
    """Return both, without kept specs whose table another has; with their dead-letter topics."""
    taken = {name for spec in specs for name in spec.table_names}
    both = [*specs, *(spec for spec in kept if taken.isdisjoint(spec.table_names))]
    both += dead_letter_specs(both, {spec.name for spec in both})
    return sorted(both, key=lambda spec: spec.name)


def _read(config: Settings) -> dict[str, TopicSpec]:
    try:
        documents = json.loads(_file(config).read_text())
        specs = [TopicSpec.model_validate(document) for document in documents]
    except (OSError, ValueError, TypeError):  # there is none yet, or it is of another version
        return {}
    return {spec.name: spec for spec in specs}


def _write(config: Settings, specs: list[TopicSpec]) -> None:
    text = json.dumps([spec.model_dump(mode="json", by_alias=True) for spec in specs])
    try:
        update_file(_file(config), text)
    except OSError as error:  # the disk may be full
        logger.warning("the valid topic specs cannot be saved: %s", error)


def _file(config: Settings) -> Path:
    return config.state_dir / "good-specs.json"
