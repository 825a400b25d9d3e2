"""Read every topic spec, and report all errors of all of them at once."""

from __future__ import annotations

import copy
import logging
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from topicberg.errors import SpecError
from topicberg.formats.table import Part
from topicberg.settings import Settings, settings
from topicberg.topics.deadletters import DEFAULT_TARGET, dead_letter_specs
from topicberg.topics.discovery import FoundTopic, SchemaSource, found_document, read_discovery
from topicberg.topics.patterns import FIELD, TopicPattern
from topicberg.topics.rules import findings
from topicberg.topics.schema import SECTIONS
from topicberg.topics.sources import sources
from topicberg.topics.spec import TopicSpec
from topicberg.wording import suggestion

logger = logging.getLogger(__name__)

_FILLER: dict[str, Any] = {"name": "filler", "pipeline": "filler", "schema": {"format": "none"}}
"""Replace required fields that are invalid, so that the other fields can still be checked."""
_MESSAGES = {
    "datetime_": "must be a time of the form 2026-01-31T12:00:00Z",
    "date_": "must be a date of the form 2026-01-31",
    "model_": "must be a mapping of fields",
    "dict_type": "must be a mapping, such as {name: value}",
}
"""What pydantic's types of errors begin with → the message instead of its own."""


@dataclass(frozen=True)
class Problem:
    """One error of a spec. ``field`` is dotted; empty if the file as a whole is invalid."""

    file: str
    field: str
    reason: str
    topics: frozenset[str] = frozenset()
    """Of a pattern: the topics that have no spec because of this."""
    name: str | None = None
    """Of the topic, if the file is not named after it."""

    @property
    def names(self) -> frozenset[str]:
        """The topics that are concerned."""
        return self.topics or frozenset({self.name or Path(self.file).stem})

    @property
    def is_of_topic(self) -> bool:
        """Whether a single topic of a pattern has it, and not the file."""
        return len(self.topics) == 1 and Path(self.file).stem not in self.topics

    def __str__(self) -> str:
        return ": ".join(part for part in (self.file, self.field, self.reason) if part)


def check_topics(config: Settings | None = None) -> tuple[list[TopicSpec], list[Problem]]:
    """Read all specs; return the valid ones, by name, and every problem of the others."""
    config = config or settings()
    specs: list[tuple[TopicSpec, str]] = []
    problems: list[Problem] = []
    patterns: list[tuple[TopicPattern, str]] = []
    own: set[str] = set()
    perhaps_patterns: set[str] = set()
    """Invalid files that may be the patterns of topics."""
    for source in sources(config):
        file, stem, document = source.file, source.name, source.document
        problems += [Problem(file, "", error, name=stem) for error in source.errors]
        if isinstance(document, dict) and FIELD in document:
            pattern, errors = check_pattern(document)
            problems += [Problem(file, field, reason) for field, reason in errors]
            patterns += [(pattern, file)] if pattern else []
            perhaps_patterns |= set() if pattern else {file}
        elif document is None and source.errors:
            own.add(stem)
            perhaps_patterns.add(file)
        else:
            own.add(stem)
            spec, errors = _check_document(document, stem, config)
            problems += [Problem(file, field, reason, name=stem) for field, reason in errors]
            specs += [(spec, file)] if spec else []
    if patterns:
        discovered, found_problems = _by_pattern(patterns, own, [spec for spec, _ in specs], config)
        problems += found_problems
        specs += discovered
    if perhaps_patterns and (discovered_names := read_discovery(config).topics.keys()):
        claimed = own.union({spec.name for spec, _ in specs}, *(p.topics for p in problems))
        lost = frozenset(discovered_names - claimed)
        problems = [
            replace(p, topics=lost | p.names) if p.file in perhaps_patterns else p for p in problems
        ]
    problems += _clashes(specs, {file for _, file in patterns})
    wrong = {problem.file for problem in problems if not problem.topics}
    wrong_topics = {name for problem in problems for name in problem.topics}
    good = [s for s, file in specs if file not in wrong and s.name not in wrong_topics]
    problems.sort(key=lambda problem: problem.file)
    good += dead_letter_specs(good, {spec.name for spec, _ in specs})
    return sorted(good, key=lambda spec: spec.name), problems


def load_topics(config: Settings | None = None) -> list[TopicSpec]:
    """Return all topic specs, by name, for what needs them completely, such as a deployment.

    A single topic of a pattern that is left out does not concern the others.

    :raises SpecError: a file is invalid; the message has one line per problem
    """
    specs, problems = check_topics(config)
    if wrong := [str(problem) for problem in problems if not problem.is_of_topic]:
        raise SpecError("\n".join(["the topic specs are invalid:", *wrong]))
    for problem in problems:
        logger.warning("left out: %s", problem)
    return specs


def load_topic(name: str, config: Settings | None = None) -> TopicSpec:
    """Return one topic spec by its name.

    :raises SpecError: there is none of that name, or it is invalid; other specs may be
    """
    config = config or settings()
    valid_specs, problems = check_topics(config)
    if own := [str(problem) for problem in problems if name in problem.names]:
        raise SpecError("\n".join(["the topic spec is invalid:", *own]))
    specs = {spec.name: spec for spec in valid_specs}
    if name not in specs:
        folder = config.topics_dir.relative_to(config.project_root)
        raise SpecError(f"no topic {name!r} in {folder}{suggestion(name, specs)}")
    return specs[name]


@dataclass(frozen=True)
class WantedTopics:
    """The topics of Kafka that need discovery."""

    patterns: list[TopicPattern]
    named: dict[str, Mapping[Part, SchemaSource]]
    """Topics by name, with what their specs say of where the schemas are."""

    def __contains__(self, name: str) -> bool:
        return name in self.named or any(pattern.matches(name) for pattern in self.patterns)

    def __bool__(self) -> bool:
        return bool(self.patterns or self.named)

    def sources(self, name: str) -> Mapping[Part, SchemaSource]:
        """Return what a topic's spec, or its pattern, says of where the schemas are."""
        if name in self.named:
            return self.named[name]
        defaults = next((one.defaults for one in self.patterns if one.matches(name)), {})
        return {part: one for part, one in _sources(defaults).items() if one.framing == "glue"}


def wanted_topics(config: Settings, known: Collection[str] = ()) -> WantedTopics:
    """Return the topics of Kafka that need discovery, by the files of specs; ``known``: topics that
    still need it while a file is invalid, which may be their pattern."""
    patterns: list[TopicPattern] = []
    wanted: dict[str, Mapping[Part, SchemaSource]] = {}
    for source in sources(config):
        document = source.document
        if isinstance(document, dict) and FIELD not in document:
            sections = (document.get("schema"), document.get("key"))
            if document.get("external") is True or any(map(_has_no_file, sections)):
                wanted[source.name] = _sources(document)
        elif isinstance(document, dict) and (pattern := check_pattern(document)[0]):
            patterns.append(pattern)
        else:
            wanted = {**{name: {} for name in known}, **wanted}
    return WantedTopics(patterns, wanted)


def _has_no_file(section: Any) -> bool:
    """Return whether only a registry has the schema of a topic that is not external."""
    has_own = isinstance(section, dict) and section.get("framing") in ("none", "glue")
    return has_own and section.get("file") is None


def _sources(document: Mapping[str, Any]) -> dict[Part, SchemaSource]:
    """Return what a spec, which may be invalid, says of where the schemas are."""
    schema_sources: dict[Part, SchemaSource] = {}
    for part, name in SECTIONS.items():
        section = document.get(name)
        given = section if isinstance(section, dict) else {}
        subject = given["subject"] if isinstance(given.get("subject"), str) else None
        if given.get("framing") == "glue":
            schema_sources[part] = SchemaSource(subject, "glue")
        elif subject is not None:
            schema_sources[part] = SchemaSource(subject)
    return schema_sources


def check_pattern(document: dict[Any, Any]) -> tuple[TopicPattern | None, list[tuple[str, str]]]:
    """Return the pattern, and its errors as (field, reason)."""
    if len(document) > 1:
        other = ", ".join(str(name) for name in document if name != FIELD)
        reason = f"a file with `{FIELD}` has no other field: move {other} to {FIELD}.defaults"
        return None, [(FIELD, reason)]
    try:
        pattern = TopicPattern.model_validate(document[FIELD])
    except ValidationError as error:
        errors = _causes(error.errors())
        return None, [
            (_dotted((FIELD, *e["loc"])), _reason(e, [*TopicPattern.model_fields])) for e in errors
        ]
    if (schema := pattern.defaults.get("schema")) is None or isinstance(schema, dict):
        schema = {"format": "none", **(schema or {})}
    _, errors = _tolerant({**_FILLER, **pattern.defaults, "name": "filler", "schema": schema})
    return (None if errors else pattern), [
        (_dotted((FIELD, "defaults", *e["loc"])), _reason(e)) for e in errors
    ]


def _by_pattern(
    patterns: list[tuple[TopicPattern, str]],
    own: Collection[str],
    specs: list[TopicSpec],
    config: Settings,
) -> tuple[list[tuple[TopicSpec, str]], list[Problem]]:
    """Return the specs of the discovered topics that match, with their files, and the problems;
    spec files of their own take precedence."""
    dead = {spec.name for spec in dead_letter_specs(specs, ())} | {DEFAULT_TARGET}
    for pattern, _ in patterns:
        handling = (pattern.defaults.get("tableflow") or {}).get("error_handling") or {}
        dead.add(handling.get("target") or DEFAULT_TARGET)
    taken = {*own, *dead}
    discovered: list[tuple[TopicSpec, str]] = []
    problems: list[Problem] = []
    for name, topic in sorted(read_discovery(config).topics.items()):
        matching = [each for each in patterns if name not in taken and each[0].matches(name)]
        if not matching:
            continue
        file, of = matching[0][1], f"topic {name}"
        document = _document_by_pattern(name, topic, matching, config)
        if isinstance(document, str):
            spec, errors = None, [("", document)]
        else:
            spec, errors = _check_document(document, name, config)
        problems += [
            Problem(file, f"{of}: {field}" if field else of, reason, frozenset({name}))
            for field, reason in errors
        ]
        discovered += [(spec, file)] if spec else []
    return discovered, problems


def _document_by_pattern(
    name: str, topic: FoundTopic, matching: list[tuple[TopicPattern, str]], config: Settings
) -> dict[str, Any] | str:
    """Return the spec of a discovered topic, or why it has none."""
    (pattern, file), *more = matching
    if more:
        files = " and ".join(other for _, other in more)
        return f"also matches {files}: exclude it in all of them but one, or write {name}.yaml"
    if topic.problem is not None:
        return topic.problem
    pipeline = re.sub(r"[^a-z0-9_]", "_", Path(file).stem.lower())
    document = found_document(name, topic, pipeline, pattern.defaults, own_engine=config.own_engine)
    if document is not None:
        return document
    source = _sources(pattern.defaults).get("value", SchemaSource())
    missing = f"the registry has no subject {name}-value"
    if source.framing == "glue":
        missing = f"AWS Glue has no available schema {source.subject or name}"
    return (
        f"{missing}: register a schema, exclude the topic, or keep raw bytes with "
        "`schema: {format: none}` in the defaults"
    )


def _clashes(specs: list[tuple[TopicSpec, str]], by_pattern: Collection[str]) -> list[Problem]:
    """Return the problems of topics whose own names, or whose tables' names, are equal."""
    problems: list[Problem] = []
    first: dict[str, tuple[TopicSpec, str]] = {}
    for spec, file in specs:
        earlier = [first.setdefault(name, (spec, file)) for name in spec.table_names]
        other, other_file = min(earlier, key=lambda place: place[0] is spec)
        reason = f"{spec.name} is also the topic of {other_file}"
        if other.name != spec.name:
            reason = f"{spec.name} and {other.name} of {other_file} would be one table"
        if other is not spec and file in by_pattern:
            reason = f"topic {reason}: exclude one of them"
            problems.append(Problem(file, "", reason, frozenset({spec.name})))
        elif other is not spec:
            problems.append(Problem(file, "name", reason, name=spec.name))
    return problems


def _check_document(
    document: Any, stem: str, config: Settings
) -> tuple[TopicSpec | None, list[tuple[str, str]]]:
    """Return the spec and its errors as (field, reason); no spec if even its name is unusable."""
    if not isinstance(document, dict):
        return None, [("", "must be a mapping of fields, e.g. `name: stock_trades`")]
    spec, errors = _tolerant(document)
    problems = [(_dotted(error["loc"]), _reason(error)) for error in errors]
    wrong = {_dotted(error["loc"]) for error in errors if error["type"] != "extra_forbidden"}
    if "name" not in wrong and spec.name != stem:
        problems.append(("name", f"is {spec.name}, so the file must be {spec.name}.yaml"))
    problems += findings(spec, config, wrong)
    return (None if "name" in wrong else spec), list(dict.fromkeys(problems))


def _tolerant(document: dict[Any, Any]) -> tuple[TopicSpec, list[ErrorDetails]]:
    """Return the spec with defaults for its invalid fields, and the errors of these fields."""
    errors: list[ErrorDetails] = []
    while True:
        try:
            return TopicSpec.model_validate(document), errors
        except ValidationError as error:
            causes = _causes(error.errors())
            document = document if errors else copy.deepcopy(document)
            errors = errors or causes
            # from the end, so that the indexes of earlier list items do not change
            places = sorted(
                {e["loc"] for e in causes},
                key=lambda place: [(isinstance(part, int), part) for part in place],
                reverse=True,
            )
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


def _remove(document: dict[Any, Any], location: Sequence[int | str]) -> bool:
    """Remove the value at a location, or its parent if it is missing there; return False if it was
    removed with another invalid value."""
    if location[-1:] == ("[key]",):
        location = location[:-1]
    if not location:
        return False
    *parents, last = location
    container: Any = document
    for part in parents:
        if isinstance(container, dict) and part not in container:
            return False
        container = container[part]
    if not parents and last in _FILLER:
        document[last] = _FILLER[str(last)]
    elif isinstance(container, list) or (isinstance(container, dict) and last in container):
        del container[last]  # type: ignore[arg-type]  # of a list, it is a number
    else:
        return _remove(document, parents)  # also of a value that stands for a list of one
    return True


def _reason(error: ErrorDetails, known: Sequence[str] | None = None) -> str:
    """Return pydantic's message, with the invalid value or the field that may have been meant."""
    kind, value = error["type"], error["input"]
    if kind == "extra_forbidden":
        fields = _fields(error["loc"][:-1]) if known is None else known
        return f"unknown field{suggestion(str(error['loc'][-1]), fields)}"
    if kind == "missing":
        return "is required"
    message = re.sub(r"^\w+ should ", "must ", error["msg"])
    message = next((own for begin, own in _MESSAGES.items() if kind.startswith(begin)), message)
    if kind.startswith("model_") and known is None and error["loc"]:
        message = f"must be a mapping with the fields {', '.join(_fields(error['loc']))}"
    if kind == "value_error":
        message = str(error["ctx"]["error"])
    elif isinstance(value, str | int | float | bool | None):
        message += f", not {value!r}"
    return " ".join(message.split())


def _fields(location: Sequence[int | str]) -> list[str]:
    """Return the names of the fields of the model at a location of a spec."""
    found: Any = TopicSpec
    for part in location:
        is_model = isinstance(found, type) and issubclass(found, BaseModel)
        # Else it is dict[str, Model], and the part is a key.
        found = _by_name(found)[str(part)].annotation if is_model else get_args(found)[-1]
        if type(None) in get_args(found):  # Model | None
            found = get_args(found)[0]
    return list(_by_name(found))


def _by_name(model: type[BaseModel]) -> dict[str, FieldInfo]:
    return {field.alias or name: field for name, field in model.model_fields.items()}


def _dotted(location: Sequence[int | str]) -> str:
    return ".".join(str(part) for part in location if part != "[key]")
