"""Requests of boto3 as IAM sees them: actions and resources, by AWS's reference.

https://docs.aws.amazon.com/service-authorization/latest/reference/
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from topicberg_local.emulators.iam import Request

S3_ACTIONS = {
    "GetBucketEncryption": "GetEncryptionConfiguration",
    "GetBucketLifecycleConfiguration": "GetLifecycleConfiguration",
    "GetPublicAccessBlock": "GetBucketPublicAccessBlock",
    "HeadBucket": "ListBucket",
    "HeadObject": "GetObject",
    "ListMultipartUploads": "ListBucketMultipartUploads",
    "ListObjectVersions": "ListBucketVersions",
    "ListObjectsV2": "ListBucket",
    "PutBucketEncryption": "PutEncryptionConfiguration",
    "PutBucketLifecycleConfiguration": "PutLifecycleConfiguration",
    "PutPublicAccessBlock": "PutBucketPublicAccessBlock",
}
"""Operation of S3 → the action that a policy allows it by, where the names differ."""
NO_POLICY_DENIES = {"GetCallerIdentity"}


def _keys(params: dict[str, Any]) -> dict[str, str]:
    """Return the condition keys of IAM that a request itself has.
    https://docs.aws.amazon.com/service-authorization/latest/reference/list_awsidentityandaccessmanagementiam.html"""
    keys = {"iam:policyarn": "PolicyArn", "iam:permissionsboundary": "PermissionsBoundary"}
    return {key: params[name] for key, name in keys.items() if params.get(name)}


class Watch:
    """The requests of the clients that it was given, in the terms of IAM."""

    def __init__(self, account: str, region: str) -> None:
        self.account, self.region = account, region
        self.requests: list[Request] = []
        self.paths: dict[str, str] = {}
        """Name of a role → its path, which only the request that creates it has."""

    def client(self, client: Any) -> None:
        client.meta.events.register("provide-client-params", self._seen)

    def take(self) -> list[Request]:
        """Return those since the last call."""
        found, self.requests = self.requests, []
        return found

    def _seen(self, params: dict[str, Any], model: Any, **_: Any) -> None:
        service, operation = model.service_model.service_name, model.name
        if operation not in NO_POLICY_DENIES:
            self.requests += self.needs(service, operation, params)

    def needs(self, service: str, operation: str, params: dict[str, Any]) -> Iterator[Request]:
        """Yield the permissions that an operation needs."""
        resources = getattr(self, f"_{service.replace('-', '_')}")
        if service == "s3":
            yield from self._s3(operation, params)
            return
        for resource in resources(operation, params):
            yield Request(f"{service}:{operation}", resource, _keys(params))
            if (params.get("Tags") or params.get("tags")) and operation.startswith("Create"):
                if service == "iam":
                    tagging = f"iam:Tag{operation.removeprefix('Create')}"
                else:
                    tagging = f"{service}:TagResource"
                yield Request(tagging, resource)

    def _s3(self, operation: str, params: dict[str, Any]) -> Iterator[Request]:
        bucket = f"arn:aws:s3:::{params['Bucket']}"
        if operation == "DeleteObjects":
            for one in params["Delete"]["Objects"]:
                action = "DeleteObjectVersion" if one.get("VersionId") else "DeleteObject"
                yield Request(f"s3:{action}", f"{bucket}/{one['Key']}")
            return
        resource = f"{bucket}/{params['Key']}" if "Key" in params else bucket
        yield Request(f"s3:{S3_ACTIONS.get(operation, operation)}", resource)

    def _arn(self, service: str, rest: str) -> str:
        return f"arn:aws:{service}:{self.region}:{self.account}:{rest}"

    def _iam(self, operation: str, params: dict[str, Any]) -> list[str]:
        begin, path = f"arn:aws:iam::{self.account}", params.get("Path", "/")
        if "PolicySourceArn" in params:
            return [params["PolicySourceArn"]]
        if "RoleName" in params:
            return [f"{begin}:role{self.paths.get(params['RoleName'], path)}{params['RoleName']}"]
        return [params.get("PolicyArn") or f"{begin}:policy{path}{params['PolicyName']}"]

    def _glue(self, operation: str, params: dict[str, Any]) -> list[str]:
        """Of a table, the database and the catalog are needed as well."""
        if operation == "TagResource":
            return [params["ResourceArn"]]
        found, database = [self._arn("glue", "catalog")], params.get("DatabaseName")
        if "Database" in operation:
            database = params.get("Name") or params.get("DatabaseInput", {}).get("Name") or "any"
        if operation == "GetDatabases":
            return found
        found.append(self._arn("glue", f"database/{database}"))
        tables = [*params.get("TablesToDelete", [])]
        if operation in ("GetTable", "DeleteTable"):
            tables.append(params["Name"])
        elif operation in ("CreateTable", "UpdateTable"):
            tables.append(params["TableInput"]["Name"])
        elif operation in ("GetTables", "DeleteDatabase"):
            tables.append("*")
        if operation == "DeleteDatabase":  # what is deleted includes all that is in it
            found.append(self._arn("glue", f"userDefinedFunction/{database}/*"))
        return [*found, *(self._arn("glue", f"table/{database}/{one}") for one in tables)]

    def _secretsmanager(self, operation: str, params: dict[str, Any]) -> list[str]:
        name = params.get("SecretId") or params["Name"]
        if name.startswith("arn:"):
            return [name]
        return [self._arn("secretsmanager", f"secret:{name}-AbCdEf")]

    def _ecr(self, operation: str, params: dict[str, Any]) -> list[str]:
        registry = params.get("registryId", self.account)
        return [f"arn:aws:ecr:{self.region}:{registry}:repository/{params['repositoryName']}"]

    def _ssm(self, operation: str, params: dict[str, Any]) -> list[str]:
        names = params.get("Names") or [
            next(params[key] for key in ("Name", "Path", "ResourceId") if key in params)
        ]
        return [self._arn("ssm", f"parameter{name}") for name in names]

    def _emr_serverless(self, operation: str, params: dict[str, Any]) -> list[str]:
        if "resourceArn" in params:
            return [params["resourceArn"]]
        if "applicationId" not in params:
            return [self._arn("emr-serverless", "/*")]
        runs = f"/jobruns/{params['jobRunId']}" if "jobRunId" in params else ""
        return [self._arn("emr-serverless", f"/applications/{params['applicationId']}{runs}")]

    def _athena(self, operation: str, params: dict[str, Any]) -> list[str]:
        if "ResourceARN" in params:
            return [params["ResourceARN"]]
        return [self._arn("athena", f"workgroup/{params.get('WorkGroup') or params['Name']}")]

    def _lakeformation(self, operation: str, params: dict[str, Any]) -> list[str]:
        return ["*"]
