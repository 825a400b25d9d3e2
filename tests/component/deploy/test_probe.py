"""What `deploy probe` finds in the accounts, and that it leaves nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from vendors import Vendors, in_this_process

from topicberg_deploy.probe import probe


@pytest.fixture(scope="module")
def vendors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Vendors]:
    with in_this_process(tmp_path_factory.mktemp("vendors")) as found:
        yield found


@pytest.fixture(params=[False, True], ids=["accounts", "documents"])
def names(vendors: Vendors, request: pytest.FixtureRequest) -> Iterator[None]:
    """Snowflake describes by the names of its documents, or by those of accounts."""
    with vendors.describing(documented_names=request.param):
        yield


def differences(vendors: Vendors) -> dict[str, str]:
    context, _ = vendors.open()
    return {one.what: one.difference for one in probe(context) if one.difference}


@pytest.mark.usefixtures("names")
def test_account_as_expected_differs_in_nothing(vendors: Vendors) -> None:
    assert differences(vendors) == {}
    assert vendors.left() == set()


def test_other_names_are_listed_and_nothing_is_left(vendors: Vendors) -> None:
    with vendors.describing(sigv4_properties="OTHER"):
        (difference,) = differences(vendors).values()
    assert "DESC lacks GLUE_AWS_IAM_USER_ARN and GLUE_AWS_EXTERNAL_ID or API_AWS" in difference
    assert "OTHER_AWS_IAM_USER_ARN" in difference
    assert vendors.left() == set()


def test_network_policy_of_the_account_is_reported(vendors: Vendors) -> None:
    vendors.sql("CREATE NETWORK POLICY GUARD ALLOWED_IP_LIST = ('127.0.0.1')")
    vendors.sql("ALTER ACCOUNT SET NETWORK_POLICY = GUARD")
    try:
        found = differences(vendors)
    finally:
        vendors.sql("ALTER ACCOUNT UNSET NETWORK_POLICY")
        vendors.sql("DROP NETWORK POLICY GUARD")
    assert "GUARD must allow this machine" in found["network policy of Snowflake's account"]
