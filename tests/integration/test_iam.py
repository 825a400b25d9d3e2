"""AWS's IAM, enforced by moto: roles that sign requests, and what the keys of a role may do."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import boto3
import pytest
import requests
from botocore.exceptions import ClientError
from moto.server import ThreadedMotoServer

from topicberg.clients.file_io import VendedFileIO
from topicberg.errors import LoginError, TopicbergError, UnreachableError
from topicberg.errors.meaning import explain
from topicberg.logins.catalog import CatalogLogin, role_keys, role_session
from topicberg.settings.models import KmsSettings
from topicberg_deploy.aws.bucket import CODE, JOBS
from topicberg_deploy.aws.emr import emr_policy

REGION, ACCOUNT = "us-east-1", "123456789012"
ROLE = f"arn:aws:iam::{ACCOUNT}:role/lake"
ENGINE = f"arn:aws:iam::{ACCOUNT}:user/engine"


def policy(action: str, resource: str) -> str:
    statement = {"Effect": "Allow", "Action": action, "Resource": resource}
    return json.dumps({"Version": "2012-10-17", "Statement": [statement]})


def trust(principal: str) -> str:
    statement = {"Effect": "Allow", "Principal": {"AWS": principal}, "Action": "sts:AssumeRole"}
    return json.dumps({"Version": "2012-10-17", "Statement": [statement]})


@dataclass
class Account:
    """AWS with IAM enforced; ``root`` may do everything."""

    url: str
    root: boto3.Session
    engine: dict[str, str] = field(default_factory=dict)
    """The access key of the user that topicberg has."""

    def client(self, service: str) -> Any:
        return self.root.client(service, endpoint_url=self.url)

    def allow_assuming(self, resource: str, principal: str) -> None:
        """Let the engine's user assume roles, and the role trust someone."""
        iam, document = self.client("iam"), policy("sts:AssumeRole", resource)
        iam.put_user_policy(UserName="engine", PolicyName="assume", PolicyDocument=document)
        iam.update_assume_role_policy(RoleName="lake", PolicyDocument=trust(principal))


@pytest.fixture(scope="module")
def enforced() -> Iterator[Account]:
    """An account where ``engine`` and the role ``lake`` may do what the tests allow."""
    moto = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    moto.start()
    url = f"http://127.0.0.1:{moto.get_host_and_port()[1]}"
    try:
        requests.post(f"{url}/moto-api/reset", timeout=60)
        found = Account(url, boto3.Session("x", "x", region_name=REGION))
        iam = found.client("iam")
        for user in ("root", "engine"):
            iam.create_user(UserName=user)
        iam.put_user_policy(UserName="root", PolicyName="all", PolicyDocument=policy("*", "*"))
        iam.create_role(RoleName="lake", AssumeRolePolicyDocument=trust(ENGINE))
        document = policy("s3:*", "arn:aws:s3:::lake*")
        iam.put_role_policy(RoleName="lake", PolicyName="lake", PolicyDocument=document)
        for bucket in ("lake", "elsewhere"):
            found.client("s3").create_bucket(Bucket=bucket)
        root, found.engine = (
            iam.create_access_key(UserName=user)["AccessKey"] for user in ("root", "engine")
        )
        requests.post(f"{url}/moto-api/reset-auth", data=b"0", timeout=60).raise_for_status()
        keys = root["AccessKeyId"], root["SecretAccessKey"]
        found.root = boto3.Session(*keys, region_name=REGION)
        yield found
    finally:
        requests.post(f"{url}/moto-api/reset-auth", data=b"inf", timeout=60)
        moto.stop()


BUCKETS = {"bucket": "topics", "derived_bucket": "derived", "compute_bucket": "compute"}


@pytest.fixture
def job_role(enforced: Account) -> Any:
    """S3 with the keys of a job run of EMR Serverless, as the policy of its role allows it."""
    names = SimpleNamespace(namespace=str)
    context: Any = SimpleNamespace(
        aws=SimpleNamespace(**BUCKETS, account=ACCOUNT),
        config=SimpleNamespace(kms=KmsSettings(), aws_region=REGION),
        names=names,
        namespace="lkc-1",
        specs=[],
    )
    iam, s3 = enforced.client("iam"), enforced.client("s3")
    root = f"arn:aws:iam::{ACCOUNT}:user/root"
    iam.create_role(RoleName="job", AssumeRolePolicyDocument=trust(root))
    document = json.dumps(emr_policy(context))
    iam.put_role_policy(RoleName="job", PolicyName="job", PolicyDocument=document)
    for bucket in BUCKETS.values():
        s3.create_bucket(Bucket=bucket)
        for folder in (CODE, JOBS):
            s3.put_object(Bucket=bucket, Key=f"{folder}one", Body=b"1")
    assumed = enforced.client("sts").assume_role(
        RoleArn=f"arn:aws:iam::{ACCOUNT}:role/job", RoleSessionName="job"
    )["Credentials"]
    login = assumed["AccessKeyId"], assumed["SecretAccessKey"], assumed["SessionToken"]
    return boto3.Session(*login, region_name=REGION).client("s3", endpoint_url=enforced.url)


def test_role_of_emr_jobs_may_do_what_a_job_does_and_no_more(job_role: Any) -> None:
    """S3A looks for a key that does not exist by HEAD and LIST: without LIST, S3 answers 403."""
    for bucket in BUCKETS.values():
        assert job_role.list_objects_v2(Bucket=bucket, Prefix=f"{CODE}none/")["KeyCount"] == 0
        assert job_role.get_object(Bucket=bucket, Key=f"{CODE}one")["Body"].read() == b"1"
    with pytest.raises(ClientError, match="404"):
        job_role.head_object(Bucket="compute", Key=f"{CODE}none")
    job_role.put_object(Bucket="compute", Key=f"{JOBS}log", Body=b"1")
    job_role.put_object(Bucket="derived", Key="table/data.parquet", Body=b"1")
    job_role.delete_object(Bucket="derived", Key="table/data.parquet")
    for operation, bucket, key in (
        ("put_object", "compute", f"{CODE}one"),
        ("delete_object", "compute", f"{CODE}one"),
        ("get_object", "compute", f"{JOBS}one"),
        ("put_object", "topics", "table/data.parquet"),
        ("delete_object", "topics", f"{CODE}one"),
    ):
        with pytest.raises(ClientError, match="AccessDenied"):
            getattr(job_role, operation)(Bucket=bucket, Key=key)
    with pytest.raises(ClientError, match="AccessDenied"):
        job_role.list_objects_v2(Bucket="elsewhere")


@pytest.fixture
def account(enforced: Account, monkeypatch: pytest.MonkeyPatch) -> Iterator[Account]:
    """The same; this process has the keys of the user ``engine``."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", enforced.url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", enforced.engine["AccessKeyId"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", enforced.engine["SecretAccessKey"])
    role_session.cache_clear()
    yield enforced
    role_session.cache_clear()


def test_role_that_trusts_the_user_gives_keys(account: Account) -> None:
    account.allow_assuming(ROLE, ENGINE)
    properties, renew_at = CatalogLogin(auth="sigv4", role_arn=ROLE).spark(REGION)
    assert properties["rest.access-key-id"].startswith("ASIA")
    assert renew_at is not None


@pytest.mark.parametrize(
    ("resource", "principal"),
    [(f"arn:aws:iam::{ACCOUNT}:role/other", ENGINE), (ROLE, f"arn:aws:iam::{ACCOUNT}:user/other")],
    ids=["user-may-not", "role-does-not-trust"],
)
def test_role_that_refuses_names_the_setting(
    account: Account, resource: str, principal: str
) -> None:
    account.allow_assuming(resource, principal)
    with pytest.raises(LoginError) as refused:
        CatalogLogin(auth="sigv4", role_arn=ROLE).spark(REGION)
    assert ROLE in refused.value.message
    assert "AccessDenied" in refused.value.message
    assert "TOPICBERG_ICEBERG_REST_ROLE_ARN" in str(refused.value.hint)
    assert "\n" not in refused.value.message


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("AWS_ACCESS_KEY_ID", "AKIAUNKNOWNUNKNOWN00", "InvalidClientTokenId"),
        ("AWS_SECRET_ACCESS_KEY", "wrong-secret-of-the-user", "SignatureDoesNotMatch"),
    ],
)
def test_wrong_key_of_the_process_is_named(
    account: Account, monkeypatch: pytest.MonkeyPatch, name: str, value: str, said: str
) -> None:
    account.allow_assuming(ROLE, ENGINE)
    monkeypatch.setenv(name, value)
    with pytest.raises(LoginError, match=said) as refused:
        role_keys(ROLE, REGION)
    assert "wrong-secret" not in str(refused.value)


def test_process_without_credentials_is_reported(
    account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    with pytest.raises(LoginError, match="Unable to locate credentials") as refused:
        role_keys(ROLE, REGION)
    assert "AWS_PROFILE" in str(refused.value.hint)


def test_silent_sts_may_be_retried(account: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    with pytest.raises(UnreachableError, match=r"127\.0\.0\.1:9"):
        role_keys(ROLE, REGION)


def vended(account: Account) -> VendedFileIO:
    """Files with the role's keys, as a catalog vends them."""
    keys = role_keys(ROLE, REGION)
    return VendedFileIO(
        {
            "s3.endpoint": account.url,
            "s3.region": REGION,
            "s3.access-key-id": keys.access_key,
            "s3.secret-access-key": keys.secret_key,
            "s3.session-token": keys.token,
        }
    )


def test_vended_keys_reach_only_what_the_role_may(account: Account) -> None:
    account.allow_assuming(ROLE, ENGINE)
    files = vended(account)
    with files.new_output("s3://lake/a").create() as output:
        output.write(b"a")
    with files.new_input("s3://lake/a").open() as found:
        assert found.read() == b"a"
    with (
        pytest.raises(OSError, match="ACCESS_DENIED") as refused,
        files.new_output("s3://elsewhere/a").create() as output,
    ):
        output.write(b"a")
    explained = explain("topic orders", refused.value)
    assert isinstance(explained, TopicbergError)
    assert "the object store refuses the credentials" in explained.message
    assert "TOPICBERG_ICEBERG_REST_DELEGATION" in str(explained.hint)
    with pytest.raises(OSError, match="ACCESS_DENIED"):
        files.new_input("s3://elsewhere/a").open()
