"""Which statements the emulator answers itself, and by which function."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from functools import partial

from topicberg_local.emulators.snowflake import (
    databases,
    integrations,
    linked,
    login_policies,
    privileges,
    roles,
    table_views,
    tables,
    tags,
    users,
    volumes,
)
from topicberg_local.emulators.snowflake.account import (
    ACCOUNT,
    AUTHENTICATION_POLICY,
    ENDPOINT,
    TABLE,
    USER,
    Account,
    Context,
    create_object,
    drop_object,
    resolve,
    set_properties,
)
from topicberg_local.emulators.snowflake.errors import invalid_request, unsupported
from topicberg_local.emulators.snowflake.results import Rows
from topicberg_local.emulators.snowflake.sql import (
    Kind,
    Name,
    Statement,
    Stream,
    parse_object_statement,
    read_name,
)
from topicberg_local.emulators.store import Stored

Command = Callable[[Account, Context, Statement], Rows]

KINDS: tuple[Kind, ...] = (
    volumes.VOLUME_KIND,
    integrations.INTEGRATION_KIND,
    tables.TABLE_KIND,
    databases.DATABASE_KIND,
    databases.SCHEMA_KIND,
    login_policies.POLICY_KIND,
    users.USER_KIND,
    roles.ROLE_KIND,
    roles.WAREHOUSE_KIND,
    tags.TAG_KIND,
    login_policies.AUTHENTICATION_KIND,
    table_views.ALL_TABLES_KIND,
)

COMMANDS: dict[tuple[str, str], Command] = {
    ("CREATE", "EXTERNAL VOLUME"): volumes.create_volume,
    ("ALTER", "EXTERNAL VOLUME"): set_properties,
    ("DROP", "EXTERNAL VOLUME"): drop_object,
    ("SHOW", "EXTERNAL VOLUME"): volumes.show_volumes,
    ("DESCRIBE", "EXTERNAL VOLUME"): volumes.describe_volume,
    ("CREATE", "CATALOG INTEGRATION"): integrations.create_integration,
    ("ALTER", "CATALOG INTEGRATION"): integrations.alter_integration,
    ("DROP", "CATALOG INTEGRATION"): drop_object,
    ("DESCRIBE", "CATALOG INTEGRATION"): integrations.describe_integration,
    ("CREATE", "ICEBERG TABLE"): tables.create_table,
    ("ALTER", "ICEBERG TABLE"): tables.alter_table,
    ("DROP", "ICEBERG TABLE"): tables.drop_table,
    ("SHOW", "ICEBERG TABLE"): table_views.show_tables,
    ("DESCRIBE", "ICEBERG TABLE"): table_views.describe_table,
    ("CREATE", "DATABASE"): databases.create_database,
    ("ALTER", "DATABASE"): linked.alter_database,
    ("DROP", "DATABASE"): databases.drop_database,
    ("SHOW", "DATABASE"): databases.show_databases,
    ("CREATE", "SCHEMA"): databases.create_schema,
    ("DROP", "SCHEMA"): databases.drop_schema,
    ("SHOW", "SCHEMA"): databases.show_schemas,
    ("CREATE", "USER"): users.create_user,
    ("ALTER", "USER"): users.alter_user,
    ("DROP", "USER"): drop_object,
    ("DESCRIBE", "USER"): users.describe_user,
    ("CREATE", "ROLE"): roles.create_role,
    ("ALTER", "ROLE"): set_properties,
    ("DROP", "ROLE"): drop_object,
    ("SHOW", "ROLE"): roles.show_roles,
    ("CREATE", "WAREHOUSE"): roles.create_warehouse,
    ("ALTER", "WAREHOUSE"): set_properties,
    ("DROP", "WAREHOUSE"): roles.drop_warehouse,
    ("SHOW", "WAREHOUSE"): roles.show_warehouses,
    ("CREATE", "NETWORK POLICY"): create_object,
    ("ALTER", "NETWORK POLICY"): set_properties,
    ("DROP", "NETWORK POLICY"): login_policies.drop_network_policy,
    ("SHOW", "NETWORK POLICY"): login_policies.show_network_policies,
    ("DESCRIBE", "NETWORK POLICY"): login_policies.describe_network_policy,
    ("ALTER", ACCOUNT): login_policies.alter_account,
    ("SHOW", "PARAMETER"): login_policies.show_parameter,
    ("CREATE", AUTHENTICATION_POLICY): create_object,
    (login_policies.SET, ACCOUNT): login_policies.set_authentication_policy,
    (login_policies.SET, USER): login_policies.set_authentication_policy,
    ("CREATE", "TAG"): create_object,
    ("DROP", "TAG"): tags.drop_tag,
    **{(tags.SET, kind): tags.change_tags for kind in tags.KINDS},
    ("SHOW", "TABLE"): table_views.show_all_tables,
    ("GRANT", "GRANT"): roles.grant,
    ("REVOKE", "GRANT"): roles.revoke,
    ("SHOW", "GRANT"): roles.show_grants,
    **{
        ("USE", kind): roles.use
        for kind in ("ROLE", "SECONDARY ROLES", "WAREHOUSE", "DATABASE", "SCHEMA")
    },
}

SYSTEM_FUNCTIONS: dict[str, Callable[[Account, Context, Name], str]] = {
    "SYSTEM$VERIFY_EXTERNAL_VOLUME": volumes.verify_volume,
    "SYSTEM$VERIFY_CATALOG_INTEGRATION": integrations.verify_integration,
    "SYSTEM$GET_ICEBERG_TABLE_INFORMATION": table_views.table_information,
    "SYSTEM$AUTO_REFRESH_STATUS": table_views.auto_refresh_information,
    "SYSTEM$CATALOG_LINK_STATUS": linked.link_status,
    "SYSTEM$GET_CATALOG_LINKED_DATABASE_CONFIG": linked.link_config,
}


def parse(sql: str) -> Statement | None:
    """A statement that is ours, or None; raises ProgrammingError: it is ours and wrong."""
    readers: tuple[Callable[[Stream], Statement | None], ...] = (
        roles.parse_grant,
        roles.parse_show_grants,
        roles.parse_use,
        login_policies.parse_authentication_policy,
        login_policies.parse_alter_account,
        login_policies.parse_show_parameters,
        tags.parse_alter,
        partial(parse_object_statement, kinds=KINDS),
    )
    for read in readers:
        stream = Stream(sql)
        if (statement := read(stream)) is not None:
            stream.end()
            return statement
    return None


def run(account: Account, context: Context, statement: Statement) -> Rows:
    """:raises ProgrammingError: it fails, or the session's role may not do it"""
    if statement.kind == TABLE and statement.name and statement.verb != "CREATE":
        name = resolve(statement.name, context, f"{statement.verb} {TABLE}")
        statement.name = account.canonical(name)
    privileges.check(account, context, statement)
    rows = COMMANDS[statement.verb, statement.kind](account, context, statement)
    if account.documented_names and statement.verb == "DESCRIBE":
        return _as_documented(rows)
    return rows


def _as_documented(rows: Rows) -> Rows:
    """Return the rows of a DESCRIBE with the names of Snowflake's documents.

    Properties of volumes and integrations are in lower case there, and a user's values are in
    ``property_value``.
    https://docs.snowflake.com/en/sql-reference/sql/desc-user,
    https://docs.snowflake.com/en/sql-reference/sql/desc-external-volume and
    https://docs.snowflake.com/en/sql-reference/sql/desc-catalog-integration
    """
    names = [column["name"] for column in rows.columns]
    if "property" not in names:
        return rows
    if "value" in names:
        renamed = {"value": "property_value", "default": "property_default"}
        return Rows.of([renamed.get(name, name) for name in names], rows.rows)
    index = names.index("property")
    lowered = [[*row[:index], str(row[index]).lower(), *row[index + 1 :]] for row in rows.rows]
    return Rows.of(names, lowered)


_PROVISION = "SYSTEM$PROVISION_PRIVATELINK_ENDPOINT"


def _provision(account: Account, context: Context, stream: Stream) -> str:
    """``SYSTEM$PROVISION_PRIVATELINK_ENDPOINT('service', 'host')``: in Snowflake's network; such
    endpoints reach what the local stack has.

    https://docs.snowflake.com/en/user-guide/private-manage-endpoints-aws

    :raises ProgrammingError: the role may not, the arguments are wrong, or the endpoint exists
    """
    texts = stream.many(stream.string)
    if context.role != "ACCOUNTADMIN":
        raise invalid_request(f"{_PROVISION} needs the role ACCOUNTADMIN.")
    if len(texts) != 2 or not texts[0].startswith("com.amazonaws."):
        raise invalid_request(f"{_PROVISION} needs a service of AWS and a host.")
    service, host = texts
    if host.endswith(".amazonaws.com") and ".s3." in host and not host.startswith("*."):
        raise invalid_request("The host of Amazon S3 must begin with a wildcard.")
    with account.store.lock:
        if account.store.get(ENDPOINT, (host,)) is not None:
            raise invalid_request(f"There is an endpoint for {host}.")
        account.store.put(Stored(ENDPOINT, (host,), {"SERVICE": service}))
    return json.dumps({"resourceId": f"vpce-{uuid.uuid4().hex[:17]}", "endpointHost": host})


def call_system_function(
    account: Account, context: Context, sql: str
) -> tuple[str, str | None] | None:
    """``SELECT SYSTEM$…('name')``: the column's name and the answer; None: another statement."""
    stream = Stream(sql)
    if not stream.take("SELECT") or not stream.peek().value.startswith("SYSTEM$"):
        return None
    start, function = stream.peek().start, stream.word()
    calls: dict[str, Callable[[Account, Context, Stream], str | None]] = {
        "SYSTEM$GET_TAG": tags.call_get_tag,
        _PROVISION: _provision,
    }
    if function not in calls and function not in SYSTEM_FUNCTIONS:
        raise unsupported(f"the function {function}")
    stream.expect("(")
    value: str | None
    if function in calls:
        value = calls[function](account, context, stream)
    else:
        name = read_name(stream.string(), 3)
        value = SYSTEM_FUNCTIONS[function](account, context, name)
    stream.expect(")")
    end = stream.peek(-1).start + 1
    column = sql[start:end].upper()
    if stream.take("AS") or stream.peek().kind in ("word", "quoted"):
        column = stream.identifier()
    stream.end()
    return column, value
