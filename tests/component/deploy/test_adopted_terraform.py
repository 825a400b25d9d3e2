"""What the Terraform of the Apache Flink kickstarter created is adopted: docs/from-terraform.md."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator

import pytest
from vendors import Vendors, in_this_process
from waiting import wait_until

from topicberg.clients import rsa
from topicberg_deploy.aws.parameters import CONSUMER

USER = "flyer"
"""Its ``--service-account-user``."""
TOPICS = ("airline.skyone",)
SECRET = f"/snowflake_resource/{USER}"
OLD = rsa.generate()


@pytest.fixture
def vendors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Vendors]:
    with in_this_process(tmp_path_factory.mktemp("flink")) as vendors:
        terraform(vendors)
        vendors.only = ("aws/ssm", "snowflake/role/", "snowflake/user", "snowflake/table/")
        yield vendors


def terraform(vendors: Vendors) -> None:
    """Create what its configuration creates and `deploy` has too."""
    cloud, governance = vendors.open(prefix=USER)[0].confluent.cloud, {"package": "ESSENTIALS"}
    environment = cloud.post(
        "/org/v2/environments", {"display_name": USER, "stream_governance_config": governance}
    )["id"]
    cluster = {
        **{"display_name": USER, "availability": "SINGLE_ZONE", "cloud": "AWS"},
        **{"region": "us-east-1", "config": {"kind": "Basic"}, "environment": {"id": environment}},
    }
    cloud.post("/cmk/v2/clusters", {"spec": cluster})
    wait_until(lambda: any(cloud.pages("/cmk/v2/clusters", environment=environment)), pause=0.05)
    path = f"/confluent_cloud_resource/{USER}/consumer_kafka_client"
    for name, value in {**CONSUMER, "auto.offset.reset": "earliest"}.items():
        vendors.client("ssm").put_parameter(Name=f"{path}/{name}", Value=value, Type="String")
    trust = {"Effect": "Allow", "Principal": {"Service": "glue.amazonaws.com"}}
    vendors.client("iam").create_role(
        RoleName="snowflake_s3_glue_role",
        AssumeRolePolicyDocument=json.dumps(
            {"Version": "2012-10-17", "Statement": [{**trust, "Action": "sts:AssumeRole"}]}
        ),
    )
    vendors.client("s3").create_bucket(Bucket=f"{USER}-c0ffee")
    vendors.client("glue").create_database(DatabaseInput={"Name": "airlines"})
    held = {
        "snowflake_rsa_public_key_1_pem": OLD.public,
        "snowflake_rsa_private_key_1_pem": base64.b64encode(OLD.private).decode(),
        "snowflake_rsa_public_key_2_pem": rsa.generate().public,
    }
    vendors.client("secretsmanager").create_secret(Name=SECRET, SecretString=json.dumps(held))
    name, key = USER.upper(), f"RSA_PUBLIC_KEY = '{OLD.public}'"
    role = "arn:aws:iam::123456789012:role/snowflake_s3_glue_role"
    for owner, statement in (
        ("SYSADMIN", f"CREATE WAREHOUSE {name}_WAREHOUSE WAREHOUSE_SIZE = 'XSMALL'"),
        ("SYSADMIN", f"CREATE DATABASE {name}_DATABASE"),
        ("SYSADMIN", f"CREATE SCHEMA {name}_DATABASE.{name}_SCHEMA"),
        ("SYSADMIN", f"CREATE TABLE {name}_DATABASE.{name}_SCHEMA.NOTES (id INT)"),
        ("SECURITYADMIN", f"CREATE ROLE {name}_SYSTEM_ADMIN_ROLE"),
        ("SECURITYADMIN", f"CREATE ROLE {name}_SECURITY_ADMIN_ROLE"),
        ("SECURITYADMIN", f"CREATE USER {name}_USER TYPE = SERVICE {key}"),
        (
            "ACCOUNTADMIN",
            f"CREATE EXTERNAL VOLUME {name}_VOLUME STORAGE_LOCATIONS = ((NAME = '{USER}_LOCATION' "
            f"STORAGE_PROVIDER = 'S3' STORAGE_BASE_URL = 's3://{USER}-c0ffee/warehouse/' "
            f"STORAGE_AWS_ROLE_ARN = '{role}')) ALLOW_WRITES = FALSE",
        ),
        (
            "ACCOUNTADMIN",
            f"CREATE CATALOG INTEGRATION {name}_CATALOG_INTEGRATION CATALOG_SOURCE = GLUE "
            f"TABLE_FORMAT = ICEBERG GLUE_AWS_ROLE_ARN = '{role}' GLUE_CATALOG_ID = "
            "'123456789012' GLUE_REGION = 'us-east-1' CATALOG_NAMESPACE = 'airlines' "
            "ENABLED = TRUE",
        ),
    ):
        vendors.sql(statement, owner)


@pytest.mark.slow  # test_existing_aws and test_existing_confluent adopt parts
def test_what_terraform_made_is_adopted(vendors: Vendors) -> None:
    """What else a deployment has, Terraform did not create."""
    check_plan(vendors)
    check_create(vendors)
    check_delete(vendors)


def check_plan(vendors: Vendors) -> None:
    """Only pointers are replaced."""
    plan = vendors.plan(*TOPICS, prefix=USER)
    for key in (
        *("confluent/environment", "confluent/cluster", "snowflake/database"),
        *("snowflake/schema", "snowflake/role/system_admin", "snowflake/user", "aws/ssm/consumer"),
    ):
        assert plan[key].action != "create" if key in plan else True, key
    replaced = {key for key, step in plan.items() if step.action == "replace"}
    assert replaced == {"snowflake/volume", "snowflake/integration"}
    assert not {key for key, step in plan.items() if step.action == "delete"}


def check_create(vendors: Vendors) -> None:
    """It adopts, and keeps what others use."""
    context = vendors.create(*TOPICS, prefix=USER)
    cloud = context.confluent.cloud
    assert len([*cloud.pages("/org/v2/environments")]) == 1
    (cluster,) = cloud.pages("/cmk/v2/clusters", environment=context.environment)
    assert cluster["spec"]["config"]["kind"] == "Basic"
    vendors.sql(f"SELECT * FROM {USER}_DATABASE.{USER}_SCHEMA.NOTES")  # the table is still there
    user = context.config.snowflake_name("user")
    assert not context.snowflake.login_problem(user, OLD.private)  # a reader of the old secret
    values = context.secrets.read(SECRET)
    assert values
    assert values["active_key_number"] == "2"
    assert not context.snowflake.login_problem(user, rsa.private_key(values))
    # The other kickstarter's name, if both are in one account: it is not this deployment's.
    held = vendors.client("iam").get_role(RoleName="snowflake_s3_glue_role")["Role"]
    assert "glue.amazonaws.com" in json.dumps(held["AssumeRolePolicyDocument"])
    plan = vendors.plan(*TOPICS, prefix=USER)
    assert {key: step.action for key, step in plan.items()} == dict.fromkeys(
        context.waiting, "wait"
    )


def check_delete(vendors: Vendors) -> None:
    """It leaves what Terraform created, and what deploy does not know at all costs."""
    assert vendors.delete(*TOPICS, prefix=USER) == {}
    name = USER.upper()
    adopted = {
        f"secret {SECRET}",
        *(f"DATABASE ('{name}_DATABASE',)", f"USER ('{name}_USER',)"),
        f"WAREHOUSE ('{name}_WAREHOUSE',)",
    }
    kept = vendors.left()
    assert adopted <= kept
    assert {"environment", "cluster"} <= {one.partition(" ")[0] for one in kept}
    assert vendors.delete(*TOPICS, also=True, prefix=USER) == {}
    kept = vendors.left()
    assert not adopted & kept
    assert not {"environment", "cluster"} & {one.partition(" ")[0] for one in kept}
    assert {f"bucket {USER}-c0ffee", "Glue database airlines"} <= kept
