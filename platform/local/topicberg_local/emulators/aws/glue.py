"""What moto lacks of Glue: Lake Formation before it, and the list of a schema's versions.

Where data lake settings demand it, nothing is allowed that was not granted. An account begins with
``IAM_ALLOWED_PRINCIPALS`` in its settings, so that IAM alone decides; ``PutDataLakeSettings``
without it turns this on. Who creates a database or a table has all rights on it. Of what a
principal may not see Glue says AccessDenied, also if it does not exist, and lists leave it out.

https://docs.aws.amazon.com/lake-formation/latest/dg/lf-permissions-reference.html
https://docs.aws.amazon.com/lake-formation/latest/dg/implicit-permissions.html

moto has schema registries, schemas and versions, but does not check whether a version is
compatible: each one is AVAILABLE at once.

https://docs.aws.amazon.com/glue/latest/webapi/API_ListSchemaVersions.html
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from topicberg_local.emulators.aws.shapes import Refusal, serve, service
from topicberg_local.emulators.aws.state import backends

Document = dict[str, Any]
_INSUFFICIENT = "Insufficient Lake Formation permission(s): Required"
_NEEDS = {
    "CreateDatabase": ("catalog", ("CREATE_DATABASE",)),
    "GetDatabase": ("database", ("DESCRIBE", "CREATE_TABLE", "ALTER", "DROP")),
    "UpdateDatabase": ("database", ("ALTER",)),
    "DeleteDatabase": ("database", ("DROP",)),
    "CreateTable": ("database", ("CREATE_TABLE",)),
    "GetTable": ("table", ("DESCRIBE", "SELECT", "ALTER", "DROP", "INSERT", "DELETE")),
    "UpdateTable": ("table", ("ALTER",)),
    "DeleteTable": ("table", ("DROP",)),
}
"""Action of Glue → on what it needs one of these permissions."""
LISTS = {
    "GetDatabases": ("DatabaseList", "database", _NEEDS["GetDatabase"][1]),
    "GetTables": ("TableList", "table", _NEEDS["GetTable"][1]),
}


class LakeFormation:
    """The grants of one account and region."""

    def __init__(self, account: str, region: str) -> None:
        self._account = account
        self._backend = backends("lakeformation")[account][region]

    @property
    def is_on(self) -> bool:
        settings = self._backend.get_data_lake_settings(self._account)
        by_iam = {"DataLakePrincipalIdentifier": "IAM_ALLOWED_PRINCIPALS"}
        return not all(
            any(permission["Principal"] == by_iam for permission in settings.get(name, []))
            for name in ("CreateDatabaseDefaultPermissions", "CreateTableDefaultPermissions")
        )

    def check(self, action: str, body: bytes, principal: str) -> None:
        """:raises Refusal: AccessDeniedException, as Glue answers without a grant"""
        if action not in _NEEDS:
            return
        on, permissions = _NEEDS[action]
        names = _names(action, json.loads(body))
        if not self._may(principal, on, names, permissions):
            named = {"catalog": "Catalog", "database": names[0], "table": names[-1]}[on]
            text = f"{_INSUFFICIENT} {permissions[0]} on {named}"
            raise Refusal(HTTPStatus.BAD_REQUEST, "AccessDeniedException", text)

    def undroppable(self, body: bytes, principal: str) -> list[Document]:
        """Return the errors of BatchDeleteTable about what the principal may not drop."""
        request = json.loads(body)
        database, names = request["DatabaseName"], request["TablesToDelete"]
        denied = {"ErrorCode": "AccessDeniedException"}
        return [
            {
                "TableName": name,
                "ErrorDetail": {**denied, "ErrorMessage": f"{_INSUFFICIENT} Drop on {name}"},
            }
            for name in names
            if not self._may(principal, "table", (database, name), _NEEDS["DeleteTable"][1])
        ]

    def visible(self, action: str, request: bytes, response: Document, principal: str) -> Document:
        """Return the answer of a list without what the principal may not see."""
        if action not in LISTS:
            return response
        field, on, permissions = LISTS[action]
        within = (json.loads(request)["DatabaseName"],) if on == "table" else ()
        visible = [
            entry
            for entry in response.get(field, [])
            if self._may(principal, on, (*within, entry["Name"]), permissions)
        ]
        return {**response, field: visible}

    def remember_creator(self, action: str, body: bytes, principal: str) -> None:
        """Give who created a database or a table all rights on it."""
        if action not in ("CreateDatabase", "CreateTable"):
            return
        resource: Document
        match _names(action, json.loads(body)):
            case (database, table):
                resource = {"Table": {"DatabaseName": database, "Name": table}}
            case (database,):
                resource = {"Database": {"Name": database}}
        who = {"DataLakePrincipalIdentifier": principal}
        self._backend.grant_permissions(self._account, who, resource, ["ALL"], [])

    def _may(
        self, principal: str, on: str, names: tuple[str, ...], permissions: tuple[str, ...]
    ) -> bool:
        who = {"DataLakePrincipalIdentifier": principal}
        settings = self._backend.get_data_lake_settings(self._account)
        if on == "catalog" and who in settings.get("DataLakeAdmins", []):
            return True
        return any(
            grant["Principal"] == who
            and _is_about(grant["Resource"], on, names)
            and {"ALL", *permissions} & set(grant["Permissions"])
            for grant in self._backend.list_permissions(self._account)
        )


def _names(action: str, request: Document) -> tuple[str, ...]:
    """Return the database, and the table if the request is about one."""
    if action == "CreateDatabase":
        return (request["DatabaseInput"]["Name"],)
    if action in ("GetDatabase", "UpdateDatabase", "DeleteDatabase"):
        return (request["Name"],)
    return request["DatabaseName"], request.get("Name") or request["TableInput"]["Name"]


def _is_about(resource: Document, on: str, names: tuple[str, ...]) -> bool:
    if on == "catalog":
        return "Catalog" in resource
    if on == "database":
        return bool(resource.get("Database", {}).get("Name") == names[0])
    table = resource.get("Table") or resource.get("TableWithColumns") or {}
    is_named = "TableWildcard" in table or table.get("Name") == names[1]
    return bool(table.get("DatabaseName") == names[0] and is_named)


ACTION = "ListSchemaVersions"
_INVALID = "InvalidInputException"


@dataclass
class SchemaVersions:
    """The versions of the schemas of an account and region; ``backend``: moto's of Glue."""

    backend: Any

    def answer(self, body: bytes) -> dict[str, Any]:
        """Answer a request for a schema's versions; raises Refusal: wrong, or no such schema."""
        operation = service("glue").operation_model(ACTION)
        return serve(self, operation, json.loads(body), _INVALID, "moto lacks it")

    def _list_schema_versions(
        self, SchemaId: dict[str, str], MaxResults: int = 25, NextToken: str = "0"
    ) -> dict[str, Any]:
        from moto.core.exceptions import JsonRESTError

        try:
            description = self.backend.get_schema(SchemaId)
        except JsonRESTError as error:
            raise Refusal(HTTPStatus.BAD_REQUEST, error.error_type, error.message) from None
        registry = self.backend.registries[description["RegistryName"]]
        versions = [*registry.schemas[description["SchemaName"]].schema_versions.values()]
        if not NextToken.isdecimal() or int(NextToken) > len(versions):
            raise Refusal(HTTPStatus.BAD_REQUEST, _INVALID, "NextToken is not one of an answer")
        end = int(NextToken) + MaxResults
        listed = [_listed(version) for version in versions[int(NextToken) : end]]
        return {"Schemas": listed, **({"NextToken": str(end)} if end < len(versions) else {})}


def _listed(version: Any) -> dict[str, Any]:
    return {
        "SchemaArn": version.schema_arn,
        "SchemaVersionId": version.schema_version_id,
        "VersionNumber": version.version_number,
        "Status": version.schema_version_status,
        "CreatedTime": str(version.created_time),
    }
