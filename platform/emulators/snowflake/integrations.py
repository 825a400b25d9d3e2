"""Catalog integrations: which Iceberg catalog tells where a table's metadata is.

AWS Glue is the one that the local stack has, by ``CATALOG_SOURCE = GLUE`` and by its Iceberg REST
API alike. Integrations with other catalogs are kept as Snowflake keeps those with a wrong address:
verifying one says that it cannot be reached, and no table can be made with it.

https://docs.snowflake.com/en/sql-reference/sql/desc-catalog-integration and
https://docs.snowflake.com/en/sql-reference/sql/show-catalog-integrations
"""

from __future__ import annotations

import json
import os
import uuid
from typing import Any

from emulators.snowflake.account import (
    IAM_USER_ARN,
    INTEGRATION,
    Account,
    Context,
    PropertyRows,
    chosen,
    create,
    drop,
)
from emulators.snowflake.errors import in_use, invalid_option, invalid_request, unsupported
from emulators.snowflake.grammar import Statement
from emulators.snowflake.options import Properties
from emulators.snowflake.results import Rows
from emulators.snowflake.tokens import Name, display
from emulators.store import Stored

REFRESH_SECONDS = 30
_SECRETS = ("OAUTH_CLIENT_SECRET", "BEARER_TOKEN")


def create_integration(account: Account, context: Context, statement: Statement) -> Rows:
    source = statement.properties["CATALOG_SOURCE"]
    if source not in ("GLUE", "ICEBERG_REST", "POLARIS"):
        raise unsupported(f"CREATE CATALOG INTEGRATION … CATALOG_SOURCE = {source}")

    def make(old: Stored | None) -> dict[str, Any]:
        if old is not None:
            _check_unused(account, old)
        common = {
            "CATALOG_NAMESPACE": "",
            "REFRESH_INTERVAL_SECONDS": REFRESH_SECONDS,
            "COMMENT": "",
        }
        return common | (_glue if source == "GLUE" else _rest)(statement.properties)

    return create(account, context, statement, statement.name, make)


def _region() -> str:
    return os.environ.get("AWS_REGION", "us-east-1")


def _external_id() -> str:
    return f"LOCAL_SFCRole={uuid.uuid4().hex[:24]}="


def _glue(given: Properties) -> Properties:
    return {"GLUE_REGION": _region(), "GLUE_AWS_EXTERNAL_ID": _external_id(), **given}


def _rest(given: Properties) -> Properties:
    """Without the secrets, of which nothing local makes use."""
    login = {k: v for k, v in given["REST_AUTHENTICATION"].items() if k not in _SECRETS}
    external_id = login.pop("SIGV4_EXTERNAL_ID", None) or _external_id()
    if login["TYPE"] == "SIGV4":
        login.setdefault("SIGV4_SIGNING_REGION", _region())
    config = {
        "PREFIX": None,
        "CATALOG_API_TYPE": "PUBLIC",
        "CATALOG_NAME": None,
        "ACCESS_DELEGATION_MODE": "EXTERNAL_VOLUME_CREDENTIALS",
        **given["REST_CONFIG"],
    }
    rest = {"REST_CONFIG": config, "REST_AUTHENTICATION": login, "EXTERNAL_ID": external_id}
    return {**given, **rest}


def unreachable(integration: Stored) -> str | None:
    """Why the catalog cannot be asked from the local stack; None: it is Glue."""
    properties = integration.properties
    if properties["CATALOG_SOURCE"] == "GLUE":
        return None
    config, login = properties["REST_CONFIG"], properties["REST_AUTHENTICATION"]
    if config["CATALOG_API_TYPE"] == "AWS_GLUE" and login["TYPE"] == "SIGV4":
        return None
    return f"the local stack cannot reach a catalog at {config['CATALOG_URI']}"


def vends(integration: Stored) -> bool:
    """Return whether the catalog gives credentials for its tables' storage."""
    config = integration.properties.get("REST_CONFIG", {})
    return bool(config.get("ACCESS_DELEGATION_MODE") == "VENDED_CREDENTIALS")


def list_problem(account: Account, integration: Stored, namespaces: list[str]) -> str | None:
    """Why the namespaces' tables cannot be listed; None: they can."""
    if not integration.properties["ENABLED"]:
        return f"Catalog integration '{display(integration.name)}' is not enabled."
    if problem := unreachable(integration):
        return problem
    needs = [("glue:GetDatabases", "catalog")]
    needs += [("glue:GetTables", f"database/{namespace}") for namespace in namespaces]
    return _role_problem(account, integration, *needs)


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
        raise invalid_request("SYSTEM$VERIFY_CATALOG_INTEGRATION is for Iceberg REST catalogs.")
    problem = unreachable(integration)
    if problem is None:
        problem = account.sources.check_namespace(integration.properties["CATALOG_NAMESPACE"])
    if problem is None:
        return json.dumps({"success": True})
    return json.dumps({"success": False, "errorCode": "004140", "errorMessage": problem})


def _check_unused(account: Account, integration: Stored) -> None:
    used_by = account.tables_using("CATALOG", integration.name[0])
    used_by += account.databases_using("CATALOG", integration.name[0])
    if used_by:
        raise in_use("Integration", display(integration.name), used_by)


def alter_integration(account: Account, _context: Context, statement: Statement) -> Rows:
    with account.store.lock:
        if account.store.get(INTEGRATION, statement.name) is None and statement.if_exists:
            return Rows.status("Statement executed successfully.")
        integration = account.require(INTEGRATION, statement.name)
        given = dict(statement.properties)
        secret = given.pop("REST_AUTHENTICATION", None)
        login = integration.properties.get("REST_AUTHENTICATION", {})
        kind = {"OAUTH": "OAUTH_CLIENT_SECRET", "BEARER": "BEARER_TOKEN"}.get(login.get("TYPE"))
        if secret is not None and set(secret) != {kind}:
            raise invalid_option(["REST_AUTHENTICATION"])
        integration.properties |= given
        account.store.put(integration)
    return Rows.status("Statement executed successfully.")


def drop_integration(account: Account, _context: Context, statement: Statement) -> Rows:
    with account.store.lock:
        if account.store.get(INTEGRATION, statement.name) is None and statement.if_exists:
            return Rows.status("Drop statement executed successfully.")
        _check_unused(account, account.require(INTEGRATION, statement.name))
        drop(account, INTEGRATION, statement.name)
    return Rows.status(f"{statement.name[0]} successfully dropped.")


def show_integrations(account: Account, _context: Context, statement: Statement) -> Rows:
    rows = [
        (
            found.name[0],
            "CATALOG",
            "CATALOG",
            found.properties["ENABLED"],
            found.properties["COMMENT"],
            found.created,
        )
        for found in chosen(statement, account.store.all(INTEGRATION))
    ]
    names = ("name", "type", "category", "enabled", "comment", "created_on")
    return Rows.of(names, rows, times=("created_on",))


def describe_integration(account: Account, _context: Context, statement: Statement) -> Rows:
    properties = account.require(INTEGRATION, statement.name).properties
    rows = PropertyRows()
    rows.add("ENABLED", "Boolean", properties["ENABLED"], "false")
    rows.add("CATALOG_SOURCE", "String", properties["CATALOG_SOURCE"])
    rows.add("CATALOG_NAMESPACE", "String", properties["CATALOG_NAMESPACE"])
    rows.add("TABLE_FORMAT", "String", properties["TABLE_FORMAT"])
    rows.add("REFRESH_INTERVAL_SECONDS", "Integer", properties["REFRESH_INTERVAL_SECONDS"], "30")
    if properties["CATALOG_SOURCE"] == "GLUE":
        for name in ("GLUE_AWS_ROLE_ARN", "GLUE_CATALOG_ID", "GLUE_REGION"):
            rows.add(name, "String", properties[name])
        rows.add("GLUE_AWS_IAM_USER_ARN", "String", IAM_USER_ARN)
        rows.add("GLUE_AWS_EXTERNAL_ID", "String", properties["GLUE_AWS_EXTERNAL_ID"])
    else:
        for name in ("REST_CONFIG", "REST_AUTHENTICATION"):
            rows.add(name, "Map", _braced(properties[name]))
        if properties["REST_AUTHENTICATION"]["TYPE"] == "SIGV4":
            rows.add("API_AWS_IAM_USER_ARN", "String", IAM_USER_ARN)
            rows.add("API_AWS_EXTERNAL_ID", "String", properties["EXTERNAL_ID"])
    rows.add("COMMENT", "String", properties["COMMENT"])
    return rows.result()


def _braced(values: Properties) -> str:
    """``{A=x, B=[y, z], C=null}``."""

    def shown(value: object) -> str:
        if value is None:
            return "null"
        return f"[{', '.join(value)}]" if isinstance(value, list) else str(value)

    return "{" + ", ".join(f"{name}={shown(value)}" for name, value in values.items()) + "}"
