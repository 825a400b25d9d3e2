"""Catalog integrations: which Iceberg catalog tells where a table's metadata is.

AWS Glue is the one that the local stack has, by ``CATALOG_SOURCE = GLUE`` and by its Iceberg REST
API alike. Integrations with other catalogs are kept as Snowflake keeps those with a wrong address:
verifying one says that it cannot be reached, and no table can be made with it.

https://docs.snowflake.com/en/sql-reference/sql/create-catalog-integration-glue,
https://docs.snowflake.com/en/sql-reference/sql/create-catalog-integration-rest,
https://docs.snowflake.com/en/sql-reference/sql/create-catalog-integration-open-catalog,
https://docs.snowflake.com/en/sql-reference/sql/alter-catalog-integration and
https://docs.snowflake.com/en/sql-reference/sql/desc-catalog-integration
"""

from __future__ import annotations

import json
from urllib.parse import urlsplit

from topicberg_local.emulators.snowflake import errors
from topicberg_local.emulators.snowflake.account import (
    IAM_USER_ARN,
    INTEGRATION,
    Account,
    Context,
    alter,
    create,
    new_external_id,
)
from topicberg_local.emulators.snowflake.results import Rows
from topicberg_local.emulators.snowflake.sources import region
from topicberg_local.emulators.snowflake.sql import (
    Kind,
    Name,
    Properties,
    Reader,
    Spec,
    Statement,
    Stream,
    alters,
    boolean,
    choice,
    display,
    group,
    integer,
    text,
    texts,
)
from topicberg_local.emulators.store import Stored


def interval(stream: Stream, name: str) -> int:
    """Return a number of seconds from half a minute to a day."""
    seconds = integer(stream, name)
    if not 30 <= seconds <= 86400:
        raise errors.invalid_value(str(seconds), name)
    return seconds


_COMMON: dict[str, Reader] = {
    "CATALOG_SOURCE": choice("GLUE", "OBJECT_STORE", "POLARIS", "ICEBERG_REST", "SAP_BDC"),
    "TABLE_FORMAT": choice("ICEBERG", "DELTA"),
    "ENABLED": boolean,
    "REFRESH_INTERVAL_SECONDS": interval,
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
        properties: Properties = group(any_type)(stream, name)
        options, required = _AUTHENTICATION[properties["TYPE"]]
        if foreign := [option for option in properties if option not in {"TYPE", *options}]:
            raise errors.invalid_option(foreign)
        Spec("REST_AUTHENTICATION", options, required).complete(properties)
        return properties

    return read


def _source_spec(options: dict[str, Reader], *required: str) -> Spec:
    return Spec("INTEGRATION", _COMMON | options, required=("TABLE_FORMAT", *required, "ENABLED"))


def _rest_spec(authentication: Reader, required: tuple[str, ...], *unknown: str) -> Spec:
    """An Iceberg REST catalog.

    :param required, unknown: of the properties of ``REST_CONFIG``
    """
    config = {name: reader for name, reader in _REST_CONFIG.items() if name not in unknown}
    options = {
        "CATALOG_NAMESPACE": text,
        "REST_CONFIG": group(Spec("REST_CONFIG", config, required)),
        "REST_AUTHENTICATION": authentication,
    }
    return _source_spec(options, "REST_CONFIG", "REST_AUTHENTICATION")


_GLUE = ("GLUE_AWS_ROLE_ARN", "GLUE_CATALOG_ID")
_SOURCES: dict[str, Spec] = {
    "GLUE": _source_spec(dict.fromkeys((*_GLUE, "GLUE_REGION", "CATALOG_NAMESPACE"), text), *_GLUE),
    "OBJECT_STORE": _source_spec({}),
    "ICEBERG_REST": _rest_spec(_authentication("OAUTH", "BEARER", "SIGV4"), ("CATALOG_URI",)),
    "POLARIS": _rest_spec(_authentication("OAUTH"), ("CATALOG_URI", "CATALOG_NAME"), "PREFIX"),
}


def _create_integration(stream: Stream, statement: Statement) -> None:
    source = _source(stream)
    statement.properties = _SOURCES[source].read(stream)
    format_ = statement.properties["TABLE_FORMAT"]
    if format_ == "DELTA" and source != "OBJECT_STORE":
        raise errors.invalid_value(format_, "TABLE_FORMAT")
    catalog = statement.properties.get("GLUE_CATALOG_ID")
    if catalog is not None and not (catalog.isdigit() and len(catalog) == 12):
        raise errors.invalid_value(catalog, "GLUE_CATALOG_ID")


def _source(stream: Stream) -> str:
    """The CATALOG_SOURCE, which decides what else may be written, wherever it is written."""
    ahead = stream.find("CATALOG_SOURCE")
    if ahead is None:
        raise errors.missing_options(["CATALOG_SOURCE"])
    token = stream.peek(ahead + 2)
    if token.value.upper() not in _SOURCES:
        raise errors.invalid_value(token.text, "CATALOG_SOURCE")
    return token.value.upper()


_SECRETS: dict[str, Reader] = {"OAUTH_CLIENT_SECRET": text, "BEARER_TOKEN": text}
_set_integration = alters(
    Spec(
        "INTEGRATION",
        {
            "REST_AUTHENTICATION": group(Spec("REST_AUTHENTICATION", _SECRETS)),
            **{name: _COMMON[name] for name in ("ENABLED", "REFRESH_INTERVAL_SECONDS", "COMMENT")},
        },
    ),
    refused=("UNSET",),
)


def _alter_integration(stream: Stream, statement: Statement) -> None:
    _set_integration(stream, statement)
    if len(statement.properties.get("REST_AUTHENTICATION", {"one": ""})) != 1:
        raise stream.unexpected()


INTEGRATION_KIND = Kind(
    INTEGRATION, create=_create_integration, alter=_alter_integration, describe=True
)


def create_integration(account: Account, context: Context, statement: Statement) -> Rows:
    source = statement.properties["CATALOG_SOURCE"]
    if source not in ("GLUE", "ICEBERG_REST", "POLARIS"):
        raise errors.unsupported(f"CREATE CATALOG INTEGRATION … CATALOG_SOURCE = {source}")

    own = {"GLUE_REGION": region(), "GLUE_AWS_EXTERNAL_ID": new_external_id()}
    given = statement.properties
    properties = {
        **{"CATALOG_NAMESPACE": "", "REFRESH_INTERVAL_SECONDS": 30, "COMMENT": ""},
        **({**own, **given} if source == "GLUE" else _rest(given)),
    }
    return create(account, context, statement, statement.name, properties)


def _rest(given: Properties) -> Properties:
    """Without the secrets, of which nothing local makes use."""
    login = {k: v for k, v in given["REST_AUTHENTICATION"].items() if k not in _SECRETS}
    external_id = login.pop("SIGV4_EXTERNAL_ID", None) or new_external_id()
    if login["TYPE"] == "SIGV4":
        login.setdefault("SIGV4_SIGNING_REGION", region())
    config = {
        "PREFIX": None,
        "CATALOG_API_TYPE": "PUBLIC",
        "CATALOG_NAME": None,
        "ACCESS_DELEGATION_MODE": "EXTERNAL_VOLUME_CREDENTIALS",
        **given["REST_CONFIG"],
    }
    rest = {"REST_CONFIG": config, "REST_AUTHENTICATION": login, "EXTERNAL_ID": external_id}
    return {**given, **rest}


def unreachable(account: Account, integration: Stored) -> str | None:
    """Why the catalog cannot be asked from the local stack; None: it is Glue."""
    properties = integration.properties
    if properties["CATALOG_SOURCE"] == "GLUE":
        return None
    config, login = properties["REST_CONFIG"], properties["REST_AUTHENTICATION"]
    match login["TYPE"], config["CATALOG_API_TYPE"]:
        case "SIGV4", "AWS_GLUE":
            return None
        case "SIGV4", "AWS_PRIVATE_GLUE":
            host = urlsplit(config["CATALOG_URI"]).hostname or ""
            return account.endpoint_problem(host)
    return f"the local stack cannot reach a catalog at {config['CATALOG_URI']}"


def vends(integration: Stored) -> bool:
    """Return whether the catalog gives credentials for its tables' storage."""
    config = integration.properties.get("REST_CONFIG", {})
    return bool(config.get("ACCESS_DELEGATION_MODE") == "VENDED_CREDENTIALS")


def list_problem(account: Account, integration: Stored, namespaces: list[str]) -> str | None:
    """Why the namespaces' tables cannot be listed; None: they can."""
    if not integration.properties["ENABLED"]:
        return f"Catalog integration '{display(integration.name)}' is not enabled."
    needs = [("glue:GetDatabases", "catalog")]
    needs += [("glue:GetTables", f"database/{namespace}") for namespace in namespaces]
    return unreachable(account, integration) or _role_problem(account, integration, *needs)


def role_of(account: Account, integration: Stored, table: Properties) -> str | None:
    """Why the integration's role cannot look for a table in Glue; None: it can."""
    name = f"{table['CATALOG_NAMESPACE']}/{table['CATALOG_TABLE_NAME']}"
    return _role_problem(account, integration, ("glue:GetTable", f"table/{name}"))


def _role_problem(account: Account, integration: Stored, *needs: tuple[str, str]) -> str | None:
    """Why the integration's role cannot be used for these actions on Glue; None: it can.

    :param needs: action, and resource in the catalog
    """
    properties = integration.properties
    if properties["CATALOG_SOURCE"] == "GLUE":
        arn, external_id = properties["GLUE_AWS_ROLE_ARN"], properties["GLUE_AWS_EXTERNAL_ID"]
        catalog, region = properties["GLUE_CATALOG_ID"], properties["GLUE_REGION"]
    else:
        login = properties["REST_AUTHENTICATION"]
        arn, external_id = login["SIGV4_IAM_ROLE"], properties["EXTERNAL_ID"]
        catalog, region = arn.split(":")[4], login["SIGV4_SIGNING_REGION"]
    begin = f"arn:aws:glue:{region}:{catalog}:"
    full = [(action, f"{begin}{resource}") for action, resource in needs]
    return account.sources.role_problem(arn, IAM_USER_ARN, external_id, *full)


def verify_integration(account: Account, _context: Context, name: Name) -> str:
    """SYSTEM$VERIFY_CATALOG_INTEGRATION: of REST catalogs.

    https://docs.snowflake.com/en/sql-reference/functions/system_verify_catalog_integration
    """
    integration = account.require(INTEGRATION, name)
    if integration.properties["CATALOG_SOURCE"] == "GLUE":
        raise errors.invalid_request(
            "SYSTEM$VERIFY_CATALOG_INTEGRATION is for Iceberg REST catalogs."
        )
    problem = unreachable(account, integration) or account.sources.check_namespace(
        integration.properties["CATALOG_NAMESPACE"]
    )
    failure = {"errorCode": "004140", "errorMessage": problem} if problem else {}
    return json.dumps({"success": not problem, **failure})


def alter_integration(account: Account, _context: Context, statement: Statement) -> Rows:
    given = dict(statement.properties)
    secret = given.pop("REST_AUTHENTICATION", None)

    def change(integration: Stored) -> None:
        login = integration.properties.get("REST_AUTHENTICATION", {})
        kind = {"OAUTH": "OAUTH_CLIENT_SECRET", "BEARER": "BEARER_TOKEN"}.get(login.get("TYPE"))
        if secret is not None and set(secret) != {kind}:
            raise errors.invalid_option(["REST_AUTHENTICATION"])
        integration.properties |= given

    return alter(account, statement, change)


def describe_integration(account: Account, _context: Context, statement: Statement) -> Rows:
    properties = account.require(INTEGRATION, statement.name).properties

    def texts(*names: str) -> list[tuple[str, ...]]:
        return [(name, "String", str(properties[name]), "") for name in names]

    rows = [
        ("ENABLED", "Boolean", str(properties["ENABLED"]).lower(), "false"),
        *texts("CATALOG_SOURCE", "CATALOG_NAMESPACE", "TABLE_FORMAT"),
        ("REFRESH_INTERVAL_SECONDS", "Integer", str(properties["REFRESH_INTERVAL_SECONDS"]), "30"),
    ]
    begin, external_id = account.sigv4_properties, properties.get("EXTERNAL_ID")
    if properties["CATALOG_SOURCE"] == "GLUE":
        begin, external_id = "GLUE", properties["GLUE_AWS_EXTERNAL_ID"]
        rows += texts("GLUE_AWS_ROLE_ARN", "GLUE_CATALOG_ID", "GLUE_REGION")
    else:
        maps = ("REST_CONFIG", "REST_AUTHENTICATION")
        rows += [(name, "Map", _braced(properties[name]), "") for name in maps]
    if properties.get("REST_AUTHENTICATION", {"TYPE": "SIGV4"})["TYPE"] == "SIGV4":
        rows.append((f"{begin}_AWS_IAM_USER_ARN", "String", IAM_USER_ARN, ""))
        rows.append((f"{begin}_AWS_EXTERNAL_ID", "String", str(external_id), ""))
    names = ("property", "property_type", "property_value", "property_default")
    return Rows.of(names, [*rows, *texts("COMMENT")])


def _braced(values: Properties) -> str:
    """``{A=x, B=[y, z], C=null}``."""

    def shown(value: object) -> str:
        if value is None:
            return "null"
        return f"[{', '.join(value)}]" if isinstance(value, list) else str(value)

    return "{" + ", ".join(f"{name}={shown(value)}" for name, value in values.items()) + "}"
