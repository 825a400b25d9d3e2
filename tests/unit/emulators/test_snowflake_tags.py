"""Tags in the Snowflake emulator, and as `deploy` sets them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from snowflake.connector.errors import ProgrammingError

from topicberg_local.emulators.snowflake.account import Account, Context
from topicberg_local.emulators.snowflake.session import Session

Run = Callable[..., list[tuple[object, ...]]]
TAG = "gov.tags.cost_center"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    for name in ("TOPICBERG_S3_ENDPOINT", "TOPICBERG_AWS_ENDPOINT"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    account = Account(tmp_path)
    session = Session(account, Context("ROOT", "ACCOUNTADMIN", is_admin=True))

    def run(statement: str, role: str = "ACCOUNTADMIN") -> list[tuple[object, ...]]:
        session.context.role = role
        return [tuple(row) for row in session.execute(statement).payload["rowset"]]

    for statement in ("CREATE DATABASE gov", "CREATE SCHEMA gov.tags", f"CREATE TAG {TAG}"):
        run(statement)
    run("CREATE WAREHOUSE w")
    yield run
    session.close()
    account.close()


def value(run: Run, name: str, domain: str, tag: str = TAG) -> object:
    ((found,),) = run(f"SELECT SYSTEM$GET_TAG('{tag}', '{name}', '{domain}') AS value")
    return found


def test_tag_is_set_changed_and_unset(run: Run) -> None:
    assert value(run, "w", "WAREHOUSE") is None
    run(f"ALTER WAREHOUSE w SET TAG {TAG} = 'data'")
    assert value(run, "w", "warehouse") == "data"
    run(f"ALTER WAREHOUSE w SET TAG {TAG} = 'other'")
    assert value(run, "w", "WAREHOUSE") == "other"
    run(f"ALTER WAREHOUSE w UNSET TAG {TAG}")
    assert value(run, "w", "WAREHOUSE") is None


def test_schema_has_the_tags_of_its_database(run: Run) -> None:
    run(f"ALTER DATABASE gov SET TAG {TAG} = 'data'")
    assert value(run, "gov.tags", "SCHEMA") == "data"
    run(f"ALTER SCHEMA gov.tags SET TAG {TAG} = 'own'")
    assert value(run, "gov.tags", "SCHEMA") == "own"


def test_object_that_is_created_again_has_no_tags(run: Run) -> None:
    run(f"ALTER WAREHOUSE w SET TAG {TAG} = 'data'")
    run("DROP WAREHOUSE w")
    run("CREATE WAREHOUSE w")
    assert value(run, "w", "WAREHOUSE") is None


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("ALTER WAREHOUSE w SET TAG gov.tags.none = 'v'", "does not exist"),
        (f"ALTER WAREHOUSE none SET TAG {TAG} = 'v'", "does not exist"),
        (f"ALTER WAREHOUSE w SET TAG {TAG} = '{'v' * 257}'", "not allowed"),
        ("ALTER WAREHOUSE w SET TAG gov.tags.few = 'c'", "not allowed"),
        (f"ALTER EXTERNAL VOLUME v SET TAG {TAG} = 'v'", "not supported"),
        (f"SELECT SYSTEM$GET_TAG('{TAG}', 'v', 'EXTERNAL VOLUME')", "Invalid object domain"),
        (f"CREATE TAG {TAG}", "already exists"),
    ],
)
def test_wrong_statement_is_refused(run: Run, statement: str, expected: str) -> None:
    run("CREATE TAG gov.tags.few ALLOWED_VALUES 'a', 'b' COMMENT = 'c'")
    with pytest.raises(ProgrammingError, match=expected):
        run(statement)


def test_role_needs_apply_tag_of_the_account(run: Run) -> None:
    run("CREATE ROLE r")
    run("GRANT USAGE ON DATABASE gov TO ROLE r")
    run("GRANT USAGE ON SCHEMA gov.tags TO ROLE r")
    with pytest.raises(ProgrammingError, match="Insufficient privileges"):
        run(f"ALTER WAREHOUSE w SET TAG {TAG} = 'v'", role="R")
    run("GRANT APPLY TAG ON ACCOUNT TO ROLE r")
    run(f"ALTER WAREHOUSE w SET TAG {TAG} = 'v'", role="R")
    assert value(run, "w", "WAREHOUSE") == "v"
