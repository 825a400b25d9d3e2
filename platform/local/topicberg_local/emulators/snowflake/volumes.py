"""External volumes: where Iceberg tables' files are.

https://docs.snowflake.com/en/sql-reference/sql/create-external-volume,
https://docs.snowflake.com/en/sql-reference/sql/alter-external-volume (SET only),
https://docs.snowflake.com/en/sql-reference/sql/desc-external-volume,
https://docs.snowflake.com/en/sql-reference/sql/show-external-volumes and
https://docs.snowflake.com/en/sql-reference/functions/system_verify_external_volume
"""

from __future__ import annotations

import json
from typing import Any

from topicberg_local.emulators.snowflake import errors
from topicberg_local.emulators.snowflake.account import (
    IAM_USER_ARN,
    VOLUME,
    Account,
    Context,
    create,
    new_external_id,
    show,
    value_of,
)
from topicberg_local.emulators.snowflake.privileges import SessionRole
from topicberg_local.emulators.snowflake.results import Rows
from topicberg_local.emulators.snowflake.sources import lies_within, region, split_url
from topicberg_local.emulators.snowflake.sql import (
    Kind,
    Name,
    Spec,
    Statement,
    Stream,
    alters,
    boolean,
    choice,
    display,
    group,
    listed,
    text,
)
from topicberg_local.emulators.store import Stored

_ENCRYPTION = Spec(
    "ENCRYPTION",
    {"TYPE": choice("AWS_SSE_S3", "AWS_SSE_KMS", "NONE"), "KMS_KEY_ID": text},
    required=("TYPE",),
)
_LOCATION = Spec(
    "STORAGE_LOCATION",
    {
        "NAME": text,
        "STORAGE_PROVIDER": choice("S3", "S3GOV"),
        "STORAGE_BASE_URL": text,
        "STORAGE_AWS_ROLE_ARN": text,
        "STORAGE_AWS_ACCESS_POINT_ARN": text,
        "STORAGE_AWS_EXTERNAL_ID": text,
        "ENCRYPTION": group(_ENCRYPTION),
        "USE_PRIVATELINK_ENDPOINT": boolean,
    },
    required=("NAME", "STORAGE_PROVIDER", "STORAGE_BASE_URL", "STORAGE_AWS_ROLE_ARN"),
)
_VOLUME = Spec(
    "EXTERNAL_VOLUME",
    {"STORAGE_LOCATIONS": listed(group(_LOCATION)), "ALLOW_WRITES": boolean, "COMMENT": text},
    required=("STORAGE_LOCATIONS",),
)
_VOLUME_SET = Spec("EXTERNAL_VOLUME", {"ALLOW_WRITES": boolean, "COMMENT": text})


def _create_volume(stream: Stream, statement: Statement) -> None:
    statement.properties = _VOLUME.read(stream)
    for location in statement.properties["STORAGE_LOCATIONS"]:
        url, arn = location["STORAGE_BASE_URL"], location["STORAGE_AWS_ROLE_ARN"]
        scheme = f"{location['STORAGE_PROVIDER'].lower()}://"
        bucket = url.removeprefix(scheme).split("/")[0]
        if not url.startswith(scheme) or not bucket or "." in bucket:
            raise errors.invalid_value(url, "STORAGE_BASE_URL")
        if not arn.startswith("arn:aws"):
            raise errors.invalid_value(arn, "STORAGE_AWS_ROLE_ARN")


VOLUME_KIND = Kind(
    VOLUME,
    create=_create_volume,
    alter=alters(_VOLUME_SET, refused=("ADD", "REMOVE", "UNSET", "UPDATE")),
    describe=True,
    plural="EXTERNAL VOLUMES",
)


def create_volume(account: Account, context: Context, statement: Statement) -> Rows:
    locations = statement.properties["STORAGE_LOCATIONS"]
    names = [location["NAME"] for location in locations]
    for location in locations:
        if names.count(location["NAME"]) > 1:
            raise errors.invalid_request(
                f"Storage location name '{location['NAME']}' is not unique in the volume."
            )
        location.setdefault("STORAGE_AWS_EXTERNAL_ID", new_external_id())  # a new one every time

    properties = {"ALLOW_WRITES": True, "COMMENT": "", **statement.properties}
    return create(account, context, statement, statement.name, properties)


def show_volumes(account: Account, _context: Context, statement: Statement) -> Rows:
    columns = {
        "name": lambda volume: volume.name[0],
        "allow_writes": value_of("ALLOW_WRITES"),
        "comment": value_of("COMMENT"),
    }
    return show(statement, account.store.all(VOLUME), columns)


def describe_volume(account: Account, _context: Context, statement: Statement) -> Rows:
    properties = account.require(VOLUME, statement.name).properties
    locations = properties["STORAGE_LOCATIONS"]
    described = {
        f"STORAGE_LOCATION_{number}": json.dumps(_described(location), separators=(",", ":"))
        for number, location in enumerate(locations, start=1)
    }
    comment = properties["COMMENT"]
    rows = [
        *([("", "COMMENT", "String", comment, "")] if comment else []),
        ("", "ALLOW_WRITES", "Boolean", str(properties["ALLOW_WRITES"]).lower(), "true"),
        *(
            ("STORAGE_LOCATIONS", name, "String", value, "")
            for name, value in {**described, "ACTIVE": locations[0]["NAME"]}.items()
        ),
    ]
    names = ("parent_property", "property", "property_type", "property_value", "property_default")
    return Rows.of(names, rows)


def _described(location: dict[str, Any]) -> dict[str, Any]:
    encryption = location.get("ENCRYPTION", {"TYPE": "NONE"})
    optional = ("STORAGE_AWS_ACCESS_POINT_ARN", "USE_PRIVATELINK_ENDPOINT")
    return {
        **{name: location[name] for name in ("NAME", "STORAGE_PROVIDER", "STORAGE_BASE_URL")},
        "STORAGE_ALLOWED_LOCATIONS": [location["STORAGE_BASE_URL"].rstrip("/") + "/*"],
        "STORAGE_AWS_ROLE_ARN": location["STORAGE_AWS_ROLE_ARN"],
        "STORAGE_AWS_IAM_USER_ARN": IAM_USER_ARN,
        "STORAGE_AWS_EXTERNAL_ID": location["STORAGE_AWS_EXTERNAL_ID"],
        "ENCRYPTION_TYPE": encryption["TYPE"],
        "ENCRYPTION_KMS_KEY_ID": encryption.get("KMS_KEY_ID", ""),
        **{name: location[name] for name in optional if name in location},
    }


def verify_volume(account: Account, context: Context, name: Name) -> str:
    """SYSTEM$VERIFY_EXTERNAL_VOLUME: the role can be assumed, and the location is really listed,
    read and written.

    As documented, a volume that allows no writes has its storage checks SKIPPED.
    """
    volume = account.require(VOLUME, name)
    SessionRole(account, context).must_own(VOLUME, name)
    location = volume.properties["STORAGE_LOCATIONS"][0]
    checks = dict.fromkeys(("writeResult", "readResult", "listResult", "deleteResult"), "SKIPPED")
    if volume.properties["ALLOW_WRITES"]:
        checks |= account.sources.check(location["STORAGE_BASE_URL"])
    checks["awsRoleArnValidationResult"] = role_problem(account, volume) or "PASSED"
    response = {
        "success": {*checks.values()} <= {"PASSED", "SKIPPED"},
        "storageLocationSelectionResult": "PASSED",
        "storageLocationName": location["NAME"],
        "servicePrincipalProperties": f"STORAGE_AWS_IAM_USER_ARN: {IAM_USER_ARN}; "
        f"STORAGE_AWS_EXTERNAL_ID: {location['STORAGE_AWS_EXTERNAL_ID']}",
        "location": location["STORAGE_BASE_URL"],
        "storageAccount": None,
        "region": "us-east-1",
        **checks,
    }
    return json.dumps(response)


def role_problem(account: Account, volume: Stored, *actions: str) -> str | None:
    """Why the volume's role cannot be used, for these actions on its objects; None: it can."""
    location = volume.properties["STORAGE_LOCATIONS"][0]
    bucket, _ = split_url(location["STORAGE_BASE_URL"])
    if location.get("USE_PRIVATELINK_ENDPOINT"):
        host = f"{bucket}.s3.{region()}.amazonaws.com"
        if why := account.endpoint_problem(host):
            return why
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
        raise errors.invalid_request(
            f"The location '{url}' is not within the storage base URL '{base}' "
            f"of the external volume '{display(volume.name)}'."
        )
