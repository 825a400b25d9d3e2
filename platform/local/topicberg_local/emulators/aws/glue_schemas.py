"""What moto lacks of AWS Glue Schema Registry: the list of a schema's versions.

https://docs.aws.amazon.com/glue/latest/webapi/API_ListSchemaVersions.html

moto has registries, schemas and versions, but does not check whether a version is compatible: each
one is AVAILABLE at once.
"""

from __future__ import annotations

import json
from functools import cache
from http import HTTPStatus
from typing import Any

from botocore.model import OperationModel

from topicberg_local.emulators.aws import shapes
from topicberg_local.emulators.aws.refusal import Refusal
from topicberg_local.emulators.aws.state import backends

ACTION = "ListSchemaVersions"
_INVALID = "InvalidInputException"
_PAGE = 25


def list_versions(body: bytes, account: str, region: str) -> dict[str, Any]:
    """Return the answer to a request for the versions of a schema.

    :raises Refusal: the request is not valid, or there is no such schema
    """
    glue = SchemaVersions(backends("glue")[account][region])
    return shapes.serve(glue, _operation(), json.loads(body), _INVALID, "moto lacks it")


@cache
def _operation() -> OperationModel:
    return shapes.service("glue").operation_model(ACTION)


class SchemaVersions:
    """The versions of the schemas of an account and region."""

    def __init__(self, backend: Any) -> None:
        """:param backend: moto's of Glue"""
        self._backend = backend

    def _list_schema_versions(
        self, SchemaId: dict[str, str], MaxResults: int = _PAGE, NextToken: str = "0"
    ) -> dict[str, Any]:
        from moto.core.exceptions import JsonRESTError

        try:
            description = self._backend.get_schema(SchemaId)
        except JsonRESTError as error:
            raise Refusal(HTTPStatus.BAD_REQUEST, error.error_type, error.message) from None
        schema = self._backend.registries[description["RegistryName"]].schemas[
            description["SchemaName"]
        ]
        versions = [*schema.schema_versions.values()]
        if not NextToken.isdecimal() or int(NextToken) > len(versions):
            raise Refusal(HTTPStatus.BAD_REQUEST, _INVALID, "NextToken is not one of an answer")
        end = int(NextToken) + MaxResults
        response: dict[str, Any] = {
            "Schemas": [_listed(version) for version in versions[int(NextToken) : end]]
        }
        return response if end >= len(versions) else {**response, "NextToken": str(end)}


def _listed(version: Any) -> dict[str, Any]:
    return {
        "SchemaArn": version.schema_arn,
        "SchemaVersionId": version.schema_version_id,
        "VersionNumber": version.version_number,
        "Status": version.schema_version_status,
        "CreatedTime": str(version.created_time),
    }
