"""Check the log-ins of all accounts before anything changes, and report all problems at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from botocore.exceptions import BotoCoreError, ClientError

from topicberg.clients.aws import login_hint
from topicberg.deploy.confluent.organization import organization
from topicberg.deploy.snowflake.session import role_problems
from topicberg.errors import TopicbergError

if TYPE_CHECKING:
    from topicberg.deploy.context import DeployContext


def check(context: DeployContext) -> None:
    """
    :raises TopicbergError: names every account that does not let us in
    """
    from snowflake.connector.errors import Error as SnowflakeError

    requests: list[tuple[str, Callable[[], object]]] = [
        ("Confluent Cloud", lambda: organization(context.cloud)),
        ("AWS", lambda: context.account),
        ("Snowflake's admin user", lambda: _take_roles(context)),
    ]
    problems = []
    hint = "see docs/cloud.md for what each account needs"
    for name, ask in requests:
        try:
            ask()
        except TopicbergError as error:
            problems.append(f"{name}: {error.message}")
        except (BotoCoreError, ClientError) as error:
            problems.append(f"{name}: {error}")
            hint = login_hint(error, context.deploy.profile) or hint
        except SnowflakeError as error:  # e.g. a network policy, before anything costs money
            problems.append(f"{name} cannot log in: {error.msg}")
    if problems:
        raise TopicbergError(
            "nothing was changed, because:\n  " + "\n  ".join(problems),
            hint=hint,
        )


def _take_roles(context: DeployContext) -> None:
    if problems := role_problems(context):
        raise TopicbergError("; ".join(problems))
