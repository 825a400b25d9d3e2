"""Grammar of external volumes and catalog integrations.

https://docs.snowflake.com/en/sql-reference/sql/create-external-volume,
https://docs.snowflake.com/en/sql-reference/sql/alter-external-volume,
https://docs.snowflake.com/en/sql-reference/sql/create-catalog-integration-glue,
https://docs.snowflake.com/en/sql-reference/sql/create-catalog-integration-rest,
https://docs.snowflake.com/en/sql-reference/sql/create-catalog-integration-open-catalog and
https://docs.snowflake.com/en/sql-reference/sql/alter-catalog-integration
"""

from __future__ import annotations

from typing import Any

from emulators.snowflake.errors import invalid_option, invalid_value, missing_options
from emulators.snowflake.grammar import Kind, Statement, nothing
from emulators.snowflake.options import (
    Properties,
    Reader,
    Spec,
    boolean,
    choice,
    group,
    groups,
    integer,
    text,
    texts,
)
from emulators.snowflake.tokens import Stream

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
    {"STORAGE_LOCATIONS": groups(_LOCATION), "ALLOW_WRITES": boolean, "COMMENT": text},
    required=("STORAGE_LOCATIONS",),
)
_VOLUME_SET = Spec("EXTERNAL_VOLUME", {"ALLOW_WRITES": boolean, "COMMENT": text})


def _check_location(location: Properties) -> None:
    url = location["STORAGE_BASE_URL"]
    scheme = {"S3": "s3://", "S3GOV": "s3gov://"}[location["STORAGE_PROVIDER"]]
    bucket = url.removeprefix(scheme).split("/")[0]
    if not url.startswith(scheme) or not bucket or "." in bucket:
        raise invalid_value(url, "STORAGE_BASE_URL")
    if not location["STORAGE_AWS_ROLE_ARN"].startswith("arn:aws"):
        raise invalid_value(location["STORAGE_AWS_ROLE_ARN"], "STORAGE_AWS_ROLE_ARN")


def _create_volume(stream: Stream, statement: Statement) -> None:
    statement.properties = _VOLUME.read(stream)
    for location in statement.properties["STORAGE_LOCATIONS"]:
        _check_location(location)


def _alter_volume(stream: Stream, statement: Statement) -> None:
    if stream.take("ADD", "STORAGE_LOCATION"):
        statement.action = "ADD"
        stream.expect("=")
        location = group(_LOCATION)(stream, "STORAGE_LOCATION")
        _check_location(location)
        statement.properties = location
    elif stream.take("REMOVE", "STORAGE_LOCATION"):
        statement.action = "REMOVE"
        statement.properties = {"NAME": stream.string()}
    else:
        stream.expect("SET")
        statement.action = "SET"
        statement.properties = _VOLUME_SET.read(stream)
        if not statement.properties:
            raise stream.unexpected()


EXTERNAL_VOLUME = Kind(
    "EXTERNAL VOLUME",
    create=_create_volume,
    alter=_alter_volume,
    describe=nothing,
    plural="EXTERNAL VOLUMES",
)


def _interval(stream: Stream, name: str) -> int:
    """Return a number of seconds from half a minute to a day."""
    seconds = integer(stream, name)
    if not 30 <= seconds <= 86400:
        raise invalid_value(str(seconds), name)
    return seconds


_COMMON: dict[str, Reader] = {
    "CATALOG_SOURCE": choice("GLUE", "OBJECT_STORE", "POLARIS", "ICEBERG_REST", "SAP_BDC"),
    "TABLE_FORMAT": choice("ICEBERG", "DELTA"),
    "ENABLED": boolean,
    "REFRESH_INTERVAL_SECONDS": _interval,
    "COMMENT": text,
}
_API_TYPES = (
    "PUBLIC",
    "PRIVATE",
    "AWS_API_GATEWAY",
    "AWS_PRIVATE_API_GATEWAY",
    "AWS_GLUE",
    "AWS_PRIVATE_GLUE",
)
_REST_CONFIG: dict[str, Reader] = {
    "CATALOG_URI": text,
    "PREFIX": text,
    "CATALOG_NAME": text,
    "CATALOG_API_TYPE": choice(*_API_TYPES),
    "ACCESS_DELEGATION_MODE": choice("VENDED_CREDENTIALS", "EXTERNAL_VOLUME_CREDENTIALS"),
}
_AUTHENTICATION: dict[str, tuple[dict[str, Reader], tuple[str, ...]]] = {
    "OAUTH": (
        {
            "OAUTH_TOKEN_URI": text,
            "OAUTH_CLIENT_ID": text,
            "OAUTH_CLIENT_SECRET": text,
            "OAUTH_ALLOWED_SCOPES": texts,
        },
        ("OAUTH_CLIENT_ID", "OAUTH_CLIENT_SECRET", "OAUTH_ALLOWED_SCOPES"),
    ),
    "BEARER": ({"BEARER_TOKEN": text}, ("BEARER_TOKEN",)),
    "SIGV4": (
        {"SIGV4_IAM_ROLE": text, "SIGV4_SIGNING_REGION": text, "SIGV4_EXTERNAL_ID": text},
        ("SIGV4_IAM_ROLE",),
    ),
}


def _authentication(*types: str) -> Reader:
    """``REST_AUTHENTICATION``: which properties it has depends on its TYPE."""
    readers: dict[str, Reader] = {"TYPE": choice(*types)}
    for name in types:
        readers |= _AUTHENTICATION[name][0]
    any_type = Spec("REST_AUTHENTICATION", readers, required=("TYPE",))

    def read(stream: Stream, name: str) -> Properties:
        found: Properties = group(any_type)(stream, name)
        known, required = _AUTHENTICATION[found["TYPE"]]
        foreign = [option for option in found if option not in known and option != "TYPE"]
        if foreign:
            raise invalid_option(foreign)
        Spec("REST_AUTHENTICATION", known, required).complete(found)
        return found

    return read


_SOURCES: dict[str, Spec] = {
    "GLUE": Spec(
        "INTEGRATION",
        _COMMON
        | {
            "GLUE_AWS_ROLE_ARN": text,
            "GLUE_CATALOG_ID": text,
            "GLUE_REGION": text,
            "CATALOG_NAMESPACE": text,
        },
        required=("TABLE_FORMAT", "GLUE_AWS_ROLE_ARN", "GLUE_CATALOG_ID", "ENABLED"),
    ),
    "OBJECT_STORE": Spec("INTEGRATION", _COMMON, required=("TABLE_FORMAT", "ENABLED")),
    "ICEBERG_REST": Spec(
        "INTEGRATION",
        _COMMON
        | {
            "CATALOG_NAMESPACE": text,
            "REST_CONFIG": group(Spec("REST_CONFIG", _REST_CONFIG, required=("CATALOG_URI",))),
            "REST_AUTHENTICATION": _authentication("OAUTH", "BEARER", "SIGV4"),
        },
        required=("TABLE_FORMAT", "REST_CONFIG", "REST_AUTHENTICATION", "ENABLED"),
    ),
    "POLARIS": Spec(
        "INTEGRATION",
        _COMMON
        | {
            "CATALOG_NAMESPACE": text,
            "REST_CONFIG": group(
                Spec(
                    "REST_CONFIG",
                    {name: reader for name, reader in _REST_CONFIG.items() if name != "PREFIX"},
                    required=("CATALOG_URI", "CATALOG_NAME"),
                )
            ),
            "REST_AUTHENTICATION": _authentication("OAUTH"),
        },
        required=("TABLE_FORMAT", "REST_CONFIG", "REST_AUTHENTICATION", "ENABLED"),
    ),
}


def _create_integration(stream: Stream, statement: Statement) -> None:
    source = _source(stream)
    statement.properties = _SOURCES[source].read(stream)
    format_ = statement.properties["TABLE_FORMAT"]
    if format_ == "DELTA" and source != "OBJECT_STORE":
        raise invalid_value(format_, "TABLE_FORMAT")
    catalog = statement.properties.get("GLUE_CATALOG_ID")
    if catalog is not None and not (catalog.isdigit() and len(catalog) == 12):
        raise invalid_value(catalog, "GLUE_CATALOG_ID")


def _source(stream: Stream) -> str:
    """The CATALOG_SOURCE, which decides what else may be written, wherever it is written."""
    ahead = 0
    while (token := stream.peek(ahead)).kind != "end":
        if token.kind == "word" and token.value == "CATALOG_SOURCE":
            source = stream.peek(ahead + 2).value.upper()
            if source not in _SOURCES:
                raise invalid_value(stream.peek(ahead + 2).text, "CATALOG_SOURCE")
            return source
        ahead += 1
    raise missing_options(["CATALOG_SOURCE"])


_SECRET = Spec("REST_AUTHENTICATION", {"OAUTH_CLIENT_SECRET": text, "BEARER_TOKEN": text})
_INTEGRATION_SET = Spec(
    "INTEGRATION",
    {
        "REST_AUTHENTICATION": group(_SECRET),
        "ENABLED": boolean,
        "REFRESH_INTERVAL_SECONDS": _interval,
        "COMMENT": text,
    },
)


def _alter_integration(stream: Stream, statement: Statement) -> None:
    stream.expect("SET")
    statement.action = "SET"
    statement.properties = _INTEGRATION_SET.read(stream)
    secret: dict[str, Any] = statement.properties.get("REST_AUTHENTICATION", {"one": ""})
    if not statement.properties or len(secret) != 1:
        raise stream.unexpected()


CATALOG_INTEGRATION = Kind(
    "CATALOG INTEGRATION",
    create=_create_integration,
    alter=_alter_integration,
    describe=nothing,
    plural="CATALOG INTEGRATIONS",
)
