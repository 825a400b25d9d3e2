"""``topicberg deploy bootstrap-…``: what an operator creates once, before the first deployment."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from topicberg.cli.output import echo, echo_json, load_endpoints, settings, warn
from topicberg.errors import TopicbergError

if TYPE_CHECKING:
    from topicberg.settings import Settings
    from topicberg_deploy.snowflake.bootstrap import Admin


def bootstrap_snowflake(
    account: Annotated[str, typer.Argument(help="of Snowflake: ORGANIZATION-ACCOUNT")],
    user: Annotated[str, typer.Option("--user", help="of topicberg deploy")] = "TOPICBERG_ADMIN",
    secret: Annotated[
        str | None, typer.Option("--secret", help="Secrets Manager secret for its key pair")
    ] = None,
    role: Annotated[
        str | None,
        typer.Option(
            "--role",
            help="a role of its own that is created, with the least that it needs of the account, "
            "in place of ACCOUNTADMIN, SECURITYADMIN and SYSADMIN",
        ),
    ] = None,
    authentication_policy: Annotated[
        str | None,
        typer.Option(
            "--authentication-policy",
            metavar="DB.SCHEMA.NAME",
            help="a policy that is created and set on the user, and lets it log in by key pair, "
            "where that of the account does not",
        ),
    ] = None,
    run_as: Annotated[
        str | None, typer.Option("--run-as", help="log in as this user, and run the statements")
    ] = None,
    browser: Annotated[
        bool, typer.Option("--browser", help="--run-as logs in through the browser (SSO)")
    ] = False,
    profile: Annotated[str | None, typer.Option("--profile", help="AWS profile")] = None,
) -> None:
    """Create the key pair of Snowflake's admin user, and print the SQL that creates the user.

    A user with ACCOUNTADMIN runs that SQL once, in Snowsight; or --run-as runs it. The private key
    is stored in Secrets Manager only. Run it again at any time: nothing is created twice.
    """
    from botocore.exceptions import BotoCoreError, ClientError

    from topicberg.clients.secrets import Secrets
    from topicberg.settings import Settings
    from topicberg_deploy.snowflake import bootstrap

    if not re.fullmatch(r"[A-Za-z0-9_.-]+", account):
        raise TopicbergError(
            f"account {account!r}: expected ORGANIZATION-ACCOUNT, e.g. MYORG-AB12345",
            hint="run SELECT CURRENT_ORGANIZATION_NAME() || '-' || CURRENT_ACCOUNT_NAME()",
        )
    if role is not None and not re.fullmatch(r"[A-Z_][A-Z0-9_$]*", role):
        raise TopicbergError(
            f"role {role!r}: expected capital letters, digits and _, e.g. TOPICBERG_DEPLOYER",
            hint="write it as Snowflake shows it",
        )
    if authentication_policy and not re.fullmatch(r"\w+\.\w+\.\w+", authentication_policy):
        raise TopicbergError(
            f"--authentication-policy {authentication_policy!r}: expected DATABASE.SCHEMA.NAME",
            hint="name a schema that exists",
        )
    config, path = Settings(), secret or bootstrap.SECRET
    try:
        admin = bootstrap.ensure_secret(Secrets(_client(config, profile)), path, account, user)
    except (BotoCoreError, ClientError) as error:
        raise TopicbergError(
            f"AWS Secrets Manager, secret {path}: {error}",
            hint="log in to AWS (`aws sso login`) as a user who may manage this secret",
        ) from None
    admin = replace(admin, role=role, policy=authentication_policy)
    echo(f"secret {path} has the key pair of {user}", err=True)
    if run_as is None:
        echo("run this as ACCOUNTADMIN:", err=True)
        echo("".join(f"{statement};\n" for statement in admin.statements()))
    else:
        _run(config, admin, run_as, browser=browser)
        echo(f"{user} exists in {account}", err=True)
    echo(f"then: export TOPICBERG_ADMIN_USER_SECRETS_ROOT_PATH={path}", err=True)
    if role:
        echo(f"      export TOPICBERG_SNOWFLAKE_OWNER_ROLE={role}", err=True)


def bootstrap_ci(
    repository: Annotated[str, typer.Argument(help="of GitHub: OWNER/NAME")],
    owner_id: Annotated[
        int | None, typer.Option("--owner-id", help="number of the owner; see GitHub's API")
    ] = None,
    repository_id: Annotated[
        int | None, typer.Option("--repository-id", help="number of the repository")
    ] = None,
    names_only: Annotated[
        bool,
        typer.Option(
            "--names-only",
            help="the subject of the repository's tokens has no numbers, as before July 15, 2026",
        ),
    ] = False,
    secrets: Annotated[
        list[str] | None,
        typer.Option(
            "--secret", help="Secrets Manager secret with a login to a vendor; may be repeated"
        ),
    ] = None,
    account: Annotated[
        str | None, typer.Option("--account", help="of AWS; by default that of the login")
    ] = None,
    profile: Annotated[str | None, typer.Option("--profile", help="AWS profile")] = None,
) -> None:
    """Print the roles of GitHub Actions as JSON: trust policy and policies of each purpose.

    There is one role to plan, one to deploy and one to rotate. Nothing is created.
    """
    from topicberg.topics import load_topics
    from topicberg_deploy import ci
    from topicberg_deploy.aws.permissions import Deployed

    of = ci.parse_repository(repository, owner_id, repository_id, names_only=names_only)
    config = settings()
    number = account or str(_client(config, profile, "sts").get_caller_identity()["Account"])
    where = Deployed(config, number, tuple(load_topics(config)), tuple(secrets or ()))
    if config.iam.permissions_boundary_arn is None:
        warn(
            "warning: without TOPICBERG_IAM__PERMISSIONS_BOUNDARY_ARN, the role that deploys is an "
            "administrator of the account, since it writes and attaches policies"
        )
    echo_json(ci.identities(of, where))


def _client(config: Settings, profile: str | None, service: str = "secretsmanager") -> Any:
    if config.deployment == "local":
        return load_endpoints(config).boto3(service, config)
    from topicberg.clients.aws import aws_session

    return aws_session(profile_name=profile, region_name=config.aws_region).client(service)


def _run(config: Settings, admin: Admin, run_as: str, *, browser: bool) -> None:
    """:raises TopicbergError: the login fails, or a statement is refused"""
    import snowflake.connector
    from snowflake.connector.errors import Error

    from topicberg.endpoints.cloud import Addresses
    from topicberg_deploy.snowflake_account import address

    login = {"authenticator": "externalbrowser"}
    if not browser:
        login = {"password": typer.prompt(f"password of {run_as}", hide_input=True, err=True)}
    try:
        with snowflake.connector.connect(
            account=admin.account,
            user=run_as,
            **login,
            **address(config, Addresses().snowflake_address()),
        ) as connection:
            for statement in admin.statements():
                connection.cursor().execute(statement)
    except Error as error:
        raise TopicbergError(
            f"Snowflake account {admin.account}, as {run_as}: {error.msg}",
            hint=f"log in as a user who has the role ACCOUNTADMIN; {admin.user} may be incomplete, "
            "and the command can be run again",
        ) from None
