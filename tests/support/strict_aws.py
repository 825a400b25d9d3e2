"""The AWS emulator in this process, as strict as in the local stack: Glue, IAM, STS, …"""

from __future__ import annotations

import json
import shlex
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import boto3
import pytest
from moto import mock_aws
from werkzeug.serving import make_server

from topicberg.clients.aws import aws_session
from topicberg.naming import Names
from topicberg.settings import Settings
from topicberg.topics import load_topics
from topicberg_deploy.context import DeployContext
from topicberg_local.emulators.aws.__main__ import Application

ACCOUNT = "123456789012"
ADMIN = f"arn:aws:iam::{ACCOUNT}:role/lake_admin"
REGION = "us-east-1"
GOVERNED = {
    "DataLakeAdmins": [{"DataLakePrincipalIdentifier": ADMIN}],
    "CreateDatabaseDefaultPermissions": [],
    "CreateTableDefaultPermissions": [],
}


class Unsaved:
    """The state of an emulator that is not restarted."""

    def save(self) -> None:
        """Nothing."""


class Account:
    """The emulator's account, and roles that use it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.root = boto3.Session("LOCAL", "local", region_name=REGION)
        self.roles: dict[str, str] = {}

    def session(self, role: str) -> Any:
        """Log in as a role, by a boto3 session that checks answers."""
        iam, sts = (self.client(name) for name in ("iam", "sts"))
        if role not in self.roles:
            trust = json.dumps({"Version": "2012-10-17", "Statement": []})
            made = iam.create_role(RoleName=role, AssumeRolePolicyDocument=trust)
            self.roles[role] = made["Role"]["Arn"]
        key = sts.assume_role(RoleArn=self.roles[role], RoleSessionName="one")["Credentials"]
        return aws_session(
            aws_access_key_id=key["AccessKeyId"],
            aws_secret_access_key=key["SecretAccessKey"],
            aws_session_token=key["SessionToken"],
            region_name=REGION,
        )

    def client(self, service: str) -> Any:
        return self.root.client(service, endpoint_url=self.url)

    def govern(self) -> None:
        self.client("lakeformation").put_data_lake_settings(DataLakeSettings=GOVERNED)

    def run(self, command: str) -> None:
        """Run a printed command as the data lake administrator."""
        words = shlex.split(command)
        assert words[:3] == ["aws", "lakeformation", "grant-permissions"]
        at = {name: words.index(name) for name in ("--principal", "--permissions", "--resource")}
        name, _, principal = words[at["--principal"] + 1].partition("=")
        self.client("lakeformation").grant_permissions(
            Principal={name: principal},
            Permissions=words[at["--permissions"] + 1 : at["--resource"]],
            Resource=json.loads(words[at["--resource"] + 1]),
        )

    def allow(self, role: str, *statements: dict[str, Any]) -> None:
        """Let a role do what the statements say, and nothing else."""
        self.session(role)
        text = json.dumps({"Version": "2012-10-17", "Statement": statements})
        self.client("iam").put_role_policy(RoleName=role, PolicyName="own", PolicyDocument=text)

    def context(self, role: str, **changes: Any) -> DeployContext:
        """Return the part of a deploy context that reads AWS."""
        session = self.session(role)
        given = {"deployment": "cloud", "prefix": "demo", "aws_region": REGION, **changes}
        config = Settings.model_validate(given)
        specs = [one for one in load_topics(config) if one.name == "stock_trades"]
        aws = SimpleNamespace(
            client=lambda service: session.client(service, endpoint_url=self.url),
            account=ACCOUNT,
            tags={"topicberg": "demo"},
            bucket="lake",
            derived_bucket="lake-derived",
            role_arn=lambda name: f"arn:aws:iam::{ACCOUNT}:role/{name}",
        )
        context = SimpleNamespace(
            aws=aws,
            config=config,
            specs=specs,
            names=Names("demo"),
            live={},
            only_plans=False,
            skips_simulation=False,
            deploy=SimpleNamespace(admin_user_secrets_root_path=None, profile=None),
            namespace="lkc-1",
        )
        return cast(DeployContext, context)


@contextmanager
def strict_aws() -> Iterator[Account]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "LOCAL")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "local")
        patch.setenv("MOTO_ACCOUNT_ID", ACCOUNT)
        yield from _serve()


def _serve() -> Iterator[Account]:
    with mock_aws():
        pass  # forgets what other tests made
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app

    moto = DomainDispatcherApplication(create_backend_app)
    server = make_server("127.0.0.1", 0, Application(moto, cast(Any, Unsaved())), threaded=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield Account(f"http://127.0.0.1:{server.server_port}")
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
        with mock_aws():
            pass
