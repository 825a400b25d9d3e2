"""Schema files: where they may be, their content, and the columns that they define."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from topicberg.errors import SpecError
from topicberg.formats.table import FORMATS, FormatName, Part

if TYPE_CHECKING:
    from topicberg.formats.envelope import Changes
    from topicberg.formats.subjects import JsonOptions

SECTIONS: dict[Part, str] = {"value": "schema", "key": "key"}
"""Part of a record → the section of a spec about it."""
PARTS: tuple[Part, ...] = tuple(SECTIONS)
SchemaFormat = Literal[FormatName, "text", "bytes", "none"]
KeyFormat = Literal[FormatName, "string", "bytes", "none"]
Framing = Literal["confluent", "header", "glue", "none"]
"""As in :mod:`topicberg.formats.framing`, which takes long to import."""
DECODED = frozenset(FORMATS)
"""The formats that have a schema."""

OWN = "topicberg:"
"""Begins the name of a schema file that topicberg brings along, as ``topicberg:error_log.avsc``."""
_OWN_FOLDER = Path(__file__).parent / "schemas"


@dataclass(frozen=True)
class SchemaFile:
    """A schema as it is registered, and its columns: names and Iceberg types, as precisely as
    checking a spec needs (a nested type is ``struct``, ``list`` or ``map``)."""

    text: str
    columns: dict[str, str]


def schema_place(schemas_dir: Path, file: str) -> Path:
    """Return where a schema file is, or should be."""
    own = file.removeprefix(OWN)
    return schemas_dir / file if own == file else _OWN_FOLDER / own


def schema_path(schemas_dir: Path, file: str) -> Path:
    """Return the path of a schema file, which must be inside the schema folder, or topicberg's own.

    :raises SpecError: absolute, outside (also by way of a symbolic link), or no such file
    """
    if "\0" in file or Path(file).is_absolute():
        raise SpecError(f"{file!r} must be the name of a file in {schemas_dir.name}/")
    path = schema_place(schemas_dir, file)
    folder = _OWN_FOLDER if file.startswith(OWN) else schemas_dir
    if not path.resolve().is_relative_to(folder.resolve()):
        raise SpecError(f"{file!r} is outside of {schemas_dir.name}/")
    if not path.is_file():
        where = "topicberg" if folder is _OWN_FOLDER else f"{schemas_dir.name}/"
        raise SpecError(f"{file!r} does not exist in {where}")
    return path


def read_schema(
    path: Path,
    kind: str,
    message: str | None = None,
    options: JsonOptions | None = None,
    changes: Changes | Literal["key"] | None = None,
    part: Part | None = None,
) -> SchemaFile:
    """Read and check one schema file.

    :param kind: a format that has schemas
    :param message: protobuf only: the message type; None: the first one of the file
    :param options: JSON Schema only: what the spec says besides it
    :param changes: the records are changes, see :class:`topicberg.topics.spec.ChangelogSpec`
    :param part: also accept what the engine accepts as the schema of keys, or of values: keys that
        are no records, several event types; None: a record only
    :raises SpecError: not readable, not of that format, recursive, or not a record with fields
    """
    try:
        changed = path.stat().st_mtime_ns
    except OSError as error:
        raise SpecError(f"{path.name} cannot be read: {error.strerror}") from None
    return _read(path, changed, kind, message, options, changes, part)


@lru_cache(maxsize=8192)
def _read(
    path: Path,
    _changed: int,
    kind: str,
    message: str | None,
    options: JsonOptions | None,
    changes: Changes | Literal["key"] | None,
    part: Part | None,
) -> SchemaFile:
    from topicberg.topics.columns import file_columns

    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"{path.name} cannot be read: {error}") from None
    if not (columns := file_columns(path.name, text, kind, message, options, changes, part)):
        raise SpecError(f"{path.name} has no fields")
    return SchemaFile(text, columns)
