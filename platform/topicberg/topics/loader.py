"""Read every topic spec, and report all errors of all of them at once."""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from topicberg.errors import SpecError
from topicberg.settings import Settings, settings
from topicberg.topics.deadletters import dead_letter_specs
from topicberg.topics.rules import findings, suggestion
from topicberg.topics.spec import TopicSpec
from topicberg.topics.yamlfile import read_yaml

_FILLER: dict[str, Any] = {"name": "filler", "pipeline": "filler", "schema": {"format": "none"}}
"""Replace required fields that are invalid, so that the other fields can still be checked."""


@dataclass(frozen=True)
class Problem:
    """One error of a spec. ``field`` is dotted; empty if the file as a whole is invalid."""

    file: str
    field: str
    reason: str

    def __str__(self) -> str:
        return ": ".join(part for part in (self.file, self.field, self.reason) if part)


def check_topics(config: Settings | None = None) -> tuple[list[TopicSpec], list[Problem]]:
    """Read all specs; return the valid ones, by name, and every problem of the others."""
    config = config or settings()
    if not config.topics_dir.is_dir():
        raise SpecError(
            f"{config.topics_dir} is not a folder",
            hint="create the folder, and put topic specs into it",
        )
    specs: list[tuple[TopicSpec, str]] = []
    problems: list[Problem] = []
    for path in sorted(config.topics_dir.iterdir()):
        file = _shown(path, config)
        if path.suffix == ".yml":
            problems.append(Problem(file, "", "the name must end in .yaml"))
        if path.suffix != ".yaml":
            continue
        document, yaml_errors = read_yaml(path)
        problems += [Problem(file, "", error) for error in yaml_errors]
        if document is None and yaml_errors:
            continue
        spec, found = _check_document(document, path.stem, config)
        problems += [Problem(file, field, reason) for field, reason in found]
        if spec is not None:
            specs.append((spec, file))
    problems += _clashes(specs)
    wrong = {problem.file for problem in problems}
    good = [spec for spec, file in specs if file not in wrong]
    problems.sort(key=lambda problem: problem.file)
    good += dead_letter_specs(good, {spec.name for spec, _ in specs})
    return sorted(good, key=lambda spec: spec.name), problems


def load_topics(config: Settings | None = None) -> list[TopicSpec]:
    """Return all topic specs, by name.

    :raises SpecError: any of them is invalid; the message has one line per problem
    """
    specs, problems = check_topics(config)
    if problems:
        raise SpecError("\n".join(["the topic specs are invalid:", *map(str, problems)]))
    return specs


def load_topic(name: str, config: Settings | None = None) -> TopicSpec:
    """Return one topic spec by its name.

    :raises SpecError: there is none of that name, or any spec is invalid
    """
    specs = {spec.name: spec for spec in load_topics(config)}
    if name not in specs:
        folder = _shown((config or settings()).topics_dir, config or settings())
        raise SpecError(f"no topic {name!r} in {folder}{suggestion(name, specs)}")
    return specs[name]


def _clashes(specs: list[tuple[TopicSpec, str]]) -> list[Problem]:
    """Return the problems of topics whose own names, or whose tables' names, are equal.

    Snowflake's names are the narrowest: names that differ there differ everywhere.
    """
    problems: list[Problem] = []
    first: dict[str, tuple[TopicSpec, str]] = {}
    for spec, file in specs:
        other, other_file = first.setdefault(spec.snowflake_name, (spec, file))
        if other_file == file:
            continue
        reason = f"{spec.name} is also the topic of {other_file}"
        if other.name != spec.name:
            reason = f"{spec.name} and {other.name} of {other_file} would be one table in Snowflake"
        problems.append(Problem(file, "name", reason))
    return problems


def _check_document(
    document: Any, stem: str, config: Settings
) -> tuple[TopicSpec | None, list[tuple[str, str]]]:
    """Return the spec and its errors as (field, reason); no spec if even its name is unusable."""
    if not isinstance(document, dict):
        return None, [("", "must be a mapping of fields, e.g. `name: stock_trades`")]
    spec, errors = _tolerant(document)
    found = [(_dotted(error["loc"]), _reason(error)) for error in errors]
    wrong = {_dotted(error["loc"]) for error in errors if error["type"] != "extra_forbidden"}
    if "name" not in wrong and spec.name != stem:
        found.append(("name", f"is {spec.name}, so the file must be {spec.name}.yaml"))
    found += findings(spec, config, wrong)
    return (None if "name" in wrong else spec), list(dict.fromkeys(found))


def _tolerant(document: dict[Any, Any]) -> tuple[TopicSpec, list[ErrorDetails]]:
    """Return the spec with defaults for its invalid fields, and the errors of these fields."""
    document = copy.deepcopy(document)
    errors: list[ErrorDetails] = []
    while True:
        try:
            return TopicSpec.model_validate(document), errors
        except ValidationError as error:
            found = _causes(error.errors())
            errors = errors or found
            # from the end, so that the indexes of earlier list items do not change
            places = sorted({e["loc"] for e in found}, key=_position, reverse=True)
            removed = [_remove(document, place) for place in places]
            if not any(removed):
                document = dict(_FILLER)


def _causes(errors: list[ErrorDetails]) -> list[ErrorDetails]:
    """Return the errors that do not follow from others, such as a list's with invalid items."""
    return [
        error
        for error in errors
        if error["type"] != "default_factory_not_called"
        and not any(
            other["loc"] != error["loc"] and other["loc"][: len(error["loc"])] == error["loc"]
            for other in errors
        )
    ]


def _position(location: Sequence[int | str]) -> list[tuple[bool, int | str]]:
    return [(isinstance(part, int), part) for part in location]


def _remove(document: dict[Any, Any], location: Sequence[int | str]) -> bool:
    """Remove the value at a location, or its parent if it is missing there.

    Return False if it was already removed, together with another invalid value.
    """
    if location[-1:] == ("[key]",):
        location = location[:-1]
    if not location:
        return False
    *parents, last = location
    found: Any = document
    for part in parents:
        if isinstance(found, dict) and part not in found:
            return False
        found = found[part]
    if not parents and last in _FILLER:
        document[last] = _FILLER[str(last)]
    elif isinstance(found, dict) and last not in found:
        return _remove(document, parents)
    else:
        del found[last]
    return True


def _reason(error: ErrorDetails) -> str:
    """Return pydantic's message, with the invalid value or the field that may have been meant."""
    if error["type"] == "extra_forbidden":
        return f"unknown field{suggestion(str(error['loc'][-1]), _fields(error['loc'][:-1]))}"
    if error["type"] == "missing":
        return "is required"
    message = re.sub(r"^\w+ should ", "must ", error["msg"])
    if error["type"].startswith("datetime_"):
        message = "must be a time of the form 2026-01-31T12:00:00Z"
    elif error["type"].startswith("date_"):
        message = "must be a date of the form 2026-01-31"
    value = error["input"]
    if error["type"] == "value_error":
        message = str(error["ctx"]["error"])
    elif isinstance(value, str | int | float | bool | None):
        message += f", not {value!r}"
    return " ".join(message.split())


def _fields(location: Sequence[int | str]) -> list[str]:
    """Return the names of the fields of the model at a location of a spec."""
    found: Any = TopicSpec
    for part in location:
        in_dict = not _is_model(found)  # dict[str, Model]: the part is a key
        found = get_args(found)[-1] if in_dict else _by_name(found)[str(part)].annotation
        if type(None) in get_args(found):  # Model | None
            found = get_args(found)[0]
    return list(_by_name(found))


def _by_name(model: type[BaseModel]) -> dict[str, FieldInfo]:
    return {field.alias or name: field for name, field in model.model_fields.items()}


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _dotted(location: Sequence[int | str]) -> str:
    return ".".join(str(part) for part in location if part != "[key]")


def _shown(path: Path, config: Settings) -> str:
    return str(path.relative_to(config.project_root))
