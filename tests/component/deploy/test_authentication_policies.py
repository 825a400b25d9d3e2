"""Accounts whose authentication policy refuses key pairs, or service users."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from snowflake.connector.errors import ProgrammingError
from vendors import ADMIN_SECRET, Vendors, in_this_process

from topicberg.clients import rsa
from topicberg.errors import TopicbergError
from topicberg_deploy.preflight import check
from topicberg_deploy.snowflake.bootstrap import Admin
from topicberg_deploy.snowflake_account import refusal_hint

OWN = "SEC.POLICIES.KEY_PAIR"
REFUSING = {
    "AUTHENTICATION_METHODS = ('SAML', 'PASSWORD')": "",
    "AUTHENTICATION_METHODS = ('PROGRAMMATIC_ACCESS_TOKEN')": " FOR ALL SERVICE USERS",
    "CLIENT_TYPES = ('SNOWFLAKE_UI')": "",
}


@pytest.fixture(scope="module")
def vendors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Vendors]:
    with in_this_process(tmp_path_factory.mktemp("vendors")) as vendors:
        vendors.sql("CREATE DATABASE SEC")
        vendors.sql("CREATE SCHEMA SEC.POLICIES")
        vendors.sql("ALTER USER DEPLOYER SET TYPE = SERVICE")
        yield vendors


@pytest.mark.parametrize("number", range(len(REFUSING)))
def test_refused_admin_is_told_what_lets_it_in(vendors: Vendors, number: int) -> None:
    properties, of = [*REFUSING.items()][number]
    policy = f"SEC.POLICIES.P{number}"
    vendors.sql(f"CREATE AUTHENTICATION POLICY {policy} {properties}")
    vendors.sql(f"ALTER ACCOUNT SET AUTHENTICATION POLICY {policy}{of}")
    try:
        with pytest.raises(TopicbergError, match="current authentication policy") as refused:
            check(vendors.open()[0])
        assert 'ALTER USER "DEPLOYER" SET AUTHENTICATION POLICY' in str(refused.value.hint)
        context, _ = vendors.open()
        public = rsa.public_key(context.secrets.read(ADMIN_SECRET) or {}, 1)
        assert public
        for statement in Admin("ORG-ACCOUNT", "DEPLOYER", public, policy=OWN).statements():
            vendors.sql(statement)
        check(vendors.open()[0])
    finally:
        vendors.sql("ALTER USER DEPLOYER UNSET AUTHENTICATION POLICY")
        vendors.sql(f"ALTER ACCOUNT UNSET AUTHENTICATION POLICY{of}")
    check(vendors.open()[0])


def test_other_refusals_have_no_hint_of_policies() -> None:
    assert refusal_hint("JWT token is invalid.", "U") is None


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE AUTHENTICATION POLICY SEC.POLICIES.W AUTHENTICATION_METHODS = ('KEY')",
        "CREATE AUTHENTICATION POLICY SEC.NONE.W AUTHENTICATION_METHODS = ('ALL')",
        "ALTER USER DEPLOYER SET AUTHENTICATION POLICY SEC.POLICIES.NONE",
        "ALTER USER NOBODY UNSET AUTHENTICATION POLICY",
    ],
)
def test_wrong_statement_is_refused(vendors: Vendors, statement: str) -> None:
    with pytest.raises(ProgrammingError):
        vendors.sql(statement)
