"""Lake Formation before Glue: where data lake settings demand it, nothing is allowed that was not
granted.

An account begins with ``IAM_ALLOWED_PRINCIPALS`` in its settings, so that IAM alone decides;
``PutDataLakeSettings`` without it turns this on. Who creates a database or a table has all rights
on it. Of what a principal may not see Glue says AccessDenied, also if it does not exist, and lists
leave it out.

https://docs.aws.amazon.com/lake-formation/latest/dg/lf-permissions-reference.html
https://docs.aws.amazon.com/lake-formation/latest/dg/implicit-permissions.html
"""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import Any

from topicberg_local.emulators.aws.refusal import Refusal
from topicberg_local.emulators.aws.state import backends

Document = dict[str, Any]
_BY_IAM = "IAM_ALLOWED_PRINCIPALS"
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
        return not all(
            any(
                one["Principal"]["DataLakePrincipalIdentifier"] == _BY_IAM
                for one in settings.get(name, [])
            )
            for name in ("CreateDatabaseDefaultPermissions", "CreateTableDefaultPermissions")
        )

    def check(self, action: str, body: bytes, principal: str) -> None:
        """:raises Refusal: AccessDeniedException, as Glue answers without a grant"""
        if action not in _NEEDS:
            return
        on, permissions = _NEEDS[action]
        request = json.loads(body)
        names = _names(action, request)
        if not self._may(principal, on, names, permissions):
            named = {"catalog": "Catalog", "database": names[0], "table": names[-1]}[on]
            raise Refusal(
                HTTPStatus.BAD_REQUEST,
                "AccessDeniedException",
                f"Insufficient Lake Formation permission(s): Required {permissions[0]} on {named}",
            )

    def undroppable(self, body: bytes, principal: str) -> list[Document]:
        """Return the errors of BatchDeleteTable about what the principal may not drop."""
        request = json.loads(body)
        database, names = request["DatabaseName"], request["TablesToDelete"]
        reason = "Insufficient Lake Formation permission(s): Required Drop on"
        return [
            {
                "TableName": name,
                "ErrorDetail": {
                    "ErrorCode": "AccessDeniedException",
                    "ErrorMessage": f"{reason} {name}",
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
        database = json.loads(request).get("DatabaseName", "")

        def is_visible(entry: Document) -> bool:
            names = (database, entry["Name"]) if on == "table" else (entry["Name"],)
            return self._may(principal, on, names, permissions)

        return {
            **response,
            field: [entry for entry in response.get(field, []) if is_visible(entry)],
        }

    def remember_creator(self, action: str, body: bytes, principal: str) -> None:
        """Give who created a database or a table all rights on it."""
        if action not in ("CreateDatabase", "CreateTable"):
            return
        names = _names(action, json.loads(body))
        resource: Document = {"Database": {"Name": names[0]}}
        if action == "CreateTable":
            resource = {"Table": {"DatabaseName": names[0], "Name": names[1]}}
        self._backend.grant_permissions(
            self._account, {"DataLakePrincipalIdentifier": principal}, resource, ["ALL"], []
        )

    def _may(
        self, principal: str, on: str, names: tuple[str, ...], permissions: tuple[str, ...]
    ) -> bool:
        settings = self._backend.get_data_lake_settings(self._account)
        admins = {
            admin["DataLakePrincipalIdentifier"] for admin in settings.get("DataLakeAdmins", [])
        }
        if on == "catalog" and principal in admins:
            return True
        return any(
            grant["Principal"] == {"DataLakePrincipalIdentifier": principal}
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
    name = request.get("Name") or request["TableInput"]["Name"]
    return (request["DatabaseName"], name)


def _is_about(resource: Document, on: str, names: tuple[str, ...]) -> bool:
    if on == "catalog":
        return "Catalog" in resource
    if on == "database":
        return bool(resource.get("Database", {}).get("Name") == names[0])
    table = resource.get("Table") or resource.get("TableWithColumns") or {}
    is_named = "TableWildcard" in table or table.get("Name") == names[1]
    return bool(table.get("DatabaseName") == names[0] and is_named)
