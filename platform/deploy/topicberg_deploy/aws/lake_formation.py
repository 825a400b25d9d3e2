"""AWS Lake Formation: what has to be granted where it governs the Glue catalog.

An account whose data lake settings give new databases and tables no ``IAM_ALLOWED_PRINCIPALS``
needs grants besides IAM policies. A data lake administrator makes them; `topicberg deploy` prints
the commands that are missing, since it does not grant itself access to data. A database that exists
has defaults of its own, which decide about the tables in it.

Lake Formation shows a login only permissions that it has itself, so a grant that is not shown may
exist: what is found here is a warning.

https://docs.aws.amazon.com/lake-formation/latest/dg/change-settings.html
https://docs.aws.amazon.com/lake-formation/latest/APIReference/API_ListPermissions.html
https://docs.aws.amazon.com/lake-formation/latest/dg/lf-permissions-reference.html
"""

from __future__ import annotations

import json
import logging
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from botocore.exceptions import ClientError

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
        return "aws lakeformation grant-permissions " + shlex.join(
            [
                *("--principal", f"DataLakePrincipalIdentifier={self.principal}"),
                *("--permissions", *self.permissions, "--resource", json.dumps(self.resource)),
            ]
        )


@dataclass(frozen=True)
class DataLake:
    """What Lake Formation says of the account.

    :param is_governed: grants are needed for new databases and tables
    :param admins: ARNs of its administrators, who may create databases without a grant
    :param locations: ARNs of registered buckets and folders
    """

    is_governed: bool
    admins: frozenset[str] = frozenset()
    locations: frozenset[str] = frozenset()


def read_data_lake(context: DeployContext) -> DataLake:
    """Return the settings; an account whose settings may not be read counts as not governed."""
    client = context.aws.client("lakeformation")
    try:
        settings = client.get_data_lake_settings()["DataLakeSettings"]
        locations = [*_every(client.list_resources, "ResourceInfoList")]
    except ClientError as error:
        if not means(error, DENIED):
            raise
        logger.info("the settings of AWS Lake Formation cannot be read: %s", error)
        return DataLake(is_governed=False)
    return DataLake(
        is_governed=not all(_leaves_to_iam(settings.get(name, [])) for name in _DEFAULTS),
        admins=frozenset(
            admin["DataLakePrincipalIdentifier"] for admin in settings.get("DataLakeAdmins", [])
        ),
        locations=frozenset(location["ResourceArn"] for location in locations),
    )


def _leaves_to_iam(defaults: list[Document]) -> bool:
    """Return whether IAM alone decides about what gets these permissions when it is created."""
    return any(
        permission["Principal"]["DataLakePrincipalIdentifier"] == EVERYONE_BY_IAM
        and "ALL" in permission["Permissions"]
        for permission in defaults
    )


def is_proved(context: DeployContext, grant: LakeGrant) -> bool:
    """Return whether Lake Formation shows that a principal has these permissions.

    Asked about one principal and one resource, it answers what applies in effect, by groups and
    LF-tags too, in the resource's terms. Permissions on some columns only do not suffice.
    """
    ask, permissions = context.aws.client("lakeformation").list_permissions, set[str]()
    try:
        for principal in (grant.principal, EVERYONE_BY_IAM):
            for shown in _every(
                ask,
                "PrincipalResourcePermissions",
                Principal={"DataLakePrincipalIdentifier": principal},
                Resource=grant.resource,
            ):
                of = shown["Resource"].get("TableWithColumns", {})
                all_but = of.get("ColumnWildcard", {}).get("ExcludedColumnNames")
                if not (of.get("ColumnNames") or all_but or "DataCellsFilter" in shown["Resource"]):
                    permissions.update(shown["Permissions"])
    except ClientError as error:
        if not means(error, DENIED):
            raise
    return "ALL" in permissions or permissions.issuperset(grant.permissions)


def _every(ask: Callable[..., Document], field: str, **about: Any) -> Iterator[Document]:
    """Yield what all pages of an answer list: boto3 has no paginators of Lake Formation."""
    answer = ask(**about)
    yield from answer.get(field, [])
    if answer.get("NextToken"):
        yield from _every(ask, field, **{**about, "NextToken": answer["NextToken"]})


def check_deployer(context: DeployContext) -> None:
    """Warn if it is not proved that who deploys may create a database, with the grant."""
    lake = read_data_lake(context)
    if not lake.is_governed:
        return
    deployer = caller(context)
    grant = LakeGrant(deployer, ("CREATE_DATABASE",), {"Catalog": {}})
    if deployer not in lake.admins and not is_proved(context, grant):
        logger.warning(
            "AWS Lake Formation governs the catalog, and does not show whether %s may create a "
            "database. If it may not, `create` stops at the first one; a data lake administrator "
            "runs: %s",
            deployer,
            grant.command(),
        )


def manual_steps(context: DeployContext) -> list[str]:
    """Return the commands of the grants that are not shown for what exists; empty: all are. There
    are more after `create`, since a grant names a role and a database that exist.
    """
    wanted = _wanted(context, read_data_lake(context))
    return [grant.command() for grant in wanted if not is_proved(context, grant)]


def _is_governed(context: DeployContext, lake: DataLake, key: str) -> bool:
    """Return whether the database of a resource exists, and IAM alone does not decide about it."""
    live = context.live.get(key)
    own = live.facts.get("table_defaults") if live else None
    return live is not None and (lake.is_governed if own is None else not _leaves_to_iam(own))


def _wanted(context: DeployContext, lake: DataLake) -> Iterator[LakeGrant]:
    """Yield the grants of the roles and databases that exist."""
    config, names = context.config, context.names
    derived = [
        names.namespace(pipeline)
        for pipeline in pipelines(context.specs)
        if _is_governed(context, lake, f"aws/pipeline_database/{pipeline}")
    ]
    of_topics = CLUSTER in context.live and _is_governed(context, lake, "aws/glue_database")
    topics = [context.namespace] if of_topics else []
    if not (lake.is_governed or topics or derived):
        return
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
    deployer = caller(context) if topics or derived else ""
    for database in (*topics, *derived):
        # Who creates a database has no permissions on tables that others create in it: without
        # these, `plan` takes the topics' tables for missing, and `delete` leaves them.
        # https://docs.aws.amazon.com/lake-formation/latest/dg/implicit-permissions.html
        yield LakeGrant(deployer, needed, _tables(database))
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
