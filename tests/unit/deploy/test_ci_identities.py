"""The roles of GitHub Actions: who may take them, and what they may do."""

from __future__ import annotations

import json
from typing import Any

import pytest
from repository import PROJECT_ROOT
from typer.testing import CliRunner
from yaml import safe_load

from topicberg.cli import app
from topicberg.errors import TopicbergError
from topicberg.settings import Settings
from topicberg.topics import load_topics
from topicberg_deploy.aws.iam import MAX_CHARACTERS
from topicberg_deploy.aws.permissions import Deployed, policy
from topicberg_deploy.ci import ENVIRONMENTS, SESSION_SECONDS, identities, parse_repository

ACCOUNT = "123456789012"
SECRETS = ("confluent_login", "/snowflake/admin")
CHANGES = ("Create", "Put", "Delete", "Update", "Attach", "Pass", "Start", "Tag")


def deployed(**changes: Any) -> Deployed:
    config = Settings.model_validate({"deployment": "cloud", "prefix": "demo", **changes})
    return Deployed(config, ACCOUNT, tuple(load_topics(config)), SECRETS)


def actions(document: dict[str, Any]) -> set[str]:
    return {action for statement in document["Statement"] for action in statement["Action"]}


def test_subject_has_the_ids_of_owner_and_repository() -> None:
    repository = parse_repository("octocat/my-repo", 123456, 456789, names_only=False)
    found = identities(repository, deployed())
    conditions = {
        purpose: one["trust"]["Statement"][0]["Condition"]["StringEquals"]
        for purpose, one in found.items()
    }
    for purpose, environment in ENVIRONMENTS.items():
        subject = f"repo:octocat@123456/my-repo@456789:environment:{environment}"
        assert conditions[purpose] == {
            "token.actions.githubusercontent.com:aud": "sts.amazonaws.com",
            "token.actions.githubusercontent.com:sub": subject,
        }


def test_missing_ids_are_an_error_that_says_how_to_find_them() -> None:
    with pytest.raises(TopicbergError, match="the ids of its owner") as caught:
        parse_repository("octocat/my-repo", 1, None, names_only=False)
    assert "gh api repos/octocat/my-repo" in str(caught.value.hint)
    older = parse_repository("octocat/my-repo", None, None, names_only=True)
    assert older == "repo:octocat/my-repo"
    with pytest.raises(TopicbergError, match="expected OWNER/NAME"):
        parse_repository("my-repo", None, None, names_only=True)


def test_no_two_purposes_share_a_role_or_an_environment() -> None:
    found = identities(parse_repository("o/r", 1, 2, names_only=False), deployed()).values()
    for field in ("role", "environment"):
        assert len({one[field] for one in found}) == len(ENVIRONMENTS)


def test_plan_may_change_nothing() -> None:
    assert not [one for one in actions(policy("plan", deployed())) if changes(one)]


def changes(action: str) -> bool:
    return action.partition(":")[2].startswith(CHANGES)


def test_rotate_reaches_secrets_and_the_lock_only() -> None:
    document = policy("rotate", deployed())
    assert {action.partition(":")[0] for action in actions(document)} == {"secretsmanager", "ssm"}
    written = {
        arn
        for statement in document["Statement"]
        if any(changes(action) for action in statement["Action"])
        for arn in (
            [statement["Resource"]]
            if isinstance(statement["Resource"], str)
            else statement["Resource"]
        )
    }
    assert all("demo" in arn for arn in written)


@pytest.mark.parametrize("purpose", ["plan", "deploy", "rotate"])
def test_policies_are_as_short_as_aws_demands(purpose: Any) -> None:
    found = identities(parse_repository("o/r", 1, 2, names_only=False), deployed())
    parts = found[purpose]["policies"]
    assert all(len(json.dumps(one, separators=(",", ":"))) <= MAX_CHARACTERS for one in parts)
    statements = [statement for one in parts for statement in one["Statement"]]
    assert statements == policy(purpose, deployed())["Statement"]


def test_login_of_a_purpose_is_read_and_no_other_secret() -> None:
    (read,) = (
        statement["Resource"]
        for statement in policy("plan", deployed())["Statement"]
        if "secretsmanager:GetSecretValue" in statement["Action"]
    )
    begin = f"arn:aws:secretsmanager:us-east-1:{ACCOUNT}:secret:"
    names = (*SECRETS, "/confluent_cloud_resource/demo/reader/*")
    assert read == [f"{begin}{name}-??????" for name in names]


def test_sessions_last_as_long_as_the_jobs_of_the_workflows() -> None:
    folder = PROJECT_ROOT / ".github" / "workflows"
    jobs = [
        job
        for name in ("platform.yml", "platform-plan.yml")
        for job in safe_load((folder / name).read_text())["jobs"].values()
    ]
    of = {environment: purpose for purpose, environment in ENVIRONMENTS.items()}
    assert {job["environment"] for job in jobs} == of.keys()
    for job in jobs:
        seconds = SESSION_SECONDS[of[job["environment"]]]
        (login,) = [one for one in job["steps"] if "configure-aws" in one.get("uses", "")]
        assert login["with"].get("role-duration-seconds", 3600) == seconds
        assert 60 * job["timeout-minutes"] <= seconds


def test_command_prints_documents_that_aws_takes() -> None:
    command = ["deploy", "bootstrap-ci", "o/r", "--owner-id", "1", "--repository-id", "2"]
    result = CliRunner().invoke(app, [*command, "--account", ACCOUNT, "--secret", "login"])
    assert result.exit_code == 0, result.output
    assert "is an administrator of the account" in result.stderr
    found = json.loads(result.stdout)
    assert found.keys() == ENVIRONMENTS.keys()
    documents = [one for each in found.values() for one in (each["trust"], *each["policies"])]
    assert {one["Version"] for one in documents} == {"2012-10-17"}
