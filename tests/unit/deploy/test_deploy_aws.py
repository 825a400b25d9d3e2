"""The bucket, the roles and their policies against moto, which enforces policies where asked."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import boto3
import pytest
from botocore.awsrequest import AWSResponse
from botocore.exceptions import ClientError
from moto import mock_aws
from moto.core import set_initial_no_auth_action_count
from pydantic import SecretStr

from topicberg.errors import TopicbergError
from topicberg.settings import Settings, read_deployment
from topicberg.settings.models import IamSettings, KmsSettings
from topicberg.topics import load_topic, load_topics
from topicberg_deploy import engine, preflight
from topicberg_deploy.aws import emr, iam
from topicberg_deploy.aws.bucket import UPLOAD_DAYS, VERSION_DAYS, Bucket
from topicberg_deploy.aws.glue import GlueDatabase
from topicberg_deploy.aws.parameters import Parameters, noting
from topicberg_deploy.aws.permissions import Deployed
from topicberg_deploy.aws.permissions import policy as permissions
from topicberg_deploy.context import CLUSTER, DeployContext
from topicberg_deploy.platform import resources
from topicberg_deploy.resource import Live
from topicberg_deploy.settings import DeploySettings

REGION = "eu-west-1"
BUCKET = Bucket("aws/bucket", "of the tables")
CONFLUENT = "arn:aws:iam::123456789012:role/confluent"
FACTS = {
    CLUSTER: Live("lkc-1"),
    "confluent/provider_integration": Live(
        "cspi-1", {}, {"principal": CONFLUENT, "external_id": "ext"}
    ),
}


@pytest.fixture
def context(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[DeployContext]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    config = Settings(deployment="cloud", prefix="demo", aws_region=REGION, state_dir=tmp_path)
    deploy = DeploySettings(confluent_api_key="K", confluent_api_secret=SecretStr("S"))
    with mock_aws():
        yield DeployContext(config, deploy, [], sleep=lambda _: None, live=dict(FACTS))


def make(context: DeployContext, *resources: Any) -> None:
    engine.create(resources, context, lambda *_: None)


def test_names_of_a_deployment_that_failed_are_noted(context: DeployContext) -> None:
    with pytest.raises(engine.DeployError), noting(context):
        raise engine.DeployError("one resource could not be created")
    noted, _, _ = read_deployment(context.config)
    assert (noted["cluster_id"], noted["bucket"]) == ("lkc-1", "demo-123456789012")
    assert noted["snowflake_linked_database"] is True


def test_address_of_aws_without_a_scheme_is_why_the_names_are_unknown(
    context: DeployContext,
) -> None:
    names, reason, has_answered = read_deployment(context.config, endpoint="localhost:4566")
    assert (names, has_answered) == ({}, False)
    assert "cannot be read: Invalid endpoint: localhost:4566" in reason


def test_address_of_aws_in_the_file_of_settings_is_used(
    context: DeployContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    deploy = context.deploy.model_copy(update={"aws_endpoint_url": "https://vpce.example"})
    context = replace(context, deploy=deploy)
    assert context.aws.new_client("iam").meta.endpoint_url == "https://vpce.example"


def test_a_bucket_is_in_the_clusters_region_encrypted_and_closed(context: DeployContext) -> None:
    make(context, BUCKET)
    name, s3 = "demo-123456789012", context.aws.client("s3")
    assert s3.get_bucket_location(Bucket=name)["LocationConstraint"] == REGION
    (rule,) = s3.get_bucket_encryption(Bucket=name)["ServerSideEncryptionConfiguration"]["Rules"]
    assert rule["ApplyServerSideEncryptionByDefault"] == {"SSEAlgorithm": "AES256"}
    block = s3.get_public_access_block(Bucket=name)["PublicAccessBlockConfiguration"]
    assert set(block.values()) == {True}
    assert s3.get_bucket_versioning(Bucket=name).get("Status") != "Enabled"
    (statement,) = json.loads(s3.get_bucket_policy(Bucket=name)["Policy"])["Statement"]
    assert statement["Effect"] == "Deny"
    assert statement["Condition"] == {"Bool": {"aws:SecureTransport": "false"}}
    assert statement["Resource"] == [f"arn:aws:s3:::{name}", f"arn:aws:s3:::{name}/*"]
    (lifecycle,) = s3.get_bucket_lifecycle_configuration(Bucket=name)["Rules"]
    assert lifecycle["AbortIncompleteMultipartUpload"] == {"DaysAfterInitiation": UPLOAD_DAYS}
    assert "Expiration" not in lifecycle, "objects are Tableflow's"
    assert engine.plan([BUCKET], context)[0].action == "keep"


@pytest.mark.parametrize("refused", ["create_bucket", "put_bucket_encryption", "put_bucket_policy"])
def test_bucket_whose_settings_are_refused_at_first_is_recorded_as_created(
    context: DeployContext, monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    s3, refusals = context.aws.client("s3"), ["OperationAborted"]
    accept = getattr(s3, refused)

    def put(**arguments: Any) -> Any:
        if refusals:
            raise ClientError({"Error": {"Code": refusals.pop(), "Message": "conflict"}}, refused)
        return accept(**arguments)

    monkeypatch.setattr(s3, refused, put)
    make(context, BUCKET)
    assert context.record.get(BUCKET.key) == context.aws.bucket
    assert engine.plan([BUCKET], context)[0].action == "keep"
    assert [resource for resource, _ in engine.existing([BUCKET], context, print)] == [BUCKET]


def test_deleted_bucket_whose_name_s3_is_releasing_is_waited_for(
    context: DeployContext, caplog: pytest.LogCaptureFixture
) -> None:
    s3, refusals = context.aws.client("s3"), [409, 409, 409]

    def hold(**_: Any) -> Any:
        if refusals:
            error = {"Code": "OperationAborted", "Message": "conflict"}
            answer = AWSResponse("https://s3", refusals.pop(), cast(Any, {}), cast(Any, None))
            return answer, {"Error": error, "ResponseMetadata": {"HTTPStatusCode": 409}}
        return None

    make(context, BUCKET)
    for request in ("DeleteBucket", "CreateBucket"):
        s3.meta.events.register(f"before-call.s3.{request}", hold)
    assert engine.delete(engine.existing([BUCKET], context, print), context, print) == {}
    refusals += [409, 409]
    make(context, BUCKET)
    said = f"S3 is still releasing the name {context.aws.bucket}, for up to an hour"
    assert [one.getMessage() for one in caplog.records].count(said) == 2
    assert context.record.get(BUCKET.key) == context.aws.bucket


def test_bucket_of_another_account_is_reported_as_such(context: DeployContext) -> None:
    s3 = context.aws.client("s3")

    def forbid(**_: Any) -> Any:
        return AWSResponse("https://s3", 403, cast(Any, {}), cast(Any, None)), {
            "Error": {"Code": "403", "Message": "Forbidden"},
            "ResponseMetadata": {"HTTPStatusCode": 403},
        }

    s3.meta.events.register("before-call.s3.HeadBucket", forbid)
    with pytest.raises(engine.DeployError, match="bucket demo-123456789012: it is another account"):
        engine.plan([BUCKET], context)


def test_bucket_of_the_oldest_constraint_is_in_ireland(
    context: DeployContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(context, BUCKET)
    monkeypatch.setattr(
        context.aws.client("s3"), "get_bucket_location", lambda **_: {"LocationConstraint": "EU"}
    )
    assert engine.plan([BUCKET], context)[0].action == "keep"


def test_drift_of_a_bucket_is_mended_and_what_others_set_stays(context: DeployContext) -> None:
    make(context, BUCKET)
    name, s3 = context.aws.bucket, context.aws.client("s3")
    s3.put_bucket_versioning(Bucket=name, VersioningConfiguration={"Status": "Enabled"})
    s3.delete_public_access_block(Bucket=name)
    foreign = {"ID": "mine", "Status": "Enabled", "Filter": {"Prefix": "x/"}}
    foreign["Expiration"] = {"Days": 3}
    s3.put_bucket_lifecycle_configuration(Bucket=name, LifecycleConfiguration={"Rules": [foreign]})
    s3.put_bucket_tagging(Bucket=name, Tagging={"TagSet": [{"Key": "team", "Value": "data"}]})
    own = {"Sid": "own", "Effect": "Deny", "Principal": "*", "Action": "s3:PutObjectAcl",
           "Resource": f"arn:aws:s3:::{name}/*"}  # fmt: skip
    s3.put_bucket_policy(Bucket=name, Policy=json.dumps({"Statement": [own]}))
    (step,) = engine.plan([BUCKET], context)
    assert set(step.changes) == {
        *("versioning", "public_access", "policy"),
        *("incomplete_uploads_days", "tags"),
    }
    make(context, BUCKET)
    assert engine.plan([BUCKET], context)[0].action == "keep"
    statements = json.loads(s3.get_bucket_policy(Bucket=name)["Policy"])["Statement"]
    assert [one["Sid"] for one in statements] == ["own", "topicberg-tls-only"]
    rules = s3.get_bucket_lifecycle_configuration(Bucket=name)["Rules"]
    assert {rule["ID"] for rule in rules} == {"mine", "incomplete-uploads"}
    found = s3.get_bucket_tagging(Bucket=name)["TagSet"]
    assert {one["Key"]: one["Value"] for one in found} == {"team": "data", "topicberg": "demo"}


def test_bucket_with_a_key_and_versions(context: DeployContext) -> None:
    """Both are options, can be changed later, and a key that an operator chose stays."""
    key = f"arn:aws:kms:{REGION}:123456789012:key/0a1b"
    make(context, BUCKET)
    name, s3 = context.aws.bucket, context.aws.client("s3")
    context.config = context.config.model_copy(
        update={"kms": KmsSettings(bucket_key_arn=key), "bucket_versioning": True}
    )
    (step,) = engine.plan([BUCKET], context)
    assert set(step.changes) == {"encryption", "versioning", "version_days"}
    make(context, BUCKET)
    assert engine.plan([BUCKET], context)[0].action == "keep"
    (rule,) = s3.get_bucket_encryption(Bucket=name)["ServerSideEncryptionConfiguration"]["Rules"]
    assert rule["ApplyServerSideEncryptionByDefault"] == {
        "SSEAlgorithm": "aws:kms",
        "KMSMasterKeyID": key,
    }
    assert rule["BucketKeyEnabled"]
    assert s3.get_bucket_versioning(Bucket=name)["Status"] == "Enabled"
    rules = s3.get_bucket_lifecycle_configuration(Bucket=name)["Rules"]
    assert {one["ID"]: one.get("NoncurrentVersionExpiration") for one in rules} == {
        "incomplete-uploads": None,
        "earlier-versions": {"NoncurrentDays": VERSION_DAYS},
    }
    for policy, actions in (
        (iam.tableflow_policy(context), ["kms:Decrypt", "kms:GenerateDataKey"]),
        (emr.emr_policy(context), ["kms:Decrypt", "kms:GenerateDataKey"]),
        (iam.snowflake_policy(context), ["kms:Decrypt"]),
    ):
        (used,) = [one for one in policy["Statement"] if one["Resource"] == key]
        assert used["Action"] == actions
        assert used["Condition"] == {
            "StringEquals": {"kms:ViaService": f"s3.{REGION}.amazonaws.com"}
        }
    context.config = context.config.model_copy(
        update={"kms": KmsSettings(), "bucket_versioning": False}
    )
    (step,) = engine.plan([BUCKET], context)
    assert set(step.changes) == {"versioning"}
    statements = iam.tableflow_policy(context)["Statement"]
    assert not any("kms:Decrypt" in one["Action"] for one in statements)


def test_keys_of_the_catalog_and_of_secrets_are_used_by_way_of_their_services(
    context: DeployContext,
) -> None:
    key = context.aws.client("kms").create_key()["KeyMetadata"]["Arn"]
    found = {"kms": KmsSettings(glue_key_arn=key, secrets_key_arn=key)}
    keyed = replace(context, config=context.config.model_copy(update=found))
    for policy, actions in (
        (iam.tableflow_policy(keyed), {"kms:Decrypt", "kms:GenerateDataKey", "kms:Encrypt"}),
        (emr.emr_policy(keyed), {"kms:Decrypt", "kms:GenerateDataKey", "kms:Encrypt"}),
        (iam.snowflake_policy(keyed), {"kms:Decrypt"}),
    ):
        (used,) = [one for one in policy["Statement"] if one["Resource"] == key]
        assert set(used["Action"]) == actions
        by_glue = {"kms:ViaService": f"glue.{REGION}.amazonaws.com"}
        assert used["Condition"] == {"StringEquals": by_glue}
    keyed.secrets.add("/c/demo/key", {"a": "b"}, "one")
    secret = context.aws.client("secretsmanager").describe_secret(SecretId="/c/demo/key")
    assert secret["KmsKeyId"] == key
    of = Deployed(keyed.config, keyed.aws.account, ())
    expected = {"plan": {"glue", "secretsmanager"}, "rotate": {"secretsmanager"}}
    expected["deploy"] = expected["plan"]
    for purpose, services in expected.items():
        users = list(permissions(cast(Any, purpose), of)["Statement"])
        assert {
            one["Condition"]["StringEquals"]["kms:ViaService"].partition(".")[0]
            for one in users
            if one["Resource"] == key
        } == services


def test_deleting_a_bucket_takes_versions_markers_and_uploads(context: DeployContext) -> None:
    make(context, BUCKET)
    name, s3 = context.aws.bucket, context.aws.client("s3")
    s3.delete_bucket_policy(Bucket=name)  # moto evaluates none of its conditions
    s3.put_bucket_versioning(Bucket=name, VersioningConfiguration={"Status": "Enabled"})
    for content in (b"1", b"2"):
        s3.put_object(Bucket=name, Key="a", Body=content)
    s3.delete_object(Bucket=name, Key="a")
    s3.create_multipart_upload(Bucket=name, Key="b")
    found = engine.existing([BUCKET], context, lambda *_: None)
    assert engine.delete(found, context, lambda *_: None) == {}
    assert s3.list_buckets()["Buckets"] == []


def test_a_glue_database_goes_with_more_tables_than_a_page_has(context: DeployContext) -> None:
    database = GlueDatabase("aws/pipeline_database/p", "demo_p", database="demo_p")
    make(context, database)
    glue = context.aws.client("glue")
    for number in range(120):
        glue.create_table(DatabaseName="demo_p", TableInput={"Name": f"t{number}"})
    assert len(database.contents(context)) == 120
    found = engine.existing([database], context, lambda *_: None)
    assert engine.delete(found, context, lambda *_: None) == {}
    assert glue.get_databases()["DatabaseList"] == []


OF_TOPICS = GlueDatabase("aws/glue_database", "of the cluster")


def _topics_database(context: DeployContext, name: str) -> Any:
    """A database with the table of a topic, and one of another team."""
    context.specs = [spec for spec in load_topics() if spec.name == "stock_trades"]
    glue = context.aws.client("glue")
    make(context, OF_TOPICS)
    for table in ("stock_trades", "ledger"):
        glue.create_table(DatabaseName=name, TableInput={"Name": table})
    return glue


def test_database_of_the_cluster_is_deleted_with_all_tables(context: DeployContext) -> None:
    glue = _topics_database(context, "lkc-1")
    found = engine.existing([OF_TOPICS], context, lambda *_: None)
    assert OF_TOPICS.contents(context) == ["lkc-1.ledger"]
    assert engine.delete(found, context, lambda *_: None) == {}
    assert glue.get_databases()["DatabaseList"] == []


def test_tables_of_others_in_a_chosen_namespace_stay(context: DeployContext) -> None:
    context.config = context.config.model_copy(update={"tableflow_namespace": "finance"})
    glue = _topics_database(context, "finance")
    found = engine.existing([OF_TOPICS], context, lambda *_: None)
    assert OF_TOPICS.contents(context) == []
    (reason,) = engine.delete(found, context, lambda *_: None).values()
    assert "finance has 1 tables that are of no topic here, e.g. ledger" in reason
    (left,) = glue.get_tables(DatabaseName="finance")["TableList"]
    assert left["Name"] == "ledger"


def test_database_that_is_left_keeps_no_cluster() -> None:
    (database,) = [
        one
        for one in resources(Settings(deployment="cloud", tableflow_namespace="finance"), [])
        if one.key == OF_TOPICS.key
    ]
    assert CLUSTER not in database.needs


POLICY = iam.Policy("aws/policy/tableflow", "demo_policy", (), grants=iam.tableflow_policy)
READS = iam.Policy("aws/policy/snowflake", "demo_reads", (), grants=iam.snowflake_policy)
ROLE = iam.Role(
    "aws/role/tableflow", "demo_role", (POLICY.key,), trust=iam.confluent_trust, policy=POLICY.key
)


BOUNDARY = "arn:aws:iam::123456789012:policy/boundary"


def test_role_has_the_path_the_boundary_and_the_tags_of_the_settings(
    context: DeployContext,
) -> None:
    config = context.config.model_copy(
        update={
            "iam": IamSettings(path="/data/lake/", permissions_boundary_arn=BOUNDARY),
            "tags": {"team": "data"},
        }
    )
    guarded = replace(context, config=config)
    make(guarded, POLICY, ROLE)
    client = context.aws.client("iam")
    role = client.get_role(RoleName="demo_role")["Role"]
    assert role["Arn"] == guarded.aws.role_arn("demo_role")
    assert role["Arn"].endswith(":role/data/lake/demo_role")
    assert role["PermissionsBoundary"]["PermissionsBoundaryArn"] == BOUNDARY
    assert {one["Key"]: one["Value"] for one in role["Tags"]} == guarded.aws.tags
    assert guarded.need(POLICY.key).id.endswith(":policy/data/lake/demo_policy")
    assert {step.action for step in engine.plan([POLICY, ROLE], guarded)} == {"keep"}
    client.delete_role_permissions_boundary(RoleName="demo_role")
    client.tag_role(RoleName="demo_role", Tags=[{"Key": "team", "Value": "other"}])
    _, step = engine.plan([POLICY, ROLE], guarded)
    assert set(step.changes) == {"boundary", "tags"}
    make(guarded, POLICY, ROLE)
    assert {step.action for step in engine.plan([POLICY, ROLE], guarded)} == {"keep"}
    found = engine.existing([POLICY, ROLE], guarded, lambda *_: None)
    assert engine.delete(found, guarded, lambda *_: None) == {}


def test_every_resource_that_can_have_tags_has_those_of_the_settings(
    context: DeployContext,
) -> None:
    tagged = replace(context, config=context.config.model_copy(update={"tags": {"team": "data"}}))
    database = GlueDatabase("aws/pipeline_database/p", "demo_p", database="demo_p")
    parameters = Parameters("aws/ssm/consumer", "/c/demo/consumer", values={"acks": "all"})
    make(tagged, BUCKET, database, parameters)
    tagged.secrets.add("/c/demo/key", {"a": "b"}, "one")
    wanted = {"team": "data", "topicberg": "demo"}
    found = context.aws.client("s3").get_bucket_tagging(Bucket=tagged.aws.bucket)["TagSet"]
    assert {one["Key"]: one["Value"] for one in found} == wanted
    arn = f"arn:aws:glue:{tagged.config.aws_region}:{tagged.aws.account}:database/demo_p"
    assert context.aws.client("glue").get_tags(ResourceArn=arn)["Tags"] == wanted
    listed = context.aws.client("ssm").list_tags_for_resource(
        ResourceType="Parameter", ResourceId="/c/demo/consumer/acks"
    )
    assert {one["Key"]: one["Value"] for one in listed["TagList"]} == wanted
    secret = context.aws.client("secretsmanager").describe_secret(SecretId="/c/demo/key")
    assert {one["Key"]: one["Value"] for one in secret["Tags"]} == wanted


@pytest.mark.parametrize("path", ["data/", "/data", "//", "/a b/"])
def test_path_that_iam_refuses_is_refused_early(path: str) -> None:
    with pytest.raises(TopicbergError, match="TOPICBERG_IAM__PATH"):
        Settings.model_validate({"iam": {"path": path}})


def test_account_of_another_partition_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    arn = "arn:aws-us-gov:iam::123456789012:user/deployer"
    sts = SimpleNamespace(get_caller_identity=lambda: {"Arn": arn})
    context = cast(DeployContext, SimpleNamespace(aws=SimpleNamespace(client=lambda _: sts)))
    with pytest.raises(TopicbergError, match="of the partition aws-us-gov; topicberg supports aws"):
        preflight.check_aws(context)


def test_a_role_is_made_mended_and_deleted(context: DeployContext) -> None:
    make(context, POLICY, ROLE)
    client = context.aws.client("iam")
    client.put_role_policy(
        RoleName="demo_role",
        PolicyName="by_hand",
        PolicyDocument=json.dumps(iam.snowflake_policy(context)),
    )
    client.untag_role(RoleName="demo_role", TagKeys=["topicberg"])
    for _ in range(4):  # as many versions as AWS keeps
        client.create_policy_version(
            PolicyArn=context.need(POLICY.key).id,
            PolicyDocument=json.dumps(iam.snowflake_policy(context)),
            SetAsDefault=True,
        )
    policy, role = engine.plan([POLICY, ROLE], context)
    assert set(policy.changes) == {"document"}
    assert set(role.changes) == {"inline_policies", "tags"}
    make(context, POLICY, ROLE)
    assert {step.action for step in engine.plan([POLICY, ROLE], context)} == {"keep"}
    found = engine.existing([POLICY, ROLE], context, lambda *_: None)
    assert engine.delete(found, context, lambda *_: None) == {}


READER = iam.Role(
    "aws/role/snowflake", "demo_reader", (READS.key,), trust=iam.confluent_trust, policy=READS.key
)


def _pipelines(context: DeployContext, number: int) -> None:
    spec = load_topic("stock_trades")
    context.specs = [
        spec.model_copy(update={"pipeline": f"orders_customer_{each:03}"}) for each in range(number)
    ]


def test_a_policy_of_many_pipelines_is_split(context: DeployContext) -> None:
    _pipelines(context, 40)
    make(context, READS, READER)
    client = context.aws.client("iam")
    policies = client.list_attached_role_policies(RoleName="demo_reader")["AttachedPolicies"]
    assert {one["PolicyName"] for one in policies} == {"demo_reads", "demo_reads_2"}
    texts = []
    for one in policies:
        found = client.get_policy_version(PolicyArn=one["PolicyArn"], VersionId="v1")
        texts.append(json.dumps(found["PolicyVersion"]["Document"], separators=(",", ":")))
    assert max(map(len, texts)) <= iam.MAX_CHARACTERS
    assert all(f":table/demo_orders_customer_{each:03}/*" in "".join(texts) for each in range(40))
    assert {step.action for step in engine.plan([READS, READER], context)} == {"keep"}

    _pipelines(context, 3)
    make(context, READS, READER)
    (left,) = client.list_policies(Scope="Local")["Policies"]
    assert left["PolicyName"] == "demo_reads"

    _pipelines(context, 40)
    make(context, READS, READER)
    found = engine.existing([READS, READER], context, lambda *_: None)
    assert engine.delete(found, context, lambda *_: None) == {}
    assert client.list_policies(Scope="Local")["Policies"] == []


def test_more_pipelines_than_a_role_can_name_are_refused(context: DeployContext) -> None:
    _pipelines(context, 900)
    with pytest.raises(engine.DeployError, match="Glue databases of all 900 pipelines"):
        engine.plan([READS], context)


ALLOWED = {
    "tableflow": ("put_object", "get_object", "delete_object", "list_objects_v2"),
    "snowflake": ("get_object", "list_objects_v2", "get_bucket_location"),
}
DENIED = {
    "tableflow": ("delete_bucket", "put_bucket_policy", "list_buckets"),
    "snowflake": ("put_object", "delete_object", "delete_bucket", "list_buckets"),
}


def _try(s3: Any, action: str, bucket: str) -> str:
    """The code of the refusal; empty: it was allowed."""
    arguments: dict[str, Any] = {} if action == "list_buckets" else {"Bucket": bucket}
    if action.endswith("_object"):
        arguments["Key"] = "table/data"
    if action == "put_bucket_policy":
        arguments["Policy"] = "{}"
    try:
        getattr(s3, action)(**arguments)
    except ClientError as error:
        return str(error.response["Error"]["Code"])
    return ""


@pytest.mark.parametrize("who", ["tableflow", "snowflake"])
def test_what_a_policy_does_not_name_is_denied(context: DeployContext, who: str) -> None:
    policy = {"tableflow": POLICY, "snowflake": READS}[who]
    make(context, BUCKET, policy)
    client, s3 = context.aws.client("iam"), context.aws.client("s3")
    s3.delete_bucket_policy(Bucket=context.aws.bucket)  # moto evaluates none of its conditions
    s3.put_object(Bucket=context.aws.bucket, Key="table/data", Body=b"x")
    s3.create_bucket(Bucket="another", CreateBucketConfiguration={"LocationConstraint": REGION})
    client.create_user(UserName="visitor")
    client.attach_user_policy(UserName="visitor", PolicyArn=context.need(policy.key).id)
    key = client.create_access_key(UserName="visitor")["AccessKey"]
    visitor = boto3.client(
        "s3",
        region_name=REGION,
        aws_access_key_id=key["AccessKeyId"],
        aws_secret_access_key=key["SecretAccessKey"],
    )

    @set_initial_no_auth_action_count(0)
    def attempts(actions: tuple[str, ...], bucket: str) -> dict[str, str]:
        return {action: _try(visitor, action, bucket) for action in actions}

    allowed = attempts(ALLOWED[who], context.aws.bucket)
    denied, elsewhere = attempts(DENIED[who], context.aws.bucket), attempts(ALLOWED[who], "another")
    assert set(allowed.values()) == {""}, allowed
    assert set(denied.values()) == {"AccessDenied"}, denied
    assert set(elsewhere.values()) == {"AccessDenied"}, elsewhere
