"""The three vendors in this process: the emulators of Confluent and Snowflake, and moto for AWS.

A whole deployment can be created, rotated and deleted in them, in seconds. What the real stack adds
are a broker, a registry and an engine.
"""

from __future__ import annotations

import json
import logging
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import boto3
import pyarrow as pa
import pytest
import requests
import uvicorn
from moto import backends as moto_backends
from moto.iam.access_control import PermissionResult
from moto.s3.models import FakeBucket
from moto.server import ThreadedMotoServer
from own_aws import URL_VARIABLES, serving
from pydantic import SecretStr
from pyiceberg.catalog.glue import GlueCatalog
from stackless import NOWHERE, Stackless
from starlette.applications import Starlette
from strict_aws import Account as StrictAccount
from strict_aws import strict_aws

from topicberg.catalogs.glue import get_table
from topicberg.clients import rsa
from topicberg.settings import Settings
from topicberg.topics import load_topics
from topicberg_deploy import engine
from topicberg_deploy.context import DeployContext
from topicberg_deploy.platform import resources
from topicberg_deploy.resource import Resource, Step
from topicberg_deploy.settings import DeploySettings
from topicberg_local import state
from topicberg_local.emulators.aws.athena import PRIMARY, Athena
from topicberg_local.emulators.aws.emr_serverless import EmrServerless
from topicberg_local.emulators.confluent.account import Account as Organization
from topicberg_local.emulators.confluent.account import Delays
from topicberg_local.emulators.confluent.materialization import point_to_metadata
from topicberg_local.emulators.snowflake import linked
from topicberg_local.emulators.snowflake.account import Account, Context
from topicberg_local.emulators.snowflake.linked import Refresher
from topicberg_local.emulators.snowflake.logins import Logins
from topicberg_local.emulators.snowflake.server import Server
from topicberg_local.emulators.snowflake.session import Session

DELAYS = Delays(
    api_key=0.3,
    role_binding=0.3,
    cluster=0.3,
    schema_registry=0.3,
    deletion=0.3,
    connector=0.3,
    tableflow=0.3,
    listing=0.6,
)
REGION = "us-east-1"
IMAGE = "123456789012.dkr.ecr.us-east-1.amazonaws.com/topicberg:1"
ADMIN_SECRET = "/snowflake/admin"
CONFLUENT_KINDS = (
    *("environment", "cluster", "registry", "subject", "service account", "key", "role binding"),
    *("integration", "connector", "topic", "access list", "tableflow topic", "catalog"),
)
SNOWFLAKE_KINDS = (
    *("EXTERNAL VOLUME", "CATALOG INTEGRATION", "ICEBERG TABLE", "DATABASE", "SCHEMA"),
    *("USER", "ROLE", "WAREHOUSE", "GRANT"),
)
METADATA_COLUMNS: dict[str, list[Any]] = {
    "$$topic": ["t"],
    "$$partition": [0],
    "$$offset": [7],
    "$$timestamp": [datetime(2026, 1, 1, tzinfo=UTC)],
}
"""Of Confluent's tables, beside those of the schema.

https://docs.confluent.io/cloud/current/topics/tableflow/concepts/overview.html
"""
AT_THE_START = {
    "USER ('DEPLOYER',)",
    "WAREHOUSE ('COMPUTE_WH',)",
    "GRANT ('USER', 'DEPLOYER', 'USAGE', 'ROLE', 'ACCOUNTADMIN')",
}


def free_port() -> socket.socket:
    return socket.create_server(("127.0.0.1", 0))


@contextmanager
def served(application: Starlette, listener: socket.socket) -> Iterator[None]:
    http = uvicorn.Server(uvicorn.Config(application, log_level="warning"))
    thread = threading.Thread(target=http.run, args=([listener],), daemon=True)
    thread.start()
    yield
    http.should_exit = True
    thread.join(10)


@dataclass
class Vendors:
    confluent: Stackless
    snowflake: Account
    snowflake_port: int
    aws: str
    emr: EmrServerless
    athena: Athena
    governed: StrictAccount | None = None
    """The AWS account, if Lake Formation governs it."""
    only: tuple[str, ...] = ()
    """How the keys of what is deployed begin, besides all that it needs; empty: everything."""
    deployer: Any = None
    """The boto3 session of who deploys; None: that of the environment."""

    @contextmanager
    def describing(self, **names: Any) -> Iterator[None]:
        """Let Snowflake describe its objects by other names for a while."""
        before = {name: getattr(self.snowflake, name) for name in names}
        vars(self.snowflake).update(names)
        try:
            yield
        finally:
            vars(self.snowflake).update(before)

    def open(self, *topics: str, **changes: Any) -> tuple[DeployContext, list[Resource]]:
        """A deployment of these topics, as a new process sees it."""
        given: dict[str, Any] = {"deployment": "cloud", "prefix": "demo"}
        given |= {"snowflake_linked_database": False}
        given["emr"] = {"image": IMAGE} | changes.pop("emr", {})
        config = Settings.model_validate(given | changes)
        deploy = DeploySettings.model_validate(
            {
                "confluent_api_key": "LOCALKEY",
                "confluent_api_secret": SecretStr("local-secret"),
                "confluent_url": self.confluent.account.url,
                "snowflake_url": f"http://127.0.0.1:{self.snowflake_port}",
                "admin_user_secrets_root_path": ADMIN_SECRET,
            }
        )
        specs = [spec for spec in load_topics() if spec.name in topics]
        context = DeployContext(
            config, deploy, specs, sleep=lambda wait: time.sleep(min(wait, 0.1))
        )
        if self.deployer is not None:
            context.aws.session = self.deployer
        graph = resources(config, specs)
        if self.only:
            chosen = [one for one in graph if one.key.startswith(self.only)]
            graph = engine.with_needs(chosen, graph)
        return context, graph

    def create(self, *topics: str, **changes: Any) -> DeployContext:
        context, graph = self.open(*topics, **changes)
        engine.create(graph, context, lambda *_: None)
        return context

    def plan(self, *topics: str, **changes: Any) -> dict[str, Step]:
        """What differs, by key."""
        context, graph = self.open(*topics, **changes)
        steps = engine.plan(graph, context)
        return {step.resource.key: step for step in steps if step.action != "keep"}

    def delete(self, *topics: str, also: bool = False, **changes: Any) -> dict[str, str]:
        """:param also: what `create` found, too"""
        context, graph = self.open(*topics, **changes)
        context.claimed = frozenset(one.key for one in graph if also)
        context.purge_secrets = True
        found = engine.existing(graph, context, lambda *_: None)
        return engine.delete(found, context, lambda *_: None)

    def client(self, service: str) -> Any:
        return boto3.client(service)

    def sql(self, statement: str, role: str = "ACCOUNTADMIN") -> list[Any]:
        """A statement of whoever has all roles."""
        session = Session(self.snowflake, Context("ROOT", "ACCOUNTADMIN", is_admin=True))
        try:
            session.execute(f"USE ROLE {role}")
            return list(session.execute(statement).payload.get("rowset") or [])
        finally:
            session.close()

    @cached_property
    def glue(self) -> GlueCatalog:
        """An engine's way into the lake; in a governed account, that of Tableflow's role."""
        if self.governed:
            role = self.open()[0].names.tableflow_role
            return self.glue_as(self.client("iam").get_role(RoleName=role)["Role"]["Arn"])
        return GlueCatalog("glue", **self._places())

    def _places(self) -> dict[str, Any]:
        # Without a region, PyIceberg requests that of each bucket from AWS.
        return {"glue.endpoint": self.aws, "s3.endpoint": self.aws, "s3.region": REGION}

    def glue_as(self, role: str) -> GlueCatalog:
        """The lake as a role of a governed account sees it, which needs its grants.

        :param role: its ARN
        """
        account, name = self.governed, role.rpartition("/")[2]
        account.roles[name] = role
        keys = account.session(name).get_credentials()
        places = self._places() | {
            "glue.endpoint": account.url,
            "glue.region": REGION,
            "glue.access-key-id": keys.access_key,
            "glue.secret-access-key": keys.secret_key,
            "glue.session-token": keys.token,
        }
        return GlueCatalog("glue", **places)

    def left(self) -> set[str]:
        """What the vendors still have, but for what was there at the start."""
        found = {f"bucket {one['Name']}" for one in self.client("s3").list_buckets()["Buckets"]}
        iam, glue = self.client("iam"), self.client("glue")
        found |= {f"role {one['RoleName']}" for one in iam.list_roles()["Roles"]}
        policies = iam.list_policies(Scope="Local")["Policies"]
        found |= {f"policy {one['PolicyName']}" for one in policies}
        found |= {f"Glue database {one['Name']}" for one in glue.get_databases()["DatabaseList"]}
        secrets = self.client("secretsmanager").list_secrets()["SecretList"]
        found |= {f"secret {one['Name']}" for one in secrets if one["Name"] != ADMIN_SECRET}
        parameters = self.client("ssm").describe_parameters()["Parameters"]
        lock = self.open()[0].names.lock  # stays, as documented
        found |= {f"parameter {one['Name']}" for one in parameters if one["Name"] != lock}
        emr = [one for one in self.emr.applications.values() if one.state != "TERMINATED"]
        found |= {f"EMR application {one.name}" for one in emr}
        found |= {f"workgroup {name}" for name in self.athena.workgroups if name != PRIMARY}
        organization = self.confluent.account.store
        for kind in CONFLUENT_KINDS:
            found |= {f"{kind} {one.name}" for one in organization.all(kind)}
        for kind in SNOWFLAKE_KINDS:
            found |= {f"{kind} {one.name}" for one in self.snowflake.store.all(kind)}
        return found - AT_THE_START

    def objects(self) -> set[str]:
        """Every object of every bucket that has any."""
        s3 = self.client("s3")
        return {
            f"{bucket['Name']}/{one['Key']}"
            for bucket in s3.list_buckets()["Buckets"]
            for one in s3.list_objects_v2(Bucket=bucket["Name"]).get("Contents", [])
        }

    def materialize(self, topic: str) -> None:
        """What Tableflow does with the first records of a topic."""
        spec, cluster = self.confluent.enabled[topic], self.confluent.account.config.cluster_id
        folder = f"s3://{spec['storage']['bucket_name']}/10011010/{topic}"
        if get_table(self.glue.glue, cluster, topic) is None:
            self.table((cluster, topic), folder, METADATA_COLUMNS)
            point_to_metadata(self.glue.glue, cluster, topic)

    def table(
        self, name: tuple[str, str], folder: str, more: dict[str, list[Any]] | None = None
    ) -> None:
        """An Iceberg table with a row; nothing when it is there.

        :param more: further columns
        """
        if not self.governed:  # where whoever writes tables may create no database
            self.glue.create_namespace_if_not_exists(name[0])
        if get_table(self.glue.glue, *name) is None:
            rows = pa.table({"id": pa.array([1], pa.int64()), **(more or {})})
            self.glue.create_table(name, rows.schema, folder).append(rows)


def _admin(account: Account, aws: Any) -> None:
    """Snowflake's admin user, and its secret."""
    pair, session = rsa.generate(), Session(account, Context("ROOT", "ACCOUNTADMIN", is_admin=True))
    session.execute(f"CREATE USER DEPLOYER TYPE = SERVICE RSA_PUBLIC_KEY = '{pair.public}'")
    session.execute("GRANT ROLE ACCOUNTADMIN TO USER DEPLOYER")
    session.close()
    values = {"snowflake_account_identifier": "ORG-ACCOUNT", "admin_service_user": "DEPLOYER"}
    values = rsa.with_pair(values, 1, pair)
    aws.create_secret(Name=ADMIN_SECRET, SecretString=json.dumps(values))


@contextmanager
def in_this_process(folder: Path, *, governed: bool = False) -> Iterator[Vendors]:
    """:param governed: the AWS account allows only what Lake Formation grants"""
    with pytest.MonkeyPatch.context() as patch:
        if not governed:
            yield from _vendors(folder, patch)
            return
        with strict_aws() as account:
            yield from _vendors(folder, patch, account)


def _vendors(
    folder: Path, patch: pytest.MonkeyPatch, governed: StrictAccount | None = None
) -> Iterator[Vendors]:
    # moto does not evaluate conditions and would deny everything in a bucket that demands TLS.
    patch.setattr(FakeBucket, "get_permission", lambda *_: PermissionResult.NEUTRAL)
    # With each request, moto would look for its services in its folders, a fifth of the time.
    services = tuple(moto_backends.list_of_moto_modules())
    patch.setattr(moto_backends, "list_of_moto_modules", lambda: services)
    # Tables may be in the catalog after the first discovery; the next one is five minutes later.
    patch.setattr(linked, "is_due", lambda database: not database.properties["SUSPENDED"])
    with serving() as (emr, athena, own):
        for name in URL_VARIABLES:
            patch.setenv(name, own)
        yield from _with_moto(folder, patch, emr, athena, governed)


def _with_moto(
    folder: Path,
    patch: pytest.MonkeyPatch,
    emr: EmrServerless,
    athena: Athena,
    governed: StrictAccount | None,
) -> Iterator[Vendors]:
    moto = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    logging.getLogger("werkzeug").setLevel(logging.WARNING)  # it would log each request
    moto.start()
    host, port = moto.get_host_and_port()
    url = f"http://{host}:{port}"
    for name, value in {
        "AWS_ACCESS_KEY_ID": "LOCAL",
        "AWS_SECRET_ACCESS_KEY": "local",
        "AWS_REGION": REGION,
        "AWS_DEFAULT_REGION": REGION,
        "AWS_ENDPOINT_URL": governed.url if governed else url,
        "AWS_ENDPOINT_URL_S3": url,
        "TOPICBERG_S3_ENDPOINT": url,
        "TOPICBERG_AWS_ENDPOINT": governed.url if governed else url,
        "NO_PROXY": "127.0.0.1",
    }.items():
        patch.setenv(name, value)
    requests.post(f"{url}/moto-api/reset", timeout=60).raise_for_status()
    ours, theirs, config = free_port(), free_port(), Settings(state_dir=folder)
    state.save_endpoints(config, {}, NOWHERE)
    organization = Organization(folder, config, f"http://127.0.0.1:{ours.getsockname()[1]}")
    organization.delays = DELAYS
    account, confluent = Account(folder / "snowflake"), Stackless(organization)
    vendors = Vendors(confluent, account, theirs.getsockname()[1], url, emr, athena, governed)
    confluent.engine = vendors.materialize
    _admin(account, vendors.client("secretsmanager"))
    vendors.client("ecr").create_repository(repositoryName="topicberg")  # of the image
    server, refresher = Server(account, Logins(account, "ROOT", "secret")), Refresher(account)
    refresher.start()
    with served(confluent.application(), ours), served(server.application(), theirs):
        yield vendors
    refresher.stop()
    refresher.join(5)
    account.close()
    organization.close()
    moto.stop()
