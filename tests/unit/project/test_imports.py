"""What a process does not import, so that it starts fast."""

from __future__ import annotations

import subprocess
import sys

import pytest
from repository import PROJECT_ROOT

HEAVY = {
    *("boto3", "botocore", "confluent_kafka", "dagster", "pyarrow", "pydantic_settings"),
    *("pyiceberg", "pyspark", "requests", "rich"),
}


@pytest.mark.parametrize(
    ("arguments", "also"),
    [
        (["--help"], {"asyncio", "pydantic", "yaml"}),
        (["tableflow", "--help"], set[str]()),  # typer parses the arguments with pydantic
        (["query", "--help"], set[str]()),
    ],
    ids=lambda value: " ".join(sorted(value)),
)
def test_help_of_commands_imports_no_library(arguments: list[str], also: set[str]) -> None:
    """Only what parses and prints: help takes 0.2 s of CPU, and these libraries seconds."""
    code = (
        "import sys\n"
        "from topicberg.cli import app\n"
        f"try: app({arguments!r})\n"
        "except SystemExit as end: assert not end.code\n"
        "print('imported:', *sorted({name.partition('.')[0] for name in sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    *help_text, imported = done.stdout.splitlines()
    assert help_text[0].startswith("Usage: ")
    assert (HEAVY | also) & set(imported.split()[1:]) == set()


@pytest.mark.parametrize(
    ("module", "command"),
    [("topicberg_deploy.cli.output", "deploy"), ("topicberg_local.cli.stack", "up")],
)
def test_module_of_commands_that_is_imported_first_leaves_the_commands(
    module: str, command: str
) -> None:
    code = f"import {module}; from topicberg.cli import app; app(['{command}', '--help'])"
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.stdout.startswith("Usage: "), done.stderr


def test_definitions_import_no_database_library() -> None:
    """Dagster's storage needs it, in the processes that have a storage; definitions do not."""
    code = (
        "import sys, definitions\n"
        "print([name for name in ('sqlalchemy', 'alembic') if name in sys.modules])"
    )
    command = [sys.executable, "-W", "ignore", "-c", code]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=PROJECT_ROOT)
    assert done.stdout.splitlines()[-1] == "[]"


def test_worker_imports_at_most_18_000_lines_of_topicberg() -> None:
    """Each process that decodes, and each worker of Spark, loads them before its first batch."""
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "import topicberg.tableflow.decode.decoding_process\n"
        "loaded = [m for n, m in sys.modules.items() if n.partition('.')[0] == 'topicberg']\n"
        "print(sum(Path(m.__file__).read_text().count('\\n') for m in loaded))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert int(done.stdout) <= 18_000
