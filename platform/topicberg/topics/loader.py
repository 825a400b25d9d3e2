"""Read every topic spec, and report everything that is wrong with all of them at once."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from topicberg.errors import SpecError
from topicberg.settings import Settings, settings
from topicberg.topics.rules import findings, suggestion
from topicberg.topics.spec import TopicSpec
from topicberg.topics.yamlfile import read_yaml

_FILLER: dict[str, Any] = {"pipeline": "filler", "schema": {"format": "none"}}
"""Stand in for required fields that are wrong, so that the other ones can still be checked."""


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong. ``field`` is dotted; empty where the file as a whole is wrong."""

    file: str
    field: str
    reason: str

    def __str__(self) -> str:
        return ": ".join(part for part in (self.file, self.field, self.reason) if part)


def check_topics(config: Settings | None = None) -> tuple[list[TopicSpec], list[Problem]]:
    """Read all specs: those that are right, by name, and every problem of the other ones."""
    config = config or settings()
    if not config.topics_dir.is_dir():
        raise SpecError(f"{config.topics_dir} is no folder", hint="topic specs live there")
    specs: dict[str, TopicSpec] = {}
    problems: list[Problem] = []
    names: dict[str, str] = {}  # name of the topic in Snowflake → file that has it
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
        if spec is None:
            continue
        if other := names.get(spec.snowflake_name):
            same = "is also the topic of" if spec.name in specs else "would be one table with"
            problems.append(Problem(file, "name", f"{spec.name} {same} {other}"))
        names.setdefault(spec.snowflake_name, file)
        specs.setdefault(spec.name, spec)
    wrong = {problem.file for problem in problems}
    good = [spec for spec in specs.values() if names[spec.snowflake_name] not in wrong]
    return sorted(good, key=lambda spec: spec.name), problems


def load_topics(config: Settings | None = None) -> list[TopicSpec]:
    """All topic specs, by name.

    :raises SpecError: any of them is wrong; the message has one line a problem
    """
    specs, problems = check_topics(config)
    if problems:
        raise SpecError("\n".join(["the topic specs are wrong:", *map(str, problems)]))
    return specs


def load_topic(name: str, config: Settings | None = None) -> TopicSpec:
    """One topic spec by its name.

    :raises SpecError: there is none of that name, or any spec is wrong
    """
    specs = {spec.name: spec for spec in load_topics(config)}
    if name not in specs:
        folder = _shown((config or settings()).topics_dir, config or settings())
        raise SpecError(f"no topic {name!r} in {folder}{suggestion(name, specs)}")
    return specs[name]


def _check_document(
    document: Any, stem: str, config: Settings
) -> tuple[TopicSpec | None, list[tuple[str, str]]]:
    """The spec, and what is wrong with it as (field, reason). None: its name is not even usable."""
    if not isinstance(document, dict):
        return None, [("", "must be a mapping of fields, e.g. `name: stock_trades`")]
    spec, errors = _tolerant(document, stem)
    found = [(_dotted(error["loc"]), _reason(error)) for error in errors]
    wrong = {field for field, _ in found}
    if "name" not in wrong and spec.name != stem:
        found.append(("name", f"is {spec.name}, so the file must be {spec.name}.yaml"))
    found += findings(spec, config, wrong)
    return (None if "name" in wrong else spec), list(dict.fromkeys(found))


def _tolerant(document: dict[Any, Any], stem: str) -> tuple[TopicSpec, list[ErrorDetails]]:
    """The spec without its wrong fields (they have their defaults), and their errors."""
    document = copy.deepcopy(document)
    errors: list[ErrorDetails] = []
    while True:
        try:
            return TopicSpec.model_validate(document), errors
        except ValidationError as error:
            found = [e for e in error.errors() if e["type"] != "default_factory_not_called"]
            errors = errors or found
            # from the end: the index of an earlier list item stays what it is
            for wrong in sorted({e["loc"] for e in found}, key=_position, reverse=True):
                _remove(document, wrong, stem)


def _position(location: Sequence[int | str]) -> list[tuple[bool, int | str]]:
    return [(isinstance(part, int), part) for part in location]


def _remove(document: dict[Any, Any], location: Sequence[int | str], stem: str) -> None:
    """Take the value at a location away, or what is around it if it is missing there."""
    *parents, last = location
    found: Any = document
    for part in parents:
        found = found[part]
    if last in (required := {"name": stem, **_FILLER}) and not parents:
        document[last] = required[str(last)]
    elif isinstance(found, dict) and last not in found:
        _remove(document, parents, stem)
    else:
        del found[last]


def _reason(error: ErrorDetails) -> str:
    """pydantic's message, with the value that is wrong or the field that may have been meant."""
    if error["type"] == "extra_forbidden":
        return f"unknown field{suggestion(str(error['loc'][-1]), _fields(error['loc'][:-1]))}"
    if error["type"] == "missing":
        return "is required"
    message = error["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
    value = error["input"]
    if error["type"] != "value_error" and isinstance(value, str | int | float | bool | None):
        message += f", not {value!r}"
    return " ".join(message.split())


def _fields(location: Sequence[int | str]) -> Iterator[str]:
    """Names of the fields of the model at a location of a spec."""
    model: Any = TopicSpec
    for part in location:
        if isinstance(model, type) and issubclass(model, BaseModel):
            by_name = {field.alias or name: field for name, field in model.model_fields.items()}
            model = by_name[str(part)].annotation
        else:  # dict[str, Model]
            model = get_args(model)[-1]
        model = next((arg for arg in get_args(model) if _is_model(arg)), model)
    if _is_model(model):
        yield from (field.alias or name for name, field in model.model_fields.items())


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _dotted(location: Sequence[int | str]) -> str:
    return ".".join(str(part) for part in location if part != "[key]")


def _shown(path: Path, config: Settings) -> str:
    return str(path.relative_to(config.project_root))
