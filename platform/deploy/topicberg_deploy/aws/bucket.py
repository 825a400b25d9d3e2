"""The bucket that holds every table."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from botocore.exceptions import ClientError

from topicberg.errors import TopicbergError
from topicberg.errors.aws import code_of, was_repeated
from topicberg.settings import Settings
from topicberg_deploy.aws.iam import Document, document, listed, tags, tags_of
from topicberg_deploy.confluent.tableflow import writes_to
from topicberg_deploy.costs import PRICES, QUOTAS, Cost
from topicberg_deploy.resource import Changes, DeployContext, Fields, Live, Resource

logger = logging.getLogger(__name__)
RELEASE_SECONDS = 3600.0
"""How long S3 may need to release the name of a bucket that was deleted."""
UPLOAD_DAYS = 7
"""Incomplete uploads are dropped after so many days. Objects never: they are Tableflow's."""
VERSION_DAYS = 30
"""With versioning, earlier versions of objects are kept so many days."""
LOG_DAYS = 30
"""Logs of job runs, their messages and results of queries are kept so many days."""
JOBS, RESULTS, CODE = "jobs/", "athena/", "code/"
"""Folders of the bucket for computing."""
_TLS_ONLY = "topicberg-tls-only"
_BLOCK = dict.fromkeys(
    ("BlockPublicAcls", "IgnorePublicAcls", "BlockPublicPolicy", "RestrictPublicBuckets"), True
)
_UNSET = (
    "ServerSideEncryptionConfigurationNotFoundError",
    "NoSuchPublicAccessBlockConfiguration",
    "NoSuchLifecycleConfiguration",
    "NoSuchTagSet",
    "NoSuchBucketPolicy",
)
NOT_SERVED = ("NotImplemented", "MethodNotAllowed", "501", "405", "UnsupportedOperation")
"""An object store that is not Amazon's says so of settings that it does not have."""


def _rule(name: str, action: str, unit: str, days: int, prefix: str = "") -> dict[str, Any]:
    """Return a lifecycle rule of the objects whose keys begin with the prefix."""
    return {"ID": name, "Status": "Enabled", "Filter": {"Prefix": prefix}, action: {unit: days}}


_UPLOADS = _rule(
    "incomplete-uploads", "AbortIncompleteMultipartUpload", "DaysAfterInitiation", UPLOAD_DAYS
)
_VERSIONS = _rule("earlier-versions", "NoncurrentVersionExpiration", "NoncurrentDays", VERSION_DAYS)


@dataclass(frozen=True)
class Bucket(Resource):
    """In the cluster's region, encrypted, without public access, by TLS only.

    By default without versioning, as in the source: Iceberg has its snapshots. With it, a lifecycle
    rule ends earlier versions, which would otherwise stay for ever.
    """

    given: bool = False
    """It exists: it is never created, changed, emptied or deleted."""

    kind = "S3 bucket"
    is_created_whole = False
    quota = QUOTAS["S3 buckets"]
    holds_data = True
    replaced_for = frozenset({"region"})
    lifecycle: ClassVar[dict[str, dict[str, Any]]] = {"incomplete_uploads_days": _UPLOADS}
    """Field → the rule that it is about."""

    def rules(self, context: DeployContext) -> dict[str, dict[str, Any]]:
        """Return the rules by field; the rule of earlier versions exists with versioning only."""
        versions = {"version_days": _VERSIONS} if context.config.bucket_versioning else {}
        return self.lifecycle | versions

    def bucket(self, context: DeployContext) -> str:
        """Return its name, which may carry the account's number."""
        return context.aws.bucket

    def cost(self, config: Settings, live: Live | None) -> Cost | None:
        return Cost(0.0, f"${PRICES['s3']} a GB, and requests")

    def find(self, context: DeployContext) -> Live | None:
        s3, bucket = context.aws.client("s3"), self.bucket(context)
        try:
            if _read(s3.head_bucket, bucket, None, ("404", "NoSuchBucket")) is None:
                return None
        except ClientError as error:
            if code_of(error) != "403":
                raise
            raise TopicbergError(
                f"S3 denies access to bucket {bucket}: it is another account's, or a policy denies "
                "s3:ListBucket to this login",
                hint="choose another name for it, TOPICBERG_BUCKET or TOPICBERG_DERIVED_BUCKET, or "
                "permit s3:ListBucket if it is this account's",
            ) from error
        region = s3.get_bucket_location(Bucket=bucket).get("LocationConstraint") or "us-east-1"
        fields: Fields = {"region": "eu-west-1" if region == "EU" else region}
        if self.is_ours(context):
            fields |= {name: read(s3, bucket) for name, read in _SETTINGS.items()}
            if fields["encryption"] and not context.config.kms.bucket_key_arn:
                fields["encryption"] = "AES256"  # a key that an operator chose stays
            enabled = {
                rule["ID"]: _days(rule)
                for rule in _rules(s3, bucket)
                if rule["Status"] == "Enabled" and "ID" in rule
            }
            rules = self.rules(context).items()
            fields |= {name: enabled.get(rule["ID"]) for name, rule in rules}
            fields["tags"] = tags_of(_read(s3.get_bucket_tagging, bucket, "TagSet"), context)
        return Live(bucket, fields)

    def desired(self, context: DeployContext) -> Fields:
        if context.config.deployment == "local":
            return {}  # its object store has no settings of buckets
        if type(self) is Bucket:  # which Tableflow writes to
            self._check_contents(context)
        if self.given:
            return {"region": context.config.aws_region}
        return {
            "region": context.config.aws_region,
            "encryption": context.config.kms.bucket_key_arn or "AES256",
            "public_access": "blocked",
            "policy": "TLS only",
            "versioning": "On" if context.config.bucket_versioning else "Off",
            **{name: _days(rule) for name, rule in self.rules(context).items()},
            "tags": context.aws.tags,
        }

    def _check_contents(self, context: DeployContext) -> None:
        """:raises TopicbergError: it has objects, and Tableflow does not write to it already

        Source: Confluent, "Configure Storage": existing objects of a bucket may be lost.
        """
        name, s3 = self.bucket(context), context.aws.client("s3")
        if (
            context.record.get(self.key) is not None
            or not s3.list_objects_v2(Bucket=name, MaxKeys=1).get("KeyCount")
            or writes_to(context, name)
        ):
            return
        raise TopicbergError(
            f"bucket {name} has objects, and Tableflow does not write to it: Confluent may delete "
            "them when Tableflow is enabled",
            hint=f"set TOPICBERG_BUCKET to another bucket, which need not exist, or empty {name}",
        )

    def is_ours(self, context: DeployContext) -> bool:
        """The local stack's bucket holds the tables of its catalog, and goes with `reset`."""
        return context.config.deployment == "cloud" and not self.given

    def waits(self, context: DeployContext) -> str:
        why = "does not exist, and TOPICBERG_EXISTING_BUCKETS is set: create it"
        return f"bucket {self.bucket(context)} {why}" if self.given else ""

    def create(self, context: DeployContext) -> None:
        config, where = context.config, {}
        if config.aws_region != "us-east-1" and config.deployment == "cloud":
            where["CreateBucketConfiguration"] = {"LocationConstraint": config.aws_region}
        create = partial(context.aws.client("s3").create_bucket, **where)
        _send_when_released(context, self.bucket(context), create)

    def update(self, context: DeployContext, live: Live, changes: Changes) -> None:
        s3, bucket = context.aws.client("s3"), self.bucket(context)
        if "encryption" in changes:
            key = context.config.kms.bucket_key_arn
            kms = {"SSEAlgorithm": "aws:kms", "KMSMasterKeyID": key}
            rule = {
                "ApplyServerSideEncryptionByDefault": kms if key else {"SSEAlgorithm": "AES256"},
                # One data key for many objects: without it, each request calls KMS.
                **({"BucketKeyEnabled": True} if key else {}),
            }
            s3.put_bucket_encryption(
                Bucket=bucket, ServerSideEncryptionConfiguration={"Rules": [rule]}
            )
        if "public_access" in changes:
            s3.put_public_access_block(Bucket=bucket, PublicAccessBlockConfiguration=_BLOCK)
        if "policy" in changes:  # other statements, which an operator may have added, stay
            others = (other for other in _statements(s3, bucket) if other.get("Sid") != _TLS_ONLY)
            policy = document(*others, _tls_only(bucket))
            s3.put_bucket_policy(Bucket=bucket, Policy=json.dumps(policy))
        if "versioning" in changes:
            status = "Enabled" if context.config.bucket_versioning else "Suspended"
            s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": status})
        if "tags" in changes:  # a call that replaces all of them
            tag_set = _read(s3.get_bucket_tagging, bucket, "TagSet") or []
            kept_tags = [tag for tag in tag_set if tag["Key"] not in context.aws.tags]
            s3.put_bucket_tagging(Bucket=bucket, Tagging={"TagSet": [*kept_tags, *tags(context)]})
        own = self.rules(context)
        if changes.keys() & own.keys():  # a call that replaces all of them
            ids = {rule["ID"] for rule in own.values()}
            kept = [other for other in _rules(s3, bucket) if other.get("ID") not in ids]
            rules = {"Rules": [*kept, *own.values()]}
            s3.put_bucket_lifecycle_configuration(Bucket=bucket, LifecycleConfiguration=rules)

    def delete(self, context: DeployContext, live: Live) -> None:
        """With every object, version and upload in it."""
        s3, bucket = context.aws.client("s3"), self.bucket(context)
        _empty(s3, bucket)
        _send_when_released(context, bucket, s3.delete_bucket)


class DerivedBucket(Bucket):
    """For what is computed of the topics: Tableflow may lose what lies beside its own objects.

    https://docs.confluent.io/cloud/current/topics/tableflow/concepts/tableflow-storage.html
    """

    def bucket(self, context: DeployContext) -> str:
        return context.aws.derived_bucket


class ComputeBucket(Bucket):
    """For the code, the logs and the messages of job runs, and for results of Athena's queries."""

    holds_data = False
    lifecycle: ClassVar[dict[str, dict[str, Any]]] = {
        **Bucket.lifecycle,
        "log_days": _rule("expired-jobs", "Expiration", "Days", LOG_DAYS, JOBS),
        "result_days": _rule("expired-athena", "Expiration", "Days", LOG_DAYS, RESULTS),
    }

    def bucket(self, context: DeployContext) -> str:
        return context.aws.compute_bucket


def _send_when_released(context: DeployContext, bucket: str, send: Callable[..., object]) -> None:
    """Repeat a request about a bucket while S3 has not finished an earlier one about its name.

    https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html and
    https://github.com/aws/aws-cli/issues/2593
    """

    def is_done() -> bool:
        try:
            send(Bucket=bucket)
        except ClientError as error:
            # Of a repeated request, the bucket may be that of the first one: the engine looks.
            if code_of(error) != "OperationAborted" or was_repeated(error):
                raise
            return False
        return True

    released = f"S3 is still releasing the name {bucket}"
    if not is_done():
        logger.warning("%s, for up to an hour", released)
        context.poll(is_done, released, RELEASE_SECONDS)


def _read(
    ask: Callable[..., Any], bucket: str, field: str | None, unset: Container[str] = _UNSET
) -> Any:
    """Return a field of what S3 answers about a bucket, or all of it; None: it is not set."""
    try:
        answer = ask(Bucket=bucket)
    except ClientError as error:
        if code_of(error) in unset:
            return None
        raise
    return answer if field is None else answer[field]


def _encryption(s3: Any, bucket: str) -> Any:
    found = _read(s3.get_bucket_encryption, bucket, "ServerSideEncryptionConfiguration")
    if found is None:
        return None
    default = found["Rules"][0]["ApplyServerSideEncryptionByDefault"]
    return default.get("KMSMasterKeyID", default["SSEAlgorithm"])


def _public_access(s3: Any, bucket: str) -> str | None:
    found = _read(s3.get_public_access_block, bucket, "PublicAccessBlockConfiguration")
    shown = "blocked" if found == _BLOCK else "open in part"
    return None if found is None else shown


def _tls_only(bucket: str) -> Document:
    arn = f"arn:aws:s3:::{bucket}"
    return {
        "Sid": _TLS_ONLY,
        "Effect": "Deny",
        "Principal": "*",
        "Action": "s3:*",
        "Resource": [arn, f"{arn}/*"],
        "Condition": {"Bool": {"aws:SecureTransport": "false"}},
    }


def _statements(s3: Any, bucket: str) -> list[Document]:
    found = _read(s3.get_bucket_policy, bucket, "Policy")
    return listed(json.loads(found)["Statement"]) if found else []


def _policy(s3: Any, bucket: str) -> str:
    return "TLS only" if _tls_only(bucket) in _statements(s3, bucket) else "without TLS as well"


def _versioning(s3: Any, bucket: str) -> str:
    """Never on and suspended are the same: no new versions."""
    return "On" if s3.get_bucket_versioning(Bucket=bucket).get("Status") == "Enabled" else "Off"


def _rules(s3: Any, bucket: str) -> list[dict[str, Any]]:
    return _read(s3.get_bucket_lifecycle_configuration, bucket, "Rules") or []


def _days(rule: dict[str, Any]) -> int | None:
    """Return the days after which a rule acts on uploads or objects; None: it is another rule."""
    uploads = rule.get("AbortIncompleteMultipartUpload", {}).get("DaysAfterInitiation")
    versions = rule.get("NoncurrentVersionExpiration", {}).get("NoncurrentDays")
    days: int | None = uploads or versions or rule.get("Expiration", {}).get("Days")
    return days


_SETTINGS: dict[str, Callable[[Any, str], Any]] = {
    "encryption": _encryption,
    "public_access": _public_access,
    "policy": _policy,
    "versioning": _versioning,
}


def pages(s3: Any, bucket: str, prefix: str = "") -> Iterator[list[dict[str, Any]]]:
    """Yield a bucket's objects whose keys begin so, as S3 lists them: at most 1,000 at once."""
    for page in s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix):
        yield page.get("Contents", [])


def drop(s3: Any, bucket: str, objects: list[dict[str, Any]]) -> None:
    """Delete objects and versions, as many as a page has: S3 takes no more at once.

    :raises TopicbergError: one could not be deleted
    """
    keys = [
        {name: s3_object[name] for name in ("Key", "VersionId") if s3_object.get(name)}
        for s3_object in objects
    ]
    if not keys:
        return
    answer = s3.delete_objects(Bucket=bucket, Delete={"Objects": keys, "Quiet": True})
    if left := [problem["Key"] for problem in answer.get("Errors", [])]:
        raise TopicbergError(f"bucket {bucket}: {len(left)} objects are left, e.g. {left[0]}")


def _empty(s3: Any, bucket: str) -> None:
    for uploads in s3.get_paginator("list_multipart_uploads").paginate(Bucket=bucket):
        for upload in uploads.get("Uploads", []):
            s3.abort_multipart_upload(Bucket=bucket, Key=upload["Key"], UploadId=upload["UploadId"])
    try:
        for page in s3.get_paginator("list_object_versions").paginate(Bucket=bucket):
            drop(s3, bucket, [*page.get("Versions", []), *page.get("DeleteMarkers", [])])
    except ClientError as error:
        if code_of(error) not in NOT_SERVED:
            raise
        for some in pages(s3, bucket):
            drop(s3, bucket, some)
