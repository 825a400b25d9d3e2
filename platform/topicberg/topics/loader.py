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
        if document is None and source.errors:
            own.add(stem)
            perhaps_patterns.add(file)
            continue
        if isinstance(document, dict) and FIELD in document:
            pattern, errors = check_pattern(document)
            problems += [Problem(file, field, reason) for field, reason in errors]
            if pattern is None:
                perhaps_patterns.add(file)
            else:
                patterns.append((pattern, file))
            continue
        own.add(stem)
        spec, errors = _check_document(document, stem, config)
        problems += [Problem(file, field, reason, name=stem) for field, reason in errors]
        if spec is not None:
            specs.append((spec, file))
    if patterns:
        discovered, found_problems = _by_pattern(patterns, own, [spec for spec, _ in specs], config)
        problems += found_problems
        specs += discovered
    if perhaps_patterns and (discovered_names := read_discovery(config).topics.keys()):
        claimed = (
            own | {s.name for s, _ in specs} | {n for problem in problems for n in problem.topics}
        )
        lost = frozenset(discovered_names - claimed)
        problems = [
            replace(problem, topics=lost | problem.names)
            if problem.file in perhaps_patterns
            else problem
            for problem in problems
        ]
    problems += _clashes(specs, {file for _, file in patterns})
    wrong = {problem.file for problem in problems if not problem.topics}
    wrong_topics = {name for problem in problems for name in problem.topics}
    good = [s for s, file in specs if file not in wrong and s.name not in wrong_topics]
    problems.sort(key=lambda problem: problem.file)
    good += dead_letter_specs(good, {spec.name for spec, _ in specs})
    return sorted(good, key=lambda spec: spec.name), problems


def impossible_in_confluent(config: Settings) -> list[Problem]:
    """Return what topicberg's engine does with the specs and Confluent's Tableflow cannot do.

    These are the problems that the cloud deployment has with the files.
    """
    of_confluent = config.model_copy(update={"deployment": "cloud", "tableflow": "confluent"})
    own = check_topics(config)[1]
    return [problem for problem in check_topics(of_confluent)[1] if problem not in own]


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
        found = _sources(defaults)
        return {part: one for part, one in found.items() if one.framing == "glue"}


def wanted_topics(config: Settings, known: Collection[str] = ()) -> WantedTopics:
    """Return the topics of Kafka that need discovery, by the files of specs.

    :param known: topics that still need it while a file is invalid, which may be their pattern
    """
    patterns: list[TopicPattern] = []
    wanted: dict[str, Mapping[Part, SchemaSource]] = {}
    for source in sources(config):
        document, pattern = source.document, None
        if isinstance(document, dict) and FIELD in document:
            pattern = check_pattern(document)[0]
        elif isinstance(document, dict):
            sections = (document.get("schema"), document.get("key"))
            if document.get("external") is True or any(map(_has_no_file, sections)):
                wanted[source.name] = _sources(document)
            continue
        if pattern is not None:
            patterns.append(pattern)
        else:
            wanted = {**{name: {} for name in known}, **wanted}
    return WantedTopics(patterns, wanted)


def _has_no_file(section: Any) -> bool:
    """Return whether only a registry has the schema of a topic that is not external."""
    if not isinstance(section, dict):
        return False
    return section.get("framing") in ("none", "glue") and section.get("file") is None


def _sources(document: Mapping[str, Any]) -> dict[Part, SchemaSource]:
    """Return what a spec, which may be invalid, says of where the schemas are."""
    schema_sources: dict[Part, SchemaSource] = {}
    for part, name in SECTIONS.items():
        section = document.get(name)
        if not isinstance(section, dict):
            continue
        subject = section.get("subject")
        subject = subject if isinstance(subject, str) else None
        if section.get("framing") == "glue":
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
        causes = _causes(error.errors())
        known = list(TopicPattern.model_fields)
        return None, [(_dotted((FIELD, *e["loc"])), _reason(e, known)) for e in causes]
    schema = pattern.defaults.get("schema")
    if schema is None or isinstance(schema, dict):
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
    """Return the specs of the discovered topics that match, with their files, and the problems.

    :param own: topics with a spec file of their own, which takes precedence
    :param specs: those of these files
    """
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
        file = matching[0][1]
        document = _document_by_pattern(name, topic, matching, config)
        if isinstance(document, str):
            spec, errors = None, [("", document)]
        else:
            spec, errors = _check_document(document, name, config)
        problems += [
            Problem(
                file, ": ".join(filter(None, (f"topic {name}", field))), reason, frozenset({name})
            )
            for field, reason in errors
        ]
        if spec is not None:
            discovered.append((spec, file))
    return discovered, problems


def _document_by_pattern(
    name: str, topic: FoundTopic, matching: list[tuple[TopicPattern, str]], config: Settings
) -> dict[str, Any] | str:
    """Return the spec of a discovered topic, or why it has none.

    :param matching: the patterns that match, with their files
    """
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
    """Return the problems of topics whose own names, or whose tables' names, are equal.

    Snowflake's names are the narrowest: names that differ there differ everywhere.

    :param by_pattern: files that are patterns: one of their topics does not concern the others
    """
    problems: list[Problem] = []
    first: dict[str, tuple[TopicSpec, str]] = {}
    for spec, file in specs:
        other, other_file = first.setdefault(spec.snowflake_name, (spec, file))
        if other is spec:
            continue
        reason = f"{spec.name} is also the topic of {other_file}"
        if other.name != spec.name:
            reason = f"{spec.name} and {other.name} of {other_file} would be one table in Snowflake"
        if file in by_pattern:
            reason = f"topic {reason}: exclude one of them"
            problems.append(Problem(file, "", reason, frozenset({spec.name})))
        else:
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
    """Remove the value at a location, or its parent if it is missing there.

    Return False if it was already removed, together with another invalid value.
    """
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
    """Return pydantic's message, with the invalid value or the field that may have been meant.

    :param known: the fields that there are, if the error is not of a topic spec
    """
    if error["type"] == "extra_forbidden":
        fields = _fields(error["loc"][:-1]) if known is None else known
        return f"unknown field{suggestion(str(error['loc'][-1]), fields)}"
    if error["type"] == "missing":
        return "is required"
    message = re.sub(r"^\w+ should ", "must ", error["msg"])
    if error["type"].startswith("datetime_"):
        message = "must be a time of the form 2026-01-31T12:00:00Z"
    elif error["type"].startswith("date_"):
        message = "must be a date of the form 2026-01-31"
    value = error["input"]
    if error["type"] in ("model_type", "model_attributes_type"):
        message = "must be a mapping of fields"
        if known is None and error["loc"]:
            message = f"must be a mapping with the fields {', '.join(_fields(error['loc']))}"
    elif error["type"] == "dict_type":
        message = "must be a mapping, such as {name: value}"
    if error["type"] == "value_error":
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
