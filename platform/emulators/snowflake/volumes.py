"""External volumes: where Iceberg tables' files are.

https://docs.snowflake.com/en/sql-reference/sql/desc-external-volume,
https://docs.snowflake.com/en/sql-reference/sql/show-external-volumes and
https://docs.snowflake.com/en/sql-reference/functions/system_verify_external_volume
"""

from __future__ import annotations

import json
import uuid
from typing import Any

from emulators.snowflake.account import IAM_USER_ARN, VOLUME, Account, Context, chosen, create, drop
from emulators.snowflake.errors import in_use, invalid_request
from emulators.snowflake.grammar import Statement
from emulators.snowflake.privileges import must_own
from emulators.snowflake.results import Rows
from emulators.snowflake.sources import lies_within, split_url
from emulators.snowflake.tokens import Name, display
from emulators.store import Stored


def create_volume(account: Account, context: Context, statement: Statement) -> Rows:
    properties = statement.properties
    locations = properties["STORAGE_LOCATIONS"]
    _check_names(locations)
    for location in locations:
        _complete(location)

    def make(old: Stored | None) -> dict[str, Any]:
        if old is not None:
            _check_unused(account, old)
        return {"ALLOW_WRITES": True, "COMMENT": "", **properties}

    return create(account, context, statement, statement.name, make)


def _check_names(locations: list[dict[str, Any]]) -> None:
    names = [location["NAME"] for location in locations]
    for name in names:
        if names.count(name) > 1:
            raise invalid_request(f"Storage location name '{name}' is not unique in the volume.")


def _complete(location: dict[str, Any]) -> None:
    # Without one of the user's own, Snowflake makes an external id, and a new one every time.
    location.setdefault("STORAGE_AWS_EXTERNAL_ID", f"LOCAL_SFCRole={uuid.uuid4().hex[:24]}=")


def alter_volume(account: Account, _context: Context, statement: Statement) -> Rows:
    with account.store.lock:
        volume = account.store.get(VOLUME, statement.name)
        if volume is None and statement.if_exists:
            return Rows.status("Statement executed successfully.")
        volume = account.require(VOLUME, statement.name)
        locations = volume.properties["STORAGE_LOCATIONS"]
        if statement.action == "SET":
            volume.properties |= statement.properties
        elif statement.action == "ADD":
            _complete(statement.properties)
            locations.append(statement.properties)
            _check_names(locations)
        else:
            _remove(account, volume, statement.properties["NAME"])
        account.store.put(volume)
    return Rows.status("Statement executed successfully.")


def _remove(account: Account, volume: Stored, name: str) -> None:
    locations = volume.properties["STORAGE_LOCATIONS"]
    if name not in [location["NAME"] for location in locations]:
        raise invalid_request(f"Storage location '{name}' does not exist in the external volume.")
    if len(locations) == 1:
        raise invalid_request("An external volume must have at least one storage location.")
    if locations[0]["NAME"] == name:
        _check_unused(account, volume)
    volume.properties["STORAGE_LOCATIONS"] = [x for x in locations if x["NAME"] != name]


def _check_unused(account: Account, volume: Stored) -> None:
    used_by = account.tables_using("EXTERNAL_VOLUME", volume.name[0])
    used_by += account.databases_using("EXTERNAL_VOLUME", volume.name[0])
    if used_by:
        raise in_use("External volume", display(volume.name), used_by)


def drop_volume(account: Account, _context: Context, statement: Statement) -> Rows:
    with account.store.lock:
        if account.store.get(VOLUME, statement.name) is None and statement.if_exists:
            return Rows.status("Drop statement executed successfully.")
        _check_unused(account, account.require(VOLUME, statement.name))
        drop(account, VOLUME, statement.name)
    return Rows.status(f"{statement.name[0]} successfully dropped.")


def show_volumes(account: Account, _context: Context, statement: Statement) -> Rows:
    rows = [
        (volume.name[0], volume.properties["ALLOW_WRITES"], volume.properties["COMMENT"])
        for volume in chosen(statement, account.store.all(VOLUME))
    ]
    return Rows.of(("name", "allow_writes", "comment"), rows)


def describe_volume(account: Account, _context: Context, statement: Statement) -> Rows:
    properties = account.require(VOLUME, statement.name).properties
    rows = []
    if properties["COMMENT"]:
        rows.append(("", "COMMENT", "String", properties["COMMENT"], ""))
    rows.append(("", "ALLOW_WRITES", "Boolean", str(properties["ALLOW_WRITES"]).lower(), "true"))
    for number, location in enumerate(properties["STORAGE_LOCATIONS"], start=1):
        value = json.dumps(_describe_location(location), separators=(",", ":"))
        rows.append(("STORAGE_LOCATIONS", f"STORAGE_LOCATION_{number}", "String", value, ""))
    active = properties["STORAGE_LOCATIONS"][0]["NAME"]
    rows.append(("STORAGE_LOCATIONS", "ACTIVE", "String", active, ""))
    names = ("parent_property", "property", "property_type", "property_value", "property_default")
    return Rows.of(names, rows)


def _describe_location(location: dict[str, Any]) -> dict[str, Any]:
    encryption = location.get("ENCRYPTION", {"TYPE": "NONE"})
    described = {
        "NAME": location["NAME"],
        "STORAGE_PROVIDER": location["STORAGE_PROVIDER"],
        "STORAGE_BASE_URL": location["STORAGE_BASE_URL"],
        "STORAGE_ALLOWED_LOCATIONS": [location["STORAGE_BASE_URL"].rstrip("/") + "/*"],
        "STORAGE_AWS_ROLE_ARN": location["STORAGE_AWS_ROLE_ARN"],
        "STORAGE_AWS_IAM_USER_ARN": IAM_USER_ARN,
        "STORAGE_AWS_EXTERNAL_ID": location["STORAGE_AWS_EXTERNAL_ID"],
        "ENCRYPTION_TYPE": encryption["TYPE"],
        "ENCRYPTION_KMS_KEY_ID": encryption.get("KMS_KEY_ID", ""),
    }
    for optional in ("STORAGE_AWS_ACCESS_POINT_ARN", "USE_PRIVATELINK_ENDPOINT"):
        if optional in location:
            described[optional] = location[optional]
    return described


def verify_volume(account: Account, context: Context, name: Name) -> str:
    """SYSTEM$VERIFY_EXTERNAL_VOLUME: the role can be assumed, and the location is really listed,
    read and written.

    As documented, a volume that allows no writes has its storage checks SKIPPED.
    """
    volume = account.require(VOLUME, name)
    must_own(account, context, VOLUME, name)
    location = volume.properties["STORAGE_LOCATIONS"][0]
    checks = dict.fromkeys(("writeResult", "readResult", "listResult", "deleteResult"), "SKIPPED")
    if volume.properties["ALLOW_WRITES"]:
        base = location["STORAGE_BASE_URL"]
        checks |= account.sources.check(base)
        checks |= account.sources.check_write(base, f"verify_{uuid.uuid4().hex}")
    checks["awsRoleArnValidationResult"] = role_problem(account, volume) or "PASSED"
    success = all(result in ("PASSED", "SKIPPED") for result in checks.values())
    answer = {
        "success": success,
        "storageLocationSelectionResult": "PASSED",
        "storageLocationName": location["NAME"],
        "servicePrincipalProperties": f"STORAGE_AWS_IAM_USER_ARN: {IAM_USER_ARN}; "
        f"STORAGE_AWS_EXTERNAL_ID: {location['STORAGE_AWS_EXTERNAL_ID']}",
        "location": location["STORAGE_BASE_URL"],
        "storageAccount": None,
        "region": "us-east-1",
        **checks,
    }
    return json.dumps(answer)


def role_problem(account: Account, volume: Stored, *actions: str) -> str | None:
    """Why the volume's role cannot be used, for these actions on its objects; None: it can."""
    location = volume.properties["STORAGE_LOCATIONS"][0]
    bucket, _ = split_url(location["STORAGE_BASE_URL"])
    return account.sources.role_problem(
        location["STORAGE_AWS_ROLE_ARN"],
        IAM_USER_ARN,
        location["STORAGE_AWS_EXTERNAL_ID"],
        *((action, f"arn:aws:s3:::{bucket}/*") for action in actions),
    )


def check_inside(volume: Stored, url: str) -> None:
    """:raises ProgrammingError: a table's file is outside of the volume's active location"""
    base = volume.properties["STORAGE_LOCATIONS"][0]["STORAGE_BASE_URL"]
    if not lies_within(url, base):
        raise invalid_request(
            f"The location '{url}' is not within the storage base URL '{base}' "
            f"of the external volume '{display(volume.name)}'."
        )
