"""Check the log-ins of all accounts before anything changes, and report all problems at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal
from urllib.parse import urlsplit

from botocore.exceptions import BotoCoreError, ClientError

from topicberg.errors import TopicbergError
from topicberg.errors.aws import login_hint
from topicberg_deploy.aws.image import check_image
from topicberg_deploy.aws.lake_formation import check_deployer
from topicberg_deploy.aws.permissions import check_permissions
from topicberg_deploy.confluent.organization import check_given, organization
from topicberg_deploy.context import DeployContext
from topicberg_deploy.settings import check_secrets
from topicberg_deploy.snowflake_account import refusal_hint

PARTITION = "aws"
"""Confluent Cloud and its Tableflow write to buckets of this partition."""


Command = Literal["plan", "create"]
"""Commands that need more than the logins: what exists, and the rights to create the rest."""


def check_confluent(context: DeployContext, before: Command | None) -> None:
    """:raises TopicbergError: the key is refused, or what has to exist does not"""
    organization(context.confluent.cloud)
    if before:  # to delete the rest, it need not exist any more
        check_given(context)


def check_aws(context: DeployContext) -> None:
    """:raises TopicbergError: the account is of another partition"""
    arn = str(context.aws.client("sts").get_caller_identity()["Arn"])
    if (partition := arn.split(":")[1]) != PARTITION:
        raise TopicbergError(
            f"the login {arn} is of the partition {partition}; topicberg supports {PARTITION} only",
            hint="log in to an account of another partition than China's and GovCloud's",
        )


def check_catalog(context: DeployContext) -> None:
    """:raises TopicbergError: the REST catalog is Snowflake Horizon, which looks the same: it is in
    the account itself. Tableflow publishes no tables to it; Snowflake reads those of Tableflow.

    https://docs.confluent.io/cloud/current/topics/tableflow/how-to-guides/catalog-integration/integrate-with-snowflake-horizon-catalog.html
    """
    catalog, uri = context.config.snowflake_catalog, context.deploy.catalog.uri
    if catalog not in ("open_catalog", "iceberg_rest") or uri is None:
        return
    host = (urlsplit(uri).hostname or "").removesuffix(".snowflakecomputing.com")
    own = context.snowflake.identifier.lower().replace("_", "-")
    if own and host.removesuffix(".privatelink") == own:
        raise TopicbergError(
            f"TOPICBERG_CATALOG__URI: {uri} is Snowflake Horizon, the catalog of this account, "
            "to which Tableflow publishes no tables",
            hint="set the address of an Open Catalog account, or let Snowflake read the catalog of "
            'Tableflow: see "Snowflake Horizon" in docs/cloud-tables.md',
        )


def check(context: DeployContext, before: Command | None = None) -> None:
    """:raises TopicbergError: names every account that refuses us, or lacks what is needed"""
    from snowflake.connector.errors import Error as SnowflakeError

    creates = before == "create"  # who plans or rotates may only read, and sends no secrets
    in_cloud = context.config.deployment == "cloud"
    requests: list[tuple[str, bool, Callable[[], object]]] = [
        ("Confluent Cloud", True, lambda: check_confluent(context, before)),
        ("AWS", True, lambda: check_aws(context)),
        ("Snowflake's admin user", True, context.snowflake.take_roles),
        ("Snowflake's REST catalog", before is not None, lambda: check_catalog(context)),
        ("Clients of catalogs", creates, lambda: check_secrets(context.config, context.deploy)),
        ("AWS Lake Formation", creates and in_cloud, lambda: check_deployer(context)),
        ("Amazon ECR", creates and in_cloud, lambda: check_image(context)),
        ("AWS IAM", creates and in_cloud, lambda: check_permissions(context)),
    ]
    problems, hint = [], "see docs/cloud.md for what each account needs"
    for name, ask in ((name, ask) for name, is_due, ask in requests if is_due):
        try:
            ask()
        except TopicbergError as error:
            problems.append(f"{name}: {error.message}")
            hint = error.hint or hint
        except (BotoCoreError, ClientError) as error:
            problems.append(f"{name}: {error}")
            hint = login_hint(error, context.deploy.profile) or hint
        except SnowflakeError as error:  # e.g. a network policy, before anything costs money
            problems.append(f"{name} cannot log in: {error.msg}")
            hint = refusal_hint(str(error.msg), context.snowflake.admin()["user"]) or hint
    if problems:
        raise TopicbergError("nothing was changed, because:\n  " + "\n  ".join(problems), hint=hint)
