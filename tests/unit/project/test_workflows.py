"""The workflows for GitHub Actions: pinned actions, no stored keys, commands that exist.

``actionlint .github/workflows/*.yml`` checks the rest; it is not among the locked packages.
"""

from __future__ import annotations

import io
import re
import runpy
import tarfile
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from repository import PROJECT_ROOT

from topicberg.cli import app
from topicberg.settings import Settings
from topicberg_deploy.graph.definitions import rotation_schedule

WORKFLOWS = sorted((PROJECT_ROOT / ".github" / "workflows").glob("*.yml"))


PLAN = PROJECT_ROOT / ".github" / "workflows" / "platform-plan.yml"
OF_A_REQUEST = ("pull_request", "pull_request_review", "pull_request_review_comment")
"""Events whose workflow is the request's own file."""
_IDENTITY = re.compile(r"vars\.(TOPICBERG_\w*(?:ROLE|SECRET))")


def parsed(path: Path) -> dict[Any, Any]:
    return dict(yaml.safe_load(path.read_text()))


def jobs_of(path: Path) -> list[dict[str, Any]]:
    return list(parsed(path)["jobs"].values())


def steps(path: Path) -> list[dict[str, Any]]:
    return [step for job in jobs_of(path) for step in job["steps"]]


def events(path: Path) -> list[str]:
    return list(parsed(path)[True])  # YAML's `on`


def permissions(path: Path) -> list[dict[str, str]]:
    """Of each job."""
    workflow = parsed(path)
    return [job.get("permissions", workflow["permissions"]) for job in jobs_of(path)]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflow_pins_actions_and_stores_no_key(path: Path) -> None:
    used = [step["uses"] for step in steps(path) if "uses" in step]
    assert used
    assert all(re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", one) for one in used)
    assert "secrets." not in path.read_text()
    for each in permissions(path):
        assert each == {"contents": "read", "id-token": "write"}


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflow_with_an_identity_needs_an_approval(path: Path) -> None:
    """And none whose file is that of a pull request gets one."""
    for job, rights in zip(jobs_of(path), permissions(path), strict=True):
        if rights.get("id-token") == "write" or _IDENTITY.search(str(job)):
            assert job["environment"]
            assert not {*events(path)} & {*OF_A_REQUEST}


def test_plan_runs_the_code_of_the_default_branch_with_specs_as_data() -> None:
    assert events(PLAN) == ["pull_request_target"]
    (job,) = jobs_of(PLAN)
    assert "head.repo.full_name == github.repository" in job["if"]
    for step in job["steps"]:
        if "checkout" in step.get("uses", ""):  # the default branch's, without a token for git
            assert step["with"] == {"persist-credentials": False}
        assert not re.search(r"\bgit\b|gh pr", step.get("run", ""))
    request = [n for n, step in enumerate(job["steps"]) if "pull_request." in str(step)]
    installed = [n for n, step in enumerate(job["steps"]) if "make install" in step.get("run", "")]
    assert len(request) == 1
    assert installed < request
    lines = job["steps"][request[0]]["run"].splitlines()
    assert [line.split()[:2] for line in lines] == [["gh", "api"], [".venv/bin/python", "-I"]]
    assert lines[1].split()[2] == ".github/request_specs.py"
    assert "pull_request" not in str({**job, "steps": [], "if": ""})


def test_workflow_and_schedule_rotate_keys_at_other_minutes() -> None:
    """The later one would find the deployment locked, night after night."""
    workflow = parsed(PROJECT_ROOT / ".github" / "workflows" / "platform.yml")
    (entry,) = workflow[True]["schedule"]  # YAML's `on` is true
    assert entry["cron"] != rotation_schedule(Settings()).cron_schedule


def test_no_two_jobs_share_an_identity() -> None:
    found = {
        job["environment"]: {*_IDENTITY.findall(str(job))}
        for path in WORKFLOWS
        for job in jobs_of(path)
    }
    assert found.keys() == {"platform-plan", "platform", "platform-rotate"}
    assert sum(map(len, found.values())) == len(set().union(*found.values()))
    assert len(found["platform"]) == 4  # also the clients of catalogs
    for name in ("platform-plan", "platform-rotate"):  # also a role of Snowflake's
        assert len(found[name]) == 4


def archive(path: Path, members: dict[str, bytes | tuple[bytes, str]]) -> Path:
    """Write an archive as GitHub's, with one folder in it. A tuple: type of the member, target."""
    with tarfile.open(path, "w:gz") as tar:
        for name, content in members.items():
            member = tarfile.TarInfo(f"owner-repository-0123abc/{name}")
            if isinstance(content, tuple):
                member.type, member.linkname = content
                tar.addfile(member)
            else:
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    return path


def test_request_gives_only_specs_and_schemas(tmp_path: Path) -> None:
    take = runpy.run_path(str(PROJECT_ROOT / ".github" / "request_specs.py"))["take"]
    root = tmp_path / "base"
    before = {
        "platform/topics/removed.yaml": b"base",
        "platform/topics/orders.yaml": b"base",
        "Makefile": b"base",
        ".env": b"secret",
    }
    for name, content in before.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    refused: dict[str, bytes | tuple[bytes, str]] = {
        "platform/topics/link.yaml": (tarfile.SYMTYPE, "../../.env"),
        "platform/topics/hard.yaml": (tarfile.LNKTYPE, ".env"),
        "platform/topics/pipe.yaml": (tarfile.FIFOTYPE, ""),
        "platform/schemas/etc": (tarfile.SYMTYPE, "/etc"),
        "platform/topics/../../Makefile": b"request",
        "platform/schemas/../../.venv/x.json": b"request",
        "platform/topics/sitecustomize.py": b"request",
        "platform/schemas/conftest.py": b"request",
        "platform/topics/sub/deep.yaml": b"request",
    }
    ignored: dict[str, bytes | tuple[bytes, str]] = {
        "Makefile": b"request",
        "assets/pipelines/evil.py": b"request",
        "platform/topicberg/cli/__init__.py": b"request",
        "platform/topics": (tarfile.DIRTYPE, ""),
    }
    taken: dict[str, bytes | tuple[bytes, str]] = {
        "platform/topics/orders.yaml": b"request",
        "platform/schemas/orders.avsc": b"request",
        "platform/schemas/shop/order-v1.proto": b"request",
    }
    tar = archive(tmp_path / "request.tar.gz", {**refused, **ignored, **taken})
    assert set(take(tar, root)) == set(refused)
    assert {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in root.rglob("*")
        if not path.is_dir()
    } == {**taken, "Makefile": b"base", ".env": b"secret"}
    take.__globals__["MAX_BYTES"] = 20
    with pytest.raises(ValueError, match="20 bytes"):
        take(tar, root)
    assert (root / "platform/topics/orders.yaml").read_bytes() == b"request"


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflow_takes_no_input_into_the_shell(path: Path) -> None:
    assert not [step for step in steps(path) if "${{" in step.get("run", "")]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflow_runs_commands_that_exist(path: Path) -> None:
    runs = "\n".join(step.get("run", "") for step in steps(path))
    found = re.findall(r"\.venv/bin/topicberg (\w+) (\w+)((?: --[\w-]+)*)", runs)
    assert found
    groups: Any = typer.main.get_command(app)
    for group, name, options in found:
        command = groups.commands[group].commands[name]
        known = {one for parameter in command.params for one in parameter.opts}
        assert set(options.split()) <= known
