"""What `deploy probe` finds in the accounts, and that it leaves nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import boto3
import emr_service
import pytest
from botocore.exceptions import ClientError
from snowflake.connector.errors import ProgrammingError
from vendors import Vendors, in_this_process

from topicberg.clients.answers import AnswerError
from topicberg.endpoints import LakeEndpoints
from topicberg.settings.models import EmrSettings
from topicberg_deploy.context import DeployContext
from topicberg_deploy.probe import ROLE_ARN, Facts, _observe, probe, run_job, vendor_names


@pytest.fixture(scope="module")
def vendors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Vendors]:
    with in_this_process(tmp_path_factory.mktemp("vendors")) as found:
        yield found


@pytest.fixture(params=[False, True], ids=["accounts", "documents"])
def names(vendors: Vendors, request: pytest.FixtureRequest) -> Iterator[None]:
    """Snowflake describes by the names of its documents, or by those of accounts."""
    with vendors.describing(documented_names=request.param):
        yield


def differences(vendors: Vendors) -> dict[str, str]:
    context, _ = vendors.open()
    return {one.what: one.difference for one in probe(context) if one.difference}


@pytest.mark.usefixtures("names")
def test_account_as_expected_differs_in_nothing(vendors: Vendors) -> None:
    assert differences(vendors) == {}
    assert vendors.left() == set()


def test_other_names_are_listed_and_nothing_is_left(vendors: Vendors) -> None:
    with vendors.describing(sigv4_properties="OTHER"):
        (difference,) = differences(vendors).values()
    assert "DESC lacks GLUE_AWS_IAM_USER_ARN and GLUE_AWS_EXTERNAL_ID or API_AWS" in difference
    assert "OTHER_AWS_IAM_USER_ARN" in difference
    assert vendors.left() == set()


def test_network_policy_of_the_account_is_reported(vendors: Vendors) -> None:
    vendors.sql("CREATE NETWORK POLICY GUARD ALLOWED_IP_LIST = ('127.0.0.1')")
    vendors.sql("ALTER ACCOUNT SET NETWORK_POLICY = GUARD")
    try:
        found = differences(vendors)
    finally:
        vendors.sql("ALTER ACCOUNT UNSET NETWORK_POLICY")
        vendors.sql("DROP NETWORK POLICY GUARD")
    assert "GUARD must allow this machine" in found["network policy of Snowflake's account"]


def test_names_of_accounts_are_no_names_of_vendors() -> None:
    names = ["property", "STORAGE_LOCATION_1", "SIGV4_IAM_ROLE", "RSA_PUBLIC_KEY_2_FP"]
    others = ["A123456789012", "lkc-1", "ORG.ACCOUNT", "a@example.org", "A_1_2", "1" * 99, ""]
    assert vendor_names([*names, *others, "A" + "1" * 99]) == names


@pytest.mark.parametrize(
    ("error", "errors"),
    [
        (ClientError({"Error": {"Code": "Denied123456789012"}}, "GetRole"), ["ClientError"]),
        (ClientError({"Error": {"Code": "a.example.org"}}, "GetRole"), ["ClientError"]),
        (ProgrammingError("a.example.org", errno=123456789012), ["ProgrammingError"]),
        (AnswerError("a.example.org answers"), ["AnswerError"]),
        (KeyError("123456789012"), ["KeyError"]),
        (ValueError(), ["ValueError"]),
    ],
)
def test_errors_leave_their_texts_out_of_a_report(error: Exception, errors: list[str]) -> None:
    def look(context: DeployContext, facts: Facts) -> str:
        raise error

    context: Any = None
    facts: Facts = {}
    assert _observe(context, facts, look)
    assert facts == {"errors": errors}


def test_object_that_cannot_be_created_is_an_answer_among_others(vendors: Vendors) -> None:
    location = (
        f"STORAGE_PROVIDER = 'S3' STORAGE_BASE_URL = 's3://b/' STORAGE_AWS_ROLE_ARN = '{ROLE_ARN}'"
    )
    vendors.sql(f"CREATE EXTERNAL VOLUME DEMO_PROBE STORAGE_LOCATIONS = ((NAME = 'a' {location}))")
    try:
        found = differences(vendors)
    finally:
        vendors.sql("DROP EXTERNAL VOLUME DEMO_PROBE")
    assert found.keys() == {"DESC EXTERNAL VOLUME"}
    assert "already exists" in found["DESC EXTERNAL VOLUME"]


READER = "/confluent_cloud_resource/demo/reader/tableflow"
PLACE = {"environment.id": "env-1", "kafka.cluster.id": "lkc-1"}


def test_key_that_confluent_does_not_show_is_reported(vendors: Vendors) -> None:
    secrets = boto3.client("secretsmanager")
    values = {"api.key": "HIDDEN", "api.key.secret": "s", **PLACE}
    secrets.create_secret(Name=READER, SecretString=json.dumps(values))
    try:
        found = differences(vendors)
    finally:
        secrets.delete_secret(SecretId=READER, ForceDeleteWithoutRecovery=True)
    assert found.keys() == {"API keys of Confluent"}
    assert "does not show HIDDEN to this login" in found["API keys of Confluent"]


@pytest.mark.parametrize(
    ("state", "details", "reported"),
    [
        ("SUCCESS", "", ""),
        ("FAILED", "NoSuchFileException: iceberg.jar", "FAILED: NoSuchFileException: iceberg.jar"),
    ],
)
def test_job_run_reports_why_it_failed_and_leaves_no_program(
    vendors: Vendors, monkeypatch: pytest.MonkeyPatch, state: str, details: str, reported: str
) -> None:
    def execute(_: object) -> emr_service.Scripted:
        (program,) = vendors.objects()
        assert program.endswith("/probe.py")
        return emr_service.Scripted([("RUNNING", ""), (state, details)])

    with emr_service.serving(execute) as service:
        monkeypatch.setenv("AWS_ENDPOINT_URL_EMR_SERVERLESS", service.url)
        context, _ = vendors.open()
        s3, bucket = vendors.client("s3"), context.aws.compute_bucket
        s3.create_bucket(Bucket=bucket)
        emr = EmrSettings(
            application_id=emr_service.APPLICATION,
            execution_role_arn=emr_service.ROLE,
            entry_point=f"s3://{bucket}/job.py",
            log_uri=f"s3://{bucket}/logs/",
        )
        failure = run_job(context, emr, context.config, LakeEndpoints(iceberg_rest="http://rest"))
    assert failure.count(reported) == 1 if reported else not failure
    assert vendors.objects() == set()
    s3.delete_bucket(Bucket=bucket)
