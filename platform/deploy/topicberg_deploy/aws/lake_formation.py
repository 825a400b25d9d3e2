"""AWS Lake Formation: what has to be granted where it governs the Glue catalog.

An account whose data lake settings give new databases and tables no ``IAM_ALLOWED_PRINCIPALS``
needs grants besides IAM policies. A data lake administrator makes them; `topicberg deploy` prints
the commands that are missing, since it does not grant itself access to data.

https://docs.aws.amazon.com/lake-formation/latest/dg/change-settings.html
https://docs.aws.amazon.com/lake-formation/latest/dg/lf-permissions-reference.html
"""

from __future__ import annotations

import json
import logging
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from botocore.exceptions import ClientError

from topicberg.errors import TopicbergError
from topicberg.errors.meaning import means
from topicberg.errors.table import DENIED
from topicberg_deploy.aws.glue import pipelines
from topicberg_deploy.aws.iam import Document, caller
from topicberg_deploy.context import CLUSTER, DeployContext

logger = logging.getLogger(__name__)
EVERYONE_BY_IAM = "IAM_ALLOWED_PRINCIPALS"
_DEFAULTS = ("CreateDatabaseDefaultPermissions", "CreateTableDefaultPermissions")


@dataclass(frozen=True)
class LakeGrant:
    """
    :param principal: ARN of a user or role
    :param resource: as Lake Formation's API has it
    """

    principal: str
    permissions: tuple[str, ...]
    resource: Document

    def command(self) -> str:
        """Return the command line that makes the grant."""
        principal = f"DataLakePrincipalIdentifier={self.principal}"
        words = ["aws", "lakeformation", "grant-permissions", "--principal", principal]
        resource = json.dumps(self.resource)
        return shlex.join([*words, "--permissions", *self.permissions, "--resource", resource])


@dataclass(frozen=True)
class DataLake:
    """What Lake Formation says of the account.

    :param is_governed: grants are needed for new databases and tables
    :param admins: ARNs of its administrators, who may create databases without a grant
    :param locations: ARNs of registered buckets and folders
    :param held: the grants that exist, as its API lists them
    """

    is_governed: bool
    admins: frozenset[str] = frozenset()
    locations: frozenset[str] = frozenset()
    held: tuple[Document, ...] = ()

    def holds(self, grant: LakeGrant) -> bool:
        wanted = _plain(grant.resource)
        permissions = {
            permission
            for one in self.held
            if one["Principal"]["DataLakePrincipalIdentifier"] == grant.principal
            and _plain(one["Resource"]) == wanted
            for permission in one["Permissions"]
        }
        return "ALL" in permissions or permissions.issuperset(grant.permissions)


def read_data_lake(context: DeployContext) -> DataLake:
    """Return the settings; an account whose settings may not be read counts as not governed."""
    client = context.aws.client("lakeformation")
    try:
        settings = client.get_data_lake_settings()["DataLakeSettings"]
        if not _governs(settings):
            return DataLake(is_governed=False)
        locations = client.list_resources().get("ResourceInfoList", [])
        admins = settings.get("DataLakeAdmins", [])
        return DataLake(
            is_governed=True,
            admins=frozenset(admin["DataLakePrincipalIdentifier"] for admin in admins),
            locations=frozenset(location["ResourceArn"] for location in locations),
            held=tuple(_permissions(client)),
        )
    except ClientError as error:
        if not means(error, DENIED):
            raise
        logger.info("the settings of AWS Lake Formation cannot be read: %s", error)
        return DataLake(is_governed=False)


def _governs(settings: Document) -> bool:
    """Return whether IAM alone does not let principals use new databases or new tables."""
    return not all(
        any(
            permission["Principal"]["DataLakePrincipalIdentifier"] == EVERYONE_BY_IAM
            and "ALL" in permission["Permissions"]
            for permission in settings.get(name, [])
        )
        for name in _DEFAULTS
    )


def _permissions(client: Any) -> Iterator[Document]:
    more: dict[str, str] = {}
    while True:
        answer = client.list_permissions(**more)
        yield from answer.get("PrincipalResourcePermissions", [])
        if not answer.get("NextToken"):
            return
        more = {"NextToken": answer["NextToken"]}


def _plain(resource: Document) -> Document:
    """Return a resource as it is granted: lists have the catalog's id, and of all tables a name."""
    plain: Document = {}
    for kind, parts in resource.items():
        named = {name: value for name, value in parts.items() if name != "CatalogId"}
        if "TableWildcard" in named or "ColumnWildcard" in named:
            kind = "Table"
            named.pop("ColumnWildcard", None)
            if "TableWildcard" in named or named.get("Name") == "ALL_TABLES":
                named = {"DatabaseName": named["DatabaseName"], "TableWildcard": {}}
        plain[kind] = named
    return plain


def check_deployer(context: DeployContext) -> None:
    """:raises TopicbergError: who deploys may not create a database, with the grant"""
    lake = read_data_lake(context)
    if not lake.is_governed:
        return
    deployer = caller(context)
    grant = LakeGrant(deployer, ("CREATE_DATABASE",), {"Catalog": {}})
    if deployer not in lake.admins and not lake.holds(grant):
        raise TopicbergError(
            f"AWS Lake Formation governs the catalog, and {deployer} may not create a database; a "
            f"data lake administrator runs: {grant.command()}"
        )


def manual_steps(context: DeployContext) -> list[str]:
    """Return the commands of the grants that are missing for what exists; empty: none is. There are
    more after `create`, since a grant names a role and a database that exist.
    """
    lake = read_data_lake(context)
    wanted = _wanted(context, lake) if lake.is_governed else ()
    return [grant.command() for grant in wanted if not lake.holds(grant)]


def _wanted(context: DeployContext, lake: DataLake) -> Iterator[LakeGrant]:
    """Yield the grants of the roles and databases that exist."""
    config, names = context.config, context.names
    derived = [
        names.namespace(pipeline)
        for pipeline in pipelines(context.specs)
        if f"aws/pipeline_database/{pipeline}" in context.live
    ]
    topics = [context.namespace] if {"aws/glue_database", CLUSTER} <= context.live.keys() else []
    roles = {
        kind: context.aws.role_arn(given or own)
        for kind, given, own in (
            ("tableflow", config.iam.tableflow_role_arn, names.tableflow_role),
            ("snowflake", config.iam.snowflake_role_arn, names.snowflake_role),
            ("emr", config.iam.emr_role_arn, names.emr_role),
        )
        if f"aws/role/{kind}" in context.live
    }
    for database in topics:
        if role := roles.get("tableflow"):
            yield LakeGrant(role, ("CREATE_TABLE", "DESCRIBE"), _database(database))
        if role := roles.get("emr"):
            yield from _reads(role, database)
    needed = ("DESCRIBE",) if context.only_plans else ("DESCRIBE", "DROP")
    for database in (*topics, *derived):
        # Who creates a database has no permissions on tables that others create in it: without
        # these, `plan` takes the topics' tables for missing, and `delete` leaves them.
        # https://docs.aws.amazon.com/lake-formation/latest/dg/implicit-permissions.html
        yield LakeGrant(caller(context), needed, _tables(database))
        if role := roles.get("snowflake"):
            yield from _reads(role, database)
    for database in derived:
        if role := roles.get("emr"):
            yield LakeGrant(role, ("CREATE_TABLE", "DESCRIBE"), _database(database))
            yield LakeGrant(role, ("ALL",), _tables(database))
    for kind, bucket in (("tableflow", context.aws.bucket), ("emr", context.aws.derived_bucket)):
        # A table in a registered location needs a grant on it, besides the policy on S3.
        for location in sorted(lake.locations):
            name = location.removeprefix("arn:aws:s3:::").partition("/")[0]
            if name == bucket and kind in roles:
                resource = {"DataLocation": {"ResourceArn": location}}
                yield LakeGrant(roles[kind], ("DATA_LOCATION_ACCESS",), resource)


def _reads(role: str, database: str) -> Iterator[LakeGrant]:
    yield LakeGrant(role, ("DESCRIBE",), _database(database))
    yield LakeGrant(role, ("SELECT", "DESCRIBE"), _tables(database))


def _database(name: str) -> Document:
    return {"Database": {"Name": name}}


def _tables(database: str) -> Document:
    return {"Table": {"DatabaseName": database, "TableWildcard": {}}}
