"""The platform in the local emulators: created through faults and kills, rotated, deleted.

Each test starts from a platform that is created (fixture ``deployed``) or deleted (``deleted``),
whatever the test before left; a platform that is already there costs the requests of one plan.
"""

from __future__ import annotations

import base64
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import dagster as dg
import pytest
import requests
from faulty_proxy import KINDS, FaultyProxy
from pydantic import SecretStr
from stackless import age_keys

from topicberg.catalogs.snowflake.names import SnowflakeNames
from topicberg.catalogs.snowflake.statements import create_table
from topicberg.dagster.home import dagster_home
from topicberg.endpoints import Endpoints
from topicberg.files import files_below
from topicberg.settings import Settings, settings
from topicberg.topics import load_topics
from topicberg_deploy import engine
from topicberg_deploy.confluent.keys import RotatingKey
from topicberg_deploy.context import DeployContext, open_context
from topicberg_deploy.graph.definitions import asset_key, deployed_assets
from topicberg_deploy.platform import resources
from topicberg_deploy.resource import Action, Resource, Step
from topicberg_deploy.rotate import rotate

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(2400)]
TOPICBERG = Path(sys.executable).parent / "topicberg"
FAULTS = [
    {"kind": "429", "percent": 4, "seed": 1, "seconds": 0.2},
    {"kind": "500", "percent": 3, "seed": 2},
    {"kind": "lost", "percent": 2, "seed": 3},
    {"kind": "timeout", "percent": 1, "seed": 4, "seconds": 0.5},
]
KILLED_AFTER = (3, 18, 40)
"""Lines of progress after which `create` is killed."""


class Platform:
    """A deployment of the project's topics, read from the vendors by each method."""

    def __init__(self, stack: Endpoints, *proxies: FaultyProxy) -> None:
        self.stack = stack
        self.proxies = proxies

    def open(self) -> tuple[DeployContext, list[Resource]]:
        context = open_context(settings())
        return context, resources(context.config, context.specs)

    def create(self) -> None:
        context, graph = self.open()
        engine.create(graph, context, lambda *_: None)

    def plan(self) -> dict[str, Step]:
        """Return what differs, by key, but for what waits for the first records of its topic."""
        context, graph = self.open()
        steps = engine.plan(graph, context)
        right = (Action.KEEP, Action.WAIT)
        return {step.resource.key: step for step in steps if step.action not in right}

    def delete(self) -> dict[str, str]:
        context, graph = self.open()
        context.purge_secrets = True
        found = engine.existing(graph, context, lambda *_: None)
        return engine.delete(found, context, lambda *_: None)

    @contextmanager
    def failing(self) -> Iterator[None]:
        """One request in ten to Confluent, to AWS and to Snowflake fails."""
        for fault in FAULTS:
            self._faults("POST", fault)
        for proxy in self.proxies:
            proxy.failing = True
        try:
            yield
        finally:
            self._faults("DELETE")
            for proxy in self.proxies:
                proxy.failing = False

    def _faults(self, method: str, fault: object = None) -> None:
        token = self.stack.confluent_admin_token.get_secret_value()
        requests.request(
            method,
            f"{self.stack.confluent}/emulator/v1/faults",
            json=fault,
            headers={"Authorization": f"Bearer {token}"},
            timeout=60,
        ).raise_for_status()


@pytest.fixture(scope="module")
def platform(stack: Endpoints) -> Iterator[Platform]:
    snowflake = f"http://{stack.snowflake.host}:{stack.snowflake.port}"
    with (
        FaultyProxy(stack.aws or "") as aws,
        FaultyProxy(snowflake) as account,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("AWS_ENDPOINT_URL", aws.url)
        patch.setenv("TOPICBERG_SNOWFLAKE_URL", account.url)
        platform = Platform(stack, aws, account)
        yield platform
        platform.delete()


@pytest.fixture
def deployed(platform: Platform) -> Platform:
    """The whole platform, without a difference."""
    platform.create()
    assert platform.plan() == {}
    return platform


@pytest.fixture
def deleted(platform: Platform) -> Platform:
    """A platform of which nothing exists."""
    assert platform.delete() == {}
    return platform


def _kill_create(after: int) -> None:
    """Start `create`, and kill it after it reported so many changes."""
    command = [str(TOPICBERG), "deploy", "create"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for number, _ in enumerate(process.stderr, start=1):
            if number == after:
                process.kill()
                break


def _ours(context: DeployContext) -> list[dict[str, object]]:
    keys = context.confluent.cloud.pages("/iam/v2/api-keys")
    return [key for key in keys if key["spec"]["display_name"].endswith("(topicberg)")]


def _foreign_table(context: DeployContext) -> str:
    names = SnowflakeNames.of(context.config)
    return create_table(names, "BY_HAND", context.cluster, "stock_trades", auto_refresh=True)


def test_create_through_faults_and_kills_leaves_no_difference(
    deleted: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    platform = deleted
    with platform.failing():
        for after in KILLED_AFTER:
            _kill_create(after)
        platform.create()
    assert all(set(proxy.hits) == set(KINDS) for proxy in platform.proxies)
    assert platform.plan() == {}
    age_keys(monkeypatch)  # keys of the killed ones
    platform.create()

    context, graph = platform.open()
    for path in ("/org/v2/environments", "/iam/v2/service-accounts"):
        names = [one["display_name"] for one in context.confluent.cloud.pages(path)]
        assert len(names) == len(set(names)), "a duplicate"
    assert len(_ours(context)) == sum(isinstance(one, RotatingKey) for one in graph)


def test_secrets_are_in_no_output_log_or_readable_file(deployed: Platform) -> None:
    """Nor in Dagster's storage; also secrets of before a rotation."""
    context, graph = deployed.open()
    assert rotate(graph, context, lambda *_: None, force=True) == 7
    secrets = _secret_values(context) | {
        value.get_secret_value()
        for name, value in deployed.stack
        if isinstance(value, SecretStr) and not name.endswith("access_key")  # a user's name
    }
    assert len(secrets) > 20
    printed = [
        subprocess.run(
            [str(TOPICBERG), "deploy", *words], capture_output=True, check=False, timeout=600
        )
        for words in (["plan", "--all"], ["status"], ["status", "--json"], ["rotate"])
    ]
    _run_in_dagster(context.config)
    folder = context.config.state_dir
    ours = {
        str(path.relative_to(folder)): content
        for path in files_below(folder)
        if (content := _exposed(path, folder)) is not None
    }
    assert len(ours) > 10
    assert {
        (name, secret[:4])
        for name, content in ours.items()
        for secret in secrets
        if secret.encode() in content
    } == set()
    for process in printed:
        assert not any(secret.encode() in process.stdout + process.stderr for secret in secrets)


def _exposed(path: Path, folder: Path) -> bytes | None:
    """Return the content of a file that others may read, or that is meant to be read."""
    shown = path.relative_to(folder).parts[0] in ("logs", "dagster")
    with suppress(FileNotFoundError):  # the stack runs, and deletes files
        if path.is_file() and not path.is_symlink() and (shown or path.stat().st_mode & 0o077):
            return path.read_bytes()
    return None


def _secret_values(context: DeployContext) -> set[str]:
    """Return every secret of the deployment, of active keys and of earlier ones."""
    found: set[str] = set()
    for one in context.aws.client("secretsmanager").list_secrets()["SecretList"]:
        for version in context.secrets.versions(one["Name"]):
            values = context.secrets.read(one["Name"], version.id) or {}
            for name, value in values.items():
                if "private_key" in name:  # also as the PEM file that it is
                    found |= {value, base64.b64decode(value).decode().splitlines()[5]}
                elif name.endswith(("password", "secret", "user.info")):
                    found.add(value.rpartition(":")[2])
    return found


def _run_in_dagster(config: Settings) -> None:
    """Materialize a part of the platform as assets, whose events are stored."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DAGSTER_HOME", str(dagster_home(config)))
        with dg.DagsterInstance.get() as instance:
            assets = deployed_assets(config, load_topics(config))
            keys = [asset_key(key) for key in ("key/kafka_app_manager", "snowflake/user")]
            result = dg.materialize([assets], instance=instance, selection=keys)
    assert result.success


def test_delete_after_a_lost_key_leaves_nothing(deployed: Platform) -> None:
    context, graph = deployed.open()
    engine.plan(graph, context)
    for key in context.confluent.cloud.pages("/iam/v2/api-keys"):
        if " tableflow " in key["spec"]["display_name"]:
            context.confluent.cloud.delete(f"/iam/v2/api-keys/{key['id']}")
    with context.snowflake.session() as session:  # as derived assets do
        session.run(_foreign_table(context), "SYSADMIN")
    with deployed.failing():
        left = deployed.delete()
    assert left == {}
    context, graph = deployed.open()
    assert engine.existing(graph, context, lambda *_: None) == []
    assert _ours(context) == []
    secrets = context.aws.client("secretsmanager").list_secrets()["SecretList"]
    assert [one["Name"] for one in secrets if context.names.prefix in one["Name"]] == []
