"""The identities of GitHub Actions in AWS: one role for each purpose, with the least it needs.

A job shows AWS a token of GitHub's whose subject names the repository and the environment of the
job. Repositories that were created, renamed or transferred since July 15, 2026 have the ids of
owner and repository in it: a repository of the same name that another owner creates is another
one.

https://github.blog/changelog/2026-04-23-immutable-subject-claims-for-github-actions-oidc-tokens/
https://docs.aws.amazon.com/IAM/latest/UserGuide/id_roles_providers_create_oidc.html
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from topicberg.errors import TopicbergError
from topicberg_deploy.aws.iam import Document, document, split
from topicberg_deploy.aws.permissions import Deployed, Purpose, ci_role, policy

ISSUER = "token.actions.githubusercontent.com"
AUDIENCE = "sts.amazonaws.com"
ENVIRONMENTS: Mapping[Purpose, str] = {
    "plan": "platform-plan",
    "deploy": "platform",
    "rotate": "platform-rotate",
}
"""Environments of the workflows' jobs."""
SESSION_SECONDS: Mapping[Purpose, int] = {"plan": 3600, "deploy": 21600, "rotate": 7200}
"""How long a job may run: nothing renews its session. AWS allows an hour to twelve hours."""
_NAME = re.compile(r"[A-Za-z0-9._-]+")


def parse_repository(
    text: str, owner_id: int | None, repository_id: int | None, *, names_only: bool
) -> str:
    """Return how the subject of a repository's tokens begins.

    :param text: ``owner/name``
    :raises TopicbergError: it is no such text, or an id is missing
    """
    owner, _, name = text.partition("/")
    if not (_NAME.fullmatch(owner) and _NAME.fullmatch(name)):
        raise TopicbergError(
            f"repository {text!r}: expected OWNER/NAME", hint="write it as in its address"
        )
    if names_only:
        return f"repo:{text}"
    if owner_id is None or repository_id is None:
        raise TopicbergError(
            f"repository {text}: the ids of its owner and of itself are missing",
            hint=f"run `gh api repos/{text} --jq '.owner.id, .id'`, and give them with --owner-id "
            "and --repository-id; use --names-only if the subject of its tokens has no ids",
        )
    return f"repo:{owner}@{owner_id}/{name}@{repository_id}"


def trust(repository: str, account: str, environment: str) -> Document:
    """Return who may take the role: jobs of this repository in this environment."""
    return document(
        {
            "Effect": "Allow",
            "Principal": {"Federated": f"arn:aws:iam::{account}:oidc-provider/{ISSUER}"},
            "Action": "sts:AssumeRoleWithWebIdentity",
            "Condition": {
                "StringEquals": {
                    f"{ISSUER}:aud": AUDIENCE,
                    f"{ISSUER}:sub": f"{repository}:environment:{environment}",
                }
            },
        }
    )


def identities(repository: str, of: Deployed) -> dict[Purpose, dict[str, Any]]:
    """Return what each purpose's role is created from, as JSON has it.

    A policy that is longer than AWS allows is several.
    """
    return {
        purpose: {
            "role": ci_role(of, purpose),
            "environment": environment,
            "max_session_seconds": SESSION_SECONDS[purpose],
            "trust": trust(repository, of.account, environment),
            "policies": split(policy(purpose, of)),
        }
        for purpose, environment in ENVIRONMENTS.items()
    }
