"""A schema file that changes: what the commands and the check say, and what the registry takes."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import requests
import yaml
from pydantic import SecretStr
from typer.testing import CliRunner

from topicberg.checks.topic import check_schema
from topicberg.cli import app
from topicberg.clients.confluent import Api
from topicberg.endpoints import Endpoints
from topicberg.errors import SpecError, TopicbergError
from topicberg.kafka import schemas
from topicberg.kafka.schemas import compare, pull, register
from topicberg.settings import Settings, settings
from topicberg.topics import TopicSpec, load_topic
from topicberg_deploy.confluent.kafka import RegistrySubject
from topicberg_deploy.context import DeployContext
from topicberg_deploy.resource import CannotChangeError
from topicberg_deploy.resource import compare as differences

pytestmark = pytest.mark.integration

ADDRESS = {"type": "object", "properties": {"city": {"type": "string"}}}
ORDER: dict[str, Any] = {
    "title": "Order",
    "type": "object",
    "properties": {"order": {"type": "integer"}, "address": ADDRESS},
}


class Topic:
    """A spec and a schema file in a project of its own; nothing is created in Kafka."""

    def __init__(self, folder: Path, stack: Endpoints) -> None:
        self.stack = stack
        self.name = f"orders-{uuid.uuid4().hex[:8]}"
        self.config = Settings(project_root=folder, state_dir=settings().state_dir)
        self.config.topics_dir.mkdir(parents=True)
        self.config.schemas_dir.mkdir(parents=True)
        self.file = self.config.schemas_dir / "orders.json"
        self.write(ORDER)
        self.say()

    def say(self, **schema: str) -> None:
        """Write the spec."""
        document = {
            "name": self.name,
            "pipeline": "shop",
            "schema": {"format": "json", "file": "orders.json", **schema},
        }
        path = self.config.topics_dir / f"{self.name}.yaml"
        path.write_text(yaml.safe_dump(document))

    def write(self, schema: dict[str, Any], **properties: Any) -> None:
        changed = {**schema, "properties": {**schema["properties"], **properties}}
        self.file.write_text(json.dumps(changed))

    @property
    def spec(self) -> TopicSpec:
        return load_topic(self.name, self.config)

    def state(self) -> str:
        (found,) = compare(self.spec, self.stack, self.config)
        return found.state

    def register(self) -> str:
        (found,) = register(self.spec, self.stack, self.config)
        return found.state


@pytest.fixture
def topic(stack: Endpoints, tmp_path: Path) -> Iterator[Topic]:
    topic = Topic(tmp_path, stack)
    yield topic
    registry = stack.schema_registry_client()
    if topic.spec.value_subject in registry.get_subjects():
        registry.delete_subject(topic.spec.value_subject)


def test_a_file_is_compared_registered_and_pulled(topic: Topic) -> None:
    assert (topic.state(), topic.register()) == ("not registered", "equal")
    topic.say(compatibility="FORWARD")
    before = topic.file.read_text()
    topic.write(ORDER, note={"type": "string"})
    (found,) = compare(topic.spec, topic.stack, topic.config)
    assert (found.state, found.version, found.latest) == ("not registered", None, 1)
    assert "newer than the registry" in found.what
    with pytest.raises(SpecError, match="changes that are not registered"):
        pull(topic.spec, topic.stack, topic.config)
    assert topic.register() == "equal"

    topic.file.write_text(before)
    (found,) = compare(topic.spec, topic.stack, topic.config)
    assert (found.state, found.version, found.latest) == ("registry is ahead", 1, 2)
    finding = check_schema([found], None)
    assert (finding.passed, finding.severity) == (False, "warning")
    assert finding.remediation is not None
    assert f"topicberg topics pull {topic.name}" in finding.remediation
    assert pull(topic.spec, topic.stack, topic.config) == [topic.file]
    assert "note" in json.loads(topic.file.read_text())["properties"]
    (found,) = compare(topic.spec, topic.stack, topic.config)
    assert check_schema([found], None).passed
    assert pull(topic.spec, topic.stack, topic.config) == []


def test_a_level_of_the_spec_holds_from_the_first_version(topic: Topic) -> None:
    topic.say(compatibility="NONE")
    topic.register()
    registry = topic.stack.schema_registry_client()
    assert registry.get_compatibility(topic.spec.value_subject) == "NONE"
    topic.say(compatibility="FULL_TRANSITIVE")
    topic.register()
    assert registry.get_compatibility(topic.spec.value_subject) == "FULL_TRANSITIVE"


@pytest.fixture
def run(topic: Topic) -> Iterator[Callable[..., tuple[int, str]]]:
    """``run(*arguments)``: a command in the topic's project; its exit code and what it says."""

    def run(*arguments: str) -> tuple[int, str]:
        done = CliRunner().invoke(app, arguments)
        if isinstance(done.exception, TopicbergError):  # as `main` reports it
            return 2, f"{done.output}{done.exception}"
        return done.exit_code, done.output

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOPICBERG_PROJECT_ROOT", str(topic.config.project_root))
        settings.cache_clear()
        yield run
    settings.cache_clear()


def test_commands_name_a_changed_file(topic: Topic, run: Callable[..., tuple[int, str]]) -> None:
    assert run("topics", "register", topic.name)[0] == 0
    assert "1 of 1 schema file is" in run("topics", "validate")[1]
    topic.write(ORDER, note={"type": "string"})
    code, output = run("topics", "validate")
    assert (code, "BACKWARD does not allow it" in output) == (2, True)
    assert f"topicberg topics register {topic.name}" in output
    topic.say(compatibility="FORWARD")
    code, output = run("topics", "validate")
    assert (code, "newer than the registry" in output) == (0, True)
    assert "newer than the registry" in " ".join(run("tableflow", "status", topic.name)[1].split())
    output = run("tableflow", "status", topic.name, "--json")[1]
    (row,) = json.loads(output)
    assert row["schemas"][0]["state"] == "not registered"
    assert row["schemas"][0]["latest_version"] == 1

    assert run("topics", "register", topic.name)[0] == 0
    topic.write(ORDER)
    assert "registry is ahead" in run("topics", "validate")[1]
    output = run("topics", "restore-schema", topic.name, "--yes")[1]
    assert "version 2 is deleted" in output
    assert "resumes by itself" in output


def test_restore_schema_of_an_unregistered_file_is_refused(topic: Topic) -> None:
    with pytest.raises(TopicbergError, match="has no version with the schema") as missing:
        schemas.later_versions(topic.spec, topic.stack, topic.config)
    assert f"topicberg topics register {topic.name}" in (missing.value.hint or "")


def test_deploy_sets_the_level_and_explains_a_refusal(topic: Topic) -> None:
    root, _, prefix = topic.stack.schema_registry.partition("/apis/")

    class Registry(Api):
        def request(self, method: str, path: str, **options: Any) -> Any:
            return super().request(method, f"/apis/{prefix}{path}", **options)

    api = Registry(root, "none", SecretStr("none"))
    context = cast("DeployContext", SimpleNamespace(confluent=SimpleNamespace(registry=api)))

    def subject(level: str | None) -> RegistrySubject:
        name = topic.spec.value_subject
        return RegistrySubject("s", name, file=topic.file, format="json", compatibility=level)

    assert subject("BACKWARD").find(context) is None
    subject("BACKWARD").create(context)
    live = subject("BACKWARD").find(context)
    assert live is not None
    assert differences(live.fields, subject("BACKWARD").desired(context)) == {}
    topic.write(ORDER, note={"type": "string"})
    live = subject("BACKWARD").find(context)
    assert live is not None
    with pytest.raises(CannotChangeError, match="an open object") as refused:
        subject("BACKWARD").update(context, live, {"schema": ("a", "b")})
    assert "FORWARD" in (refused.value.hint or "")
    changes = differences(live.fields, subject("FORWARD").desired(context))
    assert changes["compatibility"] == ("BACKWARD", "FORWARD")
    subject("FORWARD").update(context, live, changes)
    live = subject("FORWARD").find(context)
    assert live is not None
    assert differences(live.fields, subject("FORWARD").desired(context)) == {}
    assert requests.get(
        f"{topic.stack.schema_registry}/subjects/{topic.spec.value_subject}/versions", timeout=60
    ).json() == [1, 2]
