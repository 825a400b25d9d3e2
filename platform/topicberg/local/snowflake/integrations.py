"""Catalog integrations: which Iceberg catalog tells where a table's metadata is.

https://docs.snowflake.com/en/sql-reference/sql/desc-catalog-integration and
https://docs.snowflake.com/en/sql-reference/sql/show-catalog-integrations
"""

from __future__ import annotations

import os
import uuid
from typing import Any

from topicberg.local.snowflake.account import (
    IAM_USER_ARN,
    INTEGRATION,
    Account,
    Context,
    PropertyRows,
    chosen,
    create,
)
from topicberg.local.snowflake.errors import in_use, invalid_option, unsupported
from topicberg.local.snowflake.grammar import Statement
from topicberg.local.snowflake.results import Rows
from topicberg.local.snowflake.tokens import display
from topicberg.local.store import Stored

REFRESH_SECONDS = 30


def create_integration(account: Account, _context: Context, statement: Statement) -> Rows:
    source = statement.properties["CATALOG_SOURCE"]
    if source != "GLUE":
        raise unsupported(f"CREATE CATALOG INTEGRATION … CATALOG_SOURCE = {source}")

    def make(old: Stored | None) -> dict[str, Any]:
        if old is not None:
            _check_unused(account, old)
        return {
            "GLUE_REGION": os.environ.get("AWS_REGION", "us-east-1"),
            "CATALOG_NAMESPACE": "",
            "REFRESH_INTERVAL_SECONDS": REFRESH_SECONDS,
            "COMMENT": "",
            "GLUE_AWS_EXTERNAL_ID": f"LOCAL_SFCRole={uuid.uuid4().hex[:24]}=",
            **statement.properties,
        }

    return create(account, statement, statement.name, make)


def _check_unused(account: Account, integration: Stored) -> None:
    used_by = account.tables_using("CATALOG", integration.name[0])
    if used_by:
        raise in_use("Integration", display(integration.name), used_by)


def alter_integration(account: Account, _context: Context, statement: Statement) -> Rows:
    with account.store.lock:
        if account.store.get(INTEGRATION, statement.name) is None and statement.if_exists:
            return Rows.status("Statement executed successfully.")
        integration = account.require(INTEGRATION, statement.name)
        if "REST_AUTHENTICATION" in statement.properties:
            raise invalid_option(["REST_AUTHENTICATION"])
        integration.properties |= statement.properties
        account.store.put(integration)
    return Rows.status("Statement executed successfully.")


def drop_integration(account: Account, _context: Context, statement: Statement) -> Rows:
    with account.store.lock:
        if account.store.get(INTEGRATION, statement.name) is None and statement.if_exists:
            return Rows.status("Drop statement executed successfully.")
        _check_unused(account, account.require(INTEGRATION, statement.name))
        account.store.delete(INTEGRATION, [statement.name])
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
    rows.add("GLUE_AWS_ROLE_ARN", "String", properties["GLUE_AWS_ROLE_ARN"])
    rows.add("GLUE_CATALOG_ID", "String", properties["GLUE_CATALOG_ID"])
    rows.add("GLUE_REGION", "String", properties["GLUE_REGION"])
    rows.add("GLUE_AWS_IAM_USER_ARN", "String", IAM_USER_ARN)
    rows.add("GLUE_AWS_EXTERNAL_ID", "String", properties["GLUE_AWS_EXTERNAL_ID"])
    rows.add("COMMENT", "String", properties["COMMENT"])
    return rows.result()
