"""`deploy` by roles that have exactly the printed policies, in emulators that deny everything else.

The commands run as users start them, in processes of their own: a plan, a creation with a derived
table on EMR Serverless, a rotation and a deletion. All that they request of AWS is recorded, and
equal to ``calls.json``, from which the policies are made: what is missing there is denied here, and
nothing is in it that no command requests. To record it again, set ``TOPICBERG_TEST_RECORD=1``. Each
request is also as botocore's description of its service has it, with its patterns and limits.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import boto3
import emr_service
import pyarrow as pa
import pytest
from dagster_pipes import (
    PipesContext,
    PipesDefaultContextLoader,
    PipesMappingParamsLoader,
    PipesS3MessageWriter,
)
from iam_gateway import Gateway, opened
from python_project import write_project
from vendors import ADMIN_SECRET, IMAGE, METADATA_COLUMNS, REGION, Vendors, in_this_process

from topicberg.settings import Settings
from topicberg.topics import load_topics
from topicberg.transforms.derived import WrittenWindow
from topicberg.transforms.emr import JobReport, JobRequest
from topicberg_deploy.aws.archive import LOCK
from topicberg_deploy.aws.iam import Document, allow, split
from topicberg_deploy.aws.iam import document as as_document
from topicberg_deploy.aws.lake_formation import LakeGrant
from topicberg_deploy.aws.permissions import CALLS, Deployed, Purpose, ci_role, policy

pytestmark = [pytest.mark.slow]

ACCOUNT = "123456789012"
TOPIC = "parcels"
LABELS = ("demo_post", "labels")
RECORDS = "TOPICBERG_TEST_RECORD" in os.environ
BOUNDARY = f"arn:aws:iam::{ACCOUNT}:policy/limits"
VIOLATION = "AWS does not describe such a request"
COMMAND = f"""\
import sys, time
from botocore.handlers import BUILTIN_HANDLERS
from topicberg_local.emulators.aws.shapes import check

def judge(params, model, **_):
    if problem := check(params, model.input_shape):
        print("{VIOLATION}:", model.name, problem, file=sys.stderr)

BUILTIN_HANDLERS.append(("before-parameter-build", judge))
sleep = time.sleep
time.sleep = lambda seconds: sleep(min(seconds, 0.2))  # the emulators are quicker than the vendors
from topicberg.cli import main
main()
"""


@dataclass
class Cloud:
    """The vendors, and who uses them by its printed policies."""

    vendors: Vendors
    gateway: Gateway
    root: Path
    settings: dict[str, str]
    failures: list[str]
    """Reasons why the next job runs fail."""
    requests: dict[Purpose, set[tuple[str, str]]] = field(default_factory=lambda: defaultdict(set))
    """Action and resource."""

    @property
    def deployed(self) -> Deployed:
        given: dict[str, Any] = {}
        for name, text in self.settings.items():
            group, _, of_group = name.removeprefix("TOPICBERG_").lower().partition("__")
            if group in Settings.model_fields and text:
                given[group] = {**given.get(group, {}), of_group: text} if of_group else text
        config = Settings.model_validate(given | {"project_root": self.root, "deployment": "cloud"})
        return Deployed(config, ACCOUNT, tuple(load_topics(config)), (ADMIN_SECRET,))

    def let_in(self) -> None:
        """Create the roles of CI as an administrator does: by what is printed."""
        iam, account = boto3.client("iam"), self.vendors.governed
        for purpose in ("plan", "deploy", "rotate"):
            name = ci_role(self.deployed, purpose)
            account.session(name)
            documents = split(policy(purpose, self.deployed))
            if RECORDS:
                documents = [as_document(*everything(purpose, self.deployed))]
            for number, document in enumerate(documents):
                made = iam.create_policy(
                    PolicyName=f"{name}_{number}", PolicyDocument=json.dumps(document)
                )
                iam.attach_role_policy(RoleName=name, PolicyArn=made["Policy"]["Arn"])

    def run(self, purpose: Purpose, *command: str, code: int | None = 0) -> str:
        """Run `topicberg deploy` as the role of a purpose."""
        keys = self.vendors.governed.session(ci_role(self.deployed, purpose)).get_credentials()
        done = subprocess.run(
            [sys.executable, "-c", COMMAND, "deploy", *command],
            env={
                **os.environ,
                **self.settings,
                "AWS_ACCESS_KEY_ID": keys.access_key,
                "AWS_SECRET_ACCESS_KEY": keys.secret_key,
                "AWS_SESSION_TOKEN": keys.token,
            },
            cwd=self.root,
            capture_output=True,
            text=True,
            check=False,
            timeout=240,
        )
        taken, self.gateway.requests = self.gateway.requests, []
        self.requests[purpose] |= {(one.action, one.resource) for one in taken}
        denied, self.gateway.denied = self.gateway.denied, []
        of_plan = "perform: secretsmanager:GetSecretValue on"
        assert not [one for one in denied if purpose != "plan" or of_plan not in one]
        output = f"{done.stdout}\n{done.stderr}"
        assert VIOLATION not in output, output
        assert code is None or done.returncode == code, output
        return output

    def calls(self) -> dict[str, dict[str, list[str]]]:
        """Return what was requested, in the terms of the file."""
        resources = self.deployed.resources()

        def about(action: str, arn: str) -> str:
            if action == "iam:PassRole":
                return "passed_role"
            return next(
                kind
                for kind, patterns in resources.items()
                if any(fnmatchcase(arn, pattern) for pattern in patterns)
            )

        found: dict[str, dict[str, list[str]]] = {}
        for purpose, requests in self.requests.items():
            kinds: dict[str, set[str]] = defaultdict(set)
            for action, arn in requests:
                kinds[action].add(about(action, arn))
            found[purpose] = {action: sorted(kinds[action]) for action in sorted(kinds)}
        return found


def everything(purpose: Purpose, of: Deployed) -> list[Document]:
    """Return statements with which all is recorded that a purpose may do."""
    allowed = [allow(["*"], "*")]
    if purpose == "plan":
        readable = of.resources()["reader_secret"] + of.resources()["login"]
        denied = {"Effect": "Deny", "Action": "secretsmanager:GetSecretValue"}
        allowed.append({**denied, "NotResource": readable})
    return allowed


def job(vendors: Vendors, failures: list[str]) -> Callable[[dict[str, Any]], emr_service.Scripted]:
    """Return what a job run does: it writes a row of the derived table, and tells Dagster.

    :param failures: reasons why the next ones fail
    """

    def execute(request: dict[str, Any]) -> emr_service.Scripted:
        if failures:
            return emr_service.Scripted([("FAILED", failures.pop())])
        if request["name"] == "topicberg probe":
            bucket, key = request["jobDriver"]["sparkSubmit"]["entryPoint"][5:].split("/", 1)
            s3 = boto3.client("s3", endpoint_url=vendors.aws)
            assert b'sql("USE lake")' in s3.get_object(Bucket=bucket, Key=key)["Body"].read()
            return emr_service.Scripted([("RUNNING", ""), ("SUCCESS", "")])
        variables = emr_service.environment(request)

        def compute() -> None:
            s3 = boto3.client("s3", endpoint_url=vendors.aws)
            with PipesContext(
                PipesMappingParamsLoader(variables),
                PipesDefaultContextLoader(),
                PipesS3MessageWriter(s3),
            ) as pipes:
                asked = JobRequest.model_validate(pipes.extras)
                assert asked.windows
                folder = f"s3://{asked.settings['derived_bucket']}/{'/'.join(LABELS)}"
                glue, rows = vendors.glue_as(request["executionRoleArn"]), pa.table({"id": [1]})
                if not glue.table_exists(LABELS):
                    glue.create_table(LABELS, rows.schema, folder).append(rows)
                head = glue.load_table(LABELS).current_snapshot()
                first = asked.windows[0].hours.start
                written = WrittenWindow(asked.windows, 1, {first: 1}, head.snapshot_id)
                pipes.report_custom_message(JobReport(written=written).model_dump(mode="json"))

        return emr_service.Scripted([("RUNNING", ""), ("RUNNING", ""), ("SUCCESS", "")], compute)

    return execute


@contextmanager
def cloud(folder: Path, **changes: str) -> Iterator[Cloud]:
    """:param changes: settings"""
    failures = list[str]()
    METADATA_COLUMNS["$$timestamp"] = [datetime.now(UTC) - timedelta(hours=2)]
    with ExitStack() as stack:
        vendors = stack.enter_context(in_this_process(folder / "vendors", governed=True))
        jobs = stack.enter_context(emr_service.serving(job(vendors, failures), application=None))
        own = os.environ["AWS_ENDPOINT_URL_EMR_SERVERLESS"]
        targets = {"": vendors.governed.url, "s3": vendors.aws, "jobs": jobs.url}
        targets |= {"emr-serverless": own, "athena": own}
        gateway = stack.enter_context(opened(Gateway(ACCOUNT, REGION, targets, vendors.glue_as)))
        settings = {
            **{f"AWS_ENDPOINT_URL{name}": gateway.url for name in ("", *SERVICES)},
            "TOPICBERG_S3_ENDPOINT": gateway.url,
            "TOPICBERG_ICEBERG_REST_URI": f"{gateway.url}/iceberg",
            "TOPICBERG_ICEBERG_REST_AUTH": "sigv4",
            "TOPICBERG_DEPLOYMENT": "cloud",
            "TOPICBERG_PREFIX": "demo",
            "TOPICBERG_PROJECT_ROOT": str(folder / "project"),
            "TOPICBERG_STATE_DIR": str(folder / "state"),
            "TOPICBERG_CONFLUENT_API_KEY": "LOCALKEY",
            "TOPICBERG_CONFLUENT_API_SECRET": "local-secret",
            "TOPICBERG_CONFLUENT_URL": vendors.confluent.account.url,
            "TOPICBERG_SNOWFLAKE_URL": f"http://127.0.0.1:{vendors.snowflake_port}",
            "TOPICBERG_ADMIN_USER_SECRETS_ROOT_PATH": ADMIN_SECRET,
            "TOPICBERG_EMR__IMAGE": IMAGE,
            **{f"TOPICBERG_{name.upper()}": text for name, text in changes.items()},
        }
        found = Cloud(vendors, gateway, write_project(folder / "project"), settings, failures)
        vendors.confluent.written.add(TOPIC)
        found.let_in()
        yield found


SERVICES = ("_S3", "_EMR_SERVERLESS", "_ATHENA")
RECORDED: dict[str, dict[str, dict[str, list[str]]]] = {}
"""Name of a deployment → its calls."""
ELSEWHERE = {"plan": {"glue:GetTable": ["catalog", "database", "table"]}}
"""Calls in ``test_deploy_whole.py``: of a topic whose table Snowflake does not have yet."""


def drift(aws: Cloud) -> None:
    """Change by hand what the next creation changes back."""
    iam, begin = boto3.client("iam"), f"arn:aws:iam::{ACCOUNT}:policy/demo"
    name, policies = "demo_s3_glue_role_access_policy", iam.list_policies(Scope="Local")["Policies"]
    arn = next(one["Arn"] for one in policies if "s3_glue_access" in one["Arn"])
    assert arn.startswith(begin), name
    other = json.dumps(as_document(allow(["s3:ListBucket"], "*")))
    for _ in range(4):  # AWS keeps five versions
        iam.create_policy_version(PolicyArn=arn, PolicyDocument=other, SetAsDefault=True)
    role = "demo_spark_job_role"
    iam.put_role_policy(RoleName=role, PolicyName="own", PolicyDocument=other)
    trust: dict[str, Any] = {
        "Effect": "Allow",
        "Action": "sts:AssumeRole",
        "Principal": {"AWS": ACCOUNT},
    }
    iam.update_assume_role_policy(RoleName=role, PolicyDocument=json.dumps(as_document(trust)))
    updates = {"ResultConfigurationUpdates": {"OutputLocation": "s3://other/"}}
    boto3.client("athena").update_work_group(WorkGroup="demo_athena", ConfigurationUpdates=updates)
    emr, (application,) = boto3.client("emr-serverless"), aws.vendors.emr.applications.values()
    emr.untag_resource(resourceArn=application.arn, tagKeys=["topicberg"])
    application.configuration["releaseLabel"] = "emr-spark-8.2.0"
    application.become("STARTED")


def interrupt(aws: Cloud) -> None:
    """Leave the record as of a creation that was killed."""
    ssm = boto3.client("ssm")
    for page in ssm.get_parameters_by_path(Path=aws.deployed.names.record)["Parameters"]:
        entries = json.loads(page["Value"])
        if "key/kafka_app_consumer" in entries:
            entries["key/kafka_app_consumer"] = ""
            ssm.put_parameter(Name=page["Name"], Value=json.dumps(entries), Overwrite=True)


def busy(aws: Cloud) -> None:
    """Have a job run and an upload under way when all is deleted."""
    (application,) = aws.vendors.emr.applications.values()
    application.jobs["00job"] = "RUNNING"
    upload: Any = {"Bucket": f"demo-{ACCOUNT}-compute", "Key": "jobs/one"}
    boto3.client("s3").create_multipart_upload(**upload)


def test_new_platform(tmp_path: Path) -> None:
    write_project(tmp_path / "project")
    (tmp_path / "project" / LOCK).touch()  # no dependencies: nothing is downloaded
    with cloud(tmp_path, emr__image="", bucket_versioning="true") as aws:
        aws.run("plan", "plan", code=1)
        assert "computed and registered in Snowflake: labels" in aws.run("deploy", "create")
        assert "as expected: a job run of EMR Serverless" in aws.run("deploy", "probe")
        aws.run("plan", "plan")
        drift(aws)
        aws.run("deploy", "create", "--no-generators")
        interrupt(aws)
        aws.run("rotate", "rotate", "--now")
        busy(aws)
        aws.run("deploy", "delete", "--yes")
        aws.run("deploy", "create", "--target", "key/")
        aws.run("deploy", "delete", "--yes", "--purge-secrets")
        RECORDED["new"] = aws.calls()


def test_existing_cluster_with_buckets_and_a_role(tmp_path: Path) -> None:
    trust: dict[str, Any] = {"Effect": "Allow", "Action": "sts:AssumeRole"}
    trust |= {"Principal": {"Service": "emr-serverless.amazonaws.com"}}
    arn = f"arn:aws:iam::{ACCOUNT}:role/their-jobs"
    with cloud(tmp_path, existing_buckets="true", bucket="theirs", iam__emr_role_arn=arn) as aws:
        document = json.dumps(as_document(trust))
        boto3.client("iam").create_role(RoleName="their-jobs", AssumeRolePolicyDocument=document)
        for bucket in ("theirs", "theirs-derived"):
            boto3.client("s3").create_bucket(Bucket=bucket)
        aws.settings |= their_cluster(aws.vendors)
        assert "in Snowflake: labels" in aws.run("deploy", "create")
        aws.run("plan", "plan")
        aws.run("rotate", "rotate", "--now")
        aws.run("deploy", "delete", "--yes", "--purge-secrets")
        RECORDED["existing"] = aws.calls()


def their_cluster(vendors: Vendors) -> dict[str, str]:
    """Create an environment and a cluster as another team has them; return the settings."""
    api = vendors.open()[0].confluent.cloud
    environment = api.create("/org/v2/environments", {"display_name": "platform-team"})["id"]
    spec = {
        **{"display_name": "shared", "availability": "LOW", "cloud": "AWS", "region": REGION},
        **{"config": {"kind": "Basic"}, "environment": {"id": environment}},
    }
    cluster = api.create("/cmk/v2/clusters", {"spec": spec})["id"]
    return {"TOPICBERG_EXISTING_ENVIRONMENT": environment, "TOPICBERG_EXISTING_CLUSTER": cluster}


def test_roles_with_a_boundary(tmp_path: Path) -> None:
    limits = {"Effect": "Allow", "NotAction": "iam:*", "Resource": "*"}
    with cloud(tmp_path, iam__permissions_boundary_arn=BOUNDARY) as aws:
        iam = boto3.client("iam")
        iam.create_policy(PolicyName="limits", PolicyDocument=json.dumps(as_document(limits)))
        aws.failures.append("the job ran out of memory")
        output = aws.run("deploy", "create", code=2)
        assert re.search("platform is created, but its derived tables .* out of memory", output)
        iam.delete_role_permissions_boundary(RoleName="demo_spark_job_role")
        assert "in Snowflake: labels" in aws.run("deploy", "create")
        role = iam.get_role(RoleName="demo_spark_job_role")["Role"]
        assert role["PermissionsBoundary"]["PermissionsBoundaryArn"] == BOUNDARY
        aws.run("rotate", "rotate", "--now")
        aws.run("deploy", "delete", "--yes", "--purge-secrets")
        RECORDED["boundary"] = aws.calls()


def test_account_that_lake_formation_governs(tmp_path: Path) -> None:
    """The data lake administrator runs what is printed, and nothing else."""
    with cloud(tmp_path) as aws:
        account = aws.vendors.governed
        account.govern()

        def grant(output: str) -> str:
            for command in re.findall(r"aws lakeformation grant-permissions .*", output):
                account.run(command)
            return output

        def create(code: int) -> str:
            return grant(aws.run("deploy", "create", code=code))

        assert "does not show whether" in create(2)
        # Nothing waits for grants that `create` itself prints.
        assert "LINKED_CATALOG_INTEGRATION: Failed to access the AWS Glue catalog" in create(2)
        # Snowflake's emulator reads Glue as the account's root.
        for name in ("lkc-local", "demo_post"):
            tables: dict[str, Any] = {"DatabaseName": name, "TableWildcard": {}}
            for resource in ({"Table": tables}, {"Database": {"Name": name}}):
                root = f"arn:aws:iam::{ACCOUNT}:root"
                account.run(LakeGrant(root, ("DESCRIBE",), resource).command())
        assert "in Snowflake: labels" in create(0)
        role = account.roles[ci_role(aws.deployed, "plan")]
        assert "create Glue database" in aws.run("plan", "plan", code=1)  # as documented
        for name in ("lkc-local", "demo_post"):
            account.run(LakeGrant(role, ("DESCRIBE",), {"Database": {"Name": name}}).command())
        grant(aws.run("plan", "plan", code=None))
        aws.run("plan", "plan")
        aws.run("rotate", "rotate", "--now")
        aws.run("deploy", "delete", "--yes", "--purge-secrets")
        RECORDED["governed"] = aws.calls()


def test_calls_are_those_that_were_recorded() -> None:
    if len(RECORDED) < 4:
        pytest.skip("not all deployments were made")
    found: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for calls in (*RECORDED.values(), ELSEWHERE):
        for purpose, actions in calls.items():
            for action, kinds in actions.items():
                found[purpose][action] |= {*kinds}
    listed = {
        purpose: {action: sorted(kinds) for action, kinds in sorted(actions.items())}
        for purpose, actions in found.items()
    }
    if RECORDS:
        lines = json.dumps(listed, indent=1)
        CALLS.write_text(re.sub(r"\[\s+([^]]*?)\s+\]", _on_one_line, lines) + "\n")
    assert listed == json.loads(CALLS.read_text())


def _on_one_line(match: re.Match[str]) -> str:
    return f"[{' '.join(match[1].split())}]"
