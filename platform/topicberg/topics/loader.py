"""Read every topic spec, and report everything that is wrong with all of them at once."""

from __future__ import annotations

from pathlib import Path

import yaml
from pydantic import ValidationError

from topicberg.errors import SpecError
from topicberg.settings import Settings, settings
from topicberg.topics.spec import TopicSpec


def check_topics(config: Settings | None = None) -> tuple[list[TopicSpec], list[str]]:
    """Read all specs: those that are right, and one line for each error, in order of files."""
    config = config or settings()
    specs: list[TopicSpec] = []
    problems: list[str] = []
    for path in sorted(config.topics_dir.glob("*.yaml")):
        try:
            spec = TopicSpec.model_validate(yaml.safe_load(path.read_text()))
            spec.columns(config)
            specs.append(spec)
        except ValidationError as error:
            problems += [
                f"{_shown(path, config)}: {'.'.join(map(str, e['loc']))}: {e['msg']}"
                for e in error.errors()
            ]
        except (SpecError, yaml.YAMLError) as error:
            problems.append(f"{_shown(path, config)}: {error}")
    return specs, problems


def load_topics(config: Settings | None = None) -> list[TopicSpec]:
    """All topic specs, by name.

    :raises SpecError: any of them is wrong; the message has one line an error
    """
    specs, problems = check_topics(config)
    if problems:
        raise SpecError("\n".join(problems))
    return specs


def load_topic(name: str, config: Settings | None = None) -> TopicSpec:
    """One topic spec by its name.

    :raises SpecError: there is none of that name, or any spec is wrong
    """
    for spec in load_topics(config):
        if spec.name == name:
            return spec
    raise SpecError(f"there is no topic {name!r}")


def _shown(path: Path, config: Settings) -> str:
    return str(path.relative_to(config.project_root))
