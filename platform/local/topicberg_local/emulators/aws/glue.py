"""What moto lacks of Glue: Lake Formation before it, and the list of a schema's versions.

Where data lake settings demand it, nothing is allowed that was not granted. An account begins with
``IAM_ALLOWED_PRINCIPALS`` in its settings, so that IAM alone decides; ``PutDataLakeSettings``
without it turns this on, and so does a database whose own defaults are without it. Who creates a
database or a table has all rights on it. Of what a principal may not see Glue says AccessDenied,
also if it does not exist, and lists leave it out.

Grants are those of a principal, of the group of all principals, and of LF-tags. ``ListPermissions``
lists them; of one principal and one resource it answers what applies in effect; and it shows only
permissions that the caller has itself, unless it is an administrator.

https://docs.aws.amazon.com/lake-formation/latest/dg/lf-permissions-reference.html
https://docs.aws.amazon.com/lake-formation/latest/dg/implicit-permissions.html
https://docs.aws.amazon.com/lake-formation/latest/APIReference/API_ListPermissions.html

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
_DEFAULTS = ("CreateDatabaseDefaultPermissions", "CreateTableDefaultPermissions")
_PARTS = {
    "Catalog": (),
    "Database": ("Name",),
    "Table": ("DatabaseName", "Name"),
    "DataLocation": ("ResourceArn",),
}
"""Kind of resource → the names of one; of all tables of a database, the last one is missing."""
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
        self._account, self._region = account, region
        self._backend = backends("lakeformation")[account][region]

    @property
    def is_on(self) -> bool:
        """Whether it decides about anything at all."""
        return self._governs() or any(map(self._governs, self._databases))

    @property
    def _databases(self) -> Any:
        return backends("glue")[self._account][self._region].databases

    def _governs(self, database: str = "") -> bool:
        """Whether it decides about a database, by the defaults of which it has its own, or about
        new ones."""
        settings = self._backend.get_data_lake_settings(self._account)
        stored = self._databases.get(database)
        own = stored and stored.input.get(_DEFAULTS[1])
        defaults = [settings.get(name, []) for name in _DEFAULTS] if own is None else [own]
        return not all(
            any("IAM_ALLOWED_PRINCIPALS" in grant["Principal"].values() for grant in granted)
            for granted in defaults
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

    def permissions(self, request: Document, caller: str) -> Document:
        """Answer ListPermissions; raises Refusal: of one principal, resource or type only."""
        who, resource = request.get("Principal"), request.get("Resource")
        if bool(who) != bool(resource) or "ResourceType" in request:
            text = "the local AWS emulator lists permissions of a principal on a resource, or all"
            raise Refusal(HTTPStatus.NOT_IMPLEMENTED, "UnsupportedOperation", text)
        grants = self._backend.list_permissions(self._account)
        if who and resource:
            effective = self._effective(who["DataLakePrincipalIdentifier"], resource)
            grants = [{"Principal": who, "Resource": resource, "Permissions": effective}]
        shown = []
        for grant in grants:
            own = self._effective(caller, grant["Resource"])
            sees_all = "ALL" in own or self._is_admin(caller)
            visible = sorted({*grant["Permissions"]} if sees_all else own & {*grant["Permissions"]})
            ((kind, parts),) = grant["Resource"].items()
            identified = {kind: {"Id" if kind == "Catalog" else "CatalogId": self._account} | parts}
            if visible:
                shown.append({**grant, "Resource": identified, "Permissions": visible})
        return {"PrincipalResourcePermissions": shown}

    def _is_admin(self, principal: str) -> bool:
        admins = self._backend.get_data_lake_settings(self._account).get("DataLakeAdmins", [])
        return {"DataLakePrincipalIdentifier": principal} in admins

    def _effective(self, principal: str, resource: Document) -> set[str]:
        """Return the permissions of a principal on a resource, as a request or a grant has it."""
        ((kind, parts),) = resource.items()
        names = [parts.get(name) for name in _PARTS.get(kind, ())]
        of_all = f"{self._account}:IAMPrincipals"
        return {
            permission
            for grant in self._backend.list_permissions(self._account)
            if grant["Principal"]["DataLakePrincipalIdentifier"] in (principal, of_all)
            and (grant["Resource"] == resource or self._is_about(grant["Resource"], kind, names))
            for permission in grant["Permissions"]
        }

    def _is_about(self, granted: Document, kind: str, names: list[Any]) -> bool:
        """Return whether a grant is about what a request names."""
        if policy := granted.get("LFTagPolicy"):
            tags = self._backend.lf_database_tags.get((self._account, *names[:1]), ())
            values = {tag["TagKey"]: {*tag["TagValues"]} for tag in tags}
            return policy["ResourceType"] == kind.upper() and all(
                values.get(tag["TagKey"], set()) & {*tag["TagValues"]}
                for tag in policy["Expression"]
            )
        parts = granted.get(kind, granted.get("TableWithColumns") if kind == "Table" else None)
        if parts is None:
            return False
        own = [parts.get(name) for name in _PARTS[kind]]
        return own == names or ("TableWildcard" in parts and own[0] == names[0])

    def undroppable(self, body: bytes, principal: str) -> list[Document]:
        """Return the errors of BatchDeleteTable about what the principal may not drop."""
        request = json.loads(body)
        database, names = request["DatabaseName"], request["TablesToDelete"]
        return [
            {
                "TableName": name,
                "ErrorDetail": {
                    "ErrorCode": "AccessDeniedException",
                    "ErrorMessage": f"{_INSUFFICIENT} Drop on {name}",
                },
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
        kind = action.removeprefix("Create")
        resource = {kind: dict(zip(_PARTS[kind], _names(action, json.loads(body)), strict=True))}
        who = {"DataLakePrincipalIdentifier": principal}
        self._backend.grant_permissions(self._account, who, resource, ["ALL"], [])

    def _may(
        self, principal: str, on: str, names: tuple[str, ...], permissions: tuple[str, ...]
    ) -> bool:
        if on == "catalog":
            names = ()
        kind, is_admin = on.capitalize(), not names and self._is_admin(principal)
        if is_admin or not self._governs(*names[:1]):
            return True
        granted = self._effective(principal, {kind: dict(zip(_PARTS[kind], names, strict=False))})
        return bool({"ALL", *permissions} & granted)


def _names(action: str, request: Document) -> tuple[str, ...]:
    """Return the database, and the table if the request is about one."""
    if action == "CreateDatabase":
        return (request["DatabaseInput"]["Name"],)
    if action in ("GetDatabase", "UpdateDatabase", "DeleteDatabase"):
        return (request["Name"],)
    return request["DatabaseName"], request.get("Name") or request["TableInput"]["Name"]


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
